"""What supervisor and children say to each other over control channels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.ipc.child import Failed

__all__ = ["Command", "Done", "Failed", "FromChild", "Ready", "Report", "Stop", "ToChild"]


@dataclass(frozen=True, slots=True)
class Ready:
    """Child: I can work now."""

    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Child: something worth telling."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Child: my work is complete, I leave now. Nothing hangs on the exit that follows; one that fails is told as a fault."""

    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """Supervisor: finish what you are doing, and leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """Supervisor: do this."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)


FromChild = Ready | Failed | Report | Done
ToChild = Stop | Command
