"""What the system tells about a process in ``/proc/PID/stat``."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")

STATE, PARENT, SESSION, STARTED, EXIT_STATUS = 0, 1, 3, 19, 49
"""Places among `stat_fields`. The start counts in ticks since the machine came up, so that with the pid it names a
process for good: the wall clock may be set while the process runs, and psutil's creation time moves with it."""


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """The fields from the third on; empty if there is no such process, or the system does not tell."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the name before it may contain anything
