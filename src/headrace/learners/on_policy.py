"""Trains on what its newest policies did, once: the learner of on-policy algorithms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.algorithms.base import OnPolicyAlgorithm, Rollout
from headrace.lanes.rollouts import Arrived, Rollouts
from headrace.learners.base import BaseLearner, LearnerParts
from headrace.learners.checkpoint import LearnerState
from headrace.telemetry.board import Activity


class OnPolicyLearner(BaseLearner):
    """Opens an epoch set with each rollout, and makes its updates one a call.

    When a rollout is complete is the schedule's to say (`round_over`); which chunks it is made of, `Rollouts` finds from
    what has arrived. A replay, which makes an update where the run made one, thereby makes the same rollouts.

    Args:
        parts: What it is put together from.
        algorithm: What learns.
        rollouts: Over the same lanes.
    """

    algorithm: OnPolicyAlgorithm

    def __init__(self, parts: LearnerParts, algorithm: OnPolicyAlgorithm, rollouts: Rollouts) -> None:
        super().__init__(parts, algorithm)
        self.algorithm = algorithm
        self.rollouts = rollouts
        self._complete = False

    @property
    def due(self) -> bool:
        """Whether the next update may be made now: one of the epoch set, or the first of a rollout that is complete."""
        return self.algorithm.pending or self._complete

    @property
    def at_rest(self) -> bool:
        """Whether no epoch set is open."""
        return not self.algorithm.pending

    @property
    def arrived(self) -> Sequence[Arrived]:
        """What no rollout has taken."""
        return self.rollouts.arrived

    def round_over(self) -> None:
        """The next rollout is complete."""
        self._complete = bool(self.arrived)

    def update(self) -> None:
        """One gradient step; the first of an epoch set gathers its rollout. None is made where that has no step.

        Raises:
            DataLossError: No epoch set is open, and nothing has arrived.
        """
        self._parts.slot.enter(Activity.UPDATE, -1, self.updates)
        if not self.algorithm.pending and not self._open():
            return
        if self.first_update_at is None:
            self.first_update_at = self.env_steps
        self.algorithm.update()
        self._made()

    def state(self) -> LearnerState:
        """See `BaseLearner.state`; only `at_rest`."""
        state = super().state()
        return LearnerState(state.arrays, {**state.facts, "arrived": self.rollouts.state()})

    def _open(self) -> bool:
        """Begin with the next rollout; whether it has a step."""
        self._complete = False
        rollout = self.rollouts.gather()
        if rollout is None:
            self.witness.gathered_nothing(self.updates)  # it used chunks up, and no update tells of it
            return False
        self._note(rollout)
        self.algorithm.begin(rollout)
        return True

    def _note(self, rollout: Rollout) -> None:
        lags, counts = np.unique(self.version - rollout.version[rollout.valid], return_counts=True)
        for lag, count in zip(lags.tolist(), counts.tolist(), strict=True):
            self.lag.add(lag, count)
        self.sampled += int(counts.sum())

    def _took(self, group: int, chunk: int, version: int, transitions: int, *, committed: bool) -> None:
        lanes, books = list(self._parts.groups[group]), self.replay.books
        stops = tuple(books.row[lanes].tolist())
        # A cut may complete what was kept back of an episode, also where no step came with it.
        cut = not committed and bool((books.resident_from[lanes] < stops).any())
        if transitions or cut:  # else what rows there are go with the group's next
            version = version or self._newest_version(lanes)
            self.rollouts.add(Arrived(group, chunk, version, stops, has_steps=bool(transitions)))

    def _newest_version(self, lanes: Sequence[int]) -> int:
        """Of the policy behind the newest row of these lanes: a cut without a step is of those whose episode it ends."""
        block, ring = self.replay.block, self.replay.geometry.ring_rows
        return max(int(block.rows[lane, (self.replay.books.row[lane] - 1) % ring]["version"]) for lane in lanes)

    def _load(self, state: LearnerState, *, same_rows: bool) -> None:
        super()._load(state, same_rows=same_rows)
        self.rollouts.load_state(state.facts["arrived"])
