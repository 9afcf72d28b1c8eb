"""Values a caller wants beside each step, evaluated where the environment runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

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
        if not isinstance(self.every, int) or self.every < 1:
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
