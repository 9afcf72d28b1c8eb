"""Samples what the lanes hold, and updates: the learner of off-policy algorithms."""

from __future__ import annotations

from dataclasses import replace

from headrace.algorithms.base import Algorithm, Transitions
from headrace.lanes.derive import transitions
from headrace.lanes.samplers import Sampler
from headrace.learners.base import BaseLearner, LearnerParts
from headrace.learners.checkpoint import LearnerState
from headrace.learners.witness import Drawn
from headrace.telemetry.board import Activity

_SAMPLER = "sampler."
"""Names of the sampler's arrays among those of a state begin with it."""


class Learner(BaseLearner):
    """Makes updates at the declared ratio, each from a batch of transitions of any age.

    Args:
        parts: What it is put together from.
        algorithm: What learns.
        sampler: Draws the batches.
        batch_size: Transitions per update, for each policy.
        gamma: Discount per step.
    """

    algorithm: Algorithm

    def __init__(
        self, parts: LearnerParts, algorithm: Algorithm, sampler: Sampler, batch_size: int, gamma: float
    ) -> None:
        super().__init__(parts, algorithm)
        self.algorithm = algorithm
        self._sampler = sampler
        self._batch_size = batch_size
        self._gamma = gamma

    @property
    def due(self) -> bool:
        """Whether the next update may be made now."""
        return self.updates < self.limiter.updates_due(self.env_steps) and self._sampler.ready

    def batch(self) -> Transitions:
        """The next batch of the sampling stream."""
        geometry, sampler = self.replay.geometry, self._sampler
        windows = sampler.sample(self._batch_size)
        batch = transitions(windows, geometry.observation, geometry.action, geometry.frame_stack, self._gamma)
        batch.weight = sampler.weights(self.updates)
        drawn = Drawn(sampler.places, windows, batch, geometry.n_step, geometry.head_offset)
        self.witness.drew(drawn, self.updates)
        return batch

    def update(self) -> None:
        """One gradient step."""
        self._parts.slot.enter(Activity.UPDATE, -1, self.updates)
        if self.first_update_at is None:
            self.first_update_at = self.env_steps
        self._sampler.learned(self.algorithm.update(self.batch()))
        self.sampled += len(self._sampler.places)
        self._made()

    def round_over(self) -> None:
        """See `BaseLearner.round_over`; updates wait for no round."""

    def state(self) -> LearnerState:
        """See `BaseLearner.state`."""
        state = super().state()
        arrays = {f"{_SAMPLER}{name}": array for name, array in self._sampler.state().items()}
        facts = {"generator": self._sampler.generator.bit_generator.state}
        return LearnerState({**state.arrays, **arrays}, {**state.facts, **facts})

    def _took(self, group: int, chunk: int, version: int, transitions: int, *, committed: bool) -> None:
        if committed:
            self.lag.add(self.version - version, transitions)
            self.policies.refuse_endless_want(self._sampler, self.limiter, self.replay, self.updates)

    def _load(self, state: LearnerState, *, same_rows: bool) -> None:
        sampler = {
            name.removeprefix(_SAMPLER): array for name, array in state.arrays.items() if name.startswith(_SAMPLER)
        }
        others = {name: array for name, array in state.arrays.items() if not name.startswith(_SAMPLER)}
        super()._load(replace(state, arrays=others), same_rows=same_rows)
        self._sampler.generator.bit_generator.state = state.facts["generator"]
        self._sampler.load_state(sampler, same_rows=same_rows)
