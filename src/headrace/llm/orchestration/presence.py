"""What the orchestrator shows on the board: what it waits for, and whenever it is busy with something else, that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.telemetry.board import Activity, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait, as the board shows it."""

    activity: Activity
    on: str | None
    need: int = 0
    have: int = 0
    timeout_s: float


class Presence:
    """A slot of a component whose coroutines take turns: one of them waits for the others, which are busy now and then.

    Args:
        slot: Of the component; None shows nothing.
        peers: Ids of the components that may be waited for. Others, in a process that does the work of several, are itself.
    """

    def __init__(self, slot: Slot | None, peers: frozenset[str] = frozenset()) -> None:
        self._slot = slot
        self._peers = peers
        self._wait: Wait | None = None
        self._activity = Activity.IDLE
        self._shown: Wait | Activity | None = None

    def enter(self, activity: Activity) -> None:
        """From now on it is busy with this whenever nothing else is said."""
        self._wait, self._activity = None, activity
        self._show()

    def count(self, name: str, value: int) -> None:
        """Set a counter of the slot."""
        if self._slot is not None:
            self._slot.count(name, value)

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """The main coroutine waits; what others do meanwhile is shown while they do it.

        Going on with the same wait does not begin it anew, so that the board tells how long it has lasted.
        """
        self._wait = wait
        self._show()
        try:
            yield
        finally:
            self._wait = None

    @contextmanager
    def busy(self, activity: Activity, group: int = -1, sample: int = -1) -> Iterator[None]:
        """A call that does not give the event loop back before it is over."""
        self._shown = None
        if self._slot is not None:
            self._slot.enter(activity, group, sample)
        try:
            yield
        finally:
            self._show()

    def _show(self) -> None:
        wait = self._wait
        shows = wait or self._activity
        if self._slot is None or self._shown == shows:
            return
        self._shown = shows
        if wait is None:
            self._slot.enter(self._activity)
            return
        on = wait.on if wait.on in self._peers else None
        self._slot.waiting(wait.activity, on=on, need=wait.need, have=wait.have, deadline_s=wait.timeout_s)
