"""When a child is called overdue: not on the first look, and not if it moves on between two."""

from __future__ import annotations

import pytest

from headrace.supervision.child import SupervisedChild
from headrace.supervision.policy import Phase
from headrace.supervision.spec import ChildSpec
from headrace.supervision.watchdog import LOOK_S, Watchdog
from headrace.telemetry.board import Activity, Board, State


@pytest.fixture
def board(tmp_path):
    with Board.create(tmp_path / "board", [("c", "collector")]) as board:
        yield board


@pytest.fixture
def child(board, tmp_path):
    """A child that counts as ready; it has no process, so nothing can be sent to it."""
    limits = {Activity.ENV_STEP: 30.0, Activity.START: 60.0}
    spec = ChildSpec(id="c", kind="collector", target="m:f", payload=lambda _: None, deadlines=limits)
    child = SupervisedChild(spec, board.slot("c"), tmp_path, tmp_path)
    child.life.move(Phase.STARTING)
    child.life.move(Phase.READY)
    child.slot.set_state(State.RUNNING)
    child.slot.enter(Activity.ENV_STEP, lane=2)
    return child


@pytest.fixture
def watchdog(child, board):
    return Watchdog({"c": child}, board)


@pytest.fixture
def late_s(board, child):
    """A moment at which the step is over its limit."""
    return board.read("c").since_ns / 1e9 + 31.0


def test_nobody_is_overdue_on_the_first_look(watchdog, child, late_s):
    assert watchdog.look(late_s) == []
    assert watchdog.look(late_s + LOOK_S / 2) == []  # too soon to be a second look
    [late] = watchdog.look(late_s + LOOK_S)
    assert (late.id, late.activity, late.limit_s, late.lane) == ("c", "env.step", 30.0, 2)
    assert child.life.phase is Phase.DUMPING


def test_whoever_moves_on_between_two_looks_was_only_slow(watchdog, child, late_s):
    assert watchdog.look(late_s) == []
    child.slot.enter(Activity.ENV_STEP, lane=2)  # the next step; by the machine's clock it has only just begun
    assert watchdog.look(late_s + LOOK_S) == []
    assert child.life.phase is Phase.READY


def test_within_its_limit_nobody_is_suspect(watchdog, late_s):
    for look in range(4):
        assert watchdog.look(late_s - 5.0 + look * LOOK_S) == []


def test_a_caught_child_is_not_caught_again_but_killed(watchdog, child, late_s):
    watchdog.look(late_s)
    assert len(watchdog.look(late_s + LOOK_S)) == 1
    assert watchdog.look(late_s + 2 * LOOK_S) == []
    assert child.life.phase is Phase.KILLED


def test_a_child_that_stops_has_only_the_limit_of_stopping(watchdog, child, late_s):
    child.life.move(Phase.STOPPING)
    child.due_s = late_s + 10.0
    for look in range(4):
        assert watchdog.look(late_s + look * LOOK_S) == []
    [late] = watchdog.look(late_s + 10.0 + LOOK_S)
    assert str(late) == "stop for 20.2 s (limit 20 s)"


@pytest.fixture
def starting(board, tmp_path):
    """A child that is not ready yet, and since when, on the board's clock."""
    limits = {Activity.START: 60.0, Activity.RESUME: 30.0}
    spec = ChildSpec(id="c", kind="learner", target="m:f", payload=lambda _: None, deadlines=limits)
    child = SupervisedChild(spec, board.slot("c"), tmp_path, tmp_path)
    child.life.move(Phase.STARTING)
    child.slot.begin(0)
    since_s = board.read("c").since_ns / 1e9
    child._clear(since_s)
    return child, since_s


def test_reading_what_a_run_goes_on_from_is_no_part_of_the_start(starting):
    child, since_s = starting
    assert child.late(since_s + 59.0) is None
    child.slot.enter(Activity.RESUME)
    assert child.late(since_s + 59.5) is None
    assert child.late(since_s + 1000.0) is None
    child.slot.enter(Activity.START)
    assert child.late(since_s + 1059.0) is None
    assert str(child.late(since_s + 1061.0)) == "start for 61 s (limit 60 s)"


def test_reading_it_has_a_limit_from_each_progress_to_the_next(starting, board):
    child, since_s = starting
    watchdog = Watchdog({"c": child}, board)
    child.slot.enter(Activity.RESUME)
    assert watchdog.look(since_s + 31.0) == []
    child.slot.enter(Activity.RESUME)  # an event was read
    assert watchdog.look(since_s + 31.0 + LOOK_S) == []
    [late] = watchdog.look(since_s + 31.0 + 2 * LOOK_S)
    assert str(late) == "resume for 31.5 s (limit 30 s)"


def test_without_that_limit_reading_it_is_part_of_the_start(starting):
    child, since_s = starting
    del child.spec.deadlines[Activity.RESUME]
    child.slot.enter(Activity.RESUME)
    assert str(child.late(since_s + 61.0)) == "start for 61 s (limit 60 s)"
