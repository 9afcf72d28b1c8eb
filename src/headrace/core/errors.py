"""Every error Headrace raises on purpose, in one tree.

HeadraceError
  ConfigError            CFG-001  the run was described wrongly; raised before anything starts
  RunDirectoryError      CFG-002  the run directory cannot be used
  RunDirectoryLost       CFG-003  it was removed, moved or replaced while the run was at it
  EnvironmentFault                the environment broke its contract; names lane, step and field
    EnvironmentNotBuilt  ENV-001  its factory raised or returned something else
    ObservationMismatch  ENV-002  shape, dtype or value does not fit the declared space
    NonFiniteValue       ENV-003  NaN or infinity where a number is needed
    EnvironmentRaised    ENV-004  reset() or step() raised
    UnsupportedSpace     ENV-005  the algorithm cannot use this space
    EnvironmentLost      ENV-006  an environment in a worker did not come back
  ComponentError                  a process of the run failed; names the component
    ComponentDied        SUP-001  it ended although nobody asked it to
    ComponentStalled     SUP-002  it missed a deadline
    RestartBudgetSpent   SUP-003  it kept dying
    ChannelClosed        SUP-004  the other end of a channel is gone
    EpisodeNotRestored   SUP-005  a resumed run could not bring an environment back into its episode
    StaleWeights         LLM-001  a server does not serve the weights that were published
    BatchRefused         LLM-003  a batch of rollouts is not what was declared
  VectorMisused          VEC-001  a call that this vector environment cannot answer now, or with these arguments
  UnknownAttribute       VEC-002  no layer of an environment has this attribute
  DataLossError          DAT-001  the books do not balance
  SnapshotCorrupt        DAT-002  weights did not match their checksum
  NothingToTrain         LLM-002  rollouts are made, and none of them can be trained on
  RecordDamaged          REC-001  the record, or a part of it that is needed, is missing or damaged
  ReplayDiffers          REC-002  what was computed again is not what the record says
"""

from __future__ import annotations

import re
import shlex
from typing import Any, ClassVar, Self


class HeadraceError(Exception):
    """An error that says what happened, the facts, and what to do next.

    Args:
        what: One sentence, past or present tense, naming the component that is to blame.
        fix: What the user can do about it, as an imperative.
        **facts: Values that were observed, in the order to print them.
    """

    code: ClassVar[str] = "HR-000"

    exit_code: ClassVar[int] = 1
    """What the command line exits with when this error ends a run."""

    def __init__(self, what: str, *, fix: str, **facts: object) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.facts = facts

    def place(self, **facts: object) -> None:
        """Add facts, in front, that only somebody further out knows; those that are there already stay."""
        self.facts = {name: value for name, value in facts.items() if name not in self.facts} | self.facts

    def in_run(self, folder: object) -> Self:
        """Itself. Whoever raises it need not know which run it is of: what its remedy calls ``RUN`` is this run directory."""
        self.fix = re.sub(r"\bRUN\b", lambda _: shlex.quote(str(folder)), self.fix)
        return self

    def __str__(self) -> str:
        facts = "".join(f"\n  {name.replace('_', ' ')}: {value}" for name, value in self.facts.items())
        return f"[{self.code}] {self.what}{facts}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive Exception's own pickling, and these
        # errors cross process borders. Facts become text, so that they always can.
        facts = {name: value if isinstance(value, int | float) else str(value) for name, value in self.facts.items()}
        return _rebuild, (type(self), self.what, self.fix, facts)


def _rebuild(cls: type[HeadraceError], what: str, fix: str, facts: dict[str, object]) -> HeadraceError:
    return cls(what, fix=fix, **facts)


class ConfigError(HeadraceError):
    """The run was described wrongly."""

    code = "CFG-001"
    exit_code = 2


class RunDirectoryError(HeadraceError):
    """The run directory cannot be used."""

    code = "CFG-002"
    exit_code = 2


class RunDirectoryLost(HeadraceError):
    """What a run writes does not arrive in its directory any more: it was removed, moved or replaced."""

    code = "CFG-003"


class EnvironmentFault(HeadraceError):
    """The environment broke its contract. Trying again would break it again, so the run ends."""

    code = "ENV-000"


class EnvironmentNotBuilt(EnvironmentFault):
    """The environment's factory raised, or returned something that is no environment."""

    code = "ENV-001"


class ObservationMismatch(EnvironmentFault):
    """A value from the environment does not fit the space it declared."""

    code = "ENV-002"


class NonFiniteValue(EnvironmentFault):
    """NaN or infinity where a number is needed."""

    code = "ENV-003"


class EnvironmentRaised(EnvironmentFault):
    """``reset()`` or ``step()`` raised; a replacement may fare better, so the restart budget decides."""

    code = "ENV-004"


class UnsupportedSpace(EnvironmentFault):
    """The algorithm cannot use this observation or action space."""

    code = "ENV-005"
    exit_code = 2


class EnvironmentLost(EnvironmentFault):
    """An environment that a worker steps hung, died, raised or broke its contract, once more than it may."""

    code = "ENV-006"


class ComponentError(HeadraceError):
    """A process of the run failed."""

    code = "SUP-000"


class ComponentDied(ComponentError):
    """A child process ended although nobody asked it to."""

    code = "SUP-001"


class ComponentStalled(ComponentError):
    """A component missed a deadline; it is named, and what it was doing."""

    code = "SUP-002"
    exit_code = 3


class RestartBudgetSpent(ComponentError):
    """A component kept dying; the supervisor gave up."""

    code = "SUP-003"


class ChannelClosed(ComponentError):
    """The other end of a channel is gone."""

    code = "SUP-004"


class EpisodeNotRestored(ComponentError):
    """An environment did something else than what is stored when its episode was repeated; the episode is cut there."""

    code = "SUP-005"


class VectorMisused(HeadraceError, ValueError):
    """A vector environment was called when it could not answer, or with arguments that do not fit."""

    code = "VEC-001"
    exit_code = 2


class UnknownAttribute(HeadraceError, AttributeError):
    """No layer of an environment has the attribute that was asked for, or was to be set."""

    code = "VEC-002"
    exit_code = 2


class DataLossError(HeadraceError):
    """The books do not balance: transitions vanished or appeared."""

    code = "DAT-001"
    exit_code = 4


class SnapshotCorrupt(HeadraceError):
    """A weights snapshot did not match its checksum."""

    code = "DAT-002"


class StaleWeights(ComponentError):
    """A server says, or shows, that it does not serve the weights that were published."""

    code = "LLM-001"
    exit_code = 3


class BatchRefused(ComponentError):
    """A batch of rollouts is not what was declared, e.g. a token is too old; it was not trained on."""

    code = "LLM-003"
    exit_code = 3


class NothingToTrain(HeadraceError):
    """Rollouts fail, or are filtered, one after the other, so that no batch is ever full."""

    code = "LLM-002"
    exit_code = 3


class RecordDamaged(HeadraceError):
    """The record of a run, or a part of it that is needed, is missing or damaged."""

    code = "REC-001"
    exit_code = 2


class ReplayDiffers(HeadraceError):
    """A replay, or a value that was computed again, is not what the record says."""

    code = "REC-002"
    exit_code = 4
