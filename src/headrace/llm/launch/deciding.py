"""What follows from what happened to the components of a language-model run. Pure: events in, instructions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import ComponentError
from headrace.supervision.spec import GiveUp, Instruction, Restart


class Phase(Enum):
    """Where a run is."""

    STARTING = "starting"
    """Stage by stage."""
    RUNNING = "running"
    """Everybody is there."""
    ENDING = "ending"
    """The workers were told to stop."""
    CLOSING = "closing"
    """The workers are gone; those who served them were told to stop."""
    OVER = "over"


_MOVES = {
    Phase.STARTING: {Phase.RUNNING, Phase.ENDING, Phase.CLOSING, Phase.OVER},
    Phase.RUNNING: {Phase.ENDING, Phase.CLOSING, Phase.OVER},
    Phase.ENDING: {Phase.CLOSING, Phase.OVER},
    Phase.CLOSING: {Phase.OVER},
    Phase.OVER: set[Phase](),
}


@dataclass(frozen=True, slots=True)
class Begin:
    """Instruction: start these."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """Instruction: start it again, as soon as its pause is over."""

    id: str


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Instruction: ask these to finish and leave."""

    ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Instruction: this component's end is why the run fails."""

    id: str
    reason: str


Step = Begin | BeginAgain | AskToStop | Fail


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part in a run.

    Args:
        stages: Started one after the other; the next when all of the last are done or ready.
        transient: Those whose work ends before the others begin.
        servers: Those that live until nobody needs them any more.
    """

    stages: tuple[tuple[str, ...], ...]
    transient: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()

    @property
    def ids(self) -> tuple[str, ...]:
        """All of them, in the order of their start."""
        return tuple(name for stage in self.stages for name in stage)

    @property
    def workers(self) -> frozenset[str]:
        """Those with whose end the run is complete."""
        return frozenset(self.ids) - self.transient - self.servers


class Course:
    """How far a run has come; told what happens, says what follows.

    A component that ends without having said that its work is complete ends the run, whatever its exit code, unless it
    is started again. The others are asked to stop at once: nobody waits for what will not come.

    Args:
        cast: Who takes part.
    """

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.phase = Phase.STARTING
        self.failed: str | None = None
        """Whose end is why the run fails; the first one counts."""
        self._stage = -1
        self._alive: set[str] = set()
        self._passed: set[str] = set()
        """Ready, or done."""
        self._complete: set[str] = set()

    @property
    def alive(self) -> frozenset[str]:
        """Components that were started and have not ended; one that is started again counts."""
        return frozenset(self._alive)

    def begin(self) -> list[Step]:
        """The run begins."""
        return self._next_stage()

    def ready(self, component: str) -> list[Step]:
        """A component can work now."""
        if component not in self.cast.transient:
            self._passed.add(component)
        return self._next_stage()

    def done(self, component: str) -> list[Step]:
        """A component has said that its work is complete; it leaves by itself."""
        self._complete.add(component)
        return []

    def ended(self, component: str, decision: Instruction, *, expected: bool) -> list[Step]:
        """A component has ended.

        Args:
            component: Which.
            decision: What its restart budget allows.
            expected: Whether nothing is wrong about it: it left in order, or was dismissed.
        """
        if not expected and isinstance(decision, Restart) and self._may_return(component):
            return [BeginAgain(component)]
        self._alive.discard(component)
        if self.phase is Phase.CLOSING:
            return self._close()  # all that it was needed for is there; that it fell is counted, and no reason to fail
        if component in self._complete:
            self._passed.add(component)
        if expected or component in self._complete:  # or only its leaving failed, of which nobody needs anything
            return self._next_stage() or self._close()
        reason = decision.reason if isinstance(decision, GiveUp) else "nobody can take its place"
        return [*self._fail(component, reason), *self.stop(f"{component} has ended"), *self._close()]

    def stop(self, reason: str) -> list[Step]:
        """The run is to end in order: workers first, those who serve them last."""
        if self.phase in {Phase.ENDING, Phase.CLOSING, Phase.OVER}:
            return []
        self._move(Phase.ENDING)
        asked = tuple(name for name in self.cast.ids if name in self._alive - self.cast.servers)
        return [AskToStop(asked, reason)] if asked else self._close()

    def give_up(self, component: str, reason: str) -> list[Step]:
        """Something else than a component's end fails the run, e.g. that it stands still."""
        return [*self._fail(component, reason), *self.stop(reason)]

    def _may_return(self, component: str) -> bool:
        return component in self.cast.servers and self.phase in {Phase.STARTING, Phase.RUNNING}

    def _fail(self, component: str, reason: str) -> list[Step]:
        if self.failed is not None:
            return []
        self.failed = component
        return [Fail(component, reason)]

    def _next_stage(self) -> list[Step]:
        if self.phase is not Phase.STARTING:
            return []
        if self._stage >= 0 and not self._passed.issuperset(self.cast.stages[self._stage]):
            return []
        self._stage += 1
        if self._stage == len(self.cast.stages):
            self._move(Phase.RUNNING)
            return self._close()
        ids = self.cast.stages[self._stage]
        self._alive.update(ids)
        return [Begin(ids)]

    def _close(self) -> list[Step]:
        """End what only serves, once nobody is left whom it could serve; then the run."""
        workers = self.cast.workers
        if self._alive - self.cast.servers:
            return []
        complete = workers and self._complete.issuperset(workers)
        if self.phase in {Phase.STARTING, Phase.RUNNING} and not complete and not self._transient_only():
            return []  # a server alone serves until it is told to stop
        if self._alive and self.phase is not Phase.CLOSING:
            self._move(Phase.CLOSING)
            return [AskToStop(tuple(sorted(self._alive)), "nobody needs it any more")]
        if not self._alive and self.phase is not Phase.OVER:
            self._move(Phase.OVER)
        return []

    def _transient_only(self) -> bool:
        """Whether the run is only what others begin with, e.g. a warm start alone."""
        return not self.cast.workers and not self.cast.servers and self._complete.issuperset(self.cast.transient)

    def _move(self, to: Phase) -> None:
        if to not in _MOVES[self.phase]:
            raise ComponentError(
                f"a run cannot become {to.value} while it is {self.phase.value}",
                possible=", ".join(phase.value for phase in _MOVES[self.phase]) or "nothing",
                fix="file a bug",
            )
        self.phase = to


def full_cast(*, warm_start: bool, inference: bool, inline: bool) -> Cast:
    """Of a whole run.

    Args:
        warm_start: Whether there is anything to make first; not where a run is gone on with.
        inference: Whether a server is started here.
        inline: Whether one process does the work of all.
    """
    stages: list[Sequence[str]] = [("warm-start",)] if warm_start else []
    if inline:
        stages.append(("twin",))
    else:
        stages += [("inference",)] if inference else []
        stages.append(("trainer", "orchestrator"))
    return _cast(stages)


def single_cast(component: str, *, warm_start: bool) -> Cast:
    """Of one component that is started alone; `warm-start` itself is one."""
    first = [("warm-start",)] if warm_start or component == "warm-start" else []
    return _cast([*first, *([] if component == "warm-start" else [(component,)])])


def _cast(stages: Sequence[Sequence[str]]) -> Cast:
    ids = {name for stage in stages for name in stage}
    return Cast(
        tuple(tuple(stage) for stage in stages), frozenset(ids & {"warm-start"}), frozenset(ids & {"inference"})
    )
