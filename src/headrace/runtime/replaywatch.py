"""A limit for every step of a replay: an environment that hangs in it is named instead of waited for."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.core.clock import monotonic_ns
from headrace.core.config import DeadlinesConfig
from headrace.core.errors import ComponentStalled
from headrace.runtime.resources import activity_limits
from headrace.telemetry.board import Board

_LOOK_EVERY_S = 1.0
_IN_C = 3.0
"""How many times its limit a call may last that does not come back to Python, before the process is ended."""


@contextmanager
def watched(board: Board, deadlines: DeadlinesConfig) -> Iterator[None]:
    """Within it, a call that misses its deadline raises; one that is stuck in native code ends the process with its stack.

    Only in the main thread.

    Args:
        board: Of the replay; tells what is being done since when.
        deadlines: Of the run.

    Raises:
        ComponentStalled: From within the call.
    """
    limits = activity_limits(deadlines)
    longest_s = max(limits.values())

    def look(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback_later(_IN_C * longest_s, exit=True)
        (view,) = board.read_all()
        limit_s, age_s = limits.get(view.activity), view.age_s(monotonic_ns())
        if limit_s is not None and age_s > limit_s:
            raise ComponentStalled(
                f"the replay has been inside {view.activity.label} for {age_s:.0f} s (limit {limit_s:g} s)",
                lane=view.lane,
                step=view.step,
                fix="raise the deadline if the environment is only slow; else find out why it hangs there",
            )

    former = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY_S, _LOOK_EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
        faulthandler.cancel_dump_traceback_later()
