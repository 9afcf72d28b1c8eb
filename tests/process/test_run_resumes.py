"""A run that is stopped and resumed does what it would have done."""

from __future__ import annotations

import bisect
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import choice_envs
import headrace
from headrace.core.clock import MonotonicClock
from headrace.learners.checkpoints import load_checkpoint
from headrace.runtime.api import Run
from run_support import SAC, SBX, SMALL, Runs, events
from session_support import (
    assert_completed,
    assert_replays,
    board_updates,
    go_on,
    in_sessions,
    metrics,
    options,
    outcome,
)

pytestmark = pytest.mark.process

INLINE = {"run__schedule": "inline", "run__collectors": 1}
STEPS = (216, 456, 720)
"""Where each session ends; after 36, 76 and 120 steps of each lane."""
EPISODE_STEPS = 55
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "stacked_frames_and_n_step_returns": ("Pendulum-v1", {"env__frame_stack": 3, "replay__n_step": 3}),
    "eviction_correlated_noise_and_normaliser": (
        "Pendulum-v1",
        {
            "replay__capacity": 300, "replay__ratio": 0.5, "algorithm__normalize_observations": True,
            "algorithm__exploration": {"kind": "ornstein-uhlenbeck"}, "env__group_size": 2,
        },
    ),
    "episodes_longer_than_the_replay_stacked": (
        "Pendulum-v1", {"replay__capacity": 120, "env__frame_stack": 2, "replay__n_step": 2, "collect__chunk_steps": 4},
    ),
    "dictionary": ("headrace.envs.toy:sampler", {}),
    "priorities": (
        "CartPole-v1",
        {
            **choice_envs.SMALL, "algorithm.priority.enabled": True, "algorithm.priority.beta_updates": 400,
            "algorithm.exploration.decay_steps": 600, "replay.capacity": 300, "replay.n_step": 2, "env.group_size": 2,
        },
    ),
    "draws_and_temperature": (
        "Pendulum-v1",
        {
            **SAC, "algorithm.normalize_observations": True, "algorithm.temperature.target_entropy": 0.0,
            "replay.capacity": 300, "replay.n_step": 2, "env.group_size": 2,
        },
    ),
    "targets_that_move_without_the_actor": ("Pendulum-v1", SBX),
    "cells_of_a_map": ("choice_envs:plots", {**choice_envs.PLOTS, "env.frame_stack": 2}),
}  # fmt: skip


def lockstep(collectors: int) -> dict[str, Any]:
    return {"run__schedule": "lockstep", "run__collectors": collectors}


CHAINS = {
    "inline": (INLINE, INLINE, INLINE),
    "lockstep_with_another_number_of_collectors": (lockstep(2), lockstep(3), lockstep(1)),
    "inline_then_lockstep_then_inline": (INLINE, lockstep(2), INLINE),
}


def assert_the_same(runs: Runs, env: str, chain: tuple[dict[str, Any], ...], **settings: Any) -> None:
    settings |= {"env__max_episode_steps": EPISODE_STEPS}
    whole = runs.train(env, run__steps=STEPS[-1], **INLINE, **settings)
    assert_completed(whole)
    assert whole.summary["episodes"]["finished"] >= 12
    sessions = [{**session, "run__steps": steps} for session, steps in zip(chain, STEPS, strict=True)]
    stopped = in_sessions(runs, env, sessions, **settings)
    assert outcome(stopped) == outcome(whole)
    assert all(
        (event["lost_env_steps"], event["lost_updates"], event["problems"]) == (0, 0, [])
        for event in events(stopped, "resumed")
    )
    assert_replays(stopped)


def beyond(names: Iterable[str], *first: str) -> list[Any]:
    """The first ones run in every run of the tests, the others with all."""
    return [pytest.param(name, marks=[] if name in first else pytest.mark.table) for name in names]


@pytest.mark.table
@pytest.mark.parametrize("chain", beyond(CHAINS, "inline_then_lockstep_then_inline"))
def test_stopped_and_resumed_it_learns_the_same(runs, chain):
    assert_the_same(runs, "Pendulum-v1", CHAINS[chain])


@pytest.mark.parametrize("case", beyond(CASES, "eviction_correlated_noise_and_normaliser"))
def test_whatever_crosses_the_stop(runs, case):
    env, settings = CASES[case]
    assert_the_same(runs, env, (INLINE, lockstep(2), lockstep(3)), **settings)


def test_environment_that_draws_from_global_generators_begins_anew(runs):
    """Its episodes hang on what others drew before, so they cannot be repeated alone; the record has the cut."""
    run = in_sessions(
        runs, "run_envs:gambler", [{**INLINE, "run__steps": 216}, {**INLINE, "run__steps": 456}], env__group_size=2
    )
    assert run.summary["episodes"]["cut"] > 0
    told = events(run, "not_restored", "learner")
    assert [event["group"] for event in told] == [0, 1, 2]
    assert all("could not be brought back" in event["text"] for event in told)
    assert_replays(run)


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (INLINE, {"supervision__max_restarts": 0}),
        (lockstep(2), {"supervision__max_restarts": 0}),
        (lockstep(2), {"supervision__when_spent": "degrade", "supervision__lane_faults": 1}),
    ],
    ids=["inline", "no_restarts", "one_fault_a_lane"],
)
def test_episode_that_cannot_be_brought_back_is_nobodys_fault(runs, schedule, settings):
    sessions = [{**schedule, **settings, "run__steps": steps} for steps in (150, 300)]
    run = in_sessions(runs, "run_envs:gambler", sessions, env__lanes=2, env__group_size=1)
    assert run.summary["episodes"]["cut"] > 0
    assert events(run, "not_restored")
    assert (run.summary["faults"], run.summary["degraded"], events(run, "fault")) == ({}, None, [])
    assert_replays(run)


# Stopped by a signal.

SCRIPT = Path(sys.executable).with_name("headrace")
LIMIT_S = 60.0


def interrupted_at(updates: int, number: signal.Signals, run: Path, settings: dict[str, object]) -> None:
    """`headrace train` until its board shows so many updates, then a signal, and its end."""
    command = [sys.executable, SCRIPT, "train", "--resume", "--run-dir", run, "--quiet", *options(settings)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as process:  # fmt: skip
        clock = MonotonicClock()
        due_s, descriptor = clock.now() + LIMIT_S, os.pidfd_open(process.pid)
        while board_updates(run) < updates:
            ended, _, _ = select.select([descriptor], [], [], 0.001)
            assert not ended, process.communicate(timeout=LIMIT_S)
            assert clock.now() < due_s
        os.close(descriptor)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, out


@pytest.mark.table
@pytest.mark.parametrize(
    ("schedule", "number"),
    [pytest.param(INLINE, signal.SIGTERM, marks=pytest.mark.table), (lockstep(2), signal.SIGINT)],
    ids=["inline", "lockstep"],
)
def test_stopped_by_a_signal_near_update_500_it_learns_the_same(runs, tmp_path, schedule, number):
    settings = {
        **SMALL, "run.steps": 2000, "algorithm.normalize_observations": True,
        **{key.replace("__", "."): value for key, value in schedule.items()},
    }  # fmt: skip
    slow = {"env.factory": "run_envs:slow_pendulum", "env.kwargs": {"step_s": 0.001}}
    interrupted_at(500, number, tmp_path / "stopped", {**settings, **slow})
    before = headrace.runtime.rundir.RunDirectory.open(tmp_path / "stopped").read_summary()
    assert before["outcome"] == "interrupted"
    assert 500 <= before["updates"] < 1900
    stopped = go_on(Run(tmp_path / "stopped", before))
    assert_completed(stopped)
    (event,) = events(stopped, "resumed")
    assert (event["env_steps"], event["updates"]) == (before["env_steps"], before["updates"])
    assert (event["lost_env_steps"], event["lost_updates"]) == (0, 0)
    whole = runs.train("Pendulum-v1", **{key.replace(".", "__"): value for key, value in settings.items()})
    assert outcome(stopped) == outcome(whole)
    assert_replays(stopped)


# What goes on where it was.


def newest_state(run: Run) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Of the newest checkpoint: arrays and facts."""
    state = load_checkpoint(run.path / "checkpoints" / str(run.summary["policy_version"]))
    return dict(state.arrays), dict(state.facts)


def test_everything_a_learner_holds_is_where_it_was(runs):
    """One round after the resume: replay, moments of the optimisers, generators, statistics, exploration, all of it."""
    settings: dict[str, Any] = {
        "replay__capacity": 600, "algorithm__normalize_observations": True, "collect__random_steps": 120,
        "algorithm__exploration": {"kind": "ornstein-uhlenbeck", "scale": 1.0, "final_scale": 0.1, "decay_steps": 1000},
    }  # fmt: skip
    stopped = in_sessions(
        runs, "Pendulum-v1", [{**lockstep(2), "run__steps": 456}, {**INLINE, "run__steps": 504}], **settings
    )
    rows = [lane.copy() for lane in runs.rows]
    whole = runs.train("Pendulum-v1", run__steps=504, **INLINE, **settings)

    for lane, (one, other) in enumerate(zip(rows, runs.rows, strict=True)):  # M169, M172
        assert one[-90:].tobytes() == other[-90:].tobytes(), lane
    (arrays, facts), (expected, expected_facts) = newest_state(stopped), newest_state(whole)
    assert arrays.keys() == expected.keys()
    assert {"actor", "actor.exp_avg", "actor.exp_avg_sq", "actor.step"} <= arrays.keys()
    for name, array in expected.items():  # M170
        assert array.tobytes() == arrays[name].tobytes(), name
    assert facts == expected_facts  # M173: sums of running episodes, recent returns, counts
    scale = 1.0 - 0.9 * whole.summary["env_steps"] / 1000
    scales = [line["train/exploration_scale"] for line in metrics(stopped)]  # M171
    assert scales[-1] == metrics(whole)[-1]["train/exploration_scale"] == pytest.approx(scale)
    assert scales == sorted(scales, reverse=True)


@pytest.mark.table
def test_curves_go_on(runs):
    evaluation = {"evaluation__episodes": 1, "evaluation__every_steps": 100, "evaluation__random_baseline": False}
    env, kwargs = "run_envs:slow_pendulum", {"step_s": 0.002}
    sessions = [{**lockstep(2), "run__steps": steps} for steps in (1300, 1500, 1700)]
    run = in_sessions(runs, env, sessions, kwargs=kwargs, **evaluation)

    lines = metrics(run)
    for name in ("step", "updates", "wall_s", "headrace/episodes", "headrace/policy_version"):
        values = [line[name] for line in lines]
        assert values == sorted(values), name
    first, second = (event["env_steps"] for event in events(run, "resumed"))
    assert all("rollout/ep_rew_mean" in line for line in lines if line["step"] >= first), "M173: no mean begins anew"
    board = EventAccumulator(str(run.path / "tensorboard")).Reload()
    drawn = [point.step for point in board.Scalars("headrace/policy_version")]
    assert drawn == sorted(drawn)
    assert drawn[-1] == run.summary["env_steps"]
    points = run.summary["evaluations"]
    # Of each session; how many there are hangs on how fast the evaluator is.
    assert {bisect.bisect_left([first, second], point["env_steps"]) for point in points} == {0, 1, 2}
    assert [point["version"] for point in points] == sorted({point["version"] for point in points})
    assert [point["env_steps"] for point in points] == sorted({point["env_steps"] for point in points})
    assert run.summary["wall_s"] >= lines[-1]["wall_s"]


def test_checkpoints_are_small_and_tell_how_long_they_took(runs, tmp_path):  # M174
    run = runs.train("Pendulum-v1", checkpoint__every_steps=96, **INLINE)
    told = events(run, "checkpoint")
    assert len(told) >= 4
    assert all(0.0 < event["paused_s"] < 60.0 for event in told)
    newest = run.path / "checkpoints" / str(run.summary["policy_version"])
    assert sum(path.stat().st_size for path in newest.iterdir()) < 100_000, "experience is not copied"
    alone = tmp_path / "alone" / "checkpoints" / newest.name
    alone.mkdir(parents=True)
    shutil.copy(newest / "policy.safetensors", alone)
    shutil.copy(run.path / "config.toml", tmp_path / "alone")
    action = headrace.load_policy(tmp_path / "alone").act(np.zeros(3, np.float32))
    assert action.tobytes() == headrace.load_policy(run.path).act(np.zeros(3, np.float32)).tobytes()
