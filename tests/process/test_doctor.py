"""The doctor looks at real runs: stuck, stopped, killed, failed, finished, copied."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cli.main import main
from headrace.ipc.channel import Deadline, poll_fds
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.monitor.snapshot import Diagnosis
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Activity, Board, SlotView
from headrace.telemetry.header import pack_header
from run_support import events

pytestmark = pytest.mark.process

HERE = Path(__file__).resolve().parents[1]
LOOK_S = 0.02
Views = dict[str, SlotView]


def board_of(run_dir: Path) -> Views:
    if not (run_dir / "board").exists():
        return {}
    with Board.open(run_dir / "board") as board:
        return {view.id: view for view in board.read_all()}


def until(holds: Callable[[Views], bool], run_dir: Path, timeout_s: float = 60.0) -> Views:
    """Look at a board until something holds; the limit fails the test."""
    deadline = Deadline(timeout_s)
    while not (views := board_of(run_dir)) or not holds(views):
        assert not deadline.passed, {name: str(view.activity) for name, view in views.items()}
        poll_fds({}, LOOK_S)
    return views


@pytest.fixture
def consult(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Diagnosis]]:
    """Call the doctor once in the middle of the first run, when something holds; the run waits for that."""

    def install(when: Callable[[Views], bool], before: Any = None, after: Any = None) -> list[Diagnosis]:
        found: list[Diagnosis] = []
        poll, run_dir = Supervisor.poll, tmp_path / "run-1"

        def polled(supervisor: Supervisor, timeout_s: float) -> Any:
            seen = poll(supervisor, timeout_s)
            if not found and (views := board_of(run_dir)) and when(views):
                if before is not None:
                    before(supervisor, run_dir)
                found.append(diagnose(read_run(run_dir)))
                if after is not None:
                    after(supervisor)
            return seen

        monkeypatch.setattr(Supervisor, "poll", polled)
        return found

    return install


@pytest.mark.table
def test_a_queue_that_nobody_drains_because_the_learner_is_stopped(runs, consult):
    def stop(supervisor: Supervisor, run_dir: Path) -> None:
        os.kill(supervisor.pid("learner"), signal.SIGSTOP)
        until(lambda views: all(views[f"collector-{n}"].activity is Activity.WAIT_CREDIT for n in range(2)), run_dir)

    def go_on(supervisor: Supervisor) -> None:
        os.kill(supervisor.pid("learner"), signal.SIGCONT)

    found = consult(lambda views: views["learner"].counters["updates"] > 20, stop, go_on)
    run = runs.train(run__steps=2_000)
    assert run.completed, run.summary["error"]
    (told,) = found
    assert (told.state, told.culprit, told.exit_code) == (Condition.STALLED, "learner", 3)
    assert told.verdict.startswith("learner is stopped by a signal (SIGSTOP, Ctrl-Z or a debugger) inside ")
    assert told.verdict.endswith(", and collector-0 and collector-1 wait for it")
    assert {stage.component: stage.state for stage in told.stages}["learner"] == "stopped"


@pytest.mark.table
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("env", "fault", "clause"),
    [
        ("doctor_envs:make", "spin", ": it spins without getting on"),
        ("run_envs:make", "hang", " and uses 0% of a core: it waits for something outside the run"),
    ],
)
def test_one_of_32_environments_holds_the_others_up(runs, consult, tmp_path, env, fault, clause):
    def hangs(views: Views) -> bool:
        view = views["collector-0"]
        return (
            (tmp_path / "marker").exists()
            and view.activity is Activity.ENV_STEP
            and view.age_s(time.monotonic_ns()) > 1.2
        )

    found = consult(hangs)
    run = runs.train(
        env, kwargs={"fault": fault, "at": 5, "marker": str(tmp_path / "marker")}, env__lanes=32, env__group_size=32,
        run__collectors=1, run__steps=700, deadlines__step_s=2.0,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    (told,) = found
    (stacks,) = events(run, "stacks")  # what the run itself found out, later
    place = stacks["text"].rpartition("), ")[2].partition(";")[0]
    lane = place.removeprefix("lane ").partition(",")[0]
    assert (told.state, told.culprit) == (Condition.STALLED, "collector-0")
    assert told.verdict.startswith(f"collector-0 has been inside env.step of {place} for ")
    assert " s (limit 2 s) and uses " in told.verdict
    assert f"{clause}, and learner waits for it" in told.verdict
    assert told.evidence[0] == f"31 other lanes of its group wait for lane {lane}"
    assert "py-spy dump --pid" in told.remedy


def test_collectors_that_died_of_an_exception(runs):
    run = runs.train(kwargs={"fault": "fail"}, supervision__max_restarts=1, run__collectors=1, env__lanes=2)
    found = diagnose(read_run(run.path))
    assert (found.state, found.culprit, found.exit_code) == (Condition.FAILED, "collector-0", 1)
    assert found.verdict.endswith(
        "s: collector-0 ended and is not started again: it ended again after 1 restart within 300 s; "
        "run_envs:make in lane 0 raised ValueError in step(); ValueError: burn map corrupt, tile 7"
    )


def test_a_run_that_has_finished(runs):
    run = runs.train(run__steps=200)
    found = diagnose(read_run(run.path))
    steps, updates = run.summary["env_steps"], run.summary["updates"]
    assert (found.state, found.exit_code) == (Condition.FINISHED, 0)
    assert found.verdict.endswith(f" s with {steps:,} environment steps and {updates:,} updates")


# Commands.

SMALL = (
    "env.lanes=4", "replay.learning_starts=50", "collect.random_steps=50", "evaluation.episodes=0",
    "algorithm.batch_size=32", "algorithm.actor.hidden=[16]", "algorithm.critic.hidden=[16]",
)  # fmt: skip


@contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A ``headrace`` command in a process group of its own."""
    line: Sequence[str | Path] = [Path(sys.executable).with_name("headrace"), *arguments]
    with subprocess.Popen(
        line, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def traced(folder: Path) -> list[str]:
    config = folder / "traced.toml"
    config.write_text('[env]\nfactory = "run_envs:make"\n')
    return [str(config), *(part for setting in SMALL for part in ("--set", setting))]


def doctor(run_dir: Path) -> tuple[int, dict[str, Any]]:
    with command("doctor", run_dir, "--json") as process:
        out, err = process.communicate(timeout=60.0)
    assert err == ""
    return process.returncode, json.loads(out)


def doctor_here(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """The same without a process of its own, which takes a second to start."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(run_dir), "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    return left.value.code, json.loads(out)


@pytest.mark.table
def test_a_parent_that_is_stopped_and_then_killed_and_a_copy_of_what_it_left(tmp_path, capsys):
    run_dir = tmp_path / "run"
    with command("train", *traced(tmp_path), "--run-dir", run_dir, "--steps", "10000000", "--quiet") as process:
        until(lambda views: views["learner"].counters["updates"] > 20, run_dir)
        code, found = doctor_here(run_dir, capsys)
        assert (code, found["state"], found["culprit"]) == (0, "healthy", None)
        os.kill(process.pid, signal.SIGSTOP)
        code, found = doctor(run_dir)
        assert (code, found["state"], found["culprit"]) == (3, "stalled", "supervisor")
        assert found["verdict"] == (
            "supervisor is stopped by a signal (SIGSTOP, Ctrl-Z or a debugger), so nobody looks after the run"
        )
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=10.0)
        assert not alive
    code, found = doctor_here(run_dir, capsys)
    assert (code, found["state"], found["culprit"]) == (1, "dead", "supervisor")
    assert found["verdict"].startswith(f"supervisor (pid {process.pid}) ended without a summary ")
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    with Board.open(copy / "board") as board:
        data, header = bytearray(board.memory), replace(board.header, machine="another boot", host="fox")
    pack_header(header, data)
    (copy / "board").write_bytes(data)
    found = diagnose(read_run(copy)).to_json()
    assert found["verdict"].startswith("when this copy of a run on fox was made, ")
    assert all(stage["since_s"] is None or 0 <= stage["since_s"] < 600 for stage in found["stages"])


@pytest.mark.table
def test_debug_run(tmp_path):
    run_dir = tmp_path / "run"
    with command(
        "debug-run", *traced(tmp_path), "--run-dir", run_dir, "--run-duration", "10", "--json", "--collectors", "2",
        "--set", "run.steps=10000000",
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=90.0)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    assert (found["outcome"], found["state"], found["culprit"]) == ("completed", "healthy", None), found
    assert found["verdict"].startswith("the run gets on: ")
    table = {share["component"]: share for share in found["time"]}
    assert list(table) == ["probe", "learner", "collector-0", "collector-1"]
    assert table["learner"]["rate"] > 0
    assert sum(table["learner"]["busy_with"].values()) == pytest.approx(1.0, abs=0.01)
    assert {"verdict", "culprit", "state", "stages", "evidence", "remedy", "run"} <= set(found)


@pytest.mark.table
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_debug_run_that_is_interrupted_says_so_and_gives_no_advice(tmp_path, number):
    run_dir = tmp_path / "run"
    with command("debug-run", *traced(tmp_path), "--run-dir", run_dir, "--json") as process:
        until(lambda views: "probe" in views, run_dir)
        process.send_signal(number)
        out, _ = process.communicate(timeout=90.0)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["outcome"] == "interrupted"
    assert found["verdict"].startswith("the run was interrupted after ")
    assert "run.steps" not in out
    assert {stage["state"] for stage in found["stages"]} <= {"ended", "empty"}
