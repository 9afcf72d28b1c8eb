"""Takes rows in, samples, updates, publishes. The same object runs under every schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.algorithms.base import Algorithm, Transitions
from headrace.lanes.credits import Commit
from headrace.lanes.derive import transitions
from headrace.lanes.layout import STEP
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import Replay, Stretch
from headrace.lanes.samplers import UniformSampler
from headrace.learners.checkpoint import LearnerState
from headrace.learners.episodes import EpisodeBooks
from headrace.learners.suspicion import Suspicion
from headrace.telemetry.board import Activity, Slot
from headrace.weights.snapshot import Snapshots


@dataclass(slots=True)
class PolicyLag:
    """By how many versions the policies that acted were older than the newest one, per transition."""

    total: int = 0
    transitions: int = 0
    max: int = 0

    def add(self, lag: int, transitions: int) -> None:
        """Note ``transitions`` that were made ``lag`` versions behind."""
        self.total += lag * transitions
        self.transitions += transitions
        self.max = max(self.max, lag)

    @property
    def mean(self) -> float | None:
        """Mean over transitions; None before the first."""
        return self.total / self.transitions if self.transitions else None


@dataclass(frozen=True, slots=True)
class LearnerParts:
    """What a learner is put together from."""

    replay: Replay
    sampler: UniformSampler
    algorithm: Algorithm
    snapshots: Snapshots
    limiter: RateLimiter
    groups: tuple[tuple[int, ...], ...]
    """Lanes of each group."""
    batch_size: int
    gamma: float
    slot: Slot = field(repr=False)
    suspicion: Suspicion | None = field(default=None, repr=False)
    """Looks at every row that arrives; None: nobody does."""


class Learner:
    """One commit a call, one update a call, in whatever order the schedule has them."""

    def __init__(self, parts: LearnerParts) -> None:
        self._parts = parts
        self.replay = parts.replay
        self.algorithm = parts.algorithm
        self.limiter = parts.limiter
        self.episodes = EpisodeBooks(parts.replay.geometry.lanes)
        self.suspicion = parts.suspicion
        self.lag = PolicyLag()
        self.env_steps = 0
        """Transitions committed or salvaged."""
        self.sampled = 0
        """Transitions drawn for updates, with repetition."""
        self.first_update_at: int | None = None
        """Environment steps that were stored when the first update was made; None before it."""
        self.published_updates = -1
        """Updates behind the newest published policy; -1: none is published."""

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self.algorithm.updates

    @property
    def version(self) -> int:
        """The newest published policy version."""
        return self._parts.snapshots.version

    @property
    def due(self) -> bool:
        """Whether the next update may be made now."""
        return self.updates < self.limiter.updates_due(self.env_steps) and self._parts.sampler.rows > 0

    def commit(self, commit: Commit) -> None:
        """Take over a group's chunk.

        Raises:
            DataLossError: The rows are not those its collector wrote.
        """
        slot = self._parts.slot
        slot.enter(Activity.COMMIT)
        lanes = self._parts.groups[commit.group]
        stretches = [self.replay.commit(lane, part) for lane, part in zip(lanes, commit.lanes, strict=True)]
        self.lag.add(self.version - commit.version, sum(part.transitions for part in commit.lanes))
        self._take_in(stretches)
        slot.count("chunks", commit.chunk + 1)

    def salvage(self, group: int) -> int:
        """Take over what a group's dead collector had written and not committed.

        Returns:
            Transitions salvaged.
        """
        before = self.env_steps
        self._take_in([self.replay.salvage(lane)[0] for lane in self._parts.groups[group]])
        return self.env_steps - before

    def _take_in(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            self.episodes.add(stretch)
            if self.suspicion is not None:
                for piece in stretch.rows:
                    self.suspicion.add(stretch.lane, piece)
        self.env_steps = self.replay.env_steps
        geometry = self.replay.geometry
        rows = np.concatenate([piece for stretch in stretches for piece in stretch.rows])
        rows = rows[rows["kind"] == STEP]
        self.algorithm.observe({leaf.path: rows[leaf.path] for leaf in geometry.observation}, self.env_steps)
        slot = self._parts.slot
        slot.count("env_steps", self.env_steps)
        slot.count("episodes", self.episodes.finished)

    def batch(self) -> Transitions:
        """The next batch of the sampling stream."""
        parts, geometry = self._parts, self.replay.geometry
        windows = parts.sampler.sample(parts.batch_size)
        return transitions(windows, geometry.observation, geometry.action, geometry.frame_stack, parts.gamma)

    def update(self) -> None:
        """One gradient step."""
        parts = self._parts
        parts.slot.enter(Activity.UPDATE, -1, self.updates)
        if self.first_update_at is None:
            self.first_update_at = self.env_steps
        self.algorithm.update(self.batch())
        self.sampled += parts.batch_size
        parts.slot.count("updates", self.updates)

    def publish(self) -> int:
        """Publish the policy as it is now, unless it is published already.

        Returns:
            The newest version.
        """
        parts = self._parts
        if self.published_updates == self.updates:
            return self.version
        parts.slot.enter(Activity.PUBLISH)
        version = parts.snapshots.publish(self.algorithm.policy_arrays())
        self.published_updates = self.updates
        parts.slot.count("version", version)
        return version

    def state(self) -> LearnerState:
        """What another learner needs to go on from here with the same lanes."""
        facts = {
            "rows": self.replay.books.row.tolist(),
            "generator": self._parts.sampler.generator.bit_generator.state,
            "episodes": self.episodes.state(),
            "lag": [self.lag.total, self.lag.transitions, self.lag.max],
            "sampled": self.sampled,
            "first_update_at": self.first_update_at,
        }
        return LearnerState(self.algorithm.state(), facts)

    def resume(self, state: LearnerState | None) -> int:
        """Take the place of a learner that died, in lanes that hold what it had taken over.

        Args:
            state: The newest it had saved; None starts from fresh weights, with all experience.

        Returns:
            Rows it had taken over after saving, or before, that have been evicted since: their episodes are not
            in the counts, nor their observations in the normaliser.
        """
        lanes = range(self.replay.geometry.lanes)
        rows = [self.replay.geometry.first_row] * len(lanes)
        if state is not None:
            facts = state.facts
            self.algorithm.load_state(state.arrays)
            self._parts.sampler.generator.bit_generator.state = facts["generator"]
            self.episodes.load_state(facts["episodes"])
            self.lag = PolicyLag(*facts["lag"])
            self.sampled, self.first_update_at = facts["sampled"], facts["first_update_at"]
            rows = facts["rows"]
        missed = 0
        for lane in lanes:
            start = max(rows[lane], int(self.replay.books.resident_from[lane]))
            missed += start - rows[lane]
            stop = int(self.replay.books.row[lane])
            if stop > start:
                self._take_in([Stretch(lane, self.replay.block.pieces(lane, start, stop))])
        return missed

    def release(self) -> None:
        """Drop all views of the shared memory."""
        if self.suspicion is not None:
            self.suspicion.release()
        self.replay.release()
        self._parts.snapshots.release()
