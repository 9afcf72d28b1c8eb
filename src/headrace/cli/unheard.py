"""Standard output and standard error that take nothing: the reader is gone or stands still, a disk is full, they are closed.

A run of a week is neither ended nor held up by that. While a run has the signals (`Interrupts`) nothing that is printed waits:
what finds no room is kept for later, within bounds, and how many lines were left out is said. Anywhere else Ctrl-C ends the
wait for a reader, so there printing waits as it does in any program. A stream that has failed prints into nothing from then on.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from headrace.cli.early import INTERRUPTED
from headrace.ipc.channel import Deadline, poll_fds
from headrace.runtime import interrupts

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

_MOST_BYTES = 1 << 18
"""Text that is kept for a reader who takes none while a run goes on; before and after it there is little."""
_IDLE_S = 0.05
"""Without a byte taken for so long, a reader stands still, and is waited for no more until it takes something."""
_PATIENCE_S = 1.0
"""One who takes little at a time is waited for so long at each line."""
_LOOK_S = 1.0
_FLAGS = threading.Lock()
"""Held while a description that is not ours alone does not wait. Nobody waits for it."""


class Outlet(io.RawIOBase):
    """What stands in for the descriptor of a standard stream; see the module.

    Args:
        fd: Of the stream; it is not closed.
        look: As `poll_fds`.
    """

    def __init__(self, fd: int, look: Callable[[Mapping[int, int], float], Mapping[int, int]] = poll_fds) -> None:
        super().__init__()
        self._fd, self._look = fd, look
        self._own = _own_description(fd)
        self._shared = self._own == fd and os.isatty(fd)
        """Whether it is a terminal that could not be opened once more (after su; in another container)."""
        self._kept = bytearray()
        self._left_out = 0
        self._still = False
        """Whether its reader stands still."""
        self._at_it = threading.Lock()
        self.failure: OSError | None = None
        """Why it takes no more."""
        self.told = False
        """Whether that was said."""
        self.may_wait = True
        self.hurried = False
        """Whether somebody has asked to end; also one who stood still is given a moment then."""
        self.saw_interrupt = False
        """Whether somebody has asked to end a run while it had the signals."""

    def write(self, data: ReadableBuffer) -> int:
        """Hand over, or keep, all of it.

        Raises:
            OSError: The stream takes no more, for another reason than that nobody reads it, and no run goes on. Only once.
        """
        piece = bytes(data)
        if piece and self.failure is None:
            self.pass_on()
            self._keep(piece)
            self.pass_on()
        return len(piece)

    def pass_on(self) -> None:
        """Hand over what was kept, as far as its reader takes it; also called where nothing is printed.

        Raises:
            OSError: See `write`.
        """
        self.saw_interrupt = self.saw_interrupt or interrupts.asked()
        goes_on = True
        # Whoever hands over looks once more after he let go: what another thread could only keep is not left for later.
        while goes_on and self._kept and self._at_it.acquire(blocking=False):
            try:
                goes_on = self._hand_over()
            finally:
                self._at_it.release()

    def finish(self) -> None:
        """Hand over what is left."""
        with contextlib.suppress(OSError):
            self._note_left_out()
            self.pass_on()

    def writable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def fileno(self) -> int:
        """See `io.IOBase`."""
        return self._fd

    def isatty(self) -> bool:
        """See `io.IOBase`."""
        return os.isatty(self._fd)

    def close(self) -> None:
        """Leave the stream as it was."""
        if not self.closed and self._own != self._fd:
            os.close(self._own)
        super().close()

    def _keep(self, piece: bytes) -> None:
        if self._kept and len(self._kept) + len(piece) > _MOST_BYTES and interrupts.held():
            self._left_out += max(1, piece.count(b"\n"))
            return
        self._note_left_out()
        self._kept.extend(piece)

    def _note_left_out(self) -> None:
        if self._left_out:
            lines = f"{self._left_out:,} line{'s were' if self._left_out > 1 else ' was'}"
            self._kept.extend(f"({lines} left out here: nobody read on)\n".encode())
            self._left_out = 0

    def _hand_over(self) -> bool:
        """Whether all was taken."""
        waits = self.may_wait and not (self.hurried or interrupts.held())
        patience = Deadline(_PATIENCE_S)
        while self._kept and self.failure is None:
            none_left = patience.passed or (self._still and not self.hurried)
            limit_s = _LOOK_S if waits else 0.0 if none_left else _IDLE_S
            if self._look({self._own: select.POLLOUT}, limit_s) and self._take(waits=waits):
                self._still = False
            elif not waits:
                self._still = True
                return False
        return self.failure is None

    def _take(self, *, waits: bool) -> bool:
        """Write one piece; whether any of it was taken."""
        try:
            # A pipe that is not full takes so much without waiting. A terminal may not.
            del self._kept[: self._write(self._kept[: select.PIPE_BUF])]
        except BlockingIOError:  # less room than the terminal asks for
            self._look({}, _IDLE_S if waits else 0.0)
            return False
        except OSError as error:
            self.failure = error
            self._kept.clear()
            if waits and error.errno != errno.EPIPE:
                raise
        return True

    def _write(self, piece: bytearray) -> int:
        """Write what fits; a terminal has a description of its own, or is asked each time not to wait, as it is also the shell's.

        Raises:
            BlockingIOError: It has no room, or another thread writes to it.
        """
        if not self._shared:
            return os.write(self._own, piece)
        if not _FLAGS.acquire(blocking=False):
            raise BlockingIOError
        try:
            waits = os.get_blocking(self._own)
            os.set_blocking(self._own, False)
            try:
                return os.write(self._own, piece)
            finally:
                os.set_blocking(self._own, waits)
        finally:
            _FLAGS.release()


def _own_description(fd: int) -> int:
    """A terminal once more, so that not to wait there is no matter of the shell and whoever else writes to it."""
    if os.isatty(fd):
        with contextlib.suppress(OSError):
            return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    return fd


@contextlib.contextmanager
def outlets() -> Iterator[None]:
    """Print through outlets while the block lasts; what they still hold at its end is dropped if nobody takes it.

    Characters that the locale does not have are escaped. Streams that are closed are replaced by one into nothing, and streams
    without a descriptor, as tests and notebooks have them, are left alone.
    """
    former = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_through_outlet, former)
    try:
        yield
    finally:
        hurry()
        finish()
        sys.stdout, sys.stderr = former


def _through_outlet(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - a stream, as long as the process
    try:
        fd = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return stream
    outlet: Any = Outlet(fd)  # typeshed asks for a buffered one; but what an outlet is given it takes
    return io.TextIOWrapper(outlet, stream.encoding, "backslashreplace", write_through=True)


def _outlet(stream: TextIO) -> Outlet | None:
    found = getattr(getattr(stream, "rich_proxied_file", stream), "buffer", None)  # rich stands in between at times
    return found if isinstance(found, Outlet) else None


def _both() -> list[Outlet]:
    return [found for found in map(_outlet, (sys.stdout, sys.stderr)) if found is not None]


def pass_on() -> None:
    """Hand over what found no room before; called many times a second while a run goes on, and only then."""
    for outlet in _both():
        outlet.pass_on()


def hurry() -> None:
    """Somebody has asked to end: from now on nothing waits for a reader who stands still."""
    for outlet in _both():
        outlet.hurried = True


def finish() -> None:
    """The end of the command: hand over what found no room before, and wait for the reader unless in a hurry."""
    for outlet in _both():
        outlet.finish()


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """Treat all that is printed while the block lasts as while a run has the signals, also before and after it has them."""
    outlets = _both()
    for outlet in outlets:
        outlet.may_wait = False
    try:
        yield
    finally:
        for outlet in outlets:
            outlet.may_wait = True


def nobody_reads() -> bool:
    """Whether standard output has failed: whoever only shows something may leave."""
    outlet = _outlet(sys.stdout)
    return outlet is not None and outlet.failure is not None


def untold_loss() -> OSError | None:
    """Why standard output takes no more, where that is not for want of a reader and has not been told."""
    outlet = _outlet(sys.stdout)
    if outlet is None or outlet.told or outlet.failure is None or outlet.failure.errno == errno.EPIPE:
        return None
    return outlet.failure


def is_lost_output(error: OSError) -> bool:
    """Whether this came of printing."""
    return any(outlet.failure is error for outlet in _both())


def going_on(show: Callable[[T], None]) -> Callable[[T], None]:
    """The same, but the caller goes on where standard output takes no more; that is told once on standard error."""

    def shown(what: T) -> None:
        try:
            show(what)
        except OSError as error:
            if not is_lost_output(error):
                raise
        outlet = _outlet(sys.stdout)
        if outlet is not None and outlet.failure is not None and not outlet.told:
            outlet.told = True
            complain(f"standard output takes no more ({outlet.failure.strerror}); the run goes on")

    return shown


def complain(text: str) -> None:
    """A line on standard error, if that takes one: what the exit code says is not lost with it."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def conclude(text: str, summary: Mapping[str, Any]) -> int:
    """The last words about a run: how it ended, what went wrong; who interrupted it is not kept waiting for a reader.

    Args:
        text: The end in words.
        summary: As in ``summary.json``.

    Returns:
        The exit code.
    """
    code = int(summary.get("exit_code", 0))
    if code == INTERRUPTED or any(outlet.saw_interrupt for outlet in _both()):  # and has failed then, maybe
        hurry()
    with never_waiting():  # `finish` does: nobody has to read how a run ended to be told what went wrong
        going_on(click.echo)(text)
    if summary.get("error"):
        complain(str(summary["error"]))
    if summary.get("unwritten"):
        complain(str(summary["unwritten"]))
    return code
