"""A wait that several coroutines may end, with a limit."""

from __future__ import annotations

import asyncio


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
