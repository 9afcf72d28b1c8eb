"""What a vector environment can be told, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headrace.core.errors import ConfigError
from headrace.vector.probes import Probe

STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultBudget:
    """How many faults are answered by a replacement before the vector environment gives up."""

    per_env: int = 10
    """Of one environment within any ``window_s`` seconds."""
    total: int | None = None
    """Of all together within ``window_s``; None: five times the number of environments, at least ``per_env``."""
    window_s: float = 300.0
    backoff_s: float = 0.1
    """Pause before the second replacement of an environment in the window; doubles with each further one."""
    longest_pause_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("per_env", "total"):
            value = getattr(self, name)
            if name == "total" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
                raise ConfigError(
                    f"{name} of a fault budget is no number of faults",
                    expected="a whole number from 0",
                    found=repr(value),
                    fix="allow 0 faults or more; a large number is as good as no limit",
                )
        for name in ("window_s", "backoff_s", "longest_pause_s"):
            _check_seconds(f"{name} of a fault budget", getattr(self, name), at_least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `headrace.vector.env.VectorEnv` can be told; docs/reference/vector.md explains each."""

    workers: int | Literal["auto"] = "auto"
    here: int | Literal["auto"] = "auto"
    threads_per_worker: int | Literal["auto"] = "auto"
    step_timeout_s: float | None = None
    reset_timeout_s: float = 120.0
    start_timeout_s: float = 120.0
    close_timeout_s: float = 5.0
    on_fault: Literal["replace", "raise"] = "replace"
    budget: FaultBudget = field(default_factory=FaultBudget)
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP
    observation_mode: str | tuple[spaces.Space[Any], spaces.Space[Any]] = "same"
    copy: bool = True
    shared: bool = True
    check_finite: bool = True
    cast_observations: bool = True
    probes: Mapping[str, Probe] | None = None
    log_path: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "here", "threads_per_worker"):
            _check_count(name, getattr(self, name), at_least=1 if name == "threads_per_worker" else 0)
        for name in ("reset_timeout_s", "start_timeout_s", "close_timeout_s"):
            _check_seconds(name, getattr(self, name))
        if self.step_timeout_s is not None:
            _check_seconds("step_timeout_s", self.step_timeout_s)
            if self.workers == 0 or self.here not in ("auto", 0):
                raise ConfigError(
                    "nobody can enforce step_timeout_s in this process",
                    step_timeout_s=self.step_timeout_s,
                    workers=self.workers,
                    here=self.here,
                    fix="take at least one worker and here=0, or leave step_timeout_s out",
                )
        if self.workers == 0:
            self._refuse_what_needs_workers()
        self._check_probes()
        if self.on_fault not in ("replace", "raise"):
            raise ConfigError("on_fault is unknown", found=self.on_fault, fix='take "replace" or "raise"')
        if not isinstance(self.budget, FaultBudget):
            raise ConfigError(
                "budget is no fault budget",
                found=repr(self.budget)[:200],
                fix="give FaultBudget(per_env=..., total=...)",
            )
        _check_observation_mode(self.observation_mode)
        _ = self.mode

    def _check_probes(self) -> None:
        if self.probes is not None and not isinstance(self.probes, Mapping):
            raise ConfigError(
                "probes have no names",
                found=repr(self.probes)[:200],
                fix='give a dict, e.g. {"height": headrace.Probe.attribute("height")}',
            )
        for name, probe in (self.probes or {}).items():
            if not isinstance(probe, Probe):
                raise ConfigError(
                    f"probe {name} is none",
                    found=repr(probe)[:200],
                    fix=f'give e.g. {{"{name}": headrace.Probe.attribute("{name}")}}',
                )

    def _refuse_what_needs_workers(self) -> None:
        needs = {"threads_per_worker": ("auto", 1), "here": ("auto", 0), "log_path": (None,), "shared": (True,)}
        for name, idle in needs.items():
            value = getattr(self, name)
            if value not in idle:
                raise ConfigError(
                    f"{name} would be ignored: there is no worker",
                    **{name: value},
                    workers=0,
                    fix=f"take at least one worker, or leave {name} out",
                )

    @property
    def mode(self) -> AutoresetMode:
        """The autoreset mode.

        Raises:
            ConfigError: There is no such mode.
        """
        try:
            return AutoresetMode(self.autoreset_mode)
        except ValueError:
            raise ConfigError(
                "autoreset_mode is unknown",
                found=self.autoreset_mode,
                expected=", ".join(repr(mode.value) for mode in AutoresetMode),
                fix="take one of these, or a member of gymnasium.vector.AutoresetMode",
            ) from None

    @property
    def step_limit_s(self) -> float:
        """Seconds a step may last."""
        return STEP_TIMEOUT_S if self.step_timeout_s is None else self.step_timeout_s


def _check_count(name: str, value: object, at_least: int) -> None:
    if value == "auto":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(
            f"{name} is not a number of {'environments' if name == 'here' else name.partition('_')[0]}",
            expected=f'"auto", or a whole number from {at_least}',
            found=repr(value),
            fix=f'give {name} as a whole number, or "auto"',
        )


def _check_observation_mode(mode: object) -> None:
    if isinstance(mode, tuple):
        if len(mode) != 2 or not all(isinstance(space, spaces.Space) for space in mode):
            raise ConfigError(
                "observation_mode is no pair of spaces",
                found=f"{mode!r}"[:200],
                fix="give (batched space, space of one environment)",
            )
    elif mode not in ("same", "different"):
        raise ConfigError(
            "observation_mode is unknown", found=repr(mode)[:200], fix='take "same", "different", or two spaces'
        )


def _check_seconds(name: str, value: Any, at_least: float | None = None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if number and (value > 0 or (at_least is not None and value >= at_least)):
        return
    raise ConfigError(
        f"{name} is not a number of seconds", found=repr(value), fix="give a positive, finite number of seconds"
    )
