"""Open files that travel between processes."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import deque
from collections.abc import Sequence

from headrace.core.errors import ConfigError
from headrace.ipc.channel import Channel

MAX_FDS = 250
"""With one message; the kernel carries 253."""


class FdChannel(Channel):
    """A channel that can also carry descriptors; they arrive in the order in which they were sent."""

    def __init__(self, sock: socket.socket, peer: str = "the other end of a channel") -> None:
        super().__init__(sock, peer)
        self._arrived: deque[list[int] | None] = deque()
        """Of each message that carried some; None: this process may not open as many files."""
        self._attached: list[int] = []

    def attach_fds(self, fds: Sequence[int]) -> None:
        """Send these along with the message that is sent next; they stay open here."""
        self._attached = list(fds)

    def take_fds(self) -> list[int]:
        """The descriptors of the oldest message that carried some and was not asked for them; the caller owns them.

        Raises:
            OSError: This process may not open as many files: they are lost.
        """
        fds = self._arrived.popleft()
        if fds is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fds

    def close(self) -> None:
        """See `Channel.close`; descriptors that nobody took are closed as well."""
        super().close()
        while self._arrived:
            for fd in self._arrived.popleft() or ():
                os.close(fd)

    def _write(self, data: memoryview) -> int:
        if not self._attached:
            return super()._write(data)
        written = socket.send_fds(self._sock, [data], self._attached)
        self._attached = []
        return written

    def _read(self) -> bytes:
        # One call never returns the descriptors of two messages, so their order is the order of messages.
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        data, fds, found, _ = socket.recv_fds(self._sock, 1 << 16, MAX_FDS, flags)
        for fd in fds:
            close_on_exec(fd)
        if found & socket.MSG_CTRUNC:  # some, or all, found no place; which ones are left says nobody
            for fd in fds:
                os.close(fd)
            self._arrived.append(None)
        elif fds:
            self._arrived.append(fds)
        return data


def close_on_exec(fd: int) -> None:
    """Keep a descriptor from the programs that children start."""
    os.set_inheritable(fd, False)  # noqa: FBT003 - its only spelling


def out_of_descriptors(who: str) -> ConfigError:
    """The error that says so, as the user can mend it."""
    return ConfigError(
        f"{who} may not open as many files as the run needs: {os.strerror(errno.EMFILE)}",
        limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        fix="raise it with ulimit -n, or take fewer collectors or workers",
    )
