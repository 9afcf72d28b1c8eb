"""When a call has lasted too long, and what to do about it: looks go in, verdicts come out.

A worker does not tell the time: it numbers its calls, and whoever looks at it remembers since when number and phase have
been the same. A call is therefore never taken for older than it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What a look at a seat leads to."""

    FINE = "fine"
    INTERRUPT = "interrupt"
    """Its call has lasted too long: ask it to stop."""
    CONDEMN = "condemn"
    """It did not stop within the grace: write down where it is, and end its process."""


@dataclass(slots=True)
class Seat:
    """One thing that makes calls one after another: a worker, or a thread of one."""

    call: object = None
    """In which it was at the last look; None: nobody has looked."""
    since_s: float = 0.0
    """Since when that has been seen, or it was given work while it had none."""
    interrupted_s: float | None = None
    """When it was asked to stop."""

    def look(self, call: object, begun_s: float, limits_s: tuple[float, float], now_s: float) -> Verdict:
        """What follows from seeing it in a call.

        Args:
            call: Equal while it is the same one and in the same phase, as each phase has a limit of its own; another one
                between two calls, where nothing should last long either.
            begun_s: When it was last given work while it had none; what it does now did not begin earlier.
            limits_s: How long such a call may last, and how long it may take to stop once asked.
            now_s: The time.
        """
        limit_s, grace_s = limits_s
        if self.since_s < begun_s:
            self.since_s, self.interrupted_s = begun_s, None
        if call != self.call:
            self.call, self.since_s, self.interrupted_s = call, now_s, None
            return Verdict.FINE
        if self.interrupted_s is not None:
            return Verdict.CONDEMN if now_s - self.interrupted_s >= grace_s else Verdict.FINE
        if now_s - self.since_s < limit_s:
            return Verdict.FINE
        self.interrupted_s = now_s
        return Verdict.INTERRUPT

    def excuse(self, by_s: float) -> None:
        """Leave out seconds in which nobody could look, nor most likely call anything."""
        self.since_s += by_s
        if self.interrupted_s is not None:
            self.interrupted_s += by_s

    def age_s(self, now_s: float) -> float:
        """How long it has been in its call, as far as was seen, and without what is excused."""
        return now_s - self.since_s
