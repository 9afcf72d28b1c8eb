"""What can go wrong with one environment of many, in the words its owner reads."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from enum import StrEnum

import gymnasium

from headrace.core.errors import (
    ComponentStalled,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    HeadraceError,
    NonFiniteValue,
    ObservationMismatch,
)

_UNREGISTERED = (
    "what only the main script registers is not known in a worker: name the module that registers it, "
    'gymnasium.make("module:Id-v0"), or import it in the factory'
)
_TAIL_FRAMES = 8
_TAIL_CHARACTERS = 4000


class FaultKind(StrEnum):
    """Why an environment was replaced."""

    HUNG = "hung"
    """It was inside one call for longer than the limit."""
    DIED = "died"
    """Its process ended while it was in it."""
    RAISED = "raised"
    """Its factory, ``reset()`` or ``step()`` raised."""
    CONTRACT = "contract"
    """It returned something that is not what it declared, or not what Gymnasium asks for."""
    NOT_FINITE = "not-finite"
    """It returned NaN or infinity as an observation or a reward."""
    LOST_WITH_WORKER = "lost-with-worker"
    """Its process ended, or had to be, because of another environment, which the message names, or of one of several."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one environment."""

    env: int
    kind: FaultKind
    phase: str
    """``construct``, ``reset``, ``step`` or ``call``."""
    step: int
    """Calls of ``step()`` of that environment object, the failing one included."""
    error: HeadraceError
    """The same as an exception; ``on_fault="raise"`` raises it."""

    @property
    def message(self) -> str:
        """All there is to say, with the environment's own text and the end of its traceback."""
        return str(self.error)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault as it is found where the environment runs: without number and step, which others know."""

    kind: FaultKind
    phase: str
    error: HeadraceError

    def of(self, env: int, step: int, **facts: object) -> Fault:
        """The fault of environment ``env`` at its step ``step``."""
        self.error.what = _UNNUMBERED.sub(f"environment {env}", self.error.what, 1)
        self.error.args = (self.error.what,)
        self.error.place(env=env, step=step, **facts)
        return Fault(env, self.kind, self.phase, step, self.error)


_UNNUMBERED = re.compile(r"\bthe environment\b(?! of lane \d)")
"""As it stands in an error where it is found; that of a run's lane has its number."""


class Interrupted(BaseException):
    """Raised inside an environment that missed its deadline; no ``except Exception`` of its own stops it."""


def from_exception(error: BaseException, phase: str) -> Problem:
    """The problem that an exception out of an environment's code is."""
    text = text_of(error)
    facts = {"phase": phase, "traceback": tail(error)}
    if isinstance(error, Interrupted):
        stalled = ComponentStalled(
            f"the environment did not come back from {phase}()",
            **facts,
            fix="raise the time-out if it is only slow, or repair the call that the traceback ends in",
        )
        return Problem(FaultKind.HUNG, phase, stalled)
    if phase == "construct":
        found: HeadraceError = (
            error
            if isinstance(error, HeadraceError)
            else EnvironmentNotBuilt(
                f"the environment's factory raised {text}",
                **facts,
                fix=_UNREGISTERED
                if isinstance(error, gymnasium.error.UnregisteredEnv)
                else "correct what the message names; the factory can be tried alone by calling it",
            )
        )
        return Problem(FaultKind.RAISED, phase, found)
    raised = EnvironmentRaised(
        f"the environment raised {text}",
        error=text,  # alone, as it is told without workers: a repetition is compared with it
        **facts,
        fix="correct what the traceback ends in, in the environment",
    )
    return Problem(FaultKind.RAISED, phase, raised)


def text_of(error: BaseException) -> str:
    """Kind and text of an exception; it may be of anybody's making, and unable to say what it is."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - code of others
        text = "(no text: its __str__ raises)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def broken_contract(phase: str, field: str, expected: str, found: str) -> Problem:
    """The problem that a value which does not fit is."""
    error = ObservationMismatch(
        f"{field} is not what the environment declared",
        phase=phase,
        field=field,
        expected=expected,
        found=found,
        fix="correct the environment's space or what it returns",
    )
    return Problem(FaultKind.CONTRACT, phase, error)


def unreadable(phase: str, what: str, error: Exception) -> Problem:
    """The problem that something is which an environment was sent, and which cannot be read where it runs."""
    found = EnvironmentRaised(
        f"{what} for the environment cannot be read in its process",
        phase=phase,
        error=text_of(error),
        fix="use only classes that a worker can import, or plain values; with workers=0 nothing has to be read",
    )
    return Problem(FaultKind.RAISED, phase, found)


def not_finite(phase: str, field: str, found: str) -> Problem:
    """The problem that NaN or infinity is."""
    error = NonFiniteValue(
        f"{field} of the environment is not finite",
        phase=phase,
        field=field,
        found=found,
        fix="find where the environment makes it; check_finite=False lets such values pass",
    )
    return Problem(FaultKind.NOT_FINITE, phase, error)


def tail(error: BaseException) -> str:
    """The end of a traceback, from the first frame outside of this package on."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and _is_ours(frames[0]):
        del frames[0]
    while frames and _is_ours(frames[-1]):
        del frames[-1]
    lines = traceback.format_list(frames[-_TAIL_FRAMES:])
    if not isinstance(error, Interrupted):
        lines += traceback.format_exception_only(error)
    return "".join(["\n", *lines]).rstrip()[-_TAIL_CHARACTERS:]


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return "headrace/vector/" in frame.filename.replace("\\", "/")
