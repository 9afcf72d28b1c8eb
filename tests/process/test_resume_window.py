"""Whoever goes on with a run, until the session has its board: a reader is told so, and an end there changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from board_support import another_process
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Board, State
from resume_support import PastRun, files

pytestmark = pytest.mark.process

LIMIT_S = 120.0
PROGRAM = """
import os, sys
from headrace.cli import early
from headrace.cli.main import main
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.runtime import experiment, sessions
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Board
run, where, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner, name = {"history": (experiment, "history_for"), "prepare": (sessions, "_prepare"), "board": (Board, "create"),
               "metrics": (experiment, "MetricsSink")}[where]
real = getattr(owner, name)
def seam(*rest, **more):
    found = diagnose(read_run(run, between_s=0.0))
    print(found.state.value, found.exit_code, flush=True)
    os.kill(os.getpid(), number)
    return real(*rest, **more)
setattr(owner, name, seam)
early.guard()  # as the command does at its first line
main(["train", "--resume", "--run-dir", run, "--steps", "77000", "--quiet"])
"""


@pytest.fixture
def completed(tmp_path: Path) -> Path:
    past = PastRun(tmp_path / "run")
    past.learn(3)
    past.checkpoint()
    past.event("fault", "collector-0")
    past.learn(2)
    path = past.end("completed")
    with Board.attach(path / "board") as board:
        board.slot("supervisor").set_state(State.ENDED)
        another_process(board)
    return path


@pytest.mark.thin(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("where", ["history", "prepare", "board"])
def test_whoever_ends_it_before_it_has_a_board_finds_the_run_as_it_was(completed, where, number):
    before, told = files(completed), diagnose(read_run(completed))
    command = [sys.executable, "-c", PROGRAM, str(completed), where, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.stdout == "starting 0\n", ended.stderr
    assert ended.returncode == (-9 if number is signal.SIGKILL else 130), ended.stderr
    assert diagnose(read_run(completed)) == told  # also the summary, which is in its place
    if number is not signal.SIGKILL or where != "board":
        assert files(completed) == before


def test_killed_between_its_board_and_its_first_event_it_is_told_of_that_session_alone(completed):
    command = [sys.executable, "-c", PROGRAM, str(completed), "metrics", str(int(signal.SIGKILL))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.stdout, ended.returncode) == ("starting 0\n", -9), ended.stderr
    found = read_run(completed)
    assert found.events == ()
    assert 0.0 <= found.run_s < 1.0
    assert found.silent_s is not None
    assert found.silent_s >= 0.0
    assert diagnose(found).state is Condition.DEAD
    assert (completed / "earlier" / "summary-1.json").is_file()
