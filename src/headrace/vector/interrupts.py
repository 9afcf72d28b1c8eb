"""Ctrl-C between two steps of bookkeeping: it waits until everything is written down, or something is waited for.

Python runs a signal's handler between any two instructions of the main thread. An interrupt that comes after an answer
was taken in, and before it was handed out, would lose it without a trace. Within `Held`, the handler of SIGINT only
notes that it was called; within `LetThrough` it does what it does outside. What was noted is done at the next of these.

Handlers of other signals are not held: they may be to end what hangs, and to look for each would cost every step. What
they raise is the program's, wherever it comes out; `is_programs` tells it from what an environment raises.
"""

from __future__ import annotations

import functools
import itertools
import threading

# Those of `signal` look every handler up in an enum, which takes longer than a step of a small environment.
from _signal import NSIG, SIGINT, getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable, Sequence
from inspect import CO_VARARGS
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class _Noting:
    """A handler that does nothing yet.

    Args:
        before: The one in whose place it stands.
    """

    def __init__(self, before: Handler) -> None:
        self.before = before
        self.noted: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.noted = number, frame


def _noting() -> _Noting | None:
    current: Any = getsignal(SIGINT)
    return current if isinstance(current, _Noting) and _in_main_thread() else None


class Held:
    """A context in which SIGINT is noted; what is noted at its end is done when it is entered again.

    That is a call later, and loses nothing: at the end everything is written down, and the caller is about to be told.
    """

    def __init__(self) -> None:
        self._own: _Noting | None = None
        self._late: tuple[int, FrameType | None] | None = None

    def catch_up(self) -> None:
        """Do what was noted at the end."""
        if self._late is not None:
            late, self._late = self._late, None
            handler: Any = getsignal(SIGINT)
            if callable(handler):
                handler(*late)

    def __enter__(self) -> Self:
        self.catch_up()
        if _in_main_thread():
            current: Any = getsignal(SIGINT)
            if callable(current) and not isinstance(
                current, _Noting
            ):  # another one is outside of this, or nobody cares
                self._own = _Noting(current)
                set_handler(SIGINT, self._own)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        own, self._own = self._own, None
        if own is not None:
            set_handler(SIGINT, own.before)
            self._late = own.noted


class LetThrough:
    """A context in which SIGINT does what it does outside of `Held`; entering it does what was noted."""

    def __init__(self) -> None:
        self._noting: _Noting | None = None

    def __enter__(self) -> Self:
        self._noting = noting = _noting()
        if noting is not None:
            set_handler(SIGINT, noting.before)
            if noting.noted is not None:
                number, frame = noting.noted
                noting.noted = None
                try:
                    noting.before(number, frame)
                except BaseException:
                    set_handler(SIGINT, noting)
                    raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._noting is not None:
            set_handler(SIGINT, self._noting)


def is_programs(error: BaseException) -> bool:
    """Whether an exception out of an environment's code in this process is none of its own.

    That is Ctrl-C, and what the handler of a signal raises, to end a program in an orderly way or a test that is late.
    """
    return isinstance(error, KeyboardInterrupt) or _by_handler(error)


def _by_handler(error: BaseException) -> bool:
    """Whether the traceback leads through the handler of a signal."""
    traceback = error.__traceback__
    traceback = traceback and traceback.tb_next  # the first frame is that of who has caught it
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return any(map(_interrupts_its_caller, frames)) or _is_handlers(frames)


def _interrupts_its_caller(frame: FrameType) -> bool:
    """Whether a function that is over was given a signal's number and its caller's frame, as the interpreter gives them to handlers.

    Whatever has become of that handler since: many take themselves away before they raise.
    """
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    taken, values = code.co_varnames, frame.f_locals
    given = [values.get(name) for name in taken[: code.co_argcount]]
    rest = values.get(taken[code.co_argcount + code.co_kwonlyargcount]) if code.co_flags & CO_VARARGS else None
    given += rest if isinstance(rest, tuple) else ()
    # A function of `sys.settrace` is given the frame as well, but no number before it.
    return any(
        second is caller and type(first) is int and 0 < first < NSIG for first, second in itertools.pairwise(given)
    )


def _is_handlers(frames: Sequence[FrameType]) -> bool:
    """Whether one of these is of a handler that a signal has now; it may have thrown away what it was given."""
    handlers = [handler for handler in map(getsignal, range(1, NSIG)) if callable(handler)]
    codes = {_code_of(handler) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame in frames)


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    plain = getattr(handler, "__func__", handler)
    called = getattr(type(plain), "__call__", None)  # noqa: B004 - not whether there is one, but its code
    code = getattr(plain, "__code__", None) or getattr(called, "__code__", None)
    return code if isinstance(code, CodeType) else None
