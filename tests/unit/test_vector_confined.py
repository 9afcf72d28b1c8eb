"""A process keeps to one core until others use most of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from headrace.core.clock import FakeClock
from headrace.vector.confined import Confined, busy_s


@pytest.fixture
def cores() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


class Machine:
    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.used_s, self.own_s = clock, 100.0, 10.0

    def confined(self, core: int) -> Confined:
        return Confined(core, self.clock.now, lambda _core: self.used_s, lambda: self.own_s)

    def second(self, own: float, others: float) -> None:
        self.clock.advance(1.0)
        self.used_s += own + others
        self.own_s += own


def test_it_is_set_free_with_all_its_threads_once_others_use_most_of_the_core(
    cores: set[int], clock: FakeClock
) -> None:
    machine, core = Machine(clock), max(cores)
    confined = machine.confined(core)
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60.0,))
    thread.start()
    try:
        for own, others in ((0.9, 0.1), (0.1, 0.5), (0.0, 0.0)):
            machine.second(own, others)
            confined.look()
            assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id or 0) == {core}
        machine.second(0.3, 0.7)
        confined.look()
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id or 0) == cores
        machine.second(0.3, 0.0)
        confined.look()
        assert os.sched_getaffinity(0) == cores  # and stays free
    finally:
        done.set()
        thread.join(60.0)


def test_it_looks_once_a_second(cores: set[int], clock: FakeClock) -> None:
    machine = Machine(clock)
    confined = machine.confined(max(cores))
    machine.used_s += 60.0
    clock.advance(0.9)
    confined.look()
    assert os.sched_getaffinity(0) == {max(cores)}
    clock.advance(0.1)
    confined.look()
    assert os.sched_getaffinity(0) == cores


def test_what_others_do_while_it_has_nothing_to_do_is_nothing_to_it(cores: set[int], clock: FakeClock) -> None:
    machine = Machine(clock)
    confined = machine.confined(max(cores))
    clock.advance(10.0)
    machine.used_s += 10.0
    confined.look()
    assert os.sched_getaffinity(0) == {max(cores)}
    machine.second(0.3, 0.7)
    confined.look()
    assert os.sched_getaffinity(0) == cores


def test_a_core_that_is_not_there_is_no_reason_to_fail(cores: set[int]) -> None:
    confined = Confined(10_000)
    confined.look()
    assert os.sched_getaffinity(0) == cores


def test_what_a_core_has_worked_is_told() -> None:
    assert busy_s(min(os.sched_getaffinity(0))) > 0.0
    with pytest.raises(OSError, match="core 10000"):
        busy_s(10_000)
