"""The cheapest way to wake another process: a counter in the kernel, or a byte in a pipe where there is none."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping
from typing import Self

from headrace.ipc.channel import LONGEST_S

_HAS_EVENTFD = hasattr(os, "eventfd")


class Signal:
    """Wakes whoever waits for its descriptor; any number of raises before it is cleared counts as one.

    Writing and reading it orders memory between two processes: what was written before `set` is seen after `clear`.

    Args:
        reader_fd: Owned from now on, or -1.
        writer_fd: Owned from now on, or -1; the same where the system has event descriptors.
    """

    def __init__(self, reader_fd: int, writer_fd: int) -> None:
        self.reader_fd = reader_fd
        self.writer_fd = writer_fd

    @classmethod
    def create(cls) -> Self:
        """A new one, both ends in this process."""
        if _HAS_EVENTFD:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return cls(fd, fd)
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        return cls(reader, writer)

    @classmethod
    def attach(cls, fds: Mapping[str, int], name: str) -> Self:
        """One that was handed to this process, as `fds` named it there."""
        reader = fds.get(f"{name}_reader", -1)
        return cls(reader, fds.get(f"{name}_writer", reader))

    def fds(self, name: str, *, reader: bool) -> dict[str, int]:
        """The descriptors the process at the other end needs, by name.

        Args:
            name: Of this signal there.
            reader: Whether it waits, and this process wakes it.
        """
        if self.reader_fd == self.writer_fd or reader:
            return {f"{name}_reader": self.reader_fd}
        return {f"{name}_writer": self.writer_fd}

    def set(self) -> None:
        """Wake whoever waits."""
        try:
            if _HAS_EVENTFD:
                os.eventfd_write(self.writer_fd, 1)
            else:
                os.write(self.writer_fd, b"\0")
        except (BlockingIOError, BrokenPipeError):
            pass  # it is awake already, or gone; its end is seen elsewhere

    def clear(self) -> None:
        """Be ready to be woken again; never waits."""
        with contextlib.suppress(BlockingIOError):
            if _HAS_EVENTFD:
                os.eventfd_read(self.reader_fd)
            else:
                while len(os.read(self.reader_fd, 4096)) == 4096:
                    pass

    def close(self) -> None:
        """Give the descriptors back; again is harmless."""
        fds = {self.reader_fd, self.writer_fd} - {-1}
        self.reader_fd = self.writer_fd = -1  # first: what is interrupted here may be called again
        for fd in fds:
            os.close(fd)


class Waiter:
    """Waits for any of some descriptors that stay the same for long."""

    def __init__(self) -> None:
        self._poller = select.poll()

    def add(self, fd: int) -> None:
        """Wait for this one too."""
        self._poller.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Wait for this one no longer."""
        with contextlib.suppress(KeyError):
            self._poller.unregister(fd)

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """Descriptors that are readable, or whose other end is gone, with the events seen; also none, after a day."""
        return self._poller.poll(max(0.0, min(timeout_s, LONGEST_S)) * 1000.0)
