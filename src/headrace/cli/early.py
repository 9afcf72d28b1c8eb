"""Ctrl-C and SIGTERM while the command is still being imported: one line and exit code 130, never a traceback.

An exception thrown into the middle of an import cannot be relied on: libraries turn it into errors of their own, and
Python prints and forgets those that hit one of its callbacks. Nothing that would have to be ended in order has been
started then, so the process leaves from the signal handler itself. ``headrace/__init__.py`` imports this module before
anything else; in other programs than the ``headrace`` script and ``python -m headrace`` it changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys

# Nothing else may be imported at run time: until the last line of this module Python would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    Handler = Callable[[int, FrameType | None], None]

INTERRUPTED = 130
LINE = "interrupted"
_WITHOUT_BAR = "\r\x1b[2K\x1b[?25h"
"""Erases a line of a terminal, and shows the cursor."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def occupy_closed() -> None:
    """Open what is closed of the three standard streams onto nothing, before a file of the run gets such a number.

    Whatever is started writes to these numbers.
    """
    for fd, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None and os.open(os.devnull, os.O_RDWR) == fd:
            os.set_inheritable(fd, True)  # noqa: FBT003 - it takes no name


def is_the_command() -> bool:
    """Whether this program is the ``headrace`` script or ``python -m headrace``, and not one that uses the library."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # while Python looks for the module; the command line as it was typed has its name
        return sys.orig_argv[-len(sys.argv)] in {"headrace", "-mheadrace", "headrace.__main__"}
    return os.path.basename(program) in {"headrace", "headrace.exe"}  # noqa: PTH119 - pathlib is not imported yet


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """Signal handler: say so, where somebody reads it, and leave; nothing in between can fail or wait."""
    _leave(f"{LINE}\n")


def leave_without_bar(number: int, frame: FrameType | None) -> None:
    """Signal handler: as `leave_at_once`; nobody else would erase the bar, and show the cursor that it hides."""
    _leave(f"{_WITHOUT_BAR}{LINE}\n")


def _leave(text: str) -> None:
    try:
        waits = os.get_blocking(2)
        os.set_blocking(2, False)
        try:
            os.write(2, text.encode())
        finally:
            os.set_blocking(2, waits)  # the terminal is also the shell's
    finally:
        os._exit(INTERRUPTED)


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Signal handler: what Python does by itself for Ctrl-C, for SIGTERM as well."""
    raise KeyboardInterrupt


_OURS = (leave_at_once, leave_without_bar, raise_interrupt)


def guard() -> None:
    """Let both signals end the process at once from here on. Whoever ignores them (nohup) goes on ignoring them."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave_at_once)


def guarded() -> bool:
    """Whether this process is the command: its signals are handled by this module."""
    return any(signal.getsignal(number) in _OURS for number in _SIGNALS)


def leave_from_here() -> None:
    """What had to be ended in order has ended: where this process is the command, both signals end it at once again."""
    if guarded():
        guard()


def hand_over() -> None:
    """From here on both signals raise `KeyboardInterrupt`, so that what was begun is ended in order."""
    for number in _SIGNALS:
        if signal.getsignal(number) is leave_at_once:
            signal.signal(number, raise_interrupt)


class _Exchanged:
    """While the block lasts, another handler in the place of one of ours."""

    _exchange: tuple[Handler, Handler]

    def __enter__(self) -> None:
        ours, other = self._exchange
        self._numbers = [number for number in _SIGNALS if signal.getsignal(number) is ours]
        for number in self._numbers:
            signal.signal(number, other)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._numbers:
            signal.signal(number, self._exchange[0])


class importing(_Exchanged):  # noqa: N801 - reads like a verb where it is used, and contextlib would be an import
    """While nothing is begun yet, and modules are imported that take long: as before `hand_over`."""

    _exchange = raise_interrupt, leave_at_once


class drawing_a_bar(_Exchanged):  # noqa: N801 - see `importing`
    """While there is one on the terminal of standard error, and it hides the cursor: whoever leaves at once puts that right."""

    _exchange = leave_at_once, leave_without_bar


if is_the_command():
    occupy_closed()
    guard()
