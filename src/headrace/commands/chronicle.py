"""What happens in a run of somebody else's processes: written, and shown to whoever looks on."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.telemetry.events import EventLog


class Onlooker(Protocol):
    """Who is shown the run."""

    def line(self, component: str, at_s: float, text: str) -> None:
        """A line that a process has printed, and when on the machine's monotonic clock."""
        ...

    def told(self, at_s: float, text: str) -> None:
        """What the supervisor has to say."""
        ...


class Chronicle:
    """Writes what happens, and shows it.

    Args:
        events: Where it is written.
        onlooker: Who is shown it.
        clock: Monotonic.
    """

    def __init__(self, events: EventLog, onlooker: Onlooker, clock: Clock) -> None:
        self._events, self._clock = events, clock
        self._onlooker: Onlooker | None = onlooker

    def fall_silent(self) -> None:
        """Go on for whoever reads it later: whoever looks on may have raised, and would again."""
        self._onlooker = None

    def say(self, kind: str, component: str, text: str, *, pid: int | None = None, **facts: object) -> None:
        """Write an event, and show it."""
        self.note(kind, component, text, pid=pid, **facts)
        self._tell(text)

    def note(self, kind: str, component: str, text: str, *, pid: int | None = None, **facts: object) -> None:
        """Write an event."""
        self._events.emit(kind, component, text, pid=pid, **facts)

    def lines(self, component: str, facts: dict[str, Any]) -> None:
        """Show lines that a process has printed; its log has them already."""
        for at_s, text in facts["lines"]:
            if self._onlooker is not None:
                self._onlooker.line(component, at_s, text)
        if facts["left_out"]:
            self._tell(f"{facts['left_out']:,} more lines of {component} are only in logs/{component}.log")

    def _tell(self, text: str) -> None:
        if self._onlooker is not None:
            self._onlooker.told(self._clock.now(), text)
