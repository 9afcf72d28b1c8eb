"""Tells about calls in this process that do not return; it cannot end them."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

from headrace.core.clock import Clock, MonotonicClock, away_s
from headrace.vector.limits import Limits
from headrace.vector.stepping import Phase

Look = Callable[[], "tuple[object, int, Phase, int]"]
"""Which call is being made (None: none), whose it is, what it is in, and the thread that makes it."""

_LOG = logging.getLogger("headrace.vector")
_LEAVE_S = 1.0


class Watcher:
    """A thread that looks now and then, and logs a warning once for each call that lasts too long.

    Args:
        look: See there.
        limits: How long calls may last.
        clock: For their age.
    """

    def __init__(self, look: Look, limits: Limits, clock: Clock | None = None) -> None:
        self._look = look
        self._limits = limits
        self._clock = clock or MonotonicClock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._inside: object = None
        """Of the last look: which call, in which phase."""
        self._since_s = 0.0
        self._told = False

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="headrace-vector-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; again is harmless."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=_LEAVE_S)

    def check(self, absent_s: float = 0.0) -> str | None:
        """Look once; what there is to say, if there is anything.

        Args:
            absent_s: Seconds since the last look that do not count; see `headrace.core.clock.away_s`.
        """
        call, env, phase, thread = self._look()
        now_s, inside = self._clock.now(), (call, phase)
        self._since_s += absent_s
        if call is None or inside != self._inside:
            self._inside, self._since_s, self._told = inside, now_s, False
            return None
        limit_s = self._limits.of(phase)
        if self._told or now_s - self._since_s < limit_s:
            return None
        self._told = True
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see another thread's stack
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "its stack is not known"
        return (
            f"environment {env} has been inside {phase.label}() for {now_s - self._since_s:.3g} s (limit {limit_s:g} s); "
            f"in this process nobody can end it: take workers=1 or more\n{stack}"
        )

    def _run(self) -> None:
        look_s, begun_s = self._limits.look_s, self._clock.now()
        while not self._stop.wait(look_s):
            said = self.check(away_s(self._clock.now() - begun_s, look_s))
            if said is not None:
                _LOG.warning(said)
            begun_s = self._clock.now()
