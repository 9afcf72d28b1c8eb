"""DQN's learner, lanes and collectors together, in the test's own process: learned, recorded, replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choice_envs
from headrace.algorithms.dqn import DQN
from headrace.lanes.prioritised import PrioritisedSampler
from headrace.runtime.replayer import Replayer, replay
from record_here import record_here

PRIORITY = {"algorithm.priority.enabled": True, "algorithm.priority.beta_updates": 300}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plots": ("choice_envs:plots", {**choice_envs.PLOTS, **PRIORITY, "run.schedule": "async", "replay.capacity": 160}),
    "gates": ("choice_envs:gates", {**choice_envs.GATES, **PRIORITY, "replay.n_step": 2}),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a case, which is made once and only read."""

    @cache
    def made(case: str) -> Path:
        env, settings = CASES[case]
        return record_here(tmp_path_factory.mktemp("recorded") / "run", env__factory=env, **settings)

    return made


@pytest.mark.thin(2)
@pytest.mark.parametrize("case", CASES)
def test_what_chooses_is_recorded_and_replayed_bit_for_bit(recorded: Callable[[str], Path], case: str) -> None:
    """The environments raise where what cannot be chosen is, or an action is no plain number."""
    assert replay(recorded(case)).ended


def test_errors_become_priorities_and_priorities_weights(recorded: Callable[[str], Path]) -> None:
    with ExitStack() as stack:
        replayer = stack.enter_context(Replayer(recorded("plots")))
        learner = replayer.learner
        sampler, algorithm = learner._sampler, learner.algorithm
        assert isinstance(sampler, PrioritisedSampler)
        assert isinstance(algorithm, DQN)
        update, seen = algorithm.update, []

        def watched(batch: Any) -> Any:
            expected = sampler.weights(algorithm.updates)
            np.testing.assert_array_equal(batch.weight, expected)
            errors = update(batch)
            seen.append((errors.copy(), *sampler.drawn, expected))
            return errors

        algorithm.update = watched
        assert replayer.run() is None
        assert len(seen) == algorithm.updates > 300
        errors, lanes, rows, _ = seen[-1]
        expected = (errors.astype(np.float64) + 1e-6) ** 0.6
        last = {(lane, row): value for lane, row, value in zip(lanes.tolist(), rows.tolist(), expected, strict=True)}
        found = sampler.priorities(*(np.array(part) for part in zip(*last, strict=True)))
        here = found > 0  # what has been evicted since has none
        np.testing.assert_array_equal(found[here], np.array(list(last.values()))[here])
        assert here.any()
        weights = np.concatenate([weight for *_, weight in seen])
        assert weights.max() == 1.0
        assert weights.min() < 0.7


def test_priorities_are_part_of_the_learners_state(recorded: Callable[[str], Path]) -> None:
    with Replayer(recorded("plots")) as replayer:
        assert replayer.run() is None
        learner = replayer.learner
        sampler = learner._sampler
        assert isinstance(sampler, PrioritisedSampler)
        state, lanes, rows = learner.state().copy(), *sampler.drawn
        before, drew = sampler.priorities(lanes, rows), sampler.generator.bit_generator.state
        sampler.sample(8)
        sampler.reprioritise(lanes, rows, np.full(len(rows), 77.0))
        assert not np.array_equal(sampler.priorities(lanes, rows), before)
        learner._load(state, same_rows=True)
        np.testing.assert_array_equal(sampler.priorities(lanes, rows), before)
        assert sampler.generator.bit_generator.state == drew
