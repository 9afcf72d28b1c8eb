"""Looks at the board of a run by the clock, while the run itself goes on in this process."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.monitor.reader import take_look
from headrace.telemetry.board import Board
from headrace.telemetry.boardwatch import BoardWatch
from headrace.telemetry.looks import Look
from headrace.telemetry.timeuse import TimeUse

_EVERY_S = 0.05
_LOOKS_A_SECOND = 20


class Sampler:
    """Takes a look twenty times a second, from `__enter__` to `__exit__`.

    It keeps to the clock: the run's own reports come right after certain activities, and looks taken when a report
    arrives would find those too often. A look reads memory only; once a second it asks for processor times too.

    Args:
        board_file: The run makes it after its start.
    """

    def __init__(self, board_file: Path) -> None:
        self.use = TimeUse()
        """What has been counted; complete after the block."""
        self._looks = 0
        self._watch = BoardWatch(board_file, _EVERY_S, self._look, "headrace-sampler")

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)

    def _look(self, board: Board) -> None:
        often = self._looks % _LOOKS_A_SECOND
        self.use.add(Look(time.monotonic_ns(), board.read_all()) if often else take_look(board))
        self._looks += 1
