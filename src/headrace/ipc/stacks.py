"""Where a process is stuck: its stacks, written by itself although it is stuck.

Every child registers faulthandler on a signal. The handler is C code that needs neither the interpreter lock nor the
child's cooperation, so it also tells about endless loops and calls that never return.
"""

from __future__ import annotations

import faulthandler
import itertools
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from headrace.core.procstat import stat_fields
from headrace.ipc.channel import Deadline

DUMP_SIGNAL = signal.SIGUSR2

_HEADLINE = "(most recent call first):"
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$')


def enable(stacks: TextIO, log: TextIO) -> None:
    """Let this process write its stacks into ``stacks`` on `DUMP_SIGNAL`, and its crash into ``log``.

    Both files have to stay open for as long as the process lives.
    """
    faulthandler.enable(file=log, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True, chain=False)


class StackDump:
    """One request for the stacks of another process; looks again on each `finished`, and never waits.

    Args:
        send_signal: Sends a signal to that process; False if it is gone.
        pid: Its number.
        path: File into which it writes its stacks.
        timeout_s: Seconds it is given.
    """

    def __init__(self, send_signal: Callable[[int], bool], pid: int, path: Path, timeout_s: float) -> None:
        self.path = path
        self.was_stopped = is_stopped(pid)
        """Whether the process had been stopped (SIGSTOP, a debugger, Ctrl-Z): that alone explains a stall."""
        self._deadline = Deadline(timeout_s)
        self._before = self._last = _size(path)
        alive = send_signal(DUMP_SIGNAL)
        if alive and self.was_stopped:
            send_signal(signal.SIGCONT)  # a stopped process runs no handler
        self._gone = not alive

    def finished(self) -> bool:
        """Whether there is nothing more to wait for: it wrote and has done so, it is gone, or its time is over."""
        size = _size(self.path)
        settled = size > self._before and size == self._last
        self._last = size
        return settled or self._gone or self._deadline.passed

    @property
    def succeeded(self) -> bool:
        """Whether stacks were written."""
        return self._last > self._before

    def where(self) -> str | None:
        """The innermost Python frame of the current thread: ``fire.py:88 in spread``; None if it is not known."""
        return innermost_frame(self._written()) if self.succeeded else None

    def threads(self) -> list[str]:
        """The innermost Python frame of every thread, as in `where`; empty if none is known."""
        return innermost_frames(self._written()) if self.succeeded else []

    def _written(self) -> str:
        with self.path.open(errors="replace") as file:
            file.seek(self._before)
            return file.read()


def innermost_frames(dump: str) -> list[str]:
    """The first frame of each thread, in the order in which faulthandler lists them."""
    lines = dump.splitlines()
    heads = [_FRAME.match(line) for before, line in itertools.pairwise(lines) if before.endswith(_HEADLINE)]
    return [f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}" for frame in heads if frame]


def innermost_frame(dump: str) -> str | None:
    """The first frame of the thread that faulthandler calls current, or else of the last thread it lists."""
    found = None
    expect = False
    for line in dump.splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            expect = line.endswith(_HEADLINE)
            if line.startswith("Current thread"):
                found = None
        elif expect:
            found = f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}"
            expect = False
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped; False where the system does not tell."""
    return stat_fields(pid)[:1] in (["T"], ["t"])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
