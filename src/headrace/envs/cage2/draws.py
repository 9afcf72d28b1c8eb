"""The random numbers of one copy, in the order in which it uses them up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.envs.cage2 import network as net
from headrace.envs.cage2.settings import Settings

PICK, CHOICE, NOTICE = range(3)
"""What the numbers of a step are for: which host Meander takes, which exploit red takes, whether its shell is noticed."""

_MOST_STEPS = 128


class Draws:
    """Who attacks and by which user host, and three numbers for every step, used or not.

    Copies share nothing: each has its own, so a copy's numbers do not depend on how many others there are. Nor do they
    depend on what blue does: two plays of one seed meet the same chances.

    Args:
        settings: Who may attack.
        generator: Where the numbers come from; not given: one with a seed of the operating system's.
    """

    def __init__(self, settings: Settings, generator: np.random.Generator | None = None) -> None:
        self._opponents = settings.opponents
        self.block_steps = min(_MOST_STEPS, settings.max_steps or _MOST_STEPS)
        """Steps that one `block` is for."""
        self.generator = np.random.default_rng() if generator is None else generator

    def seed(self, seed: int) -> None:
        """Begin anew; the numbers that follow depend on ``seed`` alone."""
        self.generator = np.random.default_rng(seed)

    def episode(self) -> tuple[int, int]:
        """The red agent of an episode, by its place in `network.OPPONENTS`, and the user host by which B_line enters."""
        opponent, user = self.generator.random(2).tolist()
        return self._opponents[int(opponent * len(self._opponents))], net.USER_1 + int(user * 4)

    def block(self) -> NDArray[np.float64]:
        """Numbers in [0, 1) for the next steps, [block_steps, 3]."""
        return self.generator.random((self.block_steps, 3))
