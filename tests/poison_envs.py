"""Environments that go wrong in certain lanes, whatever they are reset with; imported in child processes too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from headrace.core import seeding
from run_envs import Traced


class Poisonous(Traced):
    """Goes wrong in some lanes only, at the same step of every episode.

    Args:
        lanes: Which, told by the seeds that the first hundred of their episodes begin with in a run of seed 0.
        **kwargs: As `Traced`, but ``at`` counts the steps of an episode.
    """

    def __init__(self, lanes: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._poison = {seeding.integer(0, "environment", lane, episode) for lane in lanes for episode in range(100)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._total = 0
        return super().reset(seed=seed)

    def _due(self) -> bool:
        return self._seed in self._poison and super()._due()


class Unlucky(Exception):
    """A draw came out wrong."""


class Gambler(Traced):
    """Draws one number from the global generator a step, and cannot bear a certain one.

    Args:
        worst: That one.
    """

    def __init__(self, worst: float) -> None:
        super().__init__()
        self._worst = worst

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if random.random() == self._worst:
            raise Unlucky("drawn")
        return super().step(action)


def gambler(**kwargs: Any) -> Gambler:
    return Gambler(**kwargs)


def make(**kwargs: Any) -> Poisonous:
    return Poisonous(**kwargs)
