"""Finds components whose process a signal has stopped, also while they are busy with nothing that has a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

from headrace.telemetry.board import SlotView
from headrace.telemetry.looks import ALIVE

_LOOK_EVERY_S = 1.0


def stopped_by_signal(pid: int) -> bool:
    """Whether a process is stopped: by SIGSTOP, Ctrl-Z or a debugger."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False


class Freezes:
    """Remembers since when each has been stopped.

    Args:
        limit_s: Seconds after which it is told.
        is_stopped: Of a process.
    """

    def __init__(self, limit_s: float, is_stopped: Callable[[int], bool] = stopped_by_signal) -> None:
        self.limit_s = limit_s
        self._is_stopped = is_stopped
        self._since_s: dict[tuple[str, int], float] = {}
        self._due_s = 0.0

    def look(self, views: Iterable[SlotView], now_s: float) -> list[str]:
        """Who has been stopped for longer than the limit; each is told once.

        Args:
            views: What every component is doing.
            now_s: The time, on the clock of all calls.
        """
        if now_s < self._due_s:
            return []
        self._due_s = now_s + min(_LOOK_EVERY_S, self.limit_s / 4)
        watched = [view for view in views if view.kind != "supervisor" and view.pid > 0 and view.state in ALIVE]
        stopped = {(view.id, view.pid) for view in watched if self._is_stopped(view.pid)}
        self._since_s = {who: self._since_s.get(who, now_s) for who in stopped}
        found = [who for who, since_s in self._since_s.items() if now_s - since_s > self.limit_s]
        for who in found:
            self._since_s[who] = float("inf")
        return [component for component, _ in found]
