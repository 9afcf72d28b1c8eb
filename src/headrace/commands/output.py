"""What a program prints: read at once, kept in its log, searched for signs, passed on to whoever looks."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable

from headrace.commands.config import ProcessConfig
from headrace.commands.lines import LineCutter, Shown
from headrace.commands.readings import number_in
from headrace.commands.vigil import Vigil
from headrace.ipc.channel import Channel
from headrace.supervision.messages import Report

_READ_BYTES = 1 << 16
_READ_S = 0.25
_LAST_READS = 64
_LINES_PER_REPORT = 200


class Output:
    """The output of one program.

    Args:
        fd: Where it can be read; never blocks.
        log_fd: Where all of it is kept, as it comes.
        process: Which patterns mean what.
        vigil: Told of the signs in it.
    """

    def __init__(self, fd: int, log_fd: int, process: ProcessConfig, vigil: Vigil) -> None:
        self._fd, self._log_fd, self._vigil = fd, log_fd, vigil
        self._cutter, self._shown = LineCutter(), Shown()
        self._ready = _compiled(process.ready.log)
        self._progress = _compiled(process.progress.log if process.progress is not None else None)
        self._fail = _compiled(process.fail_pattern)
        self.failed_by: str | None = None
        """The first line that says that the program has failed."""
        self.closed = False
        """Whether nobody can write to it any more: the program has closed it, and may live on."""

    @property
    def lines(self) -> int:
        """How many there were."""
        return self._shown.seen

    def read(self) -> None:
        """Take in what has been printed; a pipe that is full would hold the program up. A flood waits for the next turn."""
        now_s = time.monotonic()
        while self._read_piece(now_s) and time.monotonic() - now_s < _READ_S:
            pass

    def read_last(self) -> None:
        """Take in what is left once every writer is gone."""
        now_s = time.monotonic()
        for _ in range(_LAST_READS):  # more than a pipe holds; one that could not be killed may print on for ever
            if not self._read_piece(now_s):
                break
        for line in self._cutter.end():
            self._on_line(line, now_s)

    def _read_piece(self, now_s: float) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.closed = True
            return False
        with contextlib.suppress(OSError):  # a full disk costs the log, not the program
            os.write(self._log_fd, data)
        for line in self._cutter.feed(data):
            self._on_line(line, now_s)
        return True

    def pass_on(self, control: Channel) -> bool:
        """Hand over some lines without waiting; whether there were any. What finds no room is counted.

        Raises:
            ChannelClosed: Nobody is left to take them.
        """
        if not control.flush() or not (len(self._shown) or self._shown.left_out):
            return False
        report = self._report()
        if not control.try_send(report):
            self._shown.left_out += report.facts["left_out"] + len(report.facts["lines"])
        return True

    def pass_all_on(self, send: Callable[[Report], None]) -> None:
        """Hand over the rest."""
        while len(self._shown) or self._shown.left_out:
            send(self._report())

    def _report(self) -> Report:
        facts = {"lines": self._shown.take(_LINES_PER_REPORT), "left_out": self._shown.left_out}
        self._shown.left_out = 0
        return Report("lines", facts)

    def _on_line(self, line: str, now_s: float) -> None:
        self._shown.add(now_s, line)
        if self.failed_by is None and self._fail is not None and self._fail.search(line):
            self.failed_by = line
        if self._ready is not None and self._ready.search(line):
            self._vigil.note_ready(now_s)
        match = self._progress.search(line) if self._progress is not None else None
        if match is None:
            return
        number = number_in(match)
        if number is not None:
            self._vigil.note_number(number, now_s)
        elif not match.re.groups:
            self._vigil.note_progress(now_s)


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return re.compile(pattern) if pattern is not None else None
