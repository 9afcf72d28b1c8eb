"""Does it learn? CartPole to a mean return of 475 or more, in one process and asynchronously, at the same replay ratio."""

from __future__ import annotations

import pytest

import headrace

pytestmark = pytest.mark.learning


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_dqn_balances_the_pole(schedule, seed, tmp_path):
    run = headrace.train(
        "cartpole-dqn",
        schedule=schedule,
        seed=seed,
        run_dir=tmp_path / "run",
        settings={"evaluation.random_baseline": False},
    )

    assert run.summary["error"] is None
    assert max(point["mean_reward"] for point in run.summary["evaluations"]) >= 475.0
    assert run.summary["env_steps"] <= 60_000 + 48, "one round of chunks at most beyond the limit"
    assert run.summary["books"]["balanced"]
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(0.5, abs=0.03)
