"""Ctrl-C and SIGTERM as a count that is looked at, instead of an exception anywhere."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts requests to end while the block lasts; the former handlers come back after it.

    A signal that this process ignores, as in the background of a shell script or under nohup, stays ignored. Outside the
    main thread, where no handler can be set, the count stays 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def held() -> bool:
    """Whether `Interrupts` count at present, so that Ctrl-C and SIGTERM end no wait by themselves."""
    return _counting() is not None


def asked() -> bool:
    """Whether somebody has asked to end what has the signals at present."""
    counting = _counting()
    return counting is not None and counting.count > 0


def _counting() -> Interrupts | None:
    for number in _SIGNALS:
        found = getattr(signal.getsignal(number), "__self__", None)
        if isinstance(found, Interrupts):
            return found
    return None
