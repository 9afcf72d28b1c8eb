"""Where chunks come from: credits out, commits in, and who is there."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import ComponentStalled
from headrace.core.specs import Leaf
from headrace.ipc.channel import Channel, MessagePipe
from headrace.lanes.credits import CREDIT_BYTES, Commit, Credit, LaneCommit, commit_bytes
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry
from headrace.runtime.groups import InlineGroups, RemoteGroups
from headrace.runtime.payloads import GroupBeginning
from headrace.telemetry.board import Activity, Board

OWNED = [(0, 2), (1, 3)]


class Bench:
    """Remote groups of two collectors; both ends of their pipes are here."""

    def __init__(self, tmp_path) -> None:
        obs, action = (Leaf(name, np.dtype(np.float32), (1,)) for name in ("obs", "action"))
        geometry = Geometry(4, 400, (obs,), (action,), 4, 2)
        self.block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        names = [("learner", "learner"), ("collector-0", "collector"), ("collector-1", "collector")]
        self.board = Board.create(tmp_path / "board", [*names, ("supervisor", "supervisor")])
        self.pipes = [(MessagePipe.create(CREDIT_BYTES), MessagePipe.create(commit_bytes(1))) for _ in OWNED]
        self.control, self.other = Channel.pair()
        self.groups = RemoteGroups(OWNED, self.pipes, self.block, self.board, self.board.slot("learner"), wait_s=0.0)

    def credits(self, collector: int) -> list[Credit]:
        return [Credit.unpack(data) for data in self.pipes[collector][0].take()]

    def commit(self, group: int, *, last: bool = False) -> Commit:
        commit = Commit(0, group, 0, 1, last, (LaneCommit(4, 4, 99),))
        self.pipes[group % 2][1].put(commit.pack())
        return commit

    def wait(self, *groups: int) -> None:
        self.groups.wait(groups, self.control.fileno())

    def close(self) -> None:
        self.board.close()
        for channel in (self.control, self.other):
            channel.close()
        for pair in self.pipes:
            for pipe in pair:
                pipe.close()


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.close()


def test_credit_reaches_the_owner_and_names_its_incarnation(bench):
    bench.groups.grant(3, 5, 7, 9)
    assert bench.credits(0) == []
    assert bench.credits(1) == [Credit(0, 3, 5, 7, 9, stop=False)]
    bench.groups.lost(1)
    assert bench.groups.joined(1, 4) == [1, 3]
    bench.groups.grant(3, 6, 7, 9)
    assert bench.credits(1) == [Credit(4, 3, 6, 7, 9, stop=False)]


def test_commits_come_as_they_were_sent(bench):
    sent = [bench.commit(0), bench.commit(2), bench.commit(1)]
    assert bench.groups.take() == sent
    assert bench.groups.take() == []


def test_lost_collector_is_not_there_until_it_has_joined(bench):
    assert bench.groups.present() == [0, 1, 2, 3]
    assert bench.groups.lost(0) == [0, 2]
    assert bench.groups.present() == [1, 3]
    bench.groups.joined(0, 1)
    assert bench.groups.present() == [0, 1, 2, 3]


def test_group_that_is_left_out_never_comes_back(bench):
    bench.groups.lost(1)
    bench.groups.leave_out([3])
    assert bench.groups.joined(1, 1) == [1]
    assert bench.groups.present() == [0, 1, 2]
    assert bench.groups.stop() == [0, 1, 2]
    assert bench.groups.lost(1) == [1]


def test_collector_that_left_and_was_replaced_is_waited_for_at_the_end(bench):
    bench.commit(1, last=True)
    bench.groups.take()
    bench.groups.lost(1)
    bench.groups.joined(1, 1)
    assert bench.groups.stop() == [0, 1, 2, 3]


def test_stop_marks_every_lane_and_wakes_those_who_wait(bench):
    assert bench.groups.stop() == [0, 1, 2, 3]
    assert bench.block.stopping.tolist() == [1] * 4
    assert [credit.stop for number in (0, 1) for credit in bench.credits(number)] == [True] * 4


def test_group_that_has_left_is_not_waited_for_again(bench):
    bench.commit(2, last=True)
    bench.commit(0)
    bench.groups.take()
    bench.groups.lost(1)
    assert bench.groups.stop() == [0]


def test_wait_returns_for_a_commit_and_for_an_order(bench):
    bench.commit(1)
    bench.wait(0, 1)
    bench.groups.take()
    bench.other.send("an order", 1.0)
    bench.wait(0, 1)


def test_wait_for_those_who_do_nothing_names_them(bench):
    bench.board.slot("collector-1").enter(Activity.ENV_STEP, 3, 17)
    with pytest.raises(ComponentStalled) as caught:
        bench.wait(3)
    assert caught.value.facts["waits_on"] == "collector-1 (env.step)"
    assert caught.value.exit_code == 3


def test_wait_goes_on_while_somebody_moves(bench, monkeypatch):
    read = bench.board.read

    def moved(name):
        bench.board.slot(name).enter(Activity.ENV_STEP)
        return read(name)

    monkeypatch.setattr(bench.board, "read", moved)
    bench.wait(3)
    assert bench.groups.take() == []


class FakeCollector:
    remote = None

    def __init__(self, group: int, log: list[tuple[int, int, int]]) -> None:
        self.group, self.log = group, log

    def collect(self, chunk, steps, stopping):
        self.log.append((self.group, chunk, 0 if stopping() else steps))
        return Commit(0, self.group, chunk, 1, last=False, lanes=())


def test_inline_collects_what_was_granted_when_it_is_asked_for():
    log: list[tuple[int, int, int]] = []
    stop = False
    beginnings = [GroupBeginning(0), GroupBeginning(0)]
    groups = InlineGroups(lambda group, _: FakeCollector(group, log), beginnings, 8, lambda: stop)
    groups.grant(1, 0, 1, 1)
    groups.grant(0, 0, 2, 1)
    assert log == []
    assert [commit.group for commit in groups.take()] == [1, 0, 0]
    assert log == [(1, 0, 8), (0, 0, 8), (0, 1, 8)]
    stop = True
    groups.grant(0, 2, 3, 1)
    groups.take()
    assert log[-1] == (0, 2, 0)
    assert (groups.take(), groups.stop(), groups.present()) == ([], [], [0, 1])
