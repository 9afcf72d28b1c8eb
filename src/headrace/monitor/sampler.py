"""Looks at the board of a run by the clock, while the run itself goes on in this process."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.errors import RunDirectoryError
from headrace.monitor.reader import take_look
from headrace.telemetry.board import Board
from headrace.telemetry.looks import Look
from headrace.telemetry.timeuse import TimeUse

_EVERY_S = 0.05
_LOOKS_A_SECOND = 20
_END_S = 5.0


class Sampler:
    """A thread that takes a look twenty times a second, from `__enter__` to `__exit__`.

    It keeps to the clock: the run's own reports come right after certain activities, and looks taken when a report
    arrives would find those too often. A look reads memory only; once a second it asks for processor times too.

    Args:
        board_file: The run makes it after its start.
    """

    def __init__(self, board_file: Path) -> None:
        self.use = TimeUse()
        """What has been counted; complete after the block."""
        self._file = board_file
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=_END_S)

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                board = Board.open(self._file)
            except RunDirectoryError:
                continue  # the run has not begun yet
            with board:
                self._follow(board)
            return

    def _follow(self, board: Board) -> None:
        looks = 0
        while not self._over.wait(_EVERY_S):
            look = take_look(board) if looks % _LOOKS_A_SECOND == 0 else Look(time.monotonic_ns(), board.read_all())
            self.use.add(look)
            looks += 1
