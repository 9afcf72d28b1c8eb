"""Mailbox and slab between two sides in one process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.ipc import fences
from headrace.ipc.shm import SharedBlock
from headrace.vector import slab as slab_module
from headrace.vector.signals import Signal, Waiter
from headrace.vector.slab import Mailbox, Slab, plan
from headrace.vector.spaces import Layout

COUNT = 5


def mailbox() -> Mailbox:
    return Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)


def ids(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@given(st.lists(st.integers(1, COUNT), min_size=1, max_size=40))
def test_rings_keep_order_however_often_they_wrap(sizes: list[int]) -> None:
    box, asked, answered = mailbox(), 0, 0
    for size in sizes:
        who = np.random.default_rng(size).permutation(COUNT)[:size].astype(np.int64)
        box.order(who)
        got = box.orders(asked)
        np.testing.assert_array_equal(got, who)
        asked += size
        assert box.env_of(asked) == who[-1]
        assert box.env_of(asked - size + 1) == who[0]
        for env in got[:1]:
            box.answer_one(int(env))
        if size > 1:
            box.answer(got[1:])
        np.testing.assert_array_equal(box.answers(answered, box.completed), who)
        answered += size
    assert (box.ordered, box.completed) == (asked, answered)
    box.close()


def test_the_parent_is_woken_once_when_enough_have_answered() -> None:
    box = mailbox()
    box.order(ids(0, 1, 2, 3, 4))
    assert box.wake_after(3)
    assert [box.answer_one(0), box.answer(ids(1)), box.answer(ids(2, 3)), box.answer_one(4)] == [
        False,
        False,
        True,
        False,
    ]
    assert not box.wake_after(5)  # there are as many already
    box.order(ids(0, 1))
    assert box.wake_after(6)
    assert box.answer_one(0)
    box.close()


def test_a_worker_is_woken_only_while_it_sleeps() -> None:
    box, slept = mailbox(), []

    def asked() -> bool:
        return box.ordered > len(slept)

    def wait() -> list[bool]:
        slept.append(box.order(ids(2)))
        return slept

    assert not box.order(ids(0))
    assert box.rest.until(asked, wait) is None  # nobody was going to wake it
    slept.append(False)
    assert box.rest.until(asked, wait) == [False, True]
    assert not box.order(ids(1))
    box.close()


def test_a_worker_that_is_interrupted_in_its_sleep_is_awake() -> None:
    box = mailbox()

    def wait() -> list[bool]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        box.rest.until(lambda: False, wait)
    assert not box.order(ids(0))
    box.close()


def test_messages_are_counted() -> None:
    box = mailbox()
    assert box.rest.told == 0
    box.rest.note_told()
    box.rest.note_told()
    assert box.rest.told == 2
    box.close()


def test_an_interruption_is_meant_for_one_call_and_taken_once() -> None:
    box = mailbox()
    box.interrupt(17)
    assert (box.take_target(), box.take_target()) == (17, 0)
    box.close()


def test_calls_that_are_no_questions_name_their_environment() -> None:
    box = mailbox()
    assert [box.env_of(box.other_number(count, env)) for count, env in ((1, 0), (1, 4), (9, 3))] == [0, 4, 3]
    assert box.env_of(-3) is None
    assert box.env_of(0) is None
    box.close()


def test_fields_do_not_overlap_and_are_aligned() -> None:
    layout = Layout(spaces.Dict({"a": spaces.Box(0, 1, (3,), np.uint8), "b": spaces.Discrete(3)}), "obs")
    actions = Layout(spaces.Box(-1, 1, (2,), np.float32), "action")
    fields, nbytes = plan(layout, actions, 7, shared_rows=True)
    ends = [(field.offset, field.offset + field.dtype.itemsize * int(np.prod(field.shape))) for field in fields]
    assert all(start % 64 == 0 for start, _ in ends)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert nbytes >= ends[-1][1]
    with SharedBlock.create(nbytes) as block:
        slab = Slab.over(block, fields)
        assert [array.shape for array in slab.rows] == [(14, 3), (14,)]
        assert [array.shape for array in slab.actions] == [(7, 2)]
        del slab


def test_without_shared_rows_there_are_none() -> None:
    layout = Layout(spaces.Box(0, 1, (3,)), "obs")
    fields, _ = plan(layout, layout, 2, shared_rows=False)
    assert not [field for field in fields if field.name.startswith("row")]


@pytest.mark.parametrize("eventfd", [True, False])
def test_a_signal_wakes_until_it_is_cleared(monkeypatch: pytest.MonkeyPatch, eventfd: bool) -> None:
    monkeypatch.setattr("headrace.vector.signals._HAS_EVENTFD", eventfd)
    signal, waiter = Signal.create(), Waiter()
    waiter.add(signal.reader_fd)
    assert waiter.wait(0.0) == []
    for _ in range(3):
        signal.set()
    assert [fd for fd, _ in waiter.wait(1.0)] == [signal.reader_fd]
    signal.clear()
    assert waiter.wait(0.0) == []
    signal.clear()  # again is harmless
    signal.close()
    signal.close()


@pytest.mark.parametrize("eventfd", [True, False])
def test_each_side_is_given_the_end_it_needs(monkeypatch: pytest.MonkeyPatch, eventfd: bool) -> None:
    monkeypatch.setattr("headrace.vector.signals._HAS_EVENTFD", eventfd)
    signal = Signal.create()
    reading = Signal.attach(signal.fds("ordered", reader=True), "ordered")
    writing = Signal.attach(signal.fds("answered", reader=False), "answered")
    assert reading.reader_fd == signal.reader_fd
    assert writing.writer_fd == signal.writer_fd
    signal.close()


def test_where_the_processor_may_reorder_a_number_is_shown_after_what_it_tells_of(monkeypatch: Any) -> None:
    box, seen = mailbox(), list[Any]()
    monkeypatch.setattr(slab_module, "WEAKLY_ORDERED", True)
    monkeypatch.setattr(
        slab_module, "fence", lambda: seen.append((box._orders[:3].tolist(), box._answers[:3].tolist(), counts()))
    )

    def counts() -> tuple[int, int]:
        return box.ordered, box.completed

    box.order(ids(4, 3, 2))
    assert seen == [([4, 3, 2], [0, 0, 0], (0, 0))]
    box.orders(0)
    assert len(seen) == 2  # between the number and the questions
    box.answer(ids(4, 3))
    assert seen[2] == ([4, 3, 2], [4, 3, 0], (3, 0))
    box.answer_one(2)
    assert ([4, 3, 2], [4, 3, 2], (3, 2)) in seen
    told = len(seen)
    box.answers(0, box.completed)
    assert len(seen) == told + 1
    box.close()


def test_elsewhere_that_costs_nothing(monkeypatch: Any) -> None:
    box, seen = mailbox(), list[bool]()
    monkeypatch.setattr(slab_module, "WEAKLY_ORDERED", False)
    monkeypatch.setattr(slab_module, "fence", lambda: seen.append(True))
    box.order(ids(4, 3))
    box.orders(0)
    box.answers(0, box.completed)
    assert not seen
    box.close()


@pytest.mark.parametrize("weakly", [True, False])
def test_a_fence_leaves_nothing_held(monkeypatch: Any, weakly: bool) -> None:
    monkeypatch.setattr(fences, "WEAKLY_ORDERED", weakly)
    fences.fence()
    fences.fence()


def test_a_mailbox_is_closed_once() -> None:
    box = mailbox()
    box.close()
    box.close()
