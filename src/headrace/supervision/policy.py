"""What follows from what happened to a child: facts in, instructions out; no process and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from signal import SIGKILL

from headrace.core.clock import backoff_s
from headrace.core.errors import (
    ComponentError,
    ConfigError,
    EnvironmentFault,
    EnvironmentLost,
    EnvironmentRaised,
    HeadraceError,
)
from headrace.supervision.spec import (
    ChildSpec,
    Exited,
    GiveUp,
    Instruction,
    LeaveOut,
    Nothing,
    Overdue,
    Restart,
    RestartBudget,
)
from headrace.telemetry.board import Activity, SlotView


class Phase(Enum):
    """Where a child is, as its supervisor knows it."""

    ABSENT = "absent"
    """Never started."""
    STARTING = "starting"
    """Its process exists, it has not said that it is ready."""
    READY = "ready"
    STOPPING = "stopping"
    """It was told to stop."""
    DUMPING = "dumping"
    """It missed a deadline and is writing its stacks."""
    KILLED = "killed"
    """It was sent SIGKILL; its end is not known yet."""
    ENDED = "ended"
    DELAYED = "delayed"
    """It is started again when its backoff is over."""


_MOVES = {
    Phase.ABSENT: {Phase.STARTING, Phase.DELAYED},
    Phase.STARTING: {Phase.READY, Phase.STOPPING, Phase.DUMPING, Phase.KILLED, Phase.ENDED},
    Phase.READY: {Phase.STOPPING, Phase.DUMPING, Phase.KILLED, Phase.ENDED},
    Phase.STOPPING: {Phase.DUMPING, Phase.KILLED, Phase.ENDED},
    # No way back to READY: whoever missed a deadline has lost its place, even if it wakes up while it is dumped.
    Phase.DUMPING: {Phase.KILLED, Phase.ENDED},
    Phase.KILLED: {Phase.ENDED},
    Phase.ENDED: {Phase.STARTING, Phase.DELAYED},
    Phase.DELAYED: {Phase.STARTING, Phase.ENDED},
}

ALIVE = frozenset({Phase.STARTING, Phase.READY, Phase.STOPPING, Phase.DUMPING, Phase.KILLED})
"""Phases in which there is a process."""

WATCHED = frozenset({Phase.STARTING, Phase.READY})
"""Phases in which the deadlines of activities hold."""


class Life:
    """The phase of one child; refuses moves that cannot be.

    Args:
        child_id: Of the child.
    """

    def __init__(self, child_id: str) -> None:
        self.id = child_id
        self.phase = Phase.ABSENT
        self.incarnation = -1
        """Number of the current or last start; -1 before the first."""
        self.was_ready = False
        """Whether this incarnation has become ready."""
        self.asked = False
        """Whether this incarnation was told to stop, or ended by whoever ends the run."""
        self.dismissed = False
        """Whether it was the latter, or nobody wants anything of it any more."""

    def move(self, to: Phase) -> None:
        """Enter a phase.

        Raises:
            ComponentError: There is no such move; nothing has changed.
        """
        if to not in _MOVES[self.phase]:
            raise ComponentError(
                f"{self.id} cannot become {to.value} while it is {self.phase.value}",
                possible=", ".join(sorted(phase.value for phase in _MOVES[self.phase])),
                fix="start only what is not running; if Headrace did this by itself, file a bug",
            )
        self.phase = to
        if to is Phase.STARTING:
            self.incarnation += 1
            self.was_ready = self.asked = self.dismissed = False
        elif to is Phase.READY:
            self.was_ready = True
        elif to is Phase.STOPPING:
            self.asked = True


class RestartPolicy:
    """Decides whether a child that ended is started again.

    Args:
        budget: For children whose spec has none of its own.
    """

    def __init__(self, budget: RestartBudget) -> None:
        self._budget = budget
        self._granted_s: dict[str, list[float]] = {}
        self._ever_ready: set[str] = set()

    def note_ready(self, child_id: str) -> None:
        """A child has become ready: its next end is no longer a failure to start at all."""
        self._ever_ready.add(child_id)

    def restarts(self, child_id: str) -> int:
        """Restarts of it that were granted and are not forgiven yet."""
        return len(self._granted_s.get(child_id, ()))

    def decide(self, spec: ChildSpec, exited: Exited, now_s: float) -> Instruction:
        """What follows from an exit; a granted restart is remembered.

        Args:
            spec: Of the child.
            exited: How it ended.
            now_s: The time, on the clock of all calls.
        """
        if exited.expected or exited.asked or exited.done:  # whoever was done has nothing to do again, however it left
            return Nothing(spec.id)
        reason = self._hopeless(spec.id, exited)
        if reason is None:
            budget = spec.budget or self._budget
            recent = [at_s for at_s in self._granted_s.get(spec.id, ()) if now_s - at_s < budget.window_s]
            self._granted_s[spec.id] = recent
            if len(recent) < budget.max_restarts:
                after_s = backoff_s(budget.backoff_s, len(recent))
                recent.append(now_s)
                return Restart(spec.id, after_s)
            plural = "" if len(recent) == 1 else "s"
            reason = f"it ended again after {len(recent)} restart{plural} within {budget.window_s:g} s"
            if budget.max_restarts == 0:
                reason = "it may not be started again"
            if spec.expendable:
                return LeaveOut(spec.id, reason)
            if spec.significant:
                return GiveUp(spec.id, reason, spent=budget.max_restarts > 0)
        return GiveUp(spec.id, reason) if spec.significant else Nothing(spec.id, reason)

    def forgive(self, child_id: str) -> None:
        """What made a child end is out of the way: its budget is whole again."""
        self._granted_s.pop(child_id, None)

    def _hopeless(self, child_id: str, exited: Exited) -> str | None:
        """Why another start would end the same way; None if it might not."""
        if repeats(exited.error):
            return "trying again would fail again"
        if child_id not in self._ever_ready and not _killed_from_outside(exited):
            return "it has never become ready"
        return None


def _killed_from_outside(exited: Exited) -> bool:
    """Whether somebody else killed it, most often for want of memory, which another start may find again."""
    return exited.exit_code == -SIGKILL and exited.error is None and exited.stalled is None


def repeats(error: HeadraceError | None) -> bool:
    """Whether the same error would come again: a broken contract or a wrong description does not mend itself."""
    may_fare_better = EnvironmentRaised | EnvironmentLost
    return isinstance(error, EnvironmentFault | ConfigError) and not isinstance(error, may_fare_better)


def overdue(
    views: Iterable[SlotView], deadlines: Mapping[str, Mapping[Activity, float]], now_ns: int
) -> list[tuple[Overdue, int]]:
    """Components whose activity lasts longer than it may.

    Args:
        views: What they are doing.
        deadlines: Seconds by component and activity; what is not listed has no limit.
        now_ns: The time on the board's clock.

    Returns:
        One per component, with the beginning of the activity, by which a second look can tell whether it is the same.
    """
    found = []
    for view in views:
        limit_s = deadlines.get(view.id, {}).get(view.activity)
        for_s = view.age_s(now_ns)
        if limit_s is not None and for_s > limit_s:
            found.append((Overdue(view.id, view.activity.label, for_s, limit_s, view.lane, view.step), view.since_ns))
    return found
