"""Runs whose environments write into what they are given, and into what they have returned: nothing stored changes by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.lanes.layout import STEP
from headrace.runtime.api import Run
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import verify_run
from run_support import Runs, events
from session_support import assert_completed, assert_replays, in_sessions, outcome

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

INLINE: dict[str, Any] = {"run__schedule": "inline", "run__collectors": 1}
STEPS = (216, 456)


def assert_stored(runs: Runs) -> None:
    """What each transition earned is what was done in it."""
    for rows in runs.rows:
        made = rows[rows["kind"] == STEP]
        assert len(made) > 50
        assert np.abs(made["action"]).max() > 0
        np.testing.assert_array_equal(made["reward"], made["action"].sum(axis=1, dtype=np.float32).astype(np.float64))


def assert_verified(run: Run) -> None:
    assert verify_run(RunDirectory.open(run.path), samples=100_000).largest_difference == 0.0
    assert_replays(run)


def assert_goes_on(runs: Runs, env: str, whole: Run, **settings: Any) -> None:
    """Stopped between, it comes to the same, and no episode is cut."""
    stopped = in_sessions(runs, env, [{**INLINE, "run__steps": steps} for steps in STEPS], **settings)
    assert outcome(stopped) == outcome(whole)
    assert (stopped.summary["episodes"]["cut"], events(stopped, "not_restored")) == (0, [])


def test_nothing_stored_learned_or_verified_changes(runs: Runs) -> None:
    settings = {"env__max_episode_steps": 55, "evaluation__every_steps": 200, "evaluation__episodes": 2}
    found = []
    for workers in (0, 1):
        run = runs.train("run_envs:scribbler", **INLINE, run__steps=STEPS[-1], env__workers=workers, **settings)
        assert_completed(run)
        assert_stored(runs)
        found.append({**outcome(run), "mean": run.summary["evaluations"][-1]["mean_reward"]})
        assert_verified(run)
    assert found[0] == found[1]
    assert_goes_on(runs, "run_envs:scribbler", run, **settings)


def test_of_many_agents_neither(runs: Runs) -> None:
    settings = {"env__lanes": 6, "env__group_size": 3, "agents__count": 3}
    run = runs.train("agent_envs:scribblers", **INLINE, run__steps=STEPS[-1], **settings)
    assert_completed(run)
    assert_stored(runs)
    assert_verified(run)
    assert_goes_on(runs, "agent_envs:scribblers", run, **settings)
