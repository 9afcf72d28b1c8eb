"""Waiting awake for a moment: to fall asleep and be woken costs more than the wait, if it is a short one."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.core.clock import monotonic_s

SPIN_S = 0.0005
"""Waits that last longer are slept through."""
_FEWEST, _MOST = 4, 1024


def _offer_core() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()


class Patience:
    """Decides whether to wait awake.

    The core is offered to others all the while. After it did not pay, because nothing came or somebody else took the core for
    long, the next waits are slept through, twice as many each time. Only for as many processes as there are cores: beyond that a
    waiting one is in the way of a working one.

    Args:
        most_s: At most so long; 0: never.
        clock: Seconds.
        give_way: Offers the core to others; None: the system's way to.
    """

    def __init__(
        self,
        most_s: float,
        clock: Callable[[], float] = monotonic_s,
        give_way: Callable[[], object] | None = None,
    ) -> None:
        self._most_s = most_s
        self._clock = clock
        self._give_way = give_way or _offer_core
        self._asleep = 0
        """Waits that are to be slept through."""
        self._penalty = _FEWEST

    def lasts(self, come: Callable[[], bool]) -> bool:
        """Whether what is waited for has come while waiting awake; False: sleep until it does."""
        if self._asleep or not self._most_s:
            self._asleep = max(0, self._asleep - 1)
            return False
        begun_s = self._clock()
        while not come():
            self._give_way()
            if self._clock() - begun_s > self._most_s:
                self._asleep = self._penalty
                self._penalty = min(2 * self._penalty, _MOST)
                return come()
        self._penalty = max(_FEWEST, self._penalty // 2)
        return True
