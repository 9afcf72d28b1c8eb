"""Processes of real runs die, hang and freeze: the run goes on or ends with the culprit named, and the books balance."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import RunDirectoryError
from headrace.ipc.stacks import is_stopped
from headrace.runtime import experiment
from headrace.runtime.api import Run
from headrace.supervision.spec import BecameReady, Event, Reported, Started
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Activity
from run_envs import pause
from run_support import Runs, assert_books, assert_gapless, dawdling, events, small

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

ENV = "run_envs:make"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that is there once a run has been struck; for `dawdling`."""
    return tmp_path / "gate"


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch, gate: Path) -> Callable[[Callable[[Supervisor, Event], bool]], None]:
    """Do something to a run at the first event for which it can be done; the function says whether it was."""

    def install(blow: Callable[[Supervisor, Event], bool]) -> None:
        poll = Supervisor.poll
        struck = False

        def polled(supervisor: Supervisor, timeout_s: float) -> list[Event]:
            nonlocal struck
            found = poll(supervisor, timeout_s)
            for event in found:
                if not struck and blow(supervisor, event):
                    struck = True
                    gate.touch()
            return found

        monkeypatch.setattr(Supervisor, "poll", polled)

    return install


def is_metrics(event: Event, steps: int = 1) -> bool:
    """Whether the learner reports that so many steps are stored."""
    facts = getattr(getattr(event, "message", None), "facts", {})
    return isinstance(event, Reported) and event.id == "learner" and facts.get("env_steps", -1) >= steps


def assert_sound(runs: Runs, run: Run) -> None:
    """Whatever happened: the books balance, and no lane has a gap or a row twice."""
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=run.summary["restarts"])


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("kill", "killed by SIGKILL (often the out-of-memory killer)"),
        ("crash", "killed by SIGSEGV"),
        ("leave", "exit code 0"),
        ("sys_exit", "exit code 0"),
        ("fail", "exit code 1"),
    ],
)
@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_collector_dies_in_the_middle_of_a_chunk(runs, tmp_path, fault, how, schedule):
    kwargs = {"fault": fault, "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs, run__schedule=schedule)
    assert run.completed, run.summary["error"]
    assert_sound(runs, run)
    (event,) = events(run, "fault")
    assert event["component"] in ("collector-0", "collector-1")
    assert event["text"] == f"{event['component']} {how}"
    assert run.summary["faults"] == {"died": 1}
    assert run.summary["restarts"] == 1
    books = run.summary["books"]
    assert books["salvaged"] == events(run, "salvaged")[0]["transitions"] >= 4  # steps 9 to 12 of that lane
    assert books["in_flight"] == 0
    assert run.summary["episodes"]["cut"] in (1, 3)  # the lane's, and those its neighbours were in the middle of
    (restarted,) = events(run, "restarted")
    assert restarted["component"] == event["component"]
    assert run.summary["env_steps"] >= 400


def test_collector_is_killed_from_outside_twice(runs, strike):
    killed = []

    def kill(supervisor, event):
        if isinstance(event, BecameReady) and event.id.startswith("collector") and len(killed) < 2:
            killed.append(event.id)
            os.kill(supervisor.pid(event.id), signal.SIGKILL)
        return False

    strike(kill)
    run = runs.train(ENV, kwargs={"step_s": 0.001})
    assert run.completed
    assert_sound(runs, run)
    assert run.summary["faults"] == {"died": 2}
    assert run.summary["restarts"] == 2


def test_environment_that_always_fails_spends_the_budget_and_is_told_in_its_own_words(runs, caplog):
    run = runs.train(ENV, kwargs={"fault": "fail"}, supervision__max_restarts=1, run__collectors=1, env__lanes=2)
    assert run.summary["outcome"] == "failed"
    assert run.summary["exit_code"] == 1
    assert_sound(runs, run)
    assert run.summary["error"].startswith(
        "[SUP-003] collector-0 ended and is not started again: it ended again after 1 restart within 300 s\n"
        "  last time: run_envs:make in lane 0 raised ValueError in step()\n"
        "  component: collector-0\n"
        "  error: ValueError: burn map corrupt, tile 7\n"
        "  lane: 0\n"
    )
    (told,) = caplog.records  # who does not look at what train() returns shall see it all the same
    assert (told.name, told.levelname) == ("headrace.train", "ERROR")
    assert run.summary["error"] in told.getMessage()
    assert f"headrace doctor {run.path}" in told.getMessage()
    log = (run.path / "logs" / "collector-0.log").read_text()
    assert log.count("ValueError: burn map corrupt, tile 7") >= 2
    first, last = events(run, "fault", "collector-0")
    assert "lane 0" in first["error"]
    assert "step: 7" in first["error"]  # of the lane: C036
    assert "step: 13" in last["error"]
    assert [event["transitions"] for event in events(run, "salvaged")] == [6, 6]


@pytest.mark.parametrize(
    ("fault", "rejected", "field"), [("nan_reward", 4, "reward"), ("nan_obs", 1, "obs"), ("wrong_reward", 0, "reward")]
)
def test_broken_contract_ends_the_run_and_nothing_of_it_is_learned(runs, tmp_path, fault, rejected, field):
    kwargs = {"fault": fault, "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs)
    assert run.summary["exit_code"] == 1
    assert f"field: {field}\n" in run.summary["error"]
    assert "step: 13\n" in run.summary["error"]
    # Values are looked at chunk by chunk, here after step 16: the bad one and what followed it are refused. To an observation that
    # is none the policy has no action, so nothing follows it.
    assert run.summary["books"]["rejected"] == ({"not_finite": rejected} if rejected else {})
    assert_books(run)
    assert run.summary["restarts"] == 0


@pytest.mark.table
@pytest.mark.parametrize("fault", ["hang", "freeze"])
def test_collector_that_stands_still_is_replaced_while_the_others_go_on(runs, tmp_path, fault):
    kwargs = {"fault": fault, "at": 13, "marker": str(tmp_path / "marker"), "step_s": 0.001}
    run = runs.train(
        ENV, kwargs=kwargs, deadlines__step_s=0.6, run__steps=100_000, run__run_duration_s=3.0, replay__ratio=0.1
    )
    assert run.completed, run.summary["error"]
    assert_sound(runs, run)
    assert run.summary["faults"] == {"stalled": 1}
    (stacks,) = events(run, "stacks")
    (fault_event,) = events(run, "fault")
    stuck = stacks["component"]
    assert f"{stuck} is overdue: env.step for " in stacks["text"]
    assert ", step 12" in stacks["text"]
    written = (run.path / "stacks" / f"{stuck}.0.txt").read_text()
    assert "run_envs.py" in written
    if fault == "freeze":
        assert fault_event["text"].endswith("; its process had been stopped by a signal")
    (restarted,) = events(run, "restarted")
    assert restarted["component"] == stuck
    produced = [lane["produced"] for lane in run.summary["books"]["lanes"]]
    mine = set(range(int(stuck.removeprefix("collector-")), 6, 2))
    # The stuck one was away for a fifth of the time or more, and its lanes got on afterwards.
    assert min(produced[lane] for lane in mine) > 24
    assert sum(produced) - sum(produced[lane] for lane in mine) > sum(produced[lane] for lane in mine)


@pytest.mark.table
def test_frozen_while_it_waits_for_credit(runs, strike, gate):
    frozen = False

    def freeze_and_see_it_replaced(supervisor, event):
        nonlocal frozen
        if frozen:
            return isinstance(event, Started) and event.id == "collector-1"
        if is_metrics(event, steps=100):
            frozen = True
            learner, collector = supervisor.pid("learner"), supervisor.pid("collector-1")
            os.kill(learner, signal.SIGSTOP)  # takes no rows, so that there is no credit to be had
            while not is_stopped(learner) or supervisor._board.read("collector-1").activity is not Activity.WAIT_CREDIT:
                pause(0.001)
            os.kill(collector, signal.SIGSTOP)
            os.kill(learner, signal.SIGCONT)
        return False

    strike(freeze_and_see_it_replaced)
    run = runs.train(
        **dawdling(gate, ENV, 400), run__steps=3000, replay__learning_starts=50, collect__random_steps=50,
        deadlines__wait_s=1.0, deadlines__credit_s=1.0, deadlines__rows_s=2.0,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert_sound(runs, run)
    assert run.summary["faults"] == {"stalled": 1}
    assert events(run, "restarted", "collector-1")


@pytest.mark.parametrize("victim", ["learner", "evaluator", "probe"])
def test_other_processes_are_killed(runs, strike, gate, victim):
    def kill(supervisor, event):
        if victim == "learner" and not is_metrics(event):
            return False
        if victim == "evaluator" and not (isinstance(event, BecameReady) and event.id == "evaluator"):
            return False
        if victim not in supervisor.alive():
            return False
        os.kill(supervisor.pid(victim), signal.SIGKILL)
        return True

    strike(kill)
    run = runs.train(**dawdling(gate, ENV, 50), evaluation__episodes=3, run__steps=1000)
    assert_sound(runs, run)
    (fault,) = events(run, "fault", victim)
    assert "SIGKILL" in fault["text"]
    if victim == "evaluator":
        assert run.completed
        assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]
        assert run.summary["random_baseline"]["episodes"] == 3
        assert run.summary["restarts"] == 1
        return
    assert run.summary["exit_code"] == 1
    assert run.summary["error"].startswith(
        f"[SUP-001] {victim} ended although nobody asked it to: killed by SIGKILL (often the out-of-memory killer)"
    )
    if victim == "learner":
        books = run.summary["books"]
        assert books["produced"] == books["committed"] + books["in_flight"] > 0


def test_evaluator_killed_before_it_is_ready_is_started_again(runs, strike):
    def kill(supervisor, event):
        if not (isinstance(event, Started) and event.id == "evaluator"):
            return False
        os.kill(event.pid, signal.SIGKILL)
        return True

    strike(kill)
    run = runs.train(ENV, evaluation__episodes=3)
    assert run.completed, run.summary["error"]
    assert run.summary["restarts"] == 1
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]


def test_learner_that_dies_tells_what_it_leaves(runs, strike, gate):
    def kill(supervisor, event):
        if getattr(getattr(event, "message", None), "kind", None) != "frozen":
            return False
        os.kill(supervisor.pid("learner"), signal.SIGKILL)
        return True

    strike(kill)
    run = runs.train(**dawdling(gate, ENV, 50), evaluation__episodes=2, evaluation__every_steps=200, run__steps=5000)
    assert run.summary["exit_code"] == 1
    (version,) = [int(path.name) for path in (run.path / "checkpoints").iterdir()]
    assert f"\n  newest policy: checkpoints/{version}, made after " in run.summary["error"]
    assert f"`headrace eval {run.path} --version {version}`" in run.summary["error"]
    assert " updates, the optimiser, and the replay\n" in run.summary["error"]
    (fault,) = events(run, "fault", "learner")
    assert fault["resources"]["rss_bytes"] > 1e6
    assert "== resources: " in (run.path / "stacks" / "learner.0.txt").read_text()
    assert_books(run)


@pytest.mark.table
def test_fork_server_is_killed(tmp_path, strike):
    def kill(supervisor, event):
        if not is_metrics(event):
            return False
        os.kill(supervisor._fork_server.pid, signal.SIGKILL)
        return True

    strike(kill)
    runs = Runs(tmp_path)
    run = runs.train(ENV, run__steps=100_000, kwargs={"step_s": 0.002}, collect__preload=["torch"])
    assert run.summary["exit_code"] == 1
    assert run.summary["error"].startswith("[SUP-001] the fork server is gone: it ended")
    assert_books(run)


def test_whoever_follows_the_progress_raises(runs, tmp_path, monkeypatch):
    run_experiment = experiment.run_experiment

    def follow(progress: Any) -> None:
        raise LookupError("nobody is looking")

    monkeypatch.setattr(
        "headrace.runtime.api.run_experiment",
        lambda config, place, _, *rest, **more: run_experiment(config, place, follow, *rest, **more),
    )
    with pytest.raises(LookupError, match="nobody is looking"):
        runs.train(ENV)
    (path,) = tmp_path.glob("run-*/summary.json")
    assert "raised LookupError" in path.read_text()


@pytest.mark.parametrize("schedule", ["inline", "lockstep", "async"])
@pytest.mark.usefixtures("runs")
def test_a_run_that_failed_in_its_first_step_is_begun_again_in_its_place(tmp_path: Path, schedule: str) -> None:
    """By the very same command; whoever mends an environment need not think of another directory."""
    marker, place = tmp_path / "marker", tmp_path / "run"
    settings = small(run__schedule=schedule, run__collectors=1, env__lanes=1, supervision__max_restarts=0)
    kwargs = {"fault": "fail", "at": 1, "marker": str(marker)}
    settings |= {"env.factory": ENV, "env.kwargs": kwargs, "evaluation.random_baseline": False}
    failed = headrace.train(run_dir=place, settings=settings)
    assert (failed.summary["outcome"], failed.summary["books"]["produced"]) == ("failed", 0)
    assert len(list(place.glob("reproducers/*"))) == 1
    again = headrace.train(run_dir=place, settings=settings)
    assert again.completed, again.summary["error"]
    assert again.summary["sessions"] == 1
    assert list(place.glob("reproducers")) == []
    assert len(list(place.glob("earlier/1/reproducers/*"))) == 1
    with pytest.raises(RunDirectoryError, match="already holds a finished run"):
        headrace.train(run_dir=place, settings=settings)
