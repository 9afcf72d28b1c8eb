"""When a call has lasted too long: by the numbers of calls and a clock that is handed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.core.clock import FakeClock
from headrace.ipc.channel import Deadline
from headrace.ipc.shm import SharedBlock
from headrace.vector.crew import Crew
from headrace.vector.limits import Limits
from headrace.vector.seats import Seats
from headrace.vector.slab import Mailbox
from headrace.vector.stepping import Phase
from headrace.vector.watch import Seat, Verdict
from headrace.vector.watcher import Watcher

LIMITS = (5.0, 2.0)
NAMES = ("step_s", "reset_s", "construct_s", "close_s")


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


def test_what_is_excused_makes_nobody_late() -> None:
    seat = Seat()
    seat.look(7, 0.0, LIMITS, 0.0)
    seat.excuse(60.0)
    assert seat.look(7, 0.0, LIMITS, 64.9) is Verdict.FINE
    assert seat.look(7, 0.0, LIMITS, 65.0) is Verdict.INTERRUPT
    seat.excuse(60.0)
    assert seat.look(7, 0.0, LIMITS, 126.9) is Verdict.FINE
    assert seat.look(7, 0.0, LIMITS, 127.0) is Verdict.CONDEMN
    assert seat.age_s(127.0) == 7.0


@pytest.mark.parametrize("threaded", [False, True])
def test_time_in_which_the_program_itself_was_frozen_counts_against_nobody(threaded: bool) -> None:
    """A wait that lasts longer than it was to is absence; time in which nobody waited, as the caller was busy, is not."""
    box, clock, limits = (
        Mailbox(SharedBlock.create(Mailbox.nbytes(2)), 2),
        FakeClock(),
        Limits(**dict.fromkeys(NAMES, 4.0)),
    )
    seats, lasts_s = Seats([0, 1], box, threaded=threaded), [0.0]
    crew: Any = SimpleNamespace(options=SimpleNamespace(limits=limits), _clock=clock, _launched=Deadline(9.0))
    crew._waiter = SimpleNamespace(wait=lambda _s: clock.advance(lasts_s[0]) or [])
    crew.handles = {0: SimpleNamespace(seats=seats)}

    def wait(asked_s: float, lasted_s: float) -> list[Verdict]:
        lasts_s[0] = lasted_s
        Crew.wait(crew, asked_s)
        return [verdict for verdict, _ in seats.look([1], limits, clock.now())]

    box.order(np.array([1]))
    place = seats.place(1)
    box.marks[place], box.phases[place] = 1, Phase.STEP
    seats.begin(np.array([1]), 0.0)
    seats.look([1], limits, 0.0)
    look_s = limits.look_s
    assert wait(look_s, 100.0) == []
    assert wait(1.0, 2.0) == []  # the machine is busy, and this process is late itself
    clock.advance(4.0 - 2.0 - 3 * look_s)
    assert wait(look_s, look_s / 2) == []
    assert wait(look_s, look_s / 2) == [Verdict.INTERRUPT]
    assert wait(look_s, 50.0) == []
    clock.advance(limits.grace_s - 2 * look_s)  # nobody waited
    assert wait(look_s, 0.0) == [Verdict.CONDEMN]
    box.close()


def test_environments_have_as_long_to_be_built_as_they_were_given_though_all_were_frozen() -> None:
    clock, left = FakeClock(), Deadline(5.0)
    crew: Any = SimpleNamespace(options=SimpleNamespace(limits=Limits(**dict.fromkeys(NAMES, 4.0))), _clock=clock)
    crew.handles, crew._launched = {}, left
    crew._waiter = SimpleNamespace(wait=lambda _s: clock.advance(60.0) or [])
    Crew.wait(crew, 0.25)
    assert 60.0 < left.left_s() < 65.0


def test_who_watches_calls_in_this_process_leaves_out_what_it_was_frozen() -> None:
    clock, said = FakeClock(), list[str | None]()
    watcher = Watcher(lambda: (("a", 1), 3, Phase.STEP, 0), Limits(**dict.fromkeys(NAMES, 4.0)), clock)
    look_s, lasts = 0.125, iter([0.125, 60.0, *[0.125] * 29, 0.5])

    def wait(asked_s: float) -> bool:
        assert asked_s == look_s
        lasted_s = next(lasts, None)
        clock.advance(lasted_s or 0.0)
        return lasted_s is None

    watcher._stop = SimpleNamespace(wait=wait)  # type: ignore[assignment]
    real = watcher.check
    watcher.check = lambda *given: said.append(real(*given))  # type: ignore[method-assign, assignment]
    watcher._run()
    assert said[:-1] == [None] * 31
    assert "inside step() for 4.12 s (limit 4 s)" in (said[-1] or "")


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
