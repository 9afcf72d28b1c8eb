"""All that is known about a run from outside, and what the doctor makes of it: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.telemetry.blame import Condition
from headrace.telemetry.board import SlotView, State
from headrace.telemetry.header import Header
from headrace.telemetry.looks import Look, Plan

OVER = frozenset({State.ENDED, State.FAILED})
"""How the supervisor's board shows that the run has ended by itself."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Room where the run directory lies."""

    free_bytes: int
    total_bytes: int
    problem: str | None = None
    """Why it cannot be written at all; None if it can."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the machine, or of the container if that has less."""

    available_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as its files and the system show it."""

    looks: Sequence[Look] = ()
    """At the board, oldest first; of a run that does not run any more one, at its last sign of life. Empty: no board."""
    header: Header | None = None
    """Of the board."""
    plan: Plan = field(default_factory=Plan)
    summary: Mapping[str, Any] | None = None
    events: Sequence[Mapping[str, Any]] = ()
    """The last ones."""
    here: bool = True
    """Whether process numbers on the board are those of this machine."""
    this_host: str = ""
    live: bool = True
    """Whether its supervisor runs, as far as can be seen from here."""
    goes_on: bool = False
    """Whether somebody goes on with the run, and has made no board yet; then there is no look either."""
    silent_s: float | None = None
    """Seconds since the last sign of life of a run that is not live; None where clocks cannot be compared."""
    disk: Disk | None = None
    memory: Memory | None = None
    go_on: str = "go on from its newest checkpoint: headrace train --resume --run-dir RUN"
    """What to do where it was killed, as an imperative."""

    beside: Sequence[str] = ()
    """Directories of components that were started alone in this one and are alive."""

    @property
    def supervisors(self) -> Sequence[SlotView]:
        """What the supervisor said of itself at each look."""
        return [view for look in self.looks for view in look.views if view.kind == "supervisor"]

    @property
    def ended_by_itself(self) -> bool:
        """Whether the supervisor said so at every look: a summary follows a moment later.

        Its process may live on, where a program has started the run.
        """
        return bool(self.supervisors) and all(view.state in OVER for view in self.supervisors)

    @property
    def run_s(self) -> float:
        """Seconds from the start of the run to the last look."""
        if self.header is None or not self.looks:
            return 0.0
        return max(0.0, (self.looks[-1].now_ns - self.header.created_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class Stage:
    """A component, as the stage table shows it."""

    component: str
    state: str
    """The board's word, or ``stopped`` or ``gone`` where the system knows better."""
    activity: str | None
    since_s: float | None
    waits_on: str | None
    rate: float | None
    """Its own work per second: updates of a learner, environment steps of a collector."""
    pid: int = 0
    alive: bool | None = None
    """Whether its process exists; None where that is not known."""

    def to_json(self) -> dict[str, Any]:
        """The fields that programs are promised."""
        return {name: value for name, value in asdict(self).items() if name not in {"pid", "alive"}}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor says."""

    verdict: str
    """One sentence."""
    culprit: str | None
    state: Condition
    stages: tuple[Stage, ...] = ()
    evidence: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def exit_code(self) -> int:
        """0 if nobody has to do anything, 1 if the run has failed or died, 3 if it is held up."""
        if self.state.well:
            return 0
        return 1 if self.state in {Condition.DEAD, Condition.FAILED} else 3

    def to_json(self) -> dict[str, Any]:
        """What ``headrace doctor --json`` prints."""
        return {
            "verdict": self.verdict,
            "culprit": self.culprit,
            "state": self.state.value,
            "stages": [stage.to_json() for stage in self.stages],
            "evidence": list(self.evidence),
            "remedy": self.remedy,
        }
