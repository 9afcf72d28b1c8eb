"""The one wait: who it names, what it shows meanwhile, and that nothing but time or input ends it."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.core.errors import ChannelClosed, ComponentStalled
from headrace.telemetry import waits
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.waits import wait_readable

LIMIT_S = 60.0


@pytest.fixture
def board(tmp_path):
    with Board.create(tmp_path / "board", [("learner", "learner"), ("collector-0", "collector")]) as board:
        board.slot("learner").set_state(State.RUNNING)
        yield board


@pytest.fixture
def slot(board):
    slot = board.slot("learner")
    slot.enter(Activity.UPDATE, lane=-1, step=7)
    return slot


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue  # the test closed it


def wait(slot, fds, **changes):
    how = {"activity": Activity.WAIT_ROWS, "on": "collector-0", "need": 64, "have": 12, "timeout_s": LIMIT_S}
    return wait_readable(slot, fds, **(how | changes))


def test_it_returns_what_is_readable_in_the_order_given(slot, pipe):
    other_reader, other_writer = os.pipe()
    os.write(pipe[1], b"x")
    os.write(other_writer, b"x")
    try:
        assert wait(slot, [other_reader, pipe[0]]) == [other_reader, pipe[0]]
        os.read(other_reader, 1)
        assert wait(slot, [other_reader, pipe[0]]) == [pipe[0]]
    finally:
        os.close(other_reader)
        os.close(other_writer)


def test_an_end_of_file_counts_as_readable(slot, pipe):
    os.close(pipe[1])
    assert wait(slot, [pipe[0]]) == [pipe[0]]


def test_the_board_is_true_while_it_blocks_and_afterwards(board, slot, pipe, monkeypatch):
    seen = []

    def look(interest, timeout_s):
        seen.append((board.read("learner"), timeout_s))
        return dict.fromkeys(interest, 1)

    monkeypatch.setattr(waits, "poll_fds", look)
    wait(slot, [pipe[0]], timeout_s=2.0)
    [(view, timeout_s)] = seen
    assert (view.state, view.activity, view.waits_on) == (State.WAITING, Activity.WAIT_ROWS, "collector-0")
    assert (view.need, view.have, view.deadline_s, timeout_s) == (64, 12, 2.0, 2.0)
    after = board.read("learner")
    assert (after.state, after.activity, after.step, after.waits_on) == (State.RUNNING, Activity.UPDATE, 7, None)
    assert after.since_ns >= view.since_ns  # the time spent waiting is not charged to the activity


def test_reaching_the_limit_names_waiter_culprit_and_reason(slot, pipe):
    with pytest.raises(ComponentStalled) as caught:
        wait(slot, [pipe[0]], timeout_s=0.01)
    assert str(caught.value) == (
        "[SUP-002] learner waited 0.01 s for collector-0\n"
        "  activity: wait.rows\n"
        "  need: 64\n"
        "  have: 12\n"
        "  fix: see what collector-0 is doing: `headrace doctor RUN`"
    )
    caught.value.in_run("runs/my run")
    assert str(caught.value).endswith("what collector-0 is doing: `headrace doctor 'runs/my run'`")


def test_reaching_the_limit_may_be_an_answer(slot, pipe):
    assert wait(slot, [pipe[0]], timeout_s=0.0, raise_on_timeout=False) == []


def test_it_works_without_a_slot(pipe):
    with pytest.raises(ComponentStalled, match="this process waited 0 s for a message"):
        wait(None, [pipe[0]], on=None, timeout_s=0.0)


def test_a_closed_descriptor_is_an_error_and_the_slot_is_restored(board, slot, pipe):
    os.close(pipe[0])
    with pytest.raises(ChannelClosed):
        wait(slot, [pipe[0]])
    assert board.read("learner").activity is Activity.UPDATE


def test_a_signal_does_not_end_the_wait_but_its_handler_may(board, slot, pipe):
    arrived = []

    def on_alarm(_number, _frame):
        # The first one comes in the middle of the wait and must not end it; only what it writes does.
        arrived.append(board.read("learner").activity)
        if len(arrived) == 2:
            os.write(pipe[1], b"x")

    before = signal.signal(signal.SIGALRM, on_alarm)
    own_limit = signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # pytest-timeout uses the same timer
    try:
        assert wait(slot, [pipe[0]]) == [pipe[0]]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *own_limit)
    assert arrived[:2] == [Activity.WAIT_ROWS, Activity.WAIT_ROWS]


def test_an_exception_from_a_handler_ends_the_wait_and_restores_the_slot(board, slot, pipe, monkeypatch):
    def interrupted(_interest, _timeout_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(waits, "poll_fds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wait(slot, [pipe[0]])
    assert board.read("learner").activity is Activity.UPDATE
