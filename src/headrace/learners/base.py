"""What every learner does: take rows in, publish, keep the books. The same object runs under every schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays, Learning
from headrace.lanes.credits import Commit
from headrace.lanes.derive import observe
from headrace.lanes.layout import STEP
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import Replay, Stretch
from headrace.lanes.rollouts import Arrived
from headrace.learners.checkpoint import LearnerState
from headrace.learners.episodes import EpisodeBooks
from headrace.learners.ledgerbook import LedgerBook
from headrace.learners.policies import LearnedPolicies
from headrace.learners.suspicion import Suspicion
from headrace.learners.witness import Nobody, Salvaged, Witness
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
    """What every learner is put together from."""

    replay: Replay
    snapshots: Snapshots
    limiter: RateLimiter
    groups: tuple[tuple[int, ...], ...]
    """Lanes of each group."""
    slot: Slot = field(repr=False)
    suspicion: Suspicion | None = field(default=None, repr=False)
    """Looks at every row that arrives; None: nobody does."""
    witness: Witness = field(default_factory=Nobody, repr=False)
    """Told of every event that decides what is learned."""
    agents: tuple[str, ...] = ()
    """Names of the agents of one copy; empty where there is but one, without a name."""
    policies: LearnedPolicies = field(default_factory=LearnedPolicies)


class BaseLearner(ABC):
    """One commit a call, one update a call, in whatever order the schedule has them.

    Args:
        parts: What it is put together from.
        algorithm: What learns.
    """

    def __init__(self, parts: LearnerParts, algorithm: Learning) -> None:
        self._parts = parts
        self.replay = parts.replay
        self.algorithm = algorithm
        """What learns, whatever from."""
        self.limiter = parts.limiter
        self.episodes = EpisodeBooks(parts.replay.geometry.lanes, parts.agents)
        self.policies = parts.policies
        self.suspicion = parts.suspicion
        self.witness = parts.witness
        self.ledger: LedgerBook | None = None
        """Counts what is done beside what the configuration declares; None: nobody asks."""
        self.asked_updates = 0
        """Updates that were asked for, whatever the algorithm made of it."""
        self.lag = PolicyLag()
        self.env_steps = 0
        """Transitions committed or salvaged."""
        self.sampled = 0
        """Transitions drawn for updates, with repetition."""
        self.first_update_at: int | None = None
        """Environment steps that were stored when the first update was made; None before it."""
        self.incarnations = [0] * len(parts.groups)
        """Of each group's random streams: of its newest rows, or the next one where its collector was lost."""
        self.episodes_begun = [0] * parts.replay.geometry.lanes
        """Episodes begun in the rows taken over of each lane."""
        self._began = [-1] * parts.replay.geometry.lanes
        """Row number at which the newest of them begins."""
        self.running_from = [-1] * parts.replay.geometry.lanes
        """The same of each lane in whose environment it is running; -1 of the others."""
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
    @abstractmethod
    def due(self) -> bool:
        """Whether the next update may be made now."""

    @abstractmethod
    def update(self) -> None:
        """One gradient step."""

    @abstractmethod
    def round_over(self) -> None:
        """Every chunk that will come before the next update has arrived."""

    @property
    def arrived(self) -> Sequence[Arrived]:
        """What has arrived and is trained on only when `round_over` has been called."""
        return ()

    @property
    def at_rest(self) -> bool:
        """Whether `state` may be asked for: no epoch set is open."""
        return True

    def commit(self, commit: Commit) -> None:
        """Take over a group's chunk.

        Raises:
            DataLossError: The rows are not those its collector wrote.
        """
        slot = self._parts.slot
        slot.enter(Activity.COMMIT)
        parts = list(zip(self._parts.groups[commit.group], commit.lanes, strict=True))
        for lane, part in parts:
            self.replay.check(lane, part)
        starts = [int(self.replay.books.row[lane]) for lane, _ in parts]
        if self.ledger is not None:
            self.ledger.committed(commit, self.updates)
        self.witness.committed(commit, starts, self.updates)  # first: a record may be ahead of the books, never behind
        stretches = [self.replay.take_over(lane, part) for lane, part in parts]
        self.incarnations[commit.group] = commit.incarnation
        self._take_in(stretches)
        for lane, part in parts:
            self.running_from[lane] = self._began[lane] if part.running else -1
        self._took(
            commit.group, commit.chunk, commit.version, sum(part.transitions for part in commit.lanes), committed=True
        )
        slot.count("chunks", commit.chunk + 1)

    def salvage(self, group: int) -> int:
        """Take over what a group's dead collector had written and not committed.

        Returns:
            Transitions salvaged.
        """
        before = self.env_steps
        lanes = self._parts.groups[group]
        found = [_salvaged(self.replay, lane) for lane in lanes]
        self.incarnations[group] = int(self.replay.block.incarnation[lanes[0]]) + 1
        for lane in lanes:  # of one that died between a reset and its first step nothing else is left
            self.episodes_begun[lane] = int(self.replay.block.episodes_begun[lane])
            self.running_from[lane] = -1
        self.witness.salvaged(group, [saved for _, saved in found], self.updates)
        self._take_in([stretch for stretch, _ in found])
        made = self.env_steps - before
        chunk, version = int(self.replay.block.chunk_begun[lanes[0]][0]), max(saved.version for _, saved in found)
        self._took(group, chunk, version, made, committed=False)
        return made

    def _take_in(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            self.episodes.add(stretch)
            number, row = _newest_episode(stretch, int(self.replay.books.row[stretch.lane]))
            if number >= self.episodes_begun[stretch.lane]:
                self.episodes_begun[stretch.lane], self._began[stretch.lane] = number + 1, row
            if self.suspicion is not None:
                for piece in stretch.rows:
                    self.suspicion.add(stretch.lane, piece)
        self.env_steps = self.replay.env_steps
        seen = [_seen(self.replay, stretch) for stretch in stretches]
        whole = {name: np.concatenate([one[name] for one in seen]) for name in seen[0]}
        counts = [len(next(iter(one.values()))) for one in seen]
        policies = self.policies.of([stretch.lane for stretch in stretches], counts)
        self.algorithm.observe(whole, self.env_steps, policies)
        if self.ledger is not None:
            self.ledger.stored(self.env_steps, self.updates)
        slot = self._parts.slot
        slot.count("env_steps", self.env_steps)
        slot.count("episodes", self.episodes.finished)

    @abstractmethod
    def _took(self, group: int, chunk: int, version: int, transitions: int, *, committed: bool) -> None:
        """A chunk was taken over, or what there is of one that was never committed."""

    def _made(self) -> None:
        """An update was made."""
        self.asked_updates += 1
        self.witness.updated(self.algorithm)
        self._parts.slot.count("updates", self.updates)

    def publish(self) -> int:
        """Publish the policy as it is now, unless it is published already.

        Returns:
            The newest version.
        """
        parts = self._parts
        if self.published_updates == self.updates:
            return self.version
        parts.slot.enter(Activity.PUBLISH)
        version, checksum = parts.snapshots.prepare(self.algorithm.policy_arrays())
        self.witness.published(version, checksum, self.algorithm)  # first: no row is made by a policy not on record
        parts.snapshots.show(version)
        self.published_updates = self.updates
        if self.ledger is not None:
            self.ledger.published(version, self.updates, self.env_steps, self.published_arrays)
        parts.slot.count("version", version)
        return version

    @property
    def published_arrays(self) -> Mapping[str, NDArray[Any]]:
        """All that acting needs, as published in the newest version; live until the fourth publication from now."""
        return self._parts.snapshots.newest()[0]

    def state(self) -> LearnerState:
        """What another learner needs to go on from here with the same rows."""
        facts = {
            "rows": self.replay.books.row.tolist(),
            "episodes": self.episodes.state(),
            "lag": [self.lag.total, self.lag.transitions, self.lag.max],
            "sampled": self.sampled,
            "first_update_at": self.first_update_at,
            "version": self.version,
            "published_updates": self.published_updates,
            "incarnations": self.incarnations,
            "episodes_begun": self.episodes_begun,
        }
        return LearnerState(self.algorithm.state(), facts)

    def restore(self, state: LearnerState, published: Mapping[str, NDArray[Any]], running_from: Sequence[int]) -> None:
        """Go on exactly where `state` was taken, in lanes that hold the very rows there were.

        Args:
            state: Of the same run.
            published: `published_arrays` at that time.
            running_from: As it was at that time.
        """
        self._load(state, same_rows=True)
        self.env_steps = self.replay.env_steps
        self._parts.snapshots.go_on(state.facts["version"], published)
        self.published_updates = state.facts["published_updates"]
        self.incarnations = list(state.facts["incarnations"])
        self.episodes_begun = list(state.facts["episodes_begun"])
        self._began, self.running_from = list(running_from), list(running_from)
        slot = self._parts.slot
        for name, value in (("env_steps", self.env_steps), ("episodes", self.episodes.finished),
                            ("updates", self.updates), ("version", self.version)):  # fmt: skip
            slot.count(name, value)

    def _load(self, state: LearnerState, *, same_rows: bool) -> None:
        facts = state.facts
        self.algorithm.load_state(state.arrays)
        self.episodes.load_state(facts["episodes"])
        self.lag = PolicyLag(*facts["lag"])
        self.sampled, self.first_update_at = facts["sampled"], facts["first_update_at"]
        self.asked_updates = self.updates

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
            self._load(state, same_rows=False)
            rows = state.facts["rows"]
        self.env_steps = self.replay.env_steps  # also where no row was taken over since the save
        missed = 0
        for lane in lanes:
            start = max(rows[lane], int(self.replay.books.resident_from[lane]))
            missed += start - rows[lane]
            stop = int(self.replay.books.row[lane])
            if stop > start:
                self._take_in([Stretch(lane, self.replay.block.pieces(lane, start, stop))])
        self._parts.slot.count("updates", self.updates)  # not those that died with the other one
        return missed

    def release(self) -> None:
        """Drop all views of the shared memory."""
        if self.suspicion is not None:
            self.suspicion.release()
        self.replay.release()
        self._parts.snapshots.release()


def _salvaged(replay: Replay, lane: int) -> tuple[Stretch, Salvaged]:
    """Take over what a lane's dead collector had written."""
    books = replay.books
    start, salvaged, rejected = int(books.row[lane]), int(books.salvaged[lane]), int(books.rejected[lane])
    first = replay.block.rows[lane, start % replay.geometry.ring_rows]
    version = int(first["version"]) if books.written(lane) > start else 0  # before it may become the mark of a cut
    stretch, cut = replay.salvage(lane)
    return stretch, Salvaged(
        start, int(books.row[lane]), int(books.salvaged[lane]) - salvaged, int(books.rejected[lane]) - rejected,
        cut, version,
    )  # fmt: skip


def _newest_episode(stretch: Stretch, stop: int) -> tuple[int, int]:
    """Number of the newest episode in rows that end before row number ``stop``, and its first row among them.

    Noted when they arrive: when a checkpoint asks, the row may long have left its lane. -1 where there are no rows.
    """
    numbers = np.concatenate([piece["episode"] for piece in stretch.rows])
    if not len(numbers):
        return -1, -1
    return int(numbers[-1]), stop - len(numbers) + int(np.searchsorted(numbers, numbers[-1]))  # they only rise


def _seen(replay: Replay, stretch: Stretch) -> Arrays:
    """What a policy was shown in the transitions of a stretch, which is the newest of its lane."""
    geometry = replay.geometry
    kinds = np.concatenate([piece["kind"] for piece in stretch.rows])
    start = int(replay.books.row[stretch.lane]) - len(kinds)
    rows = np.flatnonzero(kinds == STEP) + start - (geometry.frame_stack - 1)
    places = stretch.lane * geometry.stride_rows + rows % geometry.ring_rows
    windows = replay.windows(places)[:, : geometry.frame_stack]
    return observe(windows, geometry.observation, windows["t"][:, -1])
