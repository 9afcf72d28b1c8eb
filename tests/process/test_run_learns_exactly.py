"""Tasks whose best return is known are learned to exactly that, through a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from choice_envs import SMALL
from run_support import Runs

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SETTINGS: Mapping[str, Any] = {
    "run.schedule": "inline",
    "run.steps": 4_000,
    "replay.ratio": 0.25,
    "evaluation.every_steps": 1_000,
    "evaluation.episodes": 20,
    "evaluation.random_baseline": False,
    "algorithm.lr": 3e-3,
    "algorithm.exploration.decay_steps": 2_000,
}
DQN: Mapping[str, Any] = {**SMALL, **SETTINGS}
IQN: Mapping[str, Any] = {
    **SETTINGS, "algorithm.name": "iqn", "algorithm.batch_size": 32, "algorithm.target.every_updates": 30,
    "algorithm.network.embedding": 32, "algorithm.network.hidden": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "n_step"),
    [("dqn", 1), pytest.param("iqn", 1, marks=pytest.mark.table), pytest.param("dqn", 3, marks=pytest.mark.table)],
)
def test_a_cue_is_remembered_with_as_many_frames_as_it_takes(runs: Runs, algorithm: str, n_step: int) -> None:
    settings = {"dqn": DQN, "iqn": IQN}[algorithm]
    run = runs.train(
        "headrace.envs.toy:cue", kwargs={"delay": 3}, **settings, env__frame_stack=4, replay__n_step=n_step
    )
    assert run.completed, run.summary["error"]
    assert run.summary["evaluations"][-1]["mean_reward"] == 1.0


def test_with_one_frame_less_nothing_can_be_remembered(runs: Runs) -> None:
    run = runs.train("headrace.envs.toy:cue", kwargs={"delay": 3}, **DQN, env__frame_stack=3)
    assert run.completed, run.summary["error"]
    assert all(abs(point["mean_reward"]) < 0.7 for point in run.summary["evaluations"])
