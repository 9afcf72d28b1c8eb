"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process, and a run that it starts, may use: those it may run on, or a container's quota if that is less.

    Args:
        cgroup: Where the limits of a container are told.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, quota))


def _quota(cgroup: Path) -> int | None:
    """Of processor time in a period, in whole cores; None if there is no limit, or none that can be read."""
    for parts in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # the second is version 1
        try:
            # Without a limit the quota is "max", in version 1 -1.
            quota, period = (
                int(word) for part in parts for word in (cgroup / part).read_text(encoding="ascii").split()
            )
        except (OSError, ValueError):
            continue
        if quota > 0 < period:
            return -(-quota // period)
    return None
