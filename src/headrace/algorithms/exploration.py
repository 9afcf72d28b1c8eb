"""Noise that is added to continuous actions, random actions in place of the best, and how much of either over the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import LaneNoise
from headrace.algorithms.configs import EpsilonConfig, ExplorationConfig


class ActionNoise(LaneNoise, Protocol):
    """Exploration of one lane in a box of actions [-1, 1]^A."""

    def draw(self, out: NDArray[np.float32]) -> None:
        """Write the noise of one step, of scale one, into ``out`` [A], C-contiguous."""
        ...


class GaussianNoise:
    """Independent normal noise in every step and dimension."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.carry = np.zeros(0, np.float32)

    def begin_episode(self) -> None:
        """Nothing crosses from step to step."""

    def draw(self, out: NDArray[np.float32]) -> None:
        """See `ActionNoise.draw`."""
        self._generator.standard_normal(dtype=np.float32, out=out)


class OrnsteinUhlenbeckNoise:
    """Noise that drifts: ``x <- (1 - theta) x + normal(0, 1)``, from zero in each episode.

    The scale multiplies ``x``; it is the standard deviation of one step's increment, as in Lillicrap et al.
    2016 (arXiv:1509.02971), with a time step of one.
    """

    def __init__(self, generator: np.random.Generator, dimensions: int, theta: float) -> None:
        self._generator = generator
        self._stay = np.float32(1.0 - theta)
        self._x = np.zeros(dimensions, np.float32)

    @property
    def carry(self) -> NDArray[np.float32]:
        """``x``, [A]."""
        return self._x

    def begin_episode(self) -> None:
        """Back to zero."""
        self._x.fill(0.0)

    def draw(self, out: NDArray[np.float32]) -> None:
        """See `ActionNoise.draw`."""
        self._generator.standard_normal(dtype=np.float32, out=out)
        self._x *= self._stay
        self._x += out
        out[:] = self._x


class NoNoise:
    """No exploration; draws nothing from any generator."""

    def __init__(self) -> None:
        self.carry = np.zeros(0, np.float32)

    def begin_episode(self) -> None:
        """There is nothing to forget."""

    def draw(self, out: NDArray[np.float32]) -> None:
        """See `ActionNoise.draw`."""
        out.fill(0.0)


def lane_noise(config: ExplorationConfig, dimensions: int, generator: np.random.Generator) -> ActionNoise:
    """Fresh exploration state for one lane.

    Args:
        config: Kind of noise, and theta.
        dimensions: A, the length of an action.
        generator: The lane's exploration generator; the noise draws from it, A normals a step.
    """
    if config.kind == "gaussian":
        return GaussianNoise(generator)
    if config.kind == "ornstein-uhlenbeck":
        return OrnsteinUhlenbeckNoise(generator, dimensions, config.theta)
    return NoNoise()


def carried_floats(config: ExplorationConfig, dimensions: int) -> int:
    """Length of `LaneNoise.carry` for actions of ``dimensions`` numbers."""
    return dimensions if config.kind == "ornstein-uhlenbeck" else 0


class RandomChoice:
    """Exploration of one lane that chooses: now and then something random. Nothing crosses a chunk's end."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.carry = np.zeros(0, np.float32)

    def begin_episode(self) -> None:
        """Nothing crosses from step to step."""

    def explores(self, epsilon: float) -> bool:
        """Whether this step's action is a random one; to be asked once a step."""
        return bool(self._generator.random() < epsilon)

    def choose(self, candidates: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """``count`` different ones of them, all sets alike; all of them where there are no more."""
        return self._generator.choice(candidates, min(count, len(candidates)), replace=False, shuffle=False)


@dataclass(frozen=True, slots=True)
class Decay:
    """How much is explored, over a run; in environment steps over all lanes."""

    start: float
    end: float | None = None
    """None: it stays as it starts."""
    steps: int = 1
    """From start to end."""
    begin: int = 0
    """Steps before that."""
    exponential: bool = False
    end_key: str = "final_scale"
    """What ``end`` is called in ``algorithm.exploration``."""

    def at(self, env_steps: int) -> float:
        """After so many steps: constant, then linear or exponential, then constant."""
        if self.end is None:
            return self.start
        done = min(max((env_steps - self.begin) / self.steps, 0.0), 1.0)
        if self.exponential:
            return float(self.start * (self.end / self.start) ** done)
        return self.start + done * (self.end - self.start)


def decay_of(config: ExplorationConfig | EpsilonConfig) -> Decay:
    """What a configuration declares."""
    if isinstance(config, EpsilonConfig):
        return Decay(
            config.epsilon, config.final_epsilon, config.decay_steps, config.begin_steps,
            exponential=config.decay == "exponential", end_key="final_epsilon",
        )  # fmt: skip
    if config.kind == "none":
        return Decay(0.0)
    return Decay(config.scale, config.final_scale, config.decay_steps)


def scale_at(config: ExplorationConfig | EpsilonConfig, env_steps: int) -> float:
    """Scale of the noise, or share of random actions, after ``env_steps`` environment steps over all lanes."""
    return decay_of(config).at(env_steps)
