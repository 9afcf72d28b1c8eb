"""Noise that is added to continuous actions, one state per lane, and its scale over the run."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import LaneNoise
from headrace.algorithms.configs import ExplorationConfig


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


def scale_at(config: ExplorationConfig, env_steps: int) -> float:
    """Scale of the noise after ``env_steps`` environment steps over all lanes: linear, then constant."""
    if config.kind == "none":
        return 0.0
    if config.final_scale is None:
        return config.scale
    done = min(max(env_steps / config.decay_steps, 0.0), 1.0)
    return config.scale + done * (config.final_scale - config.scale)
