"""What is said about environments that were late, or went down with their worker."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, field

from headrace.core.errors import (
    ComponentDied,
    ComponentStalled,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    HeadraceError,
    ObservationMismatch,
)
from headrace.supervision.spec import describe_exit
from headrace.vector.faults import FaultKind, Problem, text_of
from headrace.vector.seats import Late

_FIX = "raise the time-out if it is only slow, or repair the call that is named above"
_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of what may have been ended by somebody else."""


@dataclass(frozen=True, slots=True)
class End:
    """How a worker has ended."""

    worker: str
    pid: int
    exit_code: int
    said: HeadraceError | None = None
    """Its last words."""
    late: Late | None = None
    """Why we ended it; None: we did not, and the exit code is its own."""
    unheard: bool = False
    """Whether that is a message that it made no room for."""
    held: dict[str, object] = field(default_factory=dict)
    """Facts about what held it up, if we ended it."""

    @property
    def facts(self) -> dict[str, object]:
        """What is known of it beside its exit code."""
        return self.held | ({"said": str(self.said)} if self.said is not None else {})

    @property
    def silence(self) -> str:
        """For how long it had not moved when we ended it."""
        assert self.late is not None
        if self.unheard:
            return f"no room for a message for {self.late.for_s:.3g} s"
        return f"no sign of life for {self.late.for_s:.3g} s (limit {self.late.limit_s:g} s)"


def late_error(env: int, worker: str, pid: int, late: Late, **facts: object) -> ComponentStalled:
    """A call that lasted too long."""
    return ComponentStalled(
        f"environment {env} has been inside {late.phase.label}() for {late.for_s:.3g} s (limit {late.limit_s:g} s)",
        worker=worker,
        pid=pid,
        **facts,
        fix=_FIX,
    )


def interrupted(problem: Problem, env: int, worker: str, pid: int, late: Late) -> Problem:
    """The problem of a call that was interrupted, with what its worker cannot know: for how long it lasted."""
    facts = {key: value for key, value in problem.error.facts.items() if key != "phase"}
    error = late_error(env, worker, pid, late, **facts, done="it was interrupted and dropped; nobody else was touched")
    return Problem(FaultKind.HUNG, problem.phase, error)


def abandoned(env: int, worker: str, pid: int, late: Late, stuck_in: str | None) -> Problem:
    """The problem of a call whose thread was left alone."""
    facts: dict[str, object] = {"stuck_in": stuck_in} if stuck_in else {}
    done = "its thread was left alone and its answer will not be taken; nobody else was touched"
    return Problem(FaultKind.HUNG, late.phase.label, late_error(env, worker, pid, late, **facts, done=done))


def culprit_ended(env: int, end: End, late: Late) -> Problem:
    """The problem of the call that its process had to be ended for."""
    done = "it did not stop when it was interrupted, so its process was ended; it gets one of its own"
    error = late_error(env, end.worker, end.pid, late, **end.facts, done=done)
    return Problem(FaultKind.HUNG, late.phase.label, error)


def made_no_room(env: int, end: End, late: Late) -> Problem:
    """The problem of the environment that its process was in, all the time that it took no message to another one."""
    error = ComponentDied(
        f"{end.worker} made no room for a message for {late.for_s:.3g} s while it was inside {late.phase.label}() of "
        f"environment {env}, and was ended",
        worker=end.worker,
        pid=end.pid,
        **end.facts,
        fix="hand over smaller options and actions, or house fewer environments in a worker: what is sent waits until it is read",
    )
    return Problem(FaultKind.DIED, late.phase.label, error)


def died(env: int, end: End, phase: str) -> Problem:
    """The problem of the environment that its process was in when it ended."""
    return _died(f"the process of environment {env} ended while it was inside {phase}()", end, phase)


def ended_alone(env: int, end: End) -> Problem:
    """The problem of the only environment of a process that ended, or had to be ended, while it was in no call."""
    if end.late is None:
        return _died(f"the process of environment {env} ended while it was in none of its calls", end, "step")
    error = ComponentStalled(
        f"the process of environment {env} gave {end.silence}, in none of its calls",
        worker=end.worker,
        pid=end.pid,
        **end.facts,
        done="its process was ended",
        fix="see what else it does beside its calls: a thread that keeps the interpreter lock, or a signal that stops it",
    )
    return Problem(FaultKind.HUNG, end.late.phase.label, error)


def _died(what: str, end: End, phase: str) -> Problem:
    found = ComponentDied(
        f"{what}: {describe_exit(end.exit_code)}",
        worker=end.worker,
        pid=end.pid,
        exit_code=end.exit_code,
        **end.facts,
        fix="see what the environment printed last; a crash in native code leaves its stack there",
    )
    return Problem(FaultKind.DIED, phase, found)


def lost_with(end: End, suspects: Collection[int], phase: str = "step") -> Problem:
    """The problem of an environment whose process ended because of another one, or of one of several.

    Args:
        end: Of that process.
        suspects: Environments that may have ended it; if there is one, it did, and is not the one that this is about.
        phase: What the environment was in.
    """
    if len(suspects) == 1:
        culprit = next(iter(suspects))
        error = ComponentDied(
            f"lost with {end.worker}, which environment {culprit} held up or ended",
            pid=end.pid,
            fix=f"see the fault of environment {culprit}, which has a process of its own from now on",
        )
        return Problem(FaultKind.LOST_WITH_WORKER, phase, error)
    one = f"one of environments {', '.join(map(str, sorted(suspects)))}"
    if end.late is not None:
        how = f"which Headrace ended: {end.silence}, and {one} held it up"
        see = "see what held it up: a thread that keeps the interpreter lock, or a signal that stops the process"
    else:
        outside = ", or somebody else did" if end.exit_code in _OUTSIDE else ""
        how = f"which ended ({describe_exit(end.exit_code)}), and {one} ended it{outside}"
        see = "see what ended it: the system's log tells of a lack of memory, a crash leaves its stack in the output"
    fix = f"{see}; these environments are parted, and if it happens again parted further, until one is alone"
    error = ComponentDied(f"lost with {end.worker}, {how}", pid=end.pid, **end.facts, fix=fix)
    return Problem(FaultKind.LOST_WITH_WORKER, phase, error)


def not_built(env: int, problem: Problem | HeadraceError) -> HeadraceError:
    """Why an environment could not be built, with its number."""
    found = problem.error if isinstance(problem, Problem) else problem
    text = found.what.removeprefix("the environment's factory raised ")
    if found.what == text:
        found.place(env=env)
        return found
    return EnvironmentNotBuilt(f"the factory of environment {env} raised {text}", **found.facts, fix=found.fix)


def died_starting(worker: str, exit_code: int, ids: list[int], error: HeadraceError | None) -> HeadraceError:
    """A worker that ended before its environments were built."""
    facts: dict[str, object] = {"said": str(error)} if error is not None else {}
    listed = f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else str(ids[0])
    return EnvironmentNotBuilt(
        f"{worker} ended while it built environments {listed}: {describe_exit(exit_code)}",
        **facts,
        fix="try their factories alone; see what they printed last",
    )


def not_built_in_time(ids: list[int], worker: str, limit_s: float) -> ComponentStalled:
    """Environments whose constructors do not return."""
    what = f"environment {ids[0]} is" if len(ids) == 1 else f"environments {', '.join(map(str, ids))} are"
    return ComponentStalled(
        f"{what} not built within {limit_s:g} s", worker=worker, fix="raise start_timeout_s, or repair its constructor"
    )


def call_failed(name: str, env: int, problem: Problem | HeadraceError) -> HeadraceError:
    """A method or attribute that did not work in one environment."""
    if isinstance(problem, HeadraceError):
        return problem
    return EnvironmentRaised(
        f"{name or 'the function'} of environment {env}: {problem.error.what}",
        **{key: value for key, value in problem.error.facts.items() if key != "phase"},
        fix=problem.error.fix,
    )


def unreadable(said: object) -> Problem:
    """The problem of an answer whose infos cannot be read in this process."""
    error = ObservationMismatch(
        "infos of the environment cannot be read in this process",
        field="info",
        error=str(said),
        fix="put only numbers, arrays and objects of importable classes into infos",
    )
    return Problem(FaultKind.CONTRACT, "step", error)


def unreadable_value(error: Exception) -> Problem:
    """The problem of what a method returned, or an attribute is, and what cannot be read in this process."""
    found = EnvironmentRaised(
        "its value cannot be read in this process",
        error=text_of(error),
        fix="ask for numbers, arrays and objects of importable classes",
    )
    return Problem(FaultKind.RAISED, "call", found)


def not_renewed(error: BaseException) -> Problem:
    """The problem of an environment that is gone, and whose replacement could not be asked for anything yet."""
    found = ComponentDied(
        "the environment is gone, and its replacement could not be started",
        error=f"{type(error).__name__}: {error}",
        fix="correct what the error names; reset it",
    )
    return Problem(FaultKind.DIED, "construct", found)


def call_lost() -> HeadraceError:
    """A method that took its worker down, or whose worker was ended meanwhile."""
    return ComponentDied(
        "its worker ended before it returned", fix="see the fault of the environment that held it up; reset it"
    )


def interrupted_here() -> Problem:
    """The problem of environments in this process when Ctrl-C, or another signal's handler, broke off what they did."""
    error = ComponentStalled(
        "the environment was at work in this process when that was broken off (Ctrl-C, or a signal's handler raised)",
        fix="reset it",
    )
    return Problem(FaultKind.RAISED, "step", error)
