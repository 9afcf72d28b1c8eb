"""IQN's learner, lanes and collectors together, in the test's own process: learned, recorded, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.algorithms.iqn import IQN
from headrace.lanes.prioritised import PrioritisedSampler
from headrace.runtime.replayer import Replayer, replay
from record_here import record_here

SMALL: dict[str, Any] = {
    "algorithm.name": "iqn", "algorithm.batch_size": 16, "algorithm.network.embedding": 16, "algorithm.network.hidden": 16,
    "algorithm.network.cosines": 8, "algorithm.quantiles.online": 4, "algorithm.quantiles.next": 4,
    "algorithm.quantiles.acting": 4, "algorithm.exploration.decay_steps": 300, "algorithm.target.every_updates": 30,
    "algorithm.actions.mask_leaf": "obs.action_mask", "collect.random_steps": 0,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {"replay.n_step": 2, "algorithm.optimiser.lr_final": 1e-5, "algorithm.optimiser.lr_decay_updates": 300},
    "noisy": {"algorithm.network.noisy": True, "algorithm.priority.enabled": True, "run.schedule": "async"},
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_recorded_and_replayed_bit_for_bit(tmp_path: Path, case: str) -> None:
    """The environment raises where what cannot be chosen is."""
    run = record_here(tmp_path / "run", env__factory="choice_envs:gates", **SMALL, **CASES[case])
    assert replay(run).ended
    with Replayer(run) as replayer:
        assert replayer.run() is None
        learner = replayer.learner
        assert isinstance(learner.algorithm, IQN)
        assert learner.algorithm.updates > 300
        assert isinstance(learner._sampler, PrioritisedSampler) is (case == "noisy")
        ledger = learner.algorithm.ledger()
        assert all(ledger[name] == ledger[f"{name}_declared"] for name in ledger if f"{name}_declared" in ledger)
