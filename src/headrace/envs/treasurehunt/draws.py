"""The random numbers of one copy of the world, in the order in which it uses them up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.envs.treasurehunt.settings import Settings


class Draws:
    """Where the agents of one copy begin, what grows, and who acts first.

    Copies share nothing: each has its own, so a copy's numbers do not depend on how many others there are. Nor do they
    depend on what the agents do: every inner cell has its draw in every turn, used or not.

    Args:
        settings: How large the map is, and how many agents there are.
        generator: Where the numbers come from; not given: one with a seed of the operating system's.
    """

    def __init__(self, settings: Settings, generator: np.random.Generator | None = None) -> None:
        self._cells = settings.inner_cells
        self._agents = settings.num_agents
        self.generator = np.random.default_rng() if generator is None else generator

    def seed(self, seed: int) -> None:
        """Begin anew; the numbers that follow depend on ``seed`` alone."""
        self.generator = np.random.default_rng(seed)

    def places(self) -> NDArray[np.int64]:
        """Distinct inner cells, one for each agent, all equally likely; [A], numbered row by row from 0."""
        return self.generator.permutation(self._cells)[: self._agents]

    def fields(self, turns: int) -> NDArray[np.float64]:
        """A uniform number in [0, 1) for every inner cell and turn, [turns, cells]."""
        return self.generator.random((turns, self._cells))

    def orders(self, turns: int) -> NDArray[np.int64]:
        """The agents in the order in which they act, every order equally likely, [turns, A]."""
        return self.generator.random((turns, self._agents)).argsort(axis=1)
