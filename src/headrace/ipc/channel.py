"""Messages between processes, with deadlines.

`Channel` carries Python objects both ways; `MessagePipe` carries small fixed-size records one way, so cheaply
that the data path uses it. `poll_fds` is the one place of the package where a process blocks in the kernel;
`headrace.telemetry.waits` puts a name, a reason and a culprit on top of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from headrace.core.clock import monotonic_s
from headrace.core.errors import ChannelClosed, ComponentError, ComponentStalled
from headrace.ipc.pickling import decoded, encoded

_LENGTH = struct.Struct("<Q")
_MAX_MESSAGE_BYTES = 1 << 40  # a longer one is a damaged stream, not a message
_READ_BYTES = 1 << 18
_READS_PER_CALL = 256  # bounds a call against a sender who is faster than we read
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PIPE_BYTES = 16384  # what a pipe holds at least, where the system does not tell

LONGEST_S = 86400.0
"""Seconds that one call into the kernel may wait; it counts them in milliseconds and 32 bits, and refuses more than 24 days."""

_SLICE_S = 5.0
_AWAY_S = 2.0
"""A wait that lasts so much longer than it should was not served: the process, and most likely its peers, were frozen."""


class Deadline:
    """A moment by which something has to be over.

    Args:
        timeout_s: Seconds from now; negative counts as none left.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at_s = monotonic_s() + timeout_s

    def left_s(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._at_s - monotonic_s())

    def put_off(self, by_s: float) -> None:
        """Leave out seconds that do not count."""
        self._at_s += by_s

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return monotonic_s() >= self._at_s


def poll_fds(interest: Mapping[int, int], timeout_s: float) -> dict[int, int]:
    """Wait until one of several descriptors is ready, at most ``timeout_s`` seconds.

    Args:
        interest: ``select.POLLIN`` and the like by descriptor.
        timeout_s: 0 only looks; any number of seconds will do. Signals do not shorten the wait. Time in which this process
            was frozen does not count, and those it was frozen with get a moment before it is over.

    Returns:
        The events seen by descriptor; ``POLLHUP`` and ``POLLERR`` also if not asked for.

    Raises:
        ChannelClosed: A descriptor was closed in this very process; waiting on it would never end.
    """
    poller = select.poll()
    for fd, events in interest.items():
        poller.register(fd, events)
    left_s = max(0.0, timeout_s)
    while True:
        slice_s, begun_s = min(left_s, _SLICE_S), monotonic_s()
        seen_events = dict(poller.poll(slice_s * 1000.0))
        left_s -= slice_s
        if monotonic_s() - begun_s > slice_s + _AWAY_S:
            left_s = max(left_s, min(timeout_s, _SLICE_S))
        if seen_events or left_s <= 0.0:
            break
    for fd, seen in seen_events.items():
        if seen & select.POLLNVAL:
            raise ChannelClosed(
                f"process {os.getpid()} waits on a descriptor that it has closed itself",
                descriptor=fd,
                fix="file a bug: something was closed before the last wait on it",
            )
    return seen_events


class Channel:
    """Both ends of a conversation between two processes: Python objects of any size, in order, by pickle.

    Not thread-safe, but one thread may `receive_all` without flushing while another one sends. Nothing blocks but `send` and
    `receive`, and those only until their deadline. A message that was begun is completed by later calls, so a slow reader
    never sees half of one; so is what was posted.

    Args:
        sock: A connected stream socket; the channel owns it from now on.
        peer: Component at the other end, as errors shall name it.
    """

    def __init__(self, sock: socket.socket, peer: str = "the other end of a channel") -> None:
        sock.settimeout(0.0)  # non-blocking
        self._sock = sock
        self.peer = peer
        self._unsent = memoryview(b"")
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0  # counted, as a sum would be made anew at every look of whoever has a long backlog
        self._received = bytearray()
        self._messages: deque[bytes] = deque()
        self._no_more_input = False
        self._no_more_output = False

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two connected ends; their descriptors are not inherited by programs that are started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    @classmethod
    def attach(cls, fd: int, peer: str = "the other end of a channel") -> Self:
        """The end that was handed to this process as a descriptor; taken over."""
        return cls(socket.socket(fileno=fd), peer)

    @property
    def closed_by_peer(self) -> bool:
        """Whether the other end is known to be gone; what it had sent before may still be waiting here."""
        return self._no_more_input or self._no_more_output

    @property
    def unsent_bytes(self) -> int:
        """Of messages that were begun or posted, what is not handed over yet."""
        return len(self._unsent) + self._backlog_bytes

    def fileno(self) -> int:
        """The descriptor, to wait on; -1 when closed.

        Wait on it only after `receive_all` has returned nothing: one read may take in several messages.
        """
        return self._sock.fileno()

    def try_send(self, obj: object) -> bool:
        """Hand ``obj`` over without waiting.

        Returns:
            True: it is on its way; if only its beginning fitted, later calls of anything complete it.
            False: nothing of it was taken, try again later.

        Raises:
            ChannelClosed: The other end is gone.
            ComponentError: ``obj`` cannot be pickled; nothing was sent.
        """
        message = _framed(obj)
        if not self.flush():
            return False
        self._unsent = memoryview(message)
        self.flush()
        if len(self._unsent) < len(message):
            return True
        self._unsent = memoryview(b"")
        return False

    def post(self, obj: object) -> None:
        """Hand ``obj`` over without waiting: what there is no room for is kept, and goes with later calls of anything.

        Raises:
            ChannelClosed: The other end is gone.
            ComponentError: ``obj`` cannot be pickled; nothing was sent.
        """
        message = _framed(obj)
        self._backlog.append(message)
        self._backlog_bytes += len(message)
        self.flush()

    def flush(self) -> bool:
        """Go on with what was begun or posted, without waiting; True when none is left.

        Raises:
            ChannelClosed: The other end is gone.
        """
        while self._unsent or self._backlog:
            if not self._unsent:
                self._unsent = memoryview(self._backlog.popleft())
                self._backlog_bytes -= len(self._unsent)
            try:
                written = self._write(self._unsent)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError) as error:
                self._no_more_output = True
                self._unsent = memoryview(b"")
                self._backlog.clear()
                self._backlog_bytes = 0
                raise _closed(self.peer, "a message was being sent") from error
            self._unsent = self._unsent[written:]
        return True

    def send(self, obj: object, timeout_s: float) -> None:
        """Hand ``obj`` over completely.

        Raises:
            ComponentStalled: The other end did not make room within ``timeout_s`` seconds. If the message was
                begun, later calls complete it: do not send it again.
            ChannelClosed: The other end is gone.
            ComponentError: ``obj`` cannot be pickled; nothing was sent.
        """
        deadline = Deadline(timeout_s)
        accepted = self.try_send(obj)
        while not (accepted and self.flush()):
            if not poll_fds({self.fileno(): select.POLLOUT}, deadline.left_s()) and deadline.passed:
                raise ComponentStalled(
                    f"{self.peer} did not take a message within {timeout_s:g} s",
                    message=type(obj).__name__,
                    begun=accepted,
                    fix="see what that component is doing; raise the timeout if it is only slow",
                )
            accepted = accepted or self.try_send(obj)

    def receive(self, timeout_s: float) -> Any:
        """The next message.

        Raises:
            ComponentStalled: None was complete within ``timeout_s`` seconds.
            ChannelClosed: The other end is gone, and everything it had sent was received.
            ComponentError: The message cannot be unpickled here; it is dropped, the next one is unharmed.
        """
        deadline = Deadline(timeout_s)
        while True:
            self._fill()
            if self._messages:
                return decoded(self._messages.popleft(), self.peer)
            if self._no_more_input:
                raise _closed(self.peer, "a message was expected")
            wanted = select.POLLIN | (select.POLLOUT if self.unsent_bytes else 0)
            if not poll_fds({self.fileno(): wanted}, deadline.left_s()) and deadline.passed:
                raise ComponentStalled(
                    f"{self.peer} sent no message within {timeout_s:g} s",
                    bytes_of_an_unfinished_message=len(self._received),
                    fix="see what that component is doing; raise the timeout if it is only slow",
                )

    def receive_all(self, *, flushes: bool = True) -> list[Any]:
        """Every message that is complete, oldest first, without waiting.

        Args:
            flushes: Whether to go on with a message that was begun. False: another thread sends it.

        Raises:
            ChannelClosed: There is none, and the other end is gone.
            ComponentError: The oldest one cannot be unpickled here; it is dropped, the others stay for the next call.
        """
        self._fill(flushes=flushes)
        if not self._messages and self._no_more_input:
            raise _closed(self.peer, "messages were looked for")
        messages: list[Any] = []
        while self._messages:
            try:
                messages.append(decoded(self._messages[0], self.peer))
            except ComponentError:
                if messages:
                    break  # these first; the unreadable one is reported by the next call
                self._messages.popleft()
                raise
            self._messages.popleft()
        return messages

    def peer_alive(self) -> bool:
        """Whether the other end is still open; looks only, reads nothing."""
        hangup = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
        return not self.closed_by_peer and not poll_fds({self.fileno(): hangup}, 0.0).get(self.fileno(), 0) & hangup

    def close(self) -> None:
        """Give the descriptor back; again is harmless."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: memoryview) -> int:
        return self._sock.send(data)

    def _read(self) -> bytes:
        return os.read(self._sock.fileno(), _READ_BYTES)  # the socket is non-blocking

    def _fill(self, *, flushes: bool = True) -> None:
        """Take in what has arrived, and hand out what is waiting, without blocking."""
        if flushes and (self._unsent or self._backlog) and not self._no_more_output:
            with contextlib.suppress(ChannelClosed):  # noted; what the peer sent before it left is still to be read
                self.flush()
        for _ in range(_READS_PER_CALL):
            if self._no_more_input:
                break
            try:
                data = self._read()
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._no_more_input = True
            self._received += data
        self._split()

    def _split(self) -> None:
        """Cut what has arrived into messages."""
        start = 0
        while len(self._received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, start)
            if length > _MAX_MESSAGE_BYTES:
                self._no_more_input = self._no_more_output = True
                self._received.clear()
                return
            end = start + _LENGTH.size + length
            if len(self._received) < end:
                break
            self._messages.append(bytes(memoryview(self._received)[start + _LENGTH.size : end]))
            start = end
        if start:
            del self._received[:start]


def _closed(peer: str, when: str) -> ChannelClosed:
    return ChannelClosed(
        f"{peer} closed its channel", when=when, fix="see how that component ended: its log has its last words"
    )


def _framed(obj: object) -> bytes:
    data = encoded(obj)
    return _LENGTH.pack(len(data)) + data


class MessagePipe:
    """Small binary messages of one size, one way, from any number of writers.

    A message of at most ``PIPE_BUF`` bytes is written whole or not at all, whenever its writer is killed, and is
    never interleaved with another.

    Args:
        message_bytes: Size of every message.
        reader_fd: Descriptor of the end to `take` from, or -1; owned from now on.
        writer_fd: Descriptor of the end to `put` into, or -1; owned from now on.
    """

    def __init__(self, message_bytes: int, reader_fd: int, writer_fd: int) -> None:
        if not 0 < message_bytes <= select.PIPE_BUF:
            raise ComponentError(
                "a pipe cannot carry messages of this size in one piece",
                message_bytes=message_bytes,
                limit_bytes=select.PIPE_BUF,
                fix="make the messages smaller",
            )
        for fd in (reader_fd, writer_fd):
            if fd >= 0:
                os.set_blocking(fd, False)
        self.message_bytes = message_bytes
        self.reader_fd = reader_fd
        self.writer_fd = writer_fd
        self._read_bytes = message_bytes * max(1, 65536 // message_bytes)
        self._rest = b""

    @classmethod
    def create(cls, message_bytes: int) -> Self:
        """A new pipe, both ends in this process."""
        reader_fd, writer_fd = os.pipe()  # close-on-exec, as all descriptors Python makes
        try:
            return cls(message_bytes, reader_fd, writer_fd)
        except ComponentError:
            os.close(reader_fd)
            os.close(writer_fd)
            raise

    @classmethod
    def attach(cls, message_bytes: int, reader_fd: int = -1, writer_fd: int = -1) -> Self:
        """The end, or ends, that were handed to this process as descriptors; taken over."""
        return cls(message_bytes, reader_fd, writer_fd)

    @property
    def room(self) -> int:
        """Messages that may be in flight at once, wherever they begin in the pipe's pages."""
        if not hasattr(fcntl, "F_GETPIPE_SZ"):
            return _PIPE_BYTES // self.message_bytes
        fd = self.writer_fd if self.writer_fd >= 0 else self.reader_fd
        # A message never lies in two pages, and a page counts as used until its last message is taken.
        pages = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) // _PAGE_BYTES - 1
        return pages * (_PAGE_BYTES // self.message_bytes)

    def make_room(self, messages: int) -> None:
        """Have the pipe hold so many messages at once; one that does already stays as it is.

        Raises:
            OSError: The system does not give a pipe, or the pipes of this user together, as much memory, or pipes have one size
                there.
        """
        if self.room < messages:
            if not hasattr(fcntl, "F_SETPIPE_SZ"):
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
            fd = self.writer_fd if self.writer_fd >= 0 else self.reader_fd
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, self.bytes_for(messages))

    def bytes_for(self, messages: int) -> int:
        """Size of a pipe that holds so many messages at once."""
        return _PAGE_BYTES * (1 - -messages // (_PAGE_BYTES // self.message_bytes))

    def put(self, data: bytes) -> None:
        """Hand one message over; never waits.

        Raises:
            ChannelClosed: Nobody has the reading end any more.
            ComponentError: The size is wrong, or the pipe is full. Credits bound what may be in flight, so a full
                pipe means that somebody sends without credit.
        """
        if len(data) != self.message_bytes:
            raise ComponentError(
                "a message does not have the size of its pipe",
                expected_bytes=self.message_bytes,
                found_bytes=len(data),
                fix="pack every message of a pipe with the same format",
            )
        try:
            os.write(self.writer_fd, data)
        except BlockingIOError as error:
            raise ComponentError(
                "a message pipe is full: more messages are in flight than credits allow",
                message_bytes=self.message_bytes,
                fix="file a bug: a component sends without credit, or its reader hands credits out too early",
            ) from error
        except BrokenPipeError as error:
            raise ChannelClosed(
                "the reader of a message pipe is gone", fix="see how the receiving component ended"
            ) from error

    def take(self) -> list[bytes]:
        """Every message that has arrived, oldest first; never waits.

        Raises:
            ChannelClosed: There is none, and nobody has the writing end any more.
        """
        data, ended = self._rest, False
        for _ in range(_READS_PER_CALL):
            try:
                piece = os.read(self.reader_fd, self._read_bytes)
            except BlockingIOError:
                break
            if not piece:
                ended = True
                break
            data += piece
        size = self.message_bytes
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        if ended and not whole:
            raise ChannelClosed(
                "every writer of a message pipe is gone", fix="see how the sending component ended: its log tells"
            )
        return [data[start : start + size] for start in range(0, whole, size)]

    def close(self) -> None:
        """Give the descriptors this process has back; again is harmless."""
        for fd in (self.reader_fd, self.writer_fd):
            if fd >= 0:
                os.close(fd)
        self.reader_fd = self.writer_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
