"""A wait that several coroutines may end, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_LOOK_S = 0.5  # most seconds between two looks whether the run goes on
_LEAVE_S = 5.0  # for what was cancelled to notice


class Wakeup:
    """Something may have happened: look again. Set and awaited in one event loop."""

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """End the wait that runs, or the next one."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, at most ``timeout_s`` seconds; whether it was. Clears it."""
        if not self._set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait({self._waiter}, timeout=max(0.0, timeout_s))
            finally:
                self._waiter = None
        was, self._set = self._set, False
        return was


async def unless_stopped(
    work: Coroutine[Any, Any, _Result], wakeup: Wakeup, goes_on: Callable[[], bool], instead: _Result
) -> _Result:
    """What ``work`` gives; ``instead`` if the run does not go on before it is over, and then it is cancelled.

    Args:
        work: Has its own deadline.
        wakeup: Set when it is worth asking ``goes_on``; taken here.
        goes_on: May raise what ends the run.
        instead: Of no use to anybody, as the run is over.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: wakeup.set())
    try:
        while not task.done() and goes_on():
            await wakeup.wait(_LOOK_S)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_LEAVE_S)
    return instead if task.cancelled() else await task  # it is done
