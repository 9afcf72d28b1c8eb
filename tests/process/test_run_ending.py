"""A run ends when it is told to: soon, in order, with a summary, and without leaving a process behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.core.clock import MonotonicClock
from headrace.ipc.channel import Deadline, poll_fds
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.runtime import experiment
from headrace.runtime.progress import Progress
from headrace.runtime.rundir import RunDirectory
from headrace.supervision.spec import BecameReady, Event, Exited, Reported, Started
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.blame import Condition
from run_support import assert_books, assert_gapless, events, replace_run, summary
from session_support import go_on

pytestmark = [pytest.mark.process, pytest.mark.thin(3)]

ENV = "run_envs:make"
HERE = Path(__file__).resolve().parents[1]
FOR_EVER = {"run__steps": 10_000_000}
SOON_S = 5.0
"""Within which an interrupted run must have ended."""


class Interruption:
    """Sends signals to this very process at chosen events of a run, and measures what follows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._clock = MonotonicClock()
        self._sent_s = float("inf")
        self._left: list[tuple[Callable[[Event | None], bool], int]] = []
        poll = Supervisor.poll

        def polled(supervisor: Supervisor, timeout_s: float) -> list[Event]:
            found = poll(supervisor, timeout_s)
            for event in (*found, None):
                if self._left and self._left[0][0](event):
                    self._send(self._left.pop(0)[1])
            return found

        monkeypatch.setattr(Supervisor, "poll", polled)

    def at(self, when: Callable[[Event | None], bool], number: int) -> None:
        """Send signal ``number`` at the first event for which ``when`` holds, after those that were ordered before.

        It is also asked with None, after every look of the supervisor.
        """
        self._left.append((when, number))

    def _send(self, number: int) -> None:
        self._sent_s = min(self._sent_s, self._clock.now())
        os.kill(os.getpid(), number)

    @property
    def since_s(self) -> float:
        """Seconds since the first signal."""
        assert not self._left, "not every signal was sent"
        return self._clock.now() - self._sent_s


@pytest.fixture
def interruption(monkeypatch: pytest.MonkeyPatch) -> Interruption:
    return Interruption(monkeypatch)


def is_ready(child_id: str) -> Callable[[Event | None], bool]:
    return lambda event: isinstance(event, BecameReady) and event.id == child_id


def is_started(child_id: str) -> Callable[[Event | None], bool]:
    return lambda event: isinstance(event, Started) and event.id == child_id


def is_report(kind: str, **wanted: object) -> Callable[[Event | None], bool]:
    def matches(event: Event | None) -> bool:
        message = getattr(event, "message", None)
        facts = getattr(message, "facts", {})
        return (
            isinstance(event, Reported) and getattr(message, "kind", None) == kind and wanted.items() <= facts.items()
        )

    return matches


@pytest.mark.parametrize("schedule", ["async", "lockstep", "inline"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_trains(runs, interruption, schedule, number):
    interruption.at(is_report("metrics"), number)
    run = runs.train(ENV, run__schedule=schedule, evaluation__episodes=2, evaluation__every_steps=0, **FOR_EVER)
    assert interruption.since_s < SOON_S
    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["error"]) == ("interrupted", 130, None)
    assert_books(run)
    assert run.summary["books"]["in_flight"] == 0
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
    # The state is saved: the last policy is the one whose hash the summary has.
    versions = sorted(int(path.name) for path in (run.path / "checkpoints").iterdir())
    assert versions[-1] == run.summary["policy_version"]
    assert run.summary["faults"] == {}


@pytest.mark.table
@pytest.mark.parametrize("schedule", ["async", "lockstep", "inline"])
def test_interrupted_once_while_an_environment_hangs(runs, interruption, tmp_path, schedule):
    marker = tmp_path / "hangs"
    interruption.at(lambda _: marker.exists(), signal.SIGINT)
    run = runs.train(ENV, run__schedule=schedule, kwargs={"fault": "hang", "at": 13, "marker": str(marker)}, **FOR_EVER)
    assert interruption.since_s < SOON_S
    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["error"]) == ("interrupted", 130, None)
    assert_books(run)
    told = [event["text"] for event in events(run, "stopping", "learner")]
    assert len(told) == (schedule == "inline")
    assert all(text.startswith("learner is ended: it does not come back from env.step (lane ") for text in told)


@pytest.mark.parametrize("when", ["probe", "learner", "collector-1"])
def test_interrupted_while_it_starts(runs, interruption, when):
    interruption.at(is_started(when), signal.SIGINT)
    run = runs.train(ENV, evaluation__episodes=2, **FOR_EVER)
    assert interruption.since_s < SOON_S
    assert run.summary["exit_code"] == 130
    assert run.summary["error"] is None
    assert_books(run)


def test_interrupted_in_the_final_evaluation(runs, interruption):
    interruption.at(is_report("frozen"), signal.SIGINT)
    run = runs.train(ENV, kwargs={"step_s": 0.003}, run__steps=200, evaluation__episodes=10_000)
    assert interruption.since_s < SOON_S
    assert run.summary["exit_code"] == 130
    assert run.summary["env_steps"] >= 200
    assert run.summary["weights_sha256"]
    assert (run.summary["evaluations"], run.summary["evaluations_skipped"]) == ([], 1)
    again = go_on(run, evaluation__episodes=2)
    assert again.completed
    assert [point["version"] for point in again.summary["evaluations"]] == [run.summary["policy_version"]]
    assert (again.summary["random_baseline"]["episodes"], again.summary["evaluations_skipped"]) == (2, 0)


def test_interrupted_twice_ends_at_once_and_a_third_time_costs_no_summary(runs, interruption, monkeypatch):
    written = RunDirectory.write_summary

    def write(place, told):
        signal.raise_signal(signal.SIGINT)
        written(place, told)

    monkeypatch.setattr(RunDirectory, "write_summary", write)
    interruption.at(is_report("metrics"), signal.SIGINT)
    interruption.at(lambda _: True, signal.SIGINT)
    run = runs.train(ENV, **FOR_EVER)
    assert interruption.since_s < SOON_S
    assert run.summary["exit_code"] == 130
    assert summary(run.path)["exit_code"] == 130
    assert_books(run)


@pytest.mark.table
@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_nobody_waits_for_an_environment_that_is_in_a_long_step(runs, interruption, tmp_path, schedule):
    interruption.at(lambda _: (tmp_path / "marker").exists(), signal.SIGINT)
    kwargs = {"fault": "hang", "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train(ENV, kwargs=kwargs, run__schedule=schedule, **FOR_EVER)
    assert interruption.since_s < SOON_S
    assert run.summary["exit_code"] == 130, run.summary["error"]
    assert_books(run)
    books = run.summary["books"]
    assert books["in_flight"] == 0
    assert books["salvaged"] >= 4  # steps 9 to 12 of the lane that hangs
    assert run.summary["weights_sha256"]


def test_duration_ends_it_in_order(runs):
    run = runs.train(ENV, evaluation__episodes=2, run__run_duration_s=0.7, **FOR_EVER)
    assert run.completed
    assert run.summary["exit_code"] == 0
    assert [event["text"] for event in events(run, "stopping")] == ["stopping: run_duration_s is over"]
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]
    assert_books(run)


def test_duration_that_ends_in_the_final_evaluation_does_not_cut_it(runs):
    run = runs.train(
        ENV, kwargs={"step_s": 0.002}, run__steps=200, run__run_duration_s=0.4, evaluation__episodes=20,
        evaluation__random_baseline=False,
    )  # fmt: skip
    assert run.completed
    assert run.summary["evaluations"][-1]["episodes"] == 20


# The command itself.


@contextlib.contextmanager
def command(run_dir: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """``headrace train`` of the traced environment, in a process group of its own."""
    settings = ("env.lanes=4", "replay.learning_starts=50", "collect.random_steps=50", "evaluation.episodes=0",
                "algorithm.batch_size=32", "algorithm.actor.hidden=[16]", "algorithm.critic.hidden=[16]")  # fmt: skip
    config = run_dir.with_suffix(".toml")
    config.write_text('[env]\nfactory = "run_envs:make"\n')
    line = [Path(sys.executable).with_name("headrace"), "train", str(config), "--run-dir", str(run_dir), *more]
    line += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(
        line, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def wait_for(run_dir: Path, kind: str, component: str, process: subprocess.Popen[str], timeout_s: float = 60.0) -> None:
    """Until the run has written an event; its process ending, or the limit, fails the test."""
    deadline = Deadline(timeout_s)
    pidfd = os.pidfd_open(process.pid)
    try:
        while not events(run_dir, kind, component):
            assert not deadline.passed, f"no event {kind} of {component}"
            assert not poll_fds({pidfd: select.POLLIN}, 0.02), process.communicate(timeout=5.0)
    finally:
        os.close(pidfd)


@pytest.mark.table
@pytest.mark.parametrize(("kind", "component"), [("started", "learner"), ("ready", "collector-1")])
def test_ctrl_c_in_a_terminal(tmp_path, kind, component):
    run_dir = tmp_path / "run"
    with command(run_dir, "--steps", "10000000") as process:
        wait_for(run_dir, kind, component, process)
        deadline = Deadline(SOON_S)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the command and whoever shares its group
        out, err = process.communicate(timeout=deadline.left_s())
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert err == ""
    assert "interrupted after " in out
    assert "books         produced " in out
    assert summary(run_dir)["outcome"] == "interrupted"


@pytest.mark.table
def test_parent_is_killed_and_another_run_starts_at_once(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with command(first, "--steps", "10000000") as process:
        wait_for(first, "ready", "collector-1", process)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 4  # fork server, learner, two collectors
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=SOON_S)
        assert not alive
    with command(second, "--steps", "300", "--quiet") as process:
        _, err = process.communicate(timeout=60.0)
    assert (process.returncode, err) == (0, "")
    assert summary(second)["books"]["balanced"]


@pytest.mark.table
def test_a_run_goes_on_when_nobody_reads_what_it_prints(tmp_path):
    """``headrace train … | head -1``."""
    with command(tmp_path / "run", "--steps", "300") as process:
        process.stdout.close()
        process.stdout = None
        _, told = process.communicate(timeout=120.0)
    assert process.returncode == 0, told
    assert told == "standard output takes no more (Broken pipe); the run goes on\n"
    assert summary(tmp_path / "run")["env_steps"] >= 300


@pytest.mark.parametrize("starts", ["probe", "learner", "nobody"])
def test_who_starts_while_the_directory_is_moved_is_not_to_blame(runs, tmp_path, monkeypatch, starts):
    place = tmp_path / "run-1"
    start, poll, server = Supervisor.start, Supervisor.poll, experiment._fork_server
    moved, deadline = [], Deadline(60.0)

    def move() -> None:
        moved.append(place.rename(tmp_path / "elsewhere"))

    def started(supervisor: Supervisor, child_id: str) -> None:
        if child_id == starts:
            move()
        start(supervisor, child_id)

    def polled(supervisor: Supervisor, timeout_s: float) -> list[Event]:
        """Once it is moved, what has happened is told only when somebody has failed for that."""
        found = poll(supervisor, timeout_s)
        while moved and not any(isinstance(event, Exited) and not event.expected for event in found):
            assert not deadline.passed
            found += poll(supervisor, timeout_s)
        moved.clear()
        return found

    def served(*args: object) -> object:
        if starts == "nobody":
            move()
            (place / "logs" / "forkserver.log").open("ab")
        return server(*args)

    monkeypatch.setattr(Supervisor, "start", started)
    monkeypatch.setattr(Supervisor, "poll", polled)
    monkeypatch.setattr(experiment, "_fork_server", served)
    run = runs.train(ENV)
    assert run.summary["error"].startswith(f"[CFG-003] the run directory {place} was removed, moved or replaced")
    assert (run.summary["outcome"], run.summary["exit_code"]) == ("failed", 1)
    assert not any(run.summary["faults"].values())


@pytest.mark.table
@pytest.mark.parametrize(("schedule", "replaced"), [("inline", False), ("async", False), ("inline", True)])
def test_a_run_whose_directory_is_removed_ends_and_says_so(schedule: str, replaced: bool, tmp_path: Path) -> None:
    place = tmp_path / "run"

    def look(progress: Progress) -> None:
        if progress.env_steps and not (tmp_path / "elsewhere").exists():
            if replaced:
                replace_run(place, tmp_path / "elsewhere", "record", "checkpoints")
            else:
                place.rename(tmp_path / "elsewhere")

    settings = {"env.id": "Pendulum-v1", "run.schedule": schedule, "run.steps": 10_000_000, "evaluation.episodes": 0}
    run = headrace.train(run_dir=place, settings=settings, on_progress=look)
    assert run.summary["outcome"] == "failed"
    assert run.summary["exit_code"] == 1
    assert run.summary["error"].startswith(f"[CFG-003] the run directory {place} was removed, moved or replaced")
    assert ("found: another run's lock in it" in run.summary["error"]) == replaced
    assert "unwritten" not in run.summary
    assert not [*tmp_path.rglob("summary.json*")]
    found = diagnose(read_run(tmp_path / "elsewhere"))
    assert found.state is Condition.FAILED
    assert ", and its summary could not be written; it had failed: the run directory " in found.verdict


def test_of_a_run_that_whoever_looks_on_has_ended_and_that_left_no_summary_the_board_tells(tmp_path: Path) -> None:
    def look(_: Progress) -> None:
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        headrace.train(run_dir=tmp_path / "run", settings={"env.id": "Pendulum-v1"}, on_progress=look)
    (tmp_path / "run" / "summary.json").unlink()
    assert "and its summary could not be written; it had failed: " in diagnose(read_run(tmp_path / "run")).verdict
