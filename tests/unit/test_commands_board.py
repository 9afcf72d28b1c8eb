"""What keepers show on the board, and what the doctor makes of it."""

from __future__ import annotations

import time

import pytest

from headrace.commands.config import ProcessConfig
from headrace.commands.keeper import Display, suspect
from headrace.commands.vigil import Judgement
from headrace.telemetry.blame import Condition, blame
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.looks import Look

PROCESSES = {
    "inference": {},
    "orchestrator": {"needs": ["inference"], "progress": {"log": "batch", "progress_s": 60.0}},
    "trainer": {"needs": ["orchestrator"], "progress": {"log": "step", "progress_s": 90.0}},
}


@pytest.fixture
def board(tmp_path):
    names = [("supervisor", "supervisor"), *((name, "command") for name in PROCESSES)]
    with Board.create(tmp_path / "board", names) as found:
        yield found


@pytest.fixture
def displays(board):
    return {
        name: Display(board, board.slot(name), ProcessConfig(command=["x"], **facts))
        for name, facts in PROCESSES.items()
    }


def verdict(board, *, later_s=0.0):
    return blame([Look(time.monotonic_ns() + int(later_s * 1e9), board.read_all())])


def test_a_run_that_gets_on_is_called_so(board, displays):
    for number, display in enumerate(displays.values()):
        display.show(Judgement.WELL, number)

    found = verdict(board)
    assert (found.condition, found.sentence) == (
        Condition.HEALTHY, "the run gets on: inference runs, orchestrator runs and trainer runs",
    )  # fmt: skip
    assert [board.read(name).counters["updates"] for name in displays] == [0, 1, 2]


def test_a_run_whose_first_process_is_not_ready_is_starting(board, displays):
    displays["inference"].starting()
    for name in ("orchestrator", "trainer"):
        board.slot(name).set_state(State.STARTING)
        board.slot(name).waiting(Activity.WAIT_NEEDED, on=PROCESSES[name]["needs"][0])

    found = verdict(board, later_s=12.0)
    assert found.condition is Condition.STARTING
    assert found.sentence == "the run is starting: inference has been inside wait.ready for 12.0 s (limit 600 s)"


def test_one_that_waits_for_one_that_failed_is_seen_to_wait_in_vain(board, displays):
    displays["inference"].show(Judgement.WELL, 0)
    board.slot("orchestrator").set_state(State.FAILED)
    displays["trainer"].show(Judgement.QUIET, 3)

    view = board.read("trainer")
    assert (view.state, view.activity, view.waits_on, view.deadline_s) == (
        State.WAITING, Activity.WAIT_PROGRESS, "orchestrator", 90.0,
    )  # fmt: skip
    found = verdict(board, later_s=6.0)
    assert (found.condition, found.culprit) == (Condition.DEAD, "orchestrator")
    assert found.sentence == "trainer has waited 6.0 s for progress of orchestrator, which has failed"


def test_one_that_waits_for_one_that_is_about_to_be_started_again_is_not_said_to_wait_in_vain(board, displays):
    inference = board.slot("inference")  # as a supervisor leaves it in the pause before a restart
    inference.set_state(State.STARTING)
    inference.waiting(Activity.WAIT_RESTART, deadline_s=15.0)
    displays["orchestrator"].show(Judgement.QUIET, 3)
    displays["trainer"].show(Judgement.WELL, 3)

    assert board.read("orchestrator").waits_on == "inference"
    found = verdict(board, later_s=6.0)
    assert (found.condition, found.culprit) == (Condition.STARTING, "inference")
    assert found.sentence == "inference has failed and is started again in 9.0 s, and orchestrator waits for it"


def test_one_that_is_asked_to_leave_shows_how_long_it_has(board, displays):
    displays["trainer"].stopping()

    view = board.read("trainer")
    assert (view.state, view.activity, view.deadline_s) == (State.STOPPING, Activity.STOP, 20.0)
    found = verdict(board, later_s=14.0)
    assert (found.condition, found.sentence) == (
        Condition.HEALTHY, "the run is ending: trainer was asked to leave 14.0 s ago and has 20 s",
    )  # fmt: skip


def test_the_silent_one_that_nobody_excuses_is_named_before_its_limit(board, displays):
    displays["inference"].show(Judgement.WELL, 0)
    displays["orchestrator"].show(Judgement.QUIET, 3)
    displays["trainer"].show(Judgement.QUIET, 3)

    found = verdict(board, later_s=30.0)
    assert (found.condition, found.culprit) == (Condition.STALLED, "orchestrator")
    assert found.sentence == ("orchestrator has shown no progress for 30.0 s (limit 60 s), and trainer waits for it")


def test_a_keeper_shows_that_it_lives_only_while_all_is_well(board, displays):
    displays["trainer"].show(Judgement.QUIET, 0)
    before = board.read("trainer").since_ns
    displays["trainer"].show(Judgement.QUIET, 0)
    assert board.read("trainer").since_ns == before  # how long it has been silent stays visible
    displays["trainer"].show(Judgement.WELL, 1)
    assert board.read("trainer").activity is Activity.COMMAND


def test_the_most_likely_reason_is_shown(board):
    for name, state in (("inference", State.STARTING), ("orchestrator", State.FAILED), ("trainer", State.RUNNING)):
        board.slot(name).set_state(state)
    names = list(PROCESSES)

    assert suspect(names, [board.read(name) for name in names]) == "orchestrator"
    assert suspect(["trainer"], [board.read("trainer")]) is None
    board.slot("inference").set_state(State.ENDED)  # its work is done, and nobody misses it
    board.slot("orchestrator").set_state(State.STARTING)
    assert suspect(names, [board.read(name) for name in names]) == "orchestrator"
    assert suspect(["inference", "trainer"], [board.read("inference"), board.read("trainer")]) is None
