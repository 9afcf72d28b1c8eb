"""Runs whose environments are stepped by workers: what hangs, dies or raises there costs one episode, and nothing else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import MonotonicClock
from headrace.lanes.layout import LOST
from headrace.record.events import ChunkCommitted, GroupSalvaged, StepsLost
from headrace.runtime.api import Run
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import verify_run
from headrace.testing.reproduce import read_reproducer, reproduce
from kill_support import kill_family
from replay_support import HERE, SCRIPT, blows, headrace, recorded, salvages
from run_support import SMALL, Runs, assert_books, assert_gapless, events, summary
from session_support import assert_replays, board_updates, go_on, options, outcome

__all__ = ["blows"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

ENV = "run_envs:make"
WORKERS: Mapping[str, Any] = {"env__workers": 2, "env__group_size": 2, "run__collectors": 1}
SLOW = {"step_s": 0.002}
"""Long enough for the learner to report while it trains."""


def assert_sound(runs: Runs, run: Run) -> None:
    """It came to its end, its books balance, no lane has a gap or a row twice, and it replays to the same weights."""
    assert run.completed, run.summary["error"]
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=run.summary["restarts"])
    assert_replays(run)


def lost_rows(runs: Runs) -> list[int]:
    """Rows of kind LOST in each lane."""
    return [int((rows["kind"] == LOST).sum()) for rows in runs.rows]


FAULTS = {
    "kill": "environment_died", "hang": "environment_hung", "fail": "environment_raised",
    "nan_obs": "environment_not_finite",
}  # fmt: skip
MORE = {
    "crash": "environment_died", "leave": "environment_died", "freeze": "environment_hung",
    "nan_reward": "environment_not_finite", "wrong_shape": "environment_contract", "wrong_reward": "environment_contract",
    "wrong_dtype": "environment_contract",
}  # fmt: skip


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("fault", "counted"),
    [*FAULTS.items(), *(pytest.param(fault, counted, marks=pytest.mark.table) for fault, counted in MORE.items())],
)
def test_one_environment_costs_its_own_episode(runs, tmp_path, fault, counted):
    kwargs = {"fault": fault, "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs, deadlines__step_s=1.0, **WORKERS)
    assert_sound(runs, run)
    assert run.summary["restarts"] == 0
    assert run.summary["faults"].pop(counted) == 1
    assert set(run.summary["faults"]) <= {"environment_lost_with_worker"}
    told = {event["component"]: event for event in events(run, "fault") if event["how"] != "lost-with-worker"}
    ((component, event),) = told.items()
    lane = event["lane"]
    assert component == f"environment of lane {lane}"
    assert f"lane {lane}" in event["text"]
    assert event["text"].endswith("; its episode is cut after 2 steps, and another one takes its place")
    assert (event["collector"], event["call"], event["step"], event["cut"]) == ("collector-0", "step", 13, 2)
    assert runs.rows[lane]["t"][runs.rows[lane]["kind"] == LOST].tolist() == [2]
    # Those that went down with its process were in the middle of an episode too, or between two.
    cut = sum(event["cut"] is not None for event in events(run, "fault"))
    assert run.summary["episodes"]["cut"] == sum(lost_rows(runs)) == cut
    assert sum(len(event.steps) for event in recorded(run) if isinstance(event, StepsLost)) == cut
    if fault == "fail":
        assert "burn map corrupt, tile 7" in event["error"]
        assert "run_envs.py" in event["error"]


@pytest.mark.table
def test_the_others_go_on_while_one_hangs(runs, tmp_path):
    kwargs = {"fault": "hang", "at": 13, "marker": str(tmp_path / "marker"), **SLOW}
    run = runs.train(
        ENV, kwargs=kwargs, deadlines__step_s=1.5, run__steps=600, replay__ratio=0.1, env__workers=6, run__collectors=1
    )
    assert_sound(runs, run)
    (event,) = events(run, "fault")
    assert set(run.summary["faults"]) == {"environment_hung"}
    found = recorded(run)
    (place,) = [place for place, told in enumerate(found) if isinstance(told, StepsLost)]
    before = [told for told in found[:place] if isinstance(told, ChunkCommitted)]
    assert max(told.chunk for told in before if told.group == event["lane"]) == 0  # it hung in its second chunk
    ahead = {told.group for told in before if told.chunk >= 3}
    assert ahead == set(range(6)) - {event["lane"]}


@pytest.mark.table
def test_memory_that_a_worker_keeps_is_its_collectors(runs, tmp_path):
    kwargs = {"fault": "swell", "at": 13, "marker": str(tmp_path / "marker"), "step_s": 0.01}
    run = runs.train(ENV, kwargs=kwargs, run__steps=1500, supervision__max_rss_mib=1000.0, **WORKERS)
    assert_sound(runs, run)
    assert (run.summary["faults"], run.summary["restarts"]) == ({"recycled": 1}, 1)
    (restarted,) = events(run, "restarted")
    assert restarted["component"] == "collector-0"


def test_a_file_tells_what_led_to_it(runs, monkeypatch):
    run = runs.train(ENV, kwargs={"fault": "fail", "at": 7}, supervision__max_restarts=100, **WORKERS)
    assert_sound(runs, run)
    (event, *_) = events(run, "reproducer")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    path = run.path / event["file"]
    outcome = reproduce(path, 20.0)
    assert outcome.text == read_reproducer(path).error == "ValueError: burn map corrupt, tile 7"
    assert outcome.same_as(read_reproducer(path))


def test_an_environment_that_always_fails_ends_the_run_in_its_own_words(runs):
    run = runs.train(ENV, kwargs={"fault": "fail"}, supervision__max_restarts=1, env__lanes=2, **WORKERS)
    assert run.summary["outcome"] == "failed"
    assert run.summary["exit_code"] == 1
    assert_books(run)
    assert run.summary["error"].startswith("[ENV-006] the environment of lane ")
    assert " failed 2 times within 300 s, and is not replaced again\n" in run.summary["error"]
    assert "ValueError: burn map corrupt, tile 7" in run.summary["error"]
    assert run.summary["restarts"] == 0


@pytest.mark.table
def test_a_lane_that_always_fails_is_left_out(runs):
    run = runs.train(
        "poison_envs:make", kwargs={"fault": "fail", "at": 3, "lanes": [3]}, supervision__when_spent="degrade",
        supervision__lane_faults=2, env__workers=2, run__collectors=1,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert_books(run)
    assert run.summary["degraded"]["lanes"] == [3]
    assert run.summary["degraded"]["reason"] == "the environment of lane 3 failed 2 times within 300 s"
    assert run.summary["faults"]["environment_raised"] == 2
    assert_replays(run)


def test_what_comes_back_wrong_ends_the_run_if_it_is_to(runs, tmp_path):
    kwargs = {"fault": "wrong_shape", "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs, env__on_fault="raise", supervision__max_restarts=0, **WORKERS)
    assert run.summary["exit_code"] == 1
    assert "step: 13\n" in run.summary["error"]
    assert_books(run)


@pytest.mark.table
@pytest.mark.parametrize("schedule", ["inline", "lockstep"])
def test_faults_under_rounds(runs, tmp_path, schedule):
    kwargs = {"fault": "kill", "at": 30, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs, run__schedule=schedule, **WORKERS)
    assert_sound(runs, run)
    assert run.summary["faults"]["environment_died"] == 1


@pytest.mark.table
def test_a_worker_is_killed_from_outside(runs, tmp_path, blows):
    pids = tmp_path / "pids"
    blows.plan(
        [("collector-0", signal.SIGKILL, 30)],
        send=lambda _, number: os.kill(int(pids.read_text().split()[-1]), number),
    )
    run = runs.train(**blows.env("run_envs:noted", 40, {"pids": str(pids)}), run__steps=4000, **WORKERS)
    assert_sound(runs, run)
    assert len(blows.sent) == 1
    assert run.summary["restarts"] == 0
    assert sum(run.summary["faults"].values()) >= 1
    assert all(kind.startswith("environment_") for kind in run.summary["faults"])


@pytest.mark.table
def test_the_collector_is_killed_with_all_its_workers(runs, tmp_path, blows):
    blows.plan([("collector-0", signal.SIGKILL, 30)])
    kwargs = {"fault": "fail", "at": 9, "marker": str(tmp_path / "marker")}
    run = runs.train(**blows.env(ENV, 25, kwargs), run__steps=500, **WORKERS)
    assert_sound(runs, run)
    assert run.summary["restarts"] == 1
    assert run.summary["faults"] == {"environment_raised": 1, "died": 1}
    assert salvages(recorded(run)) == 3


@pytest.mark.table
def test_the_collector_is_killed_in_a_chunk_in_which_it_has_lost_an_environment(runs, tmp_path, blows):
    marker, clock = tmp_path / "marker", MonotonicClock()

    def once_it_is_written() -> None:
        end_s = clock.now() + 60.0
        while not marker.with_suffix(".stuck").exists():
            assert clock.now() < end_s
            select.select([], [], [], 0.01)
        marker.with_suffix(".over").touch()

    blows.on_report("collector-0", signal.SIGKILL, "environment_lost", once_it_is_written)
    kwargs = {"fault": "fail", "at": 66, "marker": str(marker)}
    run = runs.train("run_envs:stuck_after", kwargs=kwargs, run__steps=1200, collect__chunk_steps=64, **WORKERS)
    assert_sound(runs, run)
    assert len(blows.sent) == 1
    found = [event for event in recorded(run) if isinstance(event, StepsLost | ChunkCommitted | GroupSalvaged)]
    (place,) = [place for place, event in enumerate(found) if isinstance(event, StepsLost)]
    assert isinstance(found[place + 1], GroupSalvaged)
    assert found[place + 1].group == found[place].group


@pytest.mark.table
def test_stopped_and_resumed_it_learns_the_same_as_without_workers(runs):
    inline = {"run__schedule": "inline", "env__group_size": 3, "env__max_episode_steps": 55}
    whole = runs.train("Pendulum-v1", run__steps=480, **inline)
    run = runs.train("Pendulum-v1", run__steps=264, env__workers=2, **inline)
    run = go_on(run, run__steps=480)
    assert outcome(run) == outcome(whole)
    assert_replays(run)


@pytest.mark.table
def test_everything_is_killed_and_resumed(tmp_path):
    """In the middle of episodes, an environment lost before."""
    path, marker = tmp_path / "run", tmp_path / "marker"
    given = {
        **SMALL, "env.factory": ENV, "env.workers": 1, "env.group_size": 3,
        "env.kwargs": {"limit": 40, "fault": "fail", "at": 20, "marker": str(marker), "step_s": 0.005},
        "run.schedule": "lockstep", "run.collectors": 2, "checkpoint.every_steps": 96,
    }  # fmt: skip
    command = [
        *SCRIPT,
        "train",
        "--resume",
        "--quiet",
        "--run-dir",
        str(path),
        *options({**given, "run.steps": 100_000}),
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, cwd=HERE, stdout=log, stderr=log) as process:
        reached(path, process, updates=400)
        kill_family(process.pid)
        assert process.wait(timeout=20.0) == -signal.SIGKILL
    assert marker.exists()
    again = headrace("train", "--resume", "--quiet", "--run-dir", path, "--steps", "2000")
    assert again.returncode == 0, again.stderr
    run = Run(path, summary(path))
    assert_books(run)
    (resumed,) = events(path, "resumed", "supervisor")
    assert resumed["env_steps"] >= 300
    assert not events(path, "not_restored")
    assert run.summary["faults"]["environment_raised"] == 1
    assert_replays(run)


def reached(path: Path, process: subprocess.Popen[bytes], updates: int) -> None:
    """Wait until a run's learner has made so many updates."""
    clock = MonotonicClock()
    due_s = clock.now() + 120.0
    while not path.exists() or board_updates(path) < updates:
        assert process.poll() is None
        assert clock.now() < due_s
        select.select([], [], [], 0.02)


@pytest.mark.table
def test_actions_of_a_run_with_losses_are_verified(runs, tmp_path):
    kwargs = {"fault": "kill", "at": 40, "marker": str(tmp_path / "marker")}
    run = runs.train(
        ENV, kwargs=kwargs, checkpoint__every_steps=48, record__rows="all", run__schedule="lockstep",
        algorithm__exploration={"kind": "ornstein-uhlenbeck"}, **WORKERS,
    )  # fmt: skip
    assert_sound(runs, run)
    assert sum(lost_rows(runs)) >= 1
    found = verify_run(RunDirectory.open(run.path))
    assert found.largest_difference == 0.0
    assert found.chunks > 5
