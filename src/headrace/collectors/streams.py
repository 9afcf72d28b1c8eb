"""The random streams of one lane, keyed so that a chunk can be made again without the chunks before it."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium import spaces

from headrace.algorithms.base import Actor
from headrace.core import seeding

_CHUNK_DRAWS = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""From one chunk's first draw to the next one's, of 2**128: the golden ratio of it, as in numpy's ``PCG64.jumped``.

It has to be odd: of states that are 2**64 draws apart the low halves are the same and the high ones evenly spaced, and
what is drawn from them is correlated. Within a billion chunks of a lane no two begin less than 2**96 draws apart.
"""


class LaneStreams:
    """Exploration and random actions of one lane. Nothing of them but ``noise.carry`` crosses a chunk's end.

    Args:
        seed: The run's.
        lane: Which.
        incarnation: How often the streams of the lane's group have been begun anew.
        actor: Makes the exploration state.
        action_space: Of the environment; copied.
    """

    def __init__(self, seed: int, lane: int, incarnation: int, actor: Actor, action_space: spaces.Space[Any]) -> None:
        self._key = seed, lane, incarnation
        generator = seeding.generator(seed, "exploration", lane, incarnation)
        self._bits: Any = generator.bit_generator
        self._begin = self._bits.state
        self.noise = actor.noise(generator)
        self.random_actions = copy.deepcopy(action_space)

    def begin_chunk(self, chunk: int, *, random_actions: bool) -> None:
        """Go to where the chunk's own draws begin.

        Args:
            chunk: Its number.
            random_actions: Whether it may need any.
        """
        self._bits.state = self._begin
        self._bits.advance(chunk * _CHUNK_DRAWS % 2**128)
        if random_actions:
            seed, lane, incarnation = self._key
            self.random_actions.seed(seeding.integer(seed, "random-actions", lane, incarnation, chunk))
