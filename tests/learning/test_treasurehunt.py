"""Does it learn? Two agents of the treasure hunt, each with a policy of its own, well beyond what random actions collect."""

from __future__ import annotations

import pytest

import headrace

pytestmark = pytest.mark.learning


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("schedule", "seed"), [("inline", 0), ("async", 0), ("async", 1)])
def test_agents_find_twice_what_chance_finds(schedule, seed, tmp_path):
    run = headrace.train("treasurehunt-iqn-small", schedule=schedule, seed=seed, run_dir=tmp_path / "run")
    assert run.summary["error"] is None
    random, last = run.summary["random_baseline"], run.summary["evaluations"][-1]
    assert last["mean_reward"] > 2.0 * random["mean_reward"]
    assert all(earned > 1.5 * random["agents"][agent] for agent, earned in last["agents"].items())
    assert run.summary["books"]["balanced"]
    assert [one for one in run.summary["warnings"] if one["severity"] == "warning"] == []
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(0.01, rel=0.03)
