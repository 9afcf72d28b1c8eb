"""When a call has lasted too long: by the numbers of calls and a clock that is handed in."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.clock import FakeClock
from headrace.ipc.shm import SharedBlock
from headrace.vector.limits import Limits
from headrace.vector.seats import Seats
from headrace.vector.slab import Mailbox
from headrace.vector.stepping import Phase
from headrace.vector.watch import Seat, Verdict
from headrace.vector.watcher import Watcher

LIMITS = (5.0, 2.0)


def test_a_call_that_goes_on_is_interrupted_once_and_then_condemned() -> None:
    seat = Seat()
    assert seat.look(7, 0.0, LIMITS, 100.0) is Verdict.FINE  # seen for the first time
    assert seat.look(7, 0.0, LIMITS, 104.9) is Verdict.FINE
    assert seat.look(7, 0.0, LIMITS, 105.0) is Verdict.INTERRUPT
    assert seat.look(7, 0.0, LIMITS, 106.9) is Verdict.FINE
    assert seat.look(7, 0.0, LIMITS, 107.0) is Verdict.CONDEMN
    assert seat.age_s(107.0) == 7.0


@pytest.mark.parametrize("number", [8, -7])
def test_another_call_begins_anew(number: int) -> None:
    seat = Seat()
    seat.look(7, 0.0, LIMITS, 0.0)
    assert seat.look(7, 0.0, LIMITS, 5.0) is Verdict.INTERRUPT
    assert seat.look(number, 0.0, LIMITS, 5.5) is Verdict.FINE
    assert seat.look(number, 0.0, LIMITS, 10.4) is Verdict.FINE
    assert seat.look(number, 0.0, LIMITS, 10.5) is Verdict.INTERRUPT


def test_idle_time_does_not_count() -> None:
    seat = Seat()
    seat.look(-7, 0.0, LIMITS, 0.0)
    assert seat.look(-7, 99.0, LIMITS, 100.0) is Verdict.FINE  # it was given work a second ago, and has not begun
    assert seat.look(-7, 99.0, LIMITS, 104.0) is Verdict.INTERRUPT


def test_every_phase_of_a_call_has_its_own_time() -> None:
    """A replacement is built and reset within one call: a constructor that took long is no reset that does."""
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(2)), 2)
    box.order(np.array([1]))
    seats, limits = Seats([0, 1], box, threaded=False), Limits(step_s=5.0, reset_s=10.0, construct_s=120.0, close_s=5.0)

    def look(phase: Phase, now_s: float) -> list[Verdict]:
        box.marks[0], box.phases[0] = 1, phase
        return [verdict for verdict, _ in seats.look([1], limits, now_s)]

    assert [look(Phase.CONSTRUCT, now_s) for now_s in (0.0, 20.0, 110.0)] == [[], [], []]
    assert [look(Phase.RESET, now_s) for now_s in (111.0, 120.9)] == [[], []]
    assert look(Phase.RESET, 121.0) == [Verdict.INTERRUPT]
    box.close()


def test_a_reset_in_this_process_is_not_blamed_for_the_step_before_it() -> None:
    clock, seen = FakeClock(), [(("a", 1), 3, Phase.STEP, 0)]
    watcher = Watcher(lambda: seen[-1], Limits(step_s=9.0, reset_s=2.0, construct_s=9.0, close_s=9.0), clock)
    assert watcher.check() is None
    clock.advance(5.0)
    seen.append((("a", 1), 3, Phase.RESET, 0))
    assert watcher.check() is None
    clock.advance(2.0)
    assert "inside reset() for 2 s" in (watcher.check() or "")


def test_limits_by_phase() -> None:
    limits = Limits(step_s=1.0, reset_s=2.0, construct_s=3.0, close_s=4.0)
    assert [limits.of(phase) for phase in Phase] == [1.0, 2.0, 3.0, 4.0, 2.0]
    assert 0.01 <= limits.look_s <= 0.25


def test_calls_in_this_process_are_told_of_once() -> None:
    clock, seen = FakeClock(), [(("a", 1), 3, Phase.STEP, 0)]
    watcher = Watcher(lambda: seen[-1], Limits(step_s=1.0, reset_s=9.0, construct_s=9.0, close_s=9.0), clock)
    assert watcher.check() is None
    clock.advance(0.9)
    assert watcher.check() is None
    clock.advance(0.2)
    said = watcher.check()
    assert said is not None
    assert said.startswith(
        "environment 3 has been inside step() for 1.1 s (limit 1 s); in this process nobody can end it"
    )
    assert watcher.check() is None  # told already
    seen.append((("a", 2), 4, Phase.RESET, 0))
    assert watcher.check() is None
    clock.advance(5.0)
    assert watcher.check() is None  # a reset may last longer
    clock.advance(5.0)
    assert "environment 4 has been inside reset()" in (watcher.check() or "")
    seen.append((None, -1, Phase.STEP, 0))
    assert watcher.check() is None
