"""The words of supervision: what a child is, what happened to it, what to do about it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import ComponentDied, ComponentStalled, HeadraceError
from headrace.supervision.evidence import Usage
from headrace.telemetry.board import Activity

NOT_STARTED = "it could not be started"
"""`Exited.how` of one that was given no process; its error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """How often one component may be started again: ``max_restarts`` within any ``window_s`` seconds."""

    max_restarts: int = 5
    window_s: float = 300.0
    backoff_s: float = 0.1
    """Pause before the first restart; doubles with each further one in the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """One component that is a process of its own."""

    id: str
    """Unique, e.g. ``collector-3``; the name of its slot and of its log."""
    kind: str
    """What sort of component it is, e.g. ``collector``."""
    target: str
    """``module:function``; called in the child with a `headrace.ipc.child.ChildContext`."""
    payload: Callable[[int], object]
    """What that incarnation (0, 1, …) is started with; called in the supervisor."""
    fds: Callable[[], Mapping[str, int]] = dict
    """Descriptors it is given, by name; called in the supervisor at each start."""
    deadlines: Mapping[Activity, float] = field(default_factory=dict)
    """Seconds an activity may last. ``Activity.START`` limits the whole time until it is ready."""
    stop_timeout_s: float = 20.0
    """From the request to stop until it is killed."""
    finishes: frozenset[Activity] = frozenset()
    """Work that it may bring to its end when it is told to stop, within the limit of that activity; ``stop_timeout_s`` counts
    from the end of such work."""
    significant: bool = True
    """Whether the run ends with it when it cannot be started again."""
    expendable: bool = False
    """Whether the run goes on without it once its budget is spent; not if a start cannot help at all."""
    budget: RestartBudget | None = None
    """Its own; None: the supervisor's."""


@dataclass(frozen=True, slots=True)
class Started:
    """Event: its process exists."""

    id: str
    pid: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Event: it can work."""

    id: str
    incarnation: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reported:
    """Event: it had something to tell, `Report` or `Done`."""

    id: str
    message: object


@dataclass(frozen=True, slots=True)
class Overdue:
    """Event: it missed a deadline. Its stacks are being dumped; it is then killed, and `Exited` follows."""

    id: str
    activity: str
    for_s: float
    limit_s: float
    lane: int = -1
    step: int = -1

    def __str__(self) -> str:
        place = "".join(f", {name} {value}" for name, value in (("lane", self.lane), ("step", self.step)) if value >= 0)
        return f"{self.activity} for {self.for_s:.3g} s (limit {self.limit_s:g} s){place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """Event: its process has ended, and everything it had said was reported before."""

    id: str
    exit_code: int
    """Negative for a signal."""
    how: str
    """The exit code in words."""
    error: HeadraceError | None = None
    """What it reported as the reason, if it could."""
    asked: bool = False
    """Whether it had been told to stop."""
    dismissed: bool = False
    """Whether whoever ends the run has killed it, or wants nothing of it any more: how it ends says nothing about it."""
    done: bool = False
    """Whether it had said that its work was complete."""
    was_ready: bool = False
    """Whether this incarnation had become ready."""
    stalled: str | None = None
    """The deadline it missed, if that is why it was killed: ``env.step for 31 s (limit 30 s), lane 2, step 7``."""
    stuck_in: str | None = None
    """Where the stacks say it was: ``fire.py:88 in spread``."""
    stacks: Path | None = None
    """The stacks, if there are any."""
    log_tail: list[str] = field(default_factory=list)
    """The last lines this incarnation printed."""
    call: str | None = None
    """What of an environment it was in: construct, reset, step, close, or ``raised`` (its error says in which)."""
    lane: int = -1
    """Whose environment; -1 if it was in none."""
    step: int = -1
    """Transitions of that lane before the call; for ``raised``, what its error says."""
    used: Usage | None = None
    """The last that is known of its use of resources."""
    incarnation: int = 0
    pid: int = 0

    @property
    def expected(self) -> bool:
        """Whether nothing is wrong about it. One that was told to stop and fails at that, or is too late, has lost work."""
        if not self.asked:
            return self.done and self.exit_code == 0
        if self.dismissed or self.done or not self.was_ready:  # the last had nothing to finish
            return True
        return self.exit_code == 0 and self.error is None

    def to_error(self) -> HeadraceError:
        """The reason as an error that can end the run."""
        facts: dict[str, object] = {"pid": self.pid, "incarnation": self.incarnation}
        if self.stalled is not None:
            facts |= {"stuck_in": self.stuck_in} if self.stuck_in else {}
            fix = "read its stacks in stacks/; raise the deadline if it is only slow"
            return ComponentStalled(f"{self.id} was busy with {self.stalled}", **facts, fix=fix)
        if self.error is not None:
            return self.error
        facts |= {"last_line": self.log_tail[-1]} if self.log_tail else {}
        fix = f"read the last lines of logs/{self.id}.log"
        when = "was told to stop, and ended before it was done" if self.asked else "ended although nobody asked it to"
        return ComponentDied(f"{self.id} {when}: {self.how}", **facts, fix=fix)


@dataclass(frozen=True, slots=True)
class ForkServerLost:
    """Event: no child can be started any more, and those that ran end with it. The run has to end."""

    error: HeadraceError


Event = Started | BecameReady | Reported | Overdue | Exited | ForkServerLost


@dataclass(frozen=True, slots=True)
class Restart:
    """Instruction: start it again, in so many seconds."""

    id: str
    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Instruction: end the run."""

    id: str
    reason: str
    spent: bool = field(default=False, compare=False)
    """Whether it was started again before, as often as it may be."""


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Instruction: its budget is spent; go on without what it did, and say so."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Instruction: go on without it."""

    id: str = ""
    reason: str = ""


Instruction = Restart | GiveUp | LeaveOut | Nothing


def describe_exit(exit_code: int) -> str:
    """An exit code in words: ``killed by SIGKILL (often the out-of-memory killer)``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-exit_code}"
    hint = " (often the out-of-memory killer)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
