"""On-policy runs: what is learned does not hang on who runs when, lag is bounded, and every step is trained on once."""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGKILL, SIGSTOP
from typing import Any

import numpy as np
import pytest

from headrace.lanes.layout import LOST, STEP
from headrace.runtime.api import Run
from replay_support import Blows, blows, recorded, salvages
from run_support import PPO, Runs, assert_books, assert_gapless, events
from session_support import assert_completed, assert_replays, go_on, outcome

__all__ = ["blows"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

CHOOSES = ("CartPole-v1", {"env.frame_stack": 2})
DRAWS = ("Pendulum-v1", {"algorithm.normalize": {"observations": True, "rewards": True}, "env.max_episode_steps": 30})
SLOW = {"step_s": 0.002}
"""Long enough for the learner to report while it trains."""


def schedule(name: str, collectors: int = 1, **more: Any) -> dict[str, Any]:
    return {"run.schedule": name, "run.collectors": collectors, **more}


def trained(runs: Runs, env: str, *settings: Mapping[str, Any], **more: Any) -> Run:
    merged = {key: value for one in (PPO, *settings) for key, value in one.items()}
    run = runs.train(env, **merged, **more)
    assert_completed(run)
    return run


def assert_all_trained_on(run: Run) -> None:
    books = run.summary["books"]
    assert (books["resident"], books["in_flight"], books["evicted"]) == (0, 0, 0)
    assert books["consumed"] == run.summary["env_steps"] == run.summary["sampled"]


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        pytest.param(*CHOOSES, id="discrete, stacked"),
        pytest.param(*DRAWS, id="box, normalised"),
        pytest.param(CHOOSES[0], {**CHOOSES[1], "algorithm.name": "vtrace"}, id="vtrace", marks=pytest.mark.table),
    ],
)
def test_strictly_on_policy_every_schedule_learns_the_same(runs, env, settings):
    if settings.get("algorithm.name") == "vtrace":
        settings = {**settings, "algorithm.epochs": 1}
    alone = trained(runs, env, schedule("inline"), settings)
    assert_all_trained_on(alone)
    assert alone.summary["policy_lag"] == {"mean": 0.0, "max": 0}
    ways = [("lockstep", 2), ("async", 1), ("async", 2), ("async", 3)]
    for name, collectors in ways:
        other = trained(runs, env, schedule(name, collectors), settings)
        assert outcome(other) == outcome(alone), (name, collectors)
