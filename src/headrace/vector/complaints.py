"""Faults the caller is to be told of by exceptions."""

from __future__ import annotations

from collections import deque

from headrace.core.errors import HeadraceError
from headrace.vector.faults import Fault, FaultKind


class Complaints:
    """In order, one per incident: those that went down with a worker are named by the one who is to blame."""

    def __init__(self) -> None:
        self._errors: deque[HeadraceError] = deque()
        self.raised = False
        """Whether the caller was told of one, and has neither received all answers since nor asked for anything."""

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._errors)

    def add(self, fault: Fault) -> None:
        """One more fault."""
        last = self._errors[-1] if self._errors else None
        with_another = fault.kind is FaultKind.LOST_WITH_WORKER and last is not None
        if last is None or not with_another or last.facts.get("pid") != fault.error.facts.get("pid"):
            self._errors.append(fault.error)
        else:
            others = str(last.facts.get("also_lost", "")).partition(" ")[2]
            last.facts["also_lost"] = f"environments {others}, {fault.env}" if others else f"environment {fault.env}"

    def next(self) -> HeadraceError | None:
        """The oldest, once."""
        return self._errors.popleft() if self._errors else None

    def raise_next(self) -> None:
        """Raise the oldest, once; the others are kept."""
        error = self.next()
        if error is not None:
            self.raised = True
            raise error

    def clear(self) -> None:
        """Forget them all."""
        self._errors.clear()
