"""Statistics of episodes, taken from the very rows that are learned from."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from headrace.lanes.layout import CUT, FINAL
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
        recent: How many finished episodes the means are taken over.
    """

    def __init__(self, lanes: int, recent: int = 100) -> None:
        self._reward_sum = [0.0] * lanes
        self._length = [0] * lanes
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
        for rows in stretch.rows:
            rewards, kinds = rows["reward"], rows["kind"]
            start = 0
            for end in np.flatnonzero((kinds == FINAL) | (kinds == CUT)).tolist():
                self._grow(lane, rewards[start:end])
                episode = Episode(lane, self._reward_sum[lane], self._length[lane])
                if kinds[end] == CUT:
                    self.cut += 1
                else:
                    ended.append(episode)
                self._reward_sum[lane], self._length[lane] = 0.0, 0
                start = end + 1
            self._grow(lane, rewards[start:])
            self.terminated += int(rows["terminated"].sum())
            self.truncated += int((rows["truncated"] & ~rows["terminated"]).sum())
        self._recent.extend(ended)
        return ended

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

    def counts(self) -> dict[str, int]:
        """As ``summary.json`` has them."""
        return {
            "finished": self.finished,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "cut": self.cut,
        }
