"""What a process prints into a file of the run: a disk that takes no more costs lines, and nobody who prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Printed(io.FileIO):
    """A descriptor that is written to as long as it takes something; what it does not take is counted.

    Where it takes something again, a line says how much is missing there.

    Args:
        fd: It is not closed.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.lost_bytes = 0
        """Since it last took something."""

    def write(self, data: ReadableBuffer) -> int:
        """Write what there is room for; never raises `OSError`, so that who prints need not know of disks."""
        nbytes = memoryview(data).nbytes
        written = None
        with contextlib.suppress(OSError):
            if not self.lost_bytes or self._tells():
                self.lost_bytes = 0
                written = super().write(data)
        if written is None:  # or somebody has made it one that does not wait, and it has no room
            self.lost_bytes += nbytes
            return nbytes
        return written

    def _tells(self) -> bool:
        """Write how much is missing; whether there was room for that."""
        return (
            super().write(f"({self.lost_bytes:,} bytes are missing here: they could not be written)\n".encode())
            is not None
        )


def stream(fd: int) -> io.TextIOWrapper:
    """A stream into ``fd``, for as long as the process lives; a line is handed over once it is complete."""
    buffered = io.BufferedWriter(Printed(fd))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def keep_printing() -> None:
    """Let nothing that this process prints raise for the disk's sake, whoever prints it."""
    sys.stdout, sys.stderr = stream(1), stream(2)


def tell(text: str) -> None:
    """Last words, on standard error as the process got it: what stands in its place may be closed, or anybody's."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
