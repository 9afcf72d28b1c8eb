"""Looks at the board of a run by the clock, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.errors import RunDirectoryError
from headrace.telemetry.board import Board

_END_S = 5.0


class BoardWatch:
    """A thread that has somebody look at a board at even intervals, from `__enter__` to `__exit__`.

    Args:
        board_file: The run makes it after its start; before, nobody looks.
        every_s: Seconds between two looks.
        look: Called with the board, in the thread.
        name: Of the thread.
    """

    def __init__(self, board_file: Path, every_s: float, look: Callable[[Board], None], name: str) -> None:
        self._file, self._every_s, self._look = board_file, every_s, look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=_END_S)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                board = Board.open(self._file)
            except RunDirectoryError:
                continue  # the run has not begun yet
            with board:
                while not self._over.wait(self._every_s):
                    self._look(board)
            return
