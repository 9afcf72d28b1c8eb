"""In what order other processes see what this one writes to memory they share, where the processor does not see to it."""

from __future__ import annotations

import platform
import threading

WEAKLY_ORDERED = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i586", "i686")
"""Whether the processor may let others see two writes, or do two reads, the other way round; ARM may.

Where it may, whoever writes something and then a number that says so puts a `fence` in between, and so does whoever reads
the number and then what it tells of. Elsewhere only a write and a read that follows it need one.
"""


def fence() -> None:
    """Order memory: what was written and read before comes, for other processes, before anything that follows."""
    lock = threading.Lock()  # a new one, so never held: taking it is one atomic instruction
    lock.acquire(blocking=False)
    lock.release()
    if WEAKLY_ORDERED:  # what comes before may be done until it is given back, what follows once it is taken
        lock.acquire(blocking=False)
