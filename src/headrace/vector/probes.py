"""Values a caller wants beside each step, evaluated where the environment runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.vector.infos import kept

When = Literal["step", "episode_end"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One value: an entry of ``info``, an attribute or the result of a method of the environment."""

    kind: Literal["info", "attribute", "method"]
    name: str
    every: int = 1
    """Evaluated at every so many steps of an episode."""
    at: When = "step"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"probe {self.name} is never evaluated", every=self.every, fix="give every=1 or more")
        if self.at not in ("step", "episode_end"):
            raise ConfigError(f"probe {self.name} has no such moment", at=self.at, fix='at="step" or "episode_end"')

    @classmethod
    def info(cls, key: str, *, every: int = 1, at: When = "step") -> Self:
        """An entry of ``info``; where it is missing the mask says so. ``a.b`` is entry b of the dict that is entry a."""
        return cls("info", key, every, at)

    @classmethod
    def attribute(cls, path: str, *, every: int = 1, at: When = "step") -> Self:
        """An attribute, looked for from the outermost wrapper inwards; ``a.b`` is attribute b of attribute a."""
        return cls("attribute", path, every, at)

    @classmethod
    def method(cls, path: str, *, every: int = 1, at: When = "step") -> Self:
        """What a method without arguments returns."""
        return cls("method", path, every, at)


@dataclass(frozen=True, slots=True)
class ProbeValues:
    """One probe over a batch of B environments."""

    values: NDArray[Any]
    """[B, ...]; objects where they are no numbers or arrays of one shape. Nothing of use where ``mask`` is False."""
    mask: NDArray[np.bool_]
    """[B]; whose value was evaluated in this step."""
    episode: NDArray[np.int64]
    """[B]; number of the episode that the value belongs to, from 0."""
    step: NDArray[np.int64]
    """[B]; step in that episode that the value belongs to, from 1; 0 right after a reset."""


Evaluated = dict[str, Any]
"""Values by the name of their probe; those that were not evaluated, or not there, are left out."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """What was evaluated in one step of one environment."""

    values: Evaluated
    episode: int
    step: int


def check(probes: Mapping[str, Probe], index: int, env: gymnasium.Env[Any, Any]) -> None:
    """Whether an environment has everything that probes name; what they call ``info`` shows itself only later.

    Raises:
        ConfigError: It has not.
    """
    for name, probe in probes.items():
        if probe.kind == "info":
            continue
        try:
            found = _resolve(env, probe.name)
        except AttributeError:
            raise ConfigError(
                f"probe {name}: environment {index} has no {probe.name}",
                environment=str(env)[:200],
                fix="correct the name, or create the attribute in the environment's __init__",
            ) from None
        if probe.kind == "method" and not callable(found):
            raise ConfigError(
                f"probe {name}: {probe.name} of environment {index} is no method",
                found=type(found).__name__,
                fix=f'take Probe.attribute("{probe.name}")',
            )


def evaluate(
    probes: Mapping[str, Probe], env: gymnasium.Env[Any, Any], info: Mapping[str, Any], step: int, *, ended: bool
) -> Evaluated:
    """Evaluate those that are due. What they find is the caller's own: the environment may go on with what it gave.

    Args:
        probes: By name.
        env: Where.
        info: Of this step.
        step: In its episode; 0 right after a reset.
        ended: Whether the episode is over.
    """
    values: Evaluated = {}
    for name, probe in probes.items():
        if not (ended if probe.at == "episode_end" else step % probe.every == 0):
            continue
        if probe.kind == "info":
            found: Any = info
            for key in probe.name.split("."):
                found = found.get(key, _MISSING) if isinstance(found, Mapping) else _MISSING
            if found is _MISSING:
                continue
        else:
            found = _resolve(env, probe.name)
        values[name] = _own(found() if probe.kind == "method" else found)
    return values


def batch(probes: Mapping[str, Probe], stamped: Sequence[Stamped | None]) -> dict[str, ProbeValues]:
    """Values of several environments, by probe.

    Args:
        probes: By name.
        stamped: One per environment; None where nothing was evaluated.
    """
    episodes = np.array([-1 if one is None else one.episode for one in stamped], np.int64)
    steps = np.array([-1 if one is None else one.step for one in stamped], np.int64)
    found = {}
    for name in probes:
        mask = np.array([one is not None and name in one.values for one in stamped], np.bool_)
        values = _array([one.values[name] for one in stamped if one is not None and name in one.values], mask)
        found[name] = ProbeValues(values, mask, episodes, steps)
    return found


_MISSING = object()
_NEVER_CHANGE = (type(None), bool, int, float, complex, str, bytes, np.bool_, np.number)


def _own(found: Any) -> Any:
    """A copy of what an environment may change, in the reset of the same step for one."""
    return found if isinstance(found, _NEVER_CHANGE) else kept(found)


def _resolve(env: gymnasium.Env[Any, Any], path: str) -> Any:
    first, *rest = path.split(".")
    found = env.get_wrapper_attr(first)
    for name in rest:
        found = getattr(found, name)
    return found


def _array(values: Sequence[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Values in the places the mask says; numbers and arrays of one shape keep their dtype."""
    plain = all(isinstance(value, bool | int | float | np.generic | np.ndarray) for value in values)
    if plain and len({np.shape(value) for value in values}) <= 1:
        packed = np.array(values, float if not values else None)
    else:
        packed = np.empty(len(values), object)
        for place, value in enumerate(values):  # not all at once: lists of one length would be taken for rows
            packed[place] = value
    array = np.zeros((len(mask), *packed.shape[1:]), packed.dtype)
    array[mask] = packed
    return array
