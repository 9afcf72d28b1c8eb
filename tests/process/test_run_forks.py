"""Environments that fork helpers: one that comes back from where it was made changes nothing of the run."""

from __future__ import annotations

from typing import Any

import pytest

from run_support import Runs, assert_books, assert_gapless
from session_support import assert_replays, outcome

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SCHEDULES: dict[str, dict[str, Any]] = {
    "inline": {"run__schedule": "inline", "run__collectors": 1},
    "async": {"run__schedule": "async", "run__collectors": 2},
    "workers": {"run__schedule": "inline", "run__collectors": 1, "env__workers": 2, "env__group_size": 2},
}
EVALUATED = {"evaluation__every_steps": 200, "evaluation__episodes": 2}
"""The evaluator's environment forks as well."""


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "fault", ["fork", "fork_exit", "fork_exit_large", "fork_fail", "fork_fail_mute", "help_itself"]
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fork_that_comes_back_ends_there(runs: Runs, schedule: str, fault: str) -> None:
    settings = SCHEDULES[schedule] | EVALUATED
    run = runs.train(kwargs={"fault": fault, "at": 13}, **settings)
    assert run.completed, run.summary["error"]
    assert_books(run)
    assert (run.summary["faults"], run.summary["restarts"], run.summary["degraded"]) == ({}, 0, None)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=0)
    assert_replays(run)
    logs = "".join(path.read_text() for path in (run.path / "logs").glob("*.log"))
    assert ("has come back from the code that made it, and ends here" in logs) is (
        fault in ("fork", "fork_fail", "fork_fail_mute")
    )
    assert ("ValueError: in the helper" in logs) is fault.startswith("fork_fail")
    assert "ENV-004" not in logs
    if schedule == "inline":
        assert outcome(run) == outcome(runs.train(**settings))
