"""Statistics of episodes, taken from the very rows that are learned from."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.lanes.layout import CUT, FINAL, LOST, present
from headrace.lanes.replay import Stretch


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that ended by itself."""

    lane: int
    reward_sum: float
    length: int
    """Environment steps."""


class EpisodeBooks:
    """Counts every episode that ends in the rows it is shown; each row is shown once, in order.

    Args:
        lanes: Number of lanes.
        agents: Names of the agents of one copy, whose lanes follow each other; empty where there is but one.
        recent: How many finished episodes the means are taken over.
    """

    def __init__(self, lanes: int, agents: Sequence[str] = (), recent: int = 100) -> None:
        self._agents = tuple(agents)
        self._reward_sum = [0.0] * lanes
        self._length = [0] * lanes
        self._finished = [0] * lanes
        self._recent: deque[Episode] = deque(maxlen=recent)
        self.terminated = 0
        self.truncated = 0
        self.cut = 0
        """Episodes a fault ended; not among the finished."""

    @property
    def finished(self) -> int:
        """Episodes that ended by themselves."""
        return self.terminated + self.truncated

    def add(self, stretch: Stretch) -> list[Episode]:
        """Take notice of new rows.

        Returns:
            The episodes that ended in them.
        """
        ended: list[Episode] = []
        lane = stretch.lane
        for piece in stretch.rows:
            rows = present(piece)
            rewards, kinds = rows["reward"], rows["kind"]
            start = 0
            for end in np.flatnonzero((kinds == FINAL) | (kinds == CUT) | (kinds == LOST)).tolist():
                self._grow(lane, rewards[start:end])
                episode = Episode(lane, self._reward_sum[lane], self._length[lane])
                if kinds[end] == FINAL:
                    ended.append(episode)
                    self._finished[lane] += 1
                else:
                    self.cut += 1
                self._reward_sum[lane], self._length[lane] = 0.0, 0
                start = end + 1
            self._grow(lane, rewards[start:])
            self.terminated += int(rows["terminated"].sum())
            self.truncated += int((rows["truncated"] & ~rows["terminated"]).sum())
        self._recent.extend(ended)
        return ended

    def state(self) -> dict[str, Any]:
        """All of it, as JSON knows it."""
        return {
            "reward_sum": self._reward_sum,
            "length": self._length,
            "finished": self._finished,
            "recent": [[episode.lane, episode.reward_sum, episode.length] for episode in self._recent],
            "counts": [self.terminated, self.truncated, self.cut],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of as many lanes."""
        self._reward_sum, self._length = list(state["reward_sum"]), list(state["length"])
        self._finished = list(state["finished"])
        self._recent.clear()
        self._recent.extend(Episode(*values) for values in state["recent"])
        self.terminated, self.truncated, self.cut = state["counts"]

    def _grow(self, lane: int, rewards: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        self._reward_sum[lane] += float(rewards.sum())
        self._length[lane] += len(rewards)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest finished episodes; None before the first."""
        return float(np.mean([episode.reward_sum for episode in self._recent])) if self._recent else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the same episodes, in environment steps."""
        return float(np.mean([episode.length for episode in self._recent])) if self._recent else None

    def by_agent(self) -> dict[str, dict[str, Any]]:
        """Finished episodes of each agent, and mean return and length of its newest; None before the first."""
        found = {}
        for number, agent in enumerate(self._agents):
            own = [one for one in self._recent if one.lane % len(self._agents) == number]
            found[agent] = {
                "episodes": sum(self._finished[number :: len(self._agents)]),
                "mean_return": float(np.mean([one.reward_sum for one in own])) if own else None,
                "mean_length": float(np.mean([one.length for one in own])) if own else None,
            }
        return found

    def counts(self) -> dict[str, int]:
        """As ``summary.json`` has them."""
        return {
            "finished": self.finished,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "cut": self.cut,
        }
