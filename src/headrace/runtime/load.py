"""How busy the cores are that a run may use, and how much of that is others' work."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Self

import psutil

from headrace.core.clock import MonotonicClock


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds that have passed, and how much of the cores has been used in them."""

    at_s: float
    all_s: float
    """By everybody, of the cores this process may use."""
    own_s: float
    """By this process and all that it has started, as far as it has ended."""

    @classmethod
    def now(cls) -> Self:
        """As of this moment."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own_s = sum(one.ru_utime + one.ru_stime for one in used)
        return cls(MonotonicClock().now(), _busy_s(), own_s)

    def others_since(self, before: Self) -> float:
        """Cores that others used since then."""
        lasted_s = max(self.at_s - before.at_s, 1e-9)
        return max(0.0, (self.all_s - before.all_s) - (self.own_s - before.own_s)) / lasted_s


def _busy_s() -> float:
    cores = psutil.cpu_times(percpu=True)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(len(cores)))
    return float(sum(core.user + core.nice + core.system for number, core in enumerate(cores) if number in mine))
