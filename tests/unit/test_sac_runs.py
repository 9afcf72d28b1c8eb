"""SAC's learner, lanes and collectors together, in the test's own process: learned, recorded, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.algorithms.sac import SAC
from headrace.runtime.replayer import Replayer
from record_here import record_here
from run_support import FIXED_SAC
from run_support import SAC as SMALL

CASES: dict[str, dict[str, Any]] = {
    "plain": {**SMALL, "replay.n_step": 2, "algorithm.normalize_observations": True},
    "async": {**SMALL, "run.schedule": "async", "algorithm.temperature.target_entropy": 0.0},
    "fixed": {**FIXED_SAC, "env.group_size": 2, "algorithm.temperature.value": 0.2},
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_recorded_and_replayed_bit_for_bit(tmp_path: Path, case: str) -> None:
    run = record_here(tmp_path / "run", **CASES[case])
    with Replayer(run) as replayer:
        assert replayer.run() is None
        algorithm = replayer.learner.algorithm
        assert isinstance(algorithm, SAC)
        assert algorithm.updates > 300
        ledger = algorithm.ledger()
        assert all(ledger[name] == ledger[f"{name}_declared"] for name in ledger if f"{name}_declared" in ledger)
        assert ("temperature_steps" in ledger) is (case != "fixed")
