"""Does it learn? Pendulum, in one process and asynchronously, at the same replay ratio."""

from __future__ import annotations

import pytest

import headrace

pytestmark = pytest.mark.learning


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_td3_swings_the_pendulum_up(schedule, seed, tmp_path):
    run = headrace.train(
        "pendulum-td3",
        schedule=schedule,
        seed=seed,
        steps=15_000,
        run_dir=tmp_path / "run",
        settings={"evaluation.target": -200.0, "evaluation.every_steps": 1000, "evaluation.random_baseline": False},
    )

    assert run.summary["error"] is None
    assert run.summary["env_steps"] <= 15_000 + 48, "one round of chunks at most beyond the limit"
    assert max(point["mean_reward"] for point in run.summary["evaluations"]) > -200.0
    assert run.summary["books"]["balanced"]
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_sac_swings_the_pendulum_up(schedule, seed, tmp_path):
    """It settles between -142 and -205, depending on how the ten episodes of a seed begin; it was above -200 by step 6,000."""
    run = headrace.train(
        "pendulum-sac",
        schedule=schedule,
        seed=seed,
        steps=10_000,
        run_dir=tmp_path / "run",
        settings={"evaluation.target": -230.0, "evaluation.every_steps": 1000, "evaluation.random_baseline": False},
    )

    assert run.summary["error"] is None
    assert run.summary["env_steps"] <= 10_000 + 48, "one round of chunks at most beyond the limit"
    assert max(point["mean_reward"] for point in run.summary["evaluations"]) > -230.0
    assert run.summary["books"]["balanced"]
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(1.0, abs=0.05)
