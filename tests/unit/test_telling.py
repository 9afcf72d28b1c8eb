"""What is told to the supervisor: kept while it takes nothing, and waited for only at the end, or when too much is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import ChannelClosed
from headrace.ipc.channel import Channel
from headrace.supervision import telling
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, State

WORDS = "x" * 10_000


@pytest.fixture
def ends():
    ours, theirs = Channel.pair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def board(tmp_path: Path):
    with Board.create(tmp_path / "board", [("supervisor", "supervisor"), ("learner", "learner")], "r") as board:
        yield board


def taken(channel: Channel, ours: Channel) -> list[object]:
    found = []
    while ours.unsent_bytes:
        found += channel.receive_all()
        ours.flush()
    return found + channel.receive_all()


def test_a_supervisor_that_takes_nothing_makes_nobody_wait_and_hears_it_all_in_order_later(ends, board):
    ours, theirs = ends
    slot = board.slot("learner")
    slot.enter(Activity.UPDATE)
    for number in range(300):  # a socket takes some twenty
        tell(ours, slot, (number, WORDS))
    assert board.read("learner").activity is Activity.UPDATE
    assert [number for number, _ in taken(theirs, ours)] == list(range(300))


def test_reading_sends_on_what_was_kept(ends, board):
    ours, theirs = ends
    for number in range(100):
        tell(ours, board.slot("learner"), (number, WORDS))
    heard: list[object] = []
    while ours.unsent_bytes:
        heard += theirs.receive_all()
        assert ours.receive_all() == []
    assert len(heard + theirs.receive_all()) == 100


@pytest.mark.parametrize(("most_bytes", "last"), [(0, False), (1 << 26, True)])
def test_who_waits_for_the_supervisor_says_so_and_goes_on_when_it_does(ends, board, monkeypatch, most_bytes, last):
    ours, theirs = ends
    slot = board.slot("learner")
    slot.enter(Activity.PUBLISH, 1, 2)
    while not ours.unsent_bytes:
        ours.post(WORDS)
    monkeypatch.setattr(telling, "KEPT_BYTES", most_bytes)
    seen, heard = [], []

    def poll(interest, timeout_s):
        view = board.read("learner")
        seen.append((view.activity, view.waits_on))
        heard.extend(theirs.receive_all())
        return {}

    monkeypatch.setattr(telling, "poll_fds", poll)
    slot.set_state(State.RUNNING)
    tell(ours, slot, "the last", last=last)
    assert seen
    assert set(seen) == {(Activity.WAIT_ACK, "supervisor")}
    assert [*heard, *theirs.receive_all()][-1] == "the last"
    view = board.read("learner")
    assert (view.activity, view.lane, view.step) == (Activity.PUBLISH, 1, 2)


def test_a_supervisor_that_dies_ends_the_wait_for_it(ends, board):
    ours, theirs = ends
    while not ours.unsent_bytes:
        ours.post(WORDS)
    theirs.close()
    with pytest.raises(ChannelClosed, match="closed its channel"):
        tell(ours, board.slot("learner"), "the last", last=True)
