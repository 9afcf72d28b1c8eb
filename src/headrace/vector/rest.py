"""How a worker sleeps without missing anything, and is not woken where it does not sleep: that costs a system call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.ipc.fences import fence

_ASLEEP, _TOLD = range(2)


class Rest:
    """What a worker and its parent know of each other.

    Args:
        numbers: Two in shared memory: whether the worker sleeps, which is the worker's, and how many messages it was
            sent, which is the parent's.
    """

    NUMBERS = 2

    def __init__(self, numbers: memoryview) -> None:
        self._numbers = numbers

    def needs_waking(self) -> bool:
        """For the parent, once something is there for the worker: whether the worker may not see it by itself."""
        fence()
        return self._numbers[_ASLEEP] != 0

    def note_told(self) -> None:
        """For the parent: one more message was sent."""
        self._numbers[_TOLD] += 1

    @property
    def told(self) -> int:
        """For the worker: how many messages were sent before whatever it has seen so far."""
        fence()
        return self._numbers[_TOLD]

    def until(self, come: Callable[[], bool], wait: Callable[[], list[Any]]) -> list[Any] | None:
        """For the worker: sleep, and be woken.

        Args:
            come: Whether there is something to do already.
            wait: Sleeps, and returns by what it was woken.

        Returns:
            What ``wait`` returned; None if it was not called.
        """
        self._numbers[_ASLEEP] = 1
        fence()  # whoever saw it awake has put down before this what `come` now sees
        try:
            return None if come() else wait()
        finally:
            self._numbers[_ASLEEP] = 0

    def close(self) -> None:
        """Give the memory back."""
        self._numbers.release()
