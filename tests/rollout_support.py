"""Lanes with a read cursor, written by hand, and what the rollouts gathered from them have to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headrace.algorithms.base import Rollout
from headrace.core.specs import Leaf
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.lanes.replay import Replay, balanced
from headrace.lanes.rollouts import Arrived, Rollouts

GROUPS = ((0, 1), (2,))
PER_LANE = 10_000
"""Observations of a lane are numbered from its own number times this on."""
_ENDS = {".": (False, False), "t": (True, False), "u": (False, True)}


@dataclass
class Step:
    """One transition of the model; observations are numbers, and no two are alike."""

    lane: int
    episode: int
    t: int
    frames: tuple[float, ...]
    """Observations of its episode, up to the one it was taken on."""
    then: float
    version: int
    terminated: bool
    end: int | None
    """Number of the row that ended its episode with it; None: there is none."""

    @property
    def number(self) -> float:
        """The observation it was taken on; its action, reward and log-probability follow from it."""
        return self.frames[-1]

    def stack(self, depth: int) -> list[float]:
        """What the policy saw."""
        return [self.frames[max(0, len(self.frames) - 1 - back)] for back in range(depth - 1, -1, -1)]

    def stack_after(self, depth: int) -> list[float]:
        """What it would have seen next."""
        frames = (*self.frames, self.then)
        return [frames[max(0, len(frames) - 1 - back)] for back in range(depth - 1, -1, -1)]


@dataclass
class _Lane:
    steps: list[Step] = field(default_factory=list)
    """Every transition that was written."""
    frames: list[float] = field(default_factory=list)
    """Observations of the episode that is running; empty: none is."""
    taken: int = 0
    """How many of the steps were in a rollout."""
    episode: int = -1


class World:
    """Lanes that are written a chunk at a time, in whatever order a test has.

    Args:
        groups: Lanes of each.
        frame_stack: Frames a policy sees.
        chunk_steps: Rows that are kept are twice as many for each chunk of the window.
        window: Chunks of a group that fit in its lanes, not trained on.
        kept_rows: More of them, of each lane.
        order: See `Rollouts`.
        whole_episodes: See `Rollouts`.
    """

    def __init__(
        self, groups: Sequence[tuple[int, ...]] = GROUPS, *, frame_stack: int = 1, chunk_steps: int = 4, window: int = 1,
        kept_rows: int = 0, order: Literal["chunk", "arrival"] = "chunk", whole_episodes: bool = False,
    ) -> None:  # fmt: skip
        lanes = sum(map(len, groups))
        obs = Leaf("obs", np.dtype(np.float32), (3,))
        action = Leaf("action", np.dtype(np.int64), ())
        told = Leaf("logprob", np.dtype(np.float32), ())
        capacity = lanes * (2 * window * chunk_steps + kept_rows)
        self.geometry = Geometry(
            lanes,
            capacity,
            (obs,),
            (action,),
            chunk_steps,
            window,
            frame_stack=frame_stack,
            told=(told,),
            consumed=True,
        )
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        self.rollouts = Rollouts(self.replay, groups, order, whole_episodes=whole_episodes)
        self.groups = groups
        self.writers = [LaneWriter(self.block, lane) for lane in range(lanes)]
        self.lanes = [_Lane() for _ in range(lanes)]
        self._next = [lane * PER_LANE for lane in range(lanes)]
        self._chunk = [0] * len(groups)

    def write(self, lane: int, steps: str, version: int = 1) -> None:
        """Steps of a lane: each goes on (.), terminates (t), is truncated (u), or loses its environment (l).

        An episode is begun as soon as the one before is over, as collectors do.
        """
        for step in steps:
            if not self.lanes[lane].frames:
                self._begin(lane)
            if step == "l":
                self._lose(lane, version)
            else:
                self._step(lane, _ENDS[step], version)
        if not self.lanes[lane].frames:
            self._begin(lane)

    def commit(self, group: int, steps: str | Sequence[str], version: int = 1) -> None:
        """Write the group's next chunk, the same steps in each lane or others, and take it over."""
        self.take_over(self.collect(group, steps, version))

    def collect(self, group: int, steps: str | Sequence[str], version: int = 1) -> Commit:
        """Write the group's next chunk; what its collector then says."""
        lanes = self.groups[group]
        self.begin_chunk(group)
        parts = []
        for lane, own in zip(lanes, [steps] * len(lanes) if isinstance(steps, str) else steps, strict=True):
            start, before = self.writers[lane].row, self.writers[lane].transitions
            self.write(lane, own, version)
            row = self.writers[lane].row
            made = self.writers[lane].transitions - before
            parts.append(LaneCommit(row, made, self.block.checksum(lane, start, row)))
        self._chunk[group] += 1
        return Commit(0, group, self._chunk[group] - 1, version, last=False, lanes=tuple(parts))

    def take_over(self, commit: Commit) -> None:
        """Commits arrive."""
        lanes = self.groups[commit.group]
        for lane, part in zip(lanes, commit.lanes, strict=True):
            self.replay.commit(lane, part)
        self.rollouts.add(Arrived(commit.group, commit.chunk, commit.version, self._stops(lanes)))

    def salvage(self, group: int, version: int = 1) -> int:
        """The group's collector is gone, and another one takes its place; transitions found."""
        lanes, before = self.groups[group], self.replay.env_steps
        for lane in lanes:
            _, cut = self.replay.salvage(lane)
            assert cut == (len(self.lanes[lane].frames) > 1)
        self.replaced(group)
        found = self.replay.env_steps - before
        if found:
            self.rollouts.add(Arrived(group, self._chunk[group], version, self._stops(lanes)))
            self._chunk[group] += 1
        return found

    def replaced(self, group: int) -> None:
        """Another collector writes the group's lanes, whose rows have been salvaged."""
        for lane in self.groups[group]:
            model = self.lanes[lane]
            if len(model.frames) > 1:
                model.steps[-1].end = int(self.replay.books.row[lane]) - 1
            model.frames = []
            self.writers[lane] = LaneWriter(self.block, lane)

    def begin_chunk(self, group: int) -> None:
        """As its collector notes it in the lanes."""
        for lane in self.groups[group]:
            self.block.chunk_begun[lane] = self._chunk[group], self.writers[lane].row

    def gather(self, expected: Mapping[int, int]) -> Rollout:
        """A rollout that has to hold so many of each lane's steps, the next ones."""
        found = self.rollouts.gather()
        assert found is not None
        self.check(found, self.take(expected))
        return found

    def take(self, counts: Mapping[int, int]) -> dict[int, list[Step]]:
        """The next steps of each lane in the model."""
        taken = {}
        for lane, count in counts.items():
            model = self.lanes[lane]
            taken[lane] = model.steps[model.taken : model.taken + count]
            assert len(taken[lane]) == count
            model.taken += count
        return taken

    def check(self, rollout: Rollout, expected: Mapping[int, Sequence[Step]]) -> None:
        """Every number of a rollout."""
        streams = {lane: steps for lane, steps in sorted(expected.items()) if steps}
        assert rollout.lanes.tolist() == list(streams), f"streams of lanes {rollout.lanes}, expected {list(streams)}"
        longest = max(map(len, streams.values()))
        found = rollout.valid.shape
        assert found == (longest, len(streams)), f"{found} steps and streams, expected {longest, len(streams)}"
        assert found == rollout.at.shape == rollout.then.shape
        shown = rollout.obs["obs"].reshape(len(rollout.obs["obs"]), -1, 3)[:, :, 0]
        own = shown[:, -1].tolist()
        assert len(own) == len(set(own)), "an observation is there twice"
        for stream, steps in enumerate(streams.values()):
            assert rollout.valid[:, stream].tolist() == [True] * len(steps) + [False] * (longest - len(steps))
            for t, step in enumerate(steps):
                self._check_step(rollout, shown, (t, stream), step, last=t == len(steps) - 1)
        for name in ("terminated", "ended", "episode_ended"):
            assert not getattr(rollout, name)[~rollout.valid].any(), name

    def _check_step(
        self, rollout: Rollout, shown: np.ndarray, place: tuple[int, int], step: Step, *, last: bool
    ) -> None:
        depth = self.geometry.frame_stack
        before, after = (shown[at[place]].tolist() for at in (rollout.at, rollout.then))
        assert before == step.stack(depth), f"{place} was taken on {before}, expected {step.stack(depth)}"
        assert after == step.stack_after(depth), f"{place} led to {after}, expected {step.stack_after(depth)}"
        assert rollout.action["action"][place] == int(step.number) % 4 + 2
        assert rollout.told["logprob"][place] == np.float32(-step.number / 7)
        assert rollout.reward[place] == step.number % 5
        assert rollout.version[place] == step.version
        found = tuple(bool(getattr(rollout, name)[place]) for name in ("terminated", "ended", "episode_ended"))
        over = step.end is not None and step.end < self.replay.books.resident_from[step.lane]  # else nobody knows yet
        assert found == (step.terminated, over or last, over), (
            f"{place} terminates, ends a stretch, an episode: {found}"
        )

    def check_books(self) -> None:
        """To the unit, lane by lane."""
        for lane, model in enumerate(self.lanes):
            books = self.replay.books.lane(lane)
            assert balanced(books)
            assert books["consumed"] == model.taken
            assert books["resident"] + books["in_flight"] == len(model.steps) - model.taken
            assert books["evicted"] == 0

    def _stops(self, lanes: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(self.replay.books.row[lane]) for lane in lanes)

    def _observation(self, lane: int) -> list[np.ndarray]:
        self._next[lane] += 1
        self.lanes[lane].frames.append(float(self._next[lane]))
        return [np.full(3, self._next[lane], np.float32)]

    def _begin(self, lane: int) -> None:
        self.lanes[lane].episode += 1
        self.writers[lane].begin_episode(self._observation(lane))

    def _step(self, lane: int, ended: tuple[bool, bool], version: int) -> None:
        model = self.lanes[lane]
        number = model.frames[-1]
        acted = [np.int64(int(number) % 4 + 2), np.float32(-number / 7)]
        frames = tuple(model.frames)
        obs = self._observation(lane)
        self.writers[lane].step(acted, number % 5, ended, obs, version)
        end = self.writers[lane].row - 1 if any(ended) else None
        model.steps.append(Step(lane, model.episode, len(frames) - 1, frames, model.frames[-1], version, ended[0], end))
        if any(ended):
            model.frames = []

    def _lose(self, lane: int, version: int) -> None:
        model = self.lanes[lane]
        self.writers[lane].lose(version)
        if len(model.frames) > 1:
            model.steps[-1].end = self.writers[lane].row - 1
        model.frames = []
