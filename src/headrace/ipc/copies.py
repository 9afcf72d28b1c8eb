"""What becomes of forks that the user's code makes of one of our processes: they end where they would go on in ours.

An environment may fork a helper that never ends by itself. What comes back from it has our lanes, pipes and files in its
hands, and would do once more what its original does. It costs the original nothing to look after that: the fork alone is
watched, by a trace of those frames of ours in which it would go on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from headrace.ipc import printing

_END_BY_THEMSELVES = frozenset({"multiprocessing.popen_fork", "multiprocess.popen_fork", "billiard.popen_fork"})
"""Modules whose forks never come back from them."""
# One for all: the system's list of what is called after a fork takes nothing back.
_NAMES: list[str] = []


@contextlib.contextmanager
def copies_ended(name: str) -> Iterator[None]:
    """Meanwhile a fork of this process that comes back into our code, by a return or by what it raises, ends there.

    What it does before is left alone; a call of a function of Python takes three to five times as long in it, and who traces
    it (``sys.settrace``) no longer does. Forks of ``multiprocessing`` are not watched: they end by themselves.

    Args:
        name: Of the process, for a line on its standard error.
    """
    _NAMES.append(name)
    try:
        yield
    finally:
        _NAMES.remove(name)


def _watch() -> None:
    frames = list(_frames(sys._getframe(1))) if _NAMES else []  # noqa: SLF001 - the interpreter's only way to tell
    if any(frame.f_globals.get("__name__") in _END_BY_THEMSELVES for frame in frames):
        return
    ours = [frame for frame in frames if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "headrace"]
    for frame in ours:
        frame.f_trace_opcodes = True  # the rest of a line may be too much already
        frame.f_trace = _leave
    if ours:
        sys.settrace(_trace_nothing_new)


os.register_at_fork(after_in_child=_watch)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _trace_nothing_new(_frame: FrameType, _event: str, _value: Any) -> None:
    """Without such a function nothing is traced at all."""


def _leave(_frame: FrameType, event: str, value: Any) -> NoReturn:
    """End this process, a copy, and say how it came back; with the exit code that it would have had.

    Whatever fails in it: what it raised would be raised in the copy, which would go on.
    """
    code = 1
    try:
        raised = value[1] if event == "exception" else None
        if isinstance(raised, SystemExit):
            code = exit_code_of(raised)
        else:
            code = int(raised is not None)
            text = f"a fork of {_NAMES[-1]}, process {os.getpid()}, has come back from the code that made it, and ends here\n"
            # Not through `sys.stderr`, which may be anybody's, and held by a thread of the original.
            printing.tell("".join(traceback.format_exception(*value)) + text if code else text)
    finally:
        os._exit(code)


def exit_code_of(request: SystemExit) -> int:
    """With which a process ends that is asked to, from 0 to 255; no other number can be told to the system."""
    return request.code & 0xFF if isinstance(request.code, int) else int(request.code is not None)
