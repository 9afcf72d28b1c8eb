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
    assert watchdog.look(late_s) == []
    assert looks(watchdog, late_s, 10.0) == []
    assert looks(watchdog, late_s + 10.0, LOOK_S) == [(LOOK_S, "stop for 20.2 s (limit 20 s)")]


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


def looks(watchdog: Watchdog, begin_s: float, seconds: float) -> list[tuple[float, str]]:
    """Who is caught when, in seconds after ``begin_s``, by looks at their pace."""
    found = []
    for look in range(1, int(seconds / LOOK_S) + 1):
        found += [(look * LOOK_S, str(late)) for late in watchdog.look(begin_s + look * LOOK_S)]
    return found


def test_a_job_that_was_frozen_as_a_whole_goes_on_starting(starting, board):
    child, since_s = starting
    watchdog = Watchdog({"c": child}, board)
    assert watchdog.look(since_s + 1.0) == []
    assert watchdog.look(since_s + 501.0) == []
    assert looks(watchdog, since_s + 501.0, 58.0) == []
    assert child.life.phase is Phase.STARTING
    ((after_s, told),) = looks(watchdog, since_s + 559.0, 2.0)
    assert 0.0 < after_s <= 1.0
    assert told == "start for 60.2 s (limit 60 s)"


def test_time_that_nobody_has_watched_is_not_counted_in_an_activity(watchdog, child, late_s):
    begin_s = late_s - 31.0
    assert watchdog.look(begin_s + 1.0) == []
    assert watchdog.look(begin_s + 501.0) == []
    assert looks(watchdog, begin_s + 501.0, 28.0) == []
    assert watchdog.look(begin_s + 900.0) == []  # and again
    ((after_s, told),) = looks(watchdog, begin_s + 900.0, 2.0)
    assert after_s <= 1.0
    assert told.startswith("env.step for 30.")


def test_what_begins_while_nobody_looks_is_counted_from_when_somebody_does(watchdog, child, late_s):
    begin_s = late_s - 31.0
    assert watchdog.look(begin_s - 10.0) == []  # then the step began, then all was frozen
    assert watchdog.look(begin_s + 100.0) == []
    assert looks(watchdog, begin_s + 100.0, 29.0) == []
    assert len(looks(watchdog, begin_s + 129.0, 2.0)) == 1


def test_what_begins_afterwards_has_its_limit_and_no_more(watchdog, board, child, late_s):
    assert watchdog.look(late_s - 30.0) == []
    assert watchdog.look(late_s + 500.0) == []
    child.slot.enter(Activity.ENV_STEP, lane=3)
    assert watchdog.look(late_s + 500.0 + LOOK_S) == []
    assert watchdog._allowed == {"c": (board.read("c").since_ns, 0.0)}


def test_a_child_that_was_frozen_while_it_stopped_is_given_the_rest_of_its_time(watchdog, child, late_s):
    assert watchdog.look(late_s) == []
    child.life.move(Phase.STOPPING)
    child.due_s = late_s + 20.0  # told at once
    assert watchdog.look(late_s + 500.0) == []
    assert looks(watchdog, late_s + 500.0, 19.0) == []
    ((_, told),) = looks(watchdog, late_s + 519.0, 2.0)
    assert told == "stop for 20.2 s (limit 20 s)"


def test_looks_at_their_pace_allow_nothing(watchdog, child, late_s):
    looks(watchdog, late_s - 31.0, 29.0)
    assert [allowance_s for _, allowance_s in watchdog._allowed.values()] == [0.0]
