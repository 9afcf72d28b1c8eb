"""The calls a worker is in, as its parent sees them from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.vector.limits import Limits
from headrace.vector.slab import Mailbox
from headrace.vector.stepping import Phase
from headrace.vector.watch import Seat, Verdict


@dataclass(frozen=True, slots=True)
class Late:
    """A call that has lasted too long."""

    env: int | None
    """None: the worker is in none."""
    phase: Phase
    for_s: float
    limit_s: float
    number: int


class Seats:
    """One seat for a worker that steps its environments in turn; one per environment where each has a thread.

    Args:
        ids: Environments of the worker, ascending.
        mailbox: Shared with it.
        threaded: Whether each has a thread.
    """

    def __init__(self, ids: Sequence[int], mailbox: Mailbox, *, threaded: bool) -> None:
        self._ids = list(ids)
        self._mailbox = mailbox
        self._threaded = threaded
        self._seats = [Seat() for _ in (self._ids if threaded else [0])]
        self._begun_s = np.zeros(len(self._seats))
        self._places = np.zeros(max(self._ids) + 1, np.int64)
        if threaded:
            self._places[self._ids] = np.arange(len(self._ids))

    def place(self, env: int) -> int:
        """In which seat an environment sits."""
        return int(self._places[env])

    def begin(self, ids: NDArray[np.int64], now_s: float) -> None:
        """These seats are given something to do while they have nothing."""
        self._begun_s[self._places[ids]] = now_s

    def excuse(self, by_s: float) -> None:
        """Leave out seconds that count against nobody; see `headrace.core.clock.away_s`."""
        self._begun_s += by_s
        for seat in self._seats:
            seat.excuse(by_s)

    def inside(self, busy: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Environments the worker is in a call of, with the phase; of threads only those for which ``busy`` holds."""
        marks, phases = self._mailbox.marks, self._mailbox.phases
        if not self._threaded:
            env = self._mailbox.env_of(marks[0])
            return [] if env is None else [(env, phases[0])]
        return [(env, phases[place]) for place, env in enumerate(self._ids) if marks[place] > 0 and busy(env)]

    def look(self, busy: Iterable[int], limits: Limits, now_s: float) -> list[tuple[Verdict, Late]]:
        """Whose call has lasted too long; only what leads to something.

        Args:
            busy: Environments that were asked and have not answered.
            limits: See there.
            now_s: The time.
        """
        if not self._threaded:
            return self._verdict(0, self._mailbox.env_of(self._mailbox.marks[0]), limits, now_s)
        return [found for env in busy for found in self._verdict(self.place(env), env, limits, now_s)]

    def longest(self, busy: Callable[[int], bool], limits: Limits, now_s: float) -> Late | None:
        """Of all calls it is in, the one that lasts longest; None if it is in none. With threads only."""
        found = []
        for env, phase in self.inside(busy):
            place = self.place(env)
            age_s = self._seats[place].age_s(now_s)
            found.append(Late(env, Phase(phase), age_s, limits.of(phase), self._mailbox.marks[place]))
        return max(found, key=lambda late: late.for_s, default=None)

    def _verdict(self, place: int, env: int | None, limits: Limits, now_s: float) -> list[tuple[Verdict, Late]]:
        # 0: a worker that has only been started, and has not begun to build anything.
        number, phase = self._mailbox.marks[place], Phase(self._mailbox.phases[place] or Phase.CONSTRUCT)
        seat, limit_s = self._seats[place], limits.of(phase)
        verdict = seat.look((number, phase), float(self._begun_s[place]), (limit_s, limits.grace_s), now_s)
        return [] if verdict is Verdict.FINE else [(verdict, Late(env, phase, seat.age_s(now_s), limit_s, number))]
