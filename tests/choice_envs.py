"""Environments in which something is chosen, and not everything can be: they refuse what cannot, aloud.

Named by ``choice_envs:plots`` and the like; the module lies beside the tests, and is imported in child processes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from run_envs import Slowed, pause

SMALL: Mapping[str, object] = {
    "algorithm.name": "dqn",
    "algorithm.batch_size": 32,
    "algorithm.network.hidden": [16],
    "algorithm.target.every_updates": 30,
    "algorithm.exploration.decay_steps": 300,
}
"""Settings of a small run with a perceptron, for what `run_support.SMALL` says of TD3."""
PLOTS: Mapping[str, object] = {
    "algorithm.name": "dqn",
    "algorithm.batch_size": 16,
    "algorithm.target.every_updates": 30,
    "algorithm.exploration.decay_steps": 300,
    "algorithm.actions.cells": 5,
    "algorithm.actions.mask_leaf": "obs",
    "algorithm.actions.mask_channel": 1,
    "algorithm.actions.mask_value": 1.0,
    "algorithm.map.leaf": "obs",
    "algorithm.map.channels": [8],
    "collect.random_steps": 0,
}
"""The same for `plots`, with a small map network."""
GATES: Mapping[str, object] = {**SMALL, "algorithm.actions.mask_leaf": "obs.action_mask", "collect.random_steps": 0}
"""The same for `gates`."""


class Plots(gymnasium.Env[Any, Any]):
    """A field of 3 x 4 plots, each worth what channel 0 says; five are taken at once, the last time two.

    Channel 1 is 1 where a plot is taken. Whoever takes more, or what is taken already, is told so with an error.

    Args:
        limit: Steps after which an episode is truncated; three end it anyway.
        step_s: Seconds one step takes.
    """

    HEIGHT, WIDTH, CELLS = 3, 4, 5

    def __init__(self, limit: int = 3, step_s: float = 0.0) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2, self.HEIGHT, self.WIDTH), np.float32)
        self.action_space: spaces.Space[Any] = spaces.MultiBinary(self.HEIGHT * self.WIDTH)
        self._limit, self._step_s = limit, step_s
        self._field = np.zeros((2, self.HEIGHT, self.WIDTH), np.float32)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._field[0] = self.np_random.random((self.HEIGHT, self.WIDTH), np.float32)
        self._field[1] = 0.0
        self._t = 0
        return self._field.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step_s:
            pause(self._step_s)
        taken = self._field[1].ravel() == 1.0
        chosen = np.asarray(action) == 1
        if (chosen & taken).any():
            raise ValueError(f"plots {np.flatnonzero(chosen & taken)} are taken already")
        if chosen.sum() != min(self.CELLS, int((~taken).sum())):
            raise ValueError(f"{chosen.sum()} plots were chosen, {(~taken).sum()} could be")
        self._field[1].ravel()[chosen] = 1.0
        self._t += 1
        reward = float(self._field[0].ravel()[chosen].sum()) / self._t
        done = bool((self._field[1] == 1.0).all())
        return self._field.copy(), reward, done, not done and self._t >= self._limit, {}


class Gates(gymnasium.Env[Any, Any]):
    """Five gates numbered from 10, some of them shut; the one that was taken last is always shut."""

    GATES = 5

    def __init__(self, limit: int = 12) -> None:
        self.observation_space = spaces.Dict(
            {"at": spaces.Box(-1.0, 1.0, (2,), np.float64), "action_mask": spaces.MultiBinary(self.GATES)}
        )
        self.action_space = spaces.Discrete(self.GATES, start=10)
        self._limit, self._t = limit, 0
        self._open = np.ones(self.GATES, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(int(self.np_random.integers(self.GATES))), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if {10: 0, 11: 1, 12: 2, 13: 3, 14: 4}[action] != action - 10 or not self._open[action - 10]:
            raise ValueError(f"gate {action} is shut: {self._open}")
        self._t += 1
        obs = self._draw(int(action) - 10)
        return obs, float(action - 10), bool(self.np_random.random() < 0.05), self._t >= self._limit, {}

    def _draw(self, shut: int) -> dict[str, Any]:
        self._open = (self.np_random.random(self.GATES) < 0.6).astype(np.int8)
        self._open[shut] = 0
        self._open[(shut + 1) % self.GATES] = 1
        return {"at": self.np_random.uniform(-1.0, 1.0, 2), "action_mask": self._open.copy()}


def plots(**kwargs: Any) -> Plots:
    return Plots(**kwargs)


def gates(**kwargs: Any) -> Gates:
    return Gates(**kwargs)


def slow_cartpole(step_s: float, marker: str | None = None) -> Slowed:
    return Slowed(gymnasium.make("CartPole-v1"), step_s, marker)
