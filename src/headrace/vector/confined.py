"""A process that keeps to one core for as long as it has most of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from headrace.core.clock import monotonic_s

_LOOK_S = 1.0
_STALE_S = 2.0
"""After so long without a look this process had nothing to do, and did not need the core."""
_TOO_MUCH = 0.55
"""What others may use of the core. The parent's own bookkeeping takes up to 0.4."""
_STAT = Path("/proc/stat")
_THREADS = Path("/proc/self/task")


def busy_s(core: int) -> float:
    """Seconds that a core has worked since the system started, for whomever."""
    for line in _STAT.read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _waits, irq, softirq = map(int, ticks[:7])
            return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    raise OSError(f"the system tells nothing of core {core}")


class Confined:
    """Confines this process when it is made, and sets it free once others use most of that core. Never again then.

    Args:
        core: The core.
        clock: Seconds.
        used_s: What a core has worked, in seconds.
        own_s: What this process has worked, in seconds.
    """

    def __init__(
        self,
        core: int,
        clock: Callable[[], float] = monotonic_s,
        used_s: Callable[[int], float] = busy_s,
        own_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._core, self._clock, self._used_s, self._own_s = core, clock, used_s, own_s
        self._free: Collection[int] = os.sched_getaffinity(0)
        self._confined = False
        with contextlib.suppress(OSError):  # the core was taken away from this process since, or nothing tells of it
            self._seen = clock(), used_s(core), own_s()
            os.sched_setaffinity(0, (core,))
            self._confined = True

    def look(self) -> None:
        """See whether others need the core; to be called often, and looks once a second."""
        if not self._confined or self._clock() - self._seen[0] < _LOOK_S:
            return
        before_s, used_s, own_s = self._seen
        with contextlib.suppress(OSError):
            now_s = self._clock()
            self._seen = now_s, self._used_s(self._core), self._own_s()
            others_s = self._seen[1] - used_s - (self._seen[2] - own_s)
            if now_s - before_s < _STALE_S and others_s > _TOO_MUCH * (now_s - before_s):
                self._confined = False
                for thread in _THREADS.iterdir():
                    os.sched_setaffinity(int(thread.name), self._free)
