"""The grid world: many copies at once, in numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.envs.checks import ActionCheck
from headrace.envs.treasurehunt.draws import Draws
from headrace.envs.treasurehunt.settings import Settings
from headrace.envs.treasurehunt.views import AGENT, BONE, EMPTY, FOOD, GEM, WALL, Views

UP, DOWN, LEFT, RIGHT = range(4)
ACTIONS = 4
CHECKED = ActionCheck(ACTIONS, "Pass 0 (up), 1 (down), 2 (left) or 3 (right).")

WALL_VALUE = -1.0
"""Reward of running into a wall."""

_MOST_TURNS = 32
_MOST_CELLS = 2**16
"""How far ahead a copy draws what grows: so many turns at most, and about so many cells."""


class World:
    """Copies of the grid world that share nothing but their settings and their clockwork.

    In a turn some empty cells become gems, food or bones, each by itself with its probability. Then the agents act one
    after another: each is paid for what lies in the cell it heads for, and moves there unless that is a wall or another
    agent. What it steps on is gone, and what it leaves is empty.

    Args:
        settings: The same for every copy.
        draws: The random numbers of each copy; as many copies as there are of these.
    """

    def __init__(self, settings: Settings, draws: Sequence[Draws]) -> None:
        self.settings = settings
        self.draws = tuple(draws)
        copies, agents, edge = len(self.draws), settings.num_agents, settings.vision_radius
        # Outside the map there is wall as far as an agent sees, so that no window needs to be cut.
        self._shape = (settings.height + 2 * edge, settings.width + 2 * edge)
        self._inner = (slice(edge + 1, edge + settings.height - 1), slice(edge + 1, edge + settings.width - 1))
        self._map = (slice(edge, edge + settings.height), slice(edge, edge + settings.width))
        size = self._shape[0] * self._shape[1]
        bare = np.full(self._shape, WALL, np.uint8)
        bare[self._inner] = EMPTY
        self._bare = bare.ravel()
        self._inner_cells = np.flatnonzero(self._bare == EMPTY)
        self._cells = np.tile(self._bare, (copies, 1))  # [C, padded cells]
        self._first = np.arange(copies) * size  # where each copy begins in `_flat`
        self._positions = np.zeros((copies, agents), np.int64)  # [C, A] in `_flat`
        width = self._shape[1]
        self._steps = np.array([-width, width, -1, 1])  # up, down, left, right
        around = np.arange(-edge, edge + 1)
        self._window = (around[:, None] * width + around).ravel()
        self._values = np.zeros(AGENT + 1)
        self._values[[GEM, FOOD, BONE]] = settings.gem_value, settings.food_value, settings.bone_value
        self._values[WALL] = WALL_VALUE
        self._views = Views(settings)
        self.turns = np.zeros(copies, np.int64)
        """Turns of each copy since its reset, [C]."""
        self._block = _block_turns(settings)
        self._growth = np.zeros((copies, self._block, size), np.uint8)
        self._orders = np.zeros((copies, self._block, agents), np.int64)
        self._until_drawing = 0
        """Turns for which every copy has its draws."""
        self._every = np.arange(copies)
        self._empty = np.zeros((copies, size), np.bool_)

    @property
    def copies(self) -> int:
        """How many copies there are."""
        return len(self.draws)

    @property
    def over(self) -> bool:
        """Whether every copy has had the turns of an epoch."""
        return bool(self.turns.min() >= self.settings.max_turns)

    def reset(self, copies: Iterable[int] | None = None, seeds: Sequence[int | None] | None = None) -> None:
        """Begin an epoch: a map without gems, agents in random cells.

        Args:
            copies: Numbers of the copies that begin anew; not given: all of them.
            seeds: One for each of these copies; None, or not given: it goes on with the generator it has.
        """
        chosen = list(range(self.copies) if copies is None else copies)
        for copy, seed in zip(chosen, seeds or [None] * len(chosen), strict=True):
            draws = self.draws[copy]
            if seed is not None:
                draws.seed(seed)
            self._cells[copy] = self._bare
            self._positions[copy] = self._inner_cells[draws.places()] + self._first[copy]
            self.turns[copy] = 0
        self._flat[self._positions[chosen]] = AGENT
        self._until_drawing = 0

    def step(self, actions: NDArray[np.integer]) -> NDArray[np.float64]:
        """One turn of every copy.

        Args:
            actions: What each agent does, integers from 0 to 3, [C, A]; not checked.

        Returns:
            Rewards, float64 [C, A], a new array.
        """
        self._grow()
        targets = self._positions + self._steps[actions]
        if self.settings.random_order:
            rewards = self._move_in_random_order(targets)
        else:
            rewards = self._values[self._move(self._positions, targets)]
        self.turns += 1
        self._until_drawing -= 1
        return rewards

    def observe(self) -> NDArray[np.uint8]:
        """What each agent sees, uint8 [C, A, F], a new array; see `Views`."""
        return self._views.of(self._flat[self._positions[..., None] + self._window])

    @property
    def maps(self) -> NDArray[np.uint8]:
        """What lies where, in the codes of `views`: uint8 [C, height, width], a copy."""
        return self._cells.reshape(-1, *self._shape)[:, *self._map].copy()

    @property
    def places(self) -> NDArray[np.int64]:
        """Row and column of each agent on the map, [C, A, 2]."""
        padded = np.divmod(self._positions - self._first[:, None], self._shape[1])
        return np.stack(padded, axis=-1) - self.settings.vision_radius

    @property
    def _flat(self) -> NDArray[np.uint8]:
        """The cells of all copies in a row, a view. It is not kept: of a world that is copied or pickled it would be no view."""
        return self._cells.reshape(-1)

    def _grow(self) -> None:
        if self._until_drawing == 0:
            self._draw()
        grown = self._growth[self._every, self.turns % self._block]  # [C, padded cells], a copy
        np.equal(self._cells, EMPTY, out=self._empty)
        grown *= self._empty
        self._cells += grown  # an empty cell's code is 0

    def _draw(self) -> None:
        """Draw the next block of those copies that have used up theirs."""
        ahead = -self.turns % self._block
        for copy in np.flatnonzero(ahead == 0):
            draws = self.draws[copy]
            field = draws.fields(self._block).reshape(self._block, self.settings.height - 2, -1)
            self._growth[copy].reshape(-1, *self._shape)[:, *self._inner] = _kinds(field, self.settings)
            if self.settings.random_order:
                self._orders[copy] = draws.orders(self._block)
            ahead[copy] = self._block
        self._until_drawing = int(ahead.min())

    def _move(self, positions: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Let the agents act, one column after another; moves ``positions``. What each found, [C, A]."""
        flat, found = self._flat, np.empty(targets.shape, np.uint8)
        for rank in range(targets.shape[1]):
            here, there = positions[:, rank], targets[:, rank]
            met = flat[there]
            found[:, rank] = met
            flat[here] = EMPTY
            np.copyto(here, there, where=met < WALL)
            flat[here] = AGENT
        return found

    def _move_in_random_order(self, targets: NDArray[np.int64]) -> NDArray[np.float64]:
        order = self._orders[self._every, self.turns % self._block]  # [C, A]
        ranked = self._every[:, None], order  # [C, A] by rank
        positions = self._positions[ranked]
        found = self._move(positions, targets[ranked])
        self._positions[ranked] = positions
        rewards = np.empty(order.shape)
        rewards[ranked] = self._values[found]
        return rewards


def _block_turns(settings: Settings) -> int:
    """Turns drawn at once: an epoch in equal parts, so that little is drawn in vain. The same for any number of copies."""
    most = max(1, min(_MOST_TURNS, _MOST_CELLS // settings.inner_cells))
    parts = -(-settings.max_turns // most)
    return -(-settings.max_turns // parts)


def _kinds(field: NDArray[np.float64], settings: Settings) -> NDArray[np.uint8]:
    """What an empty cell becomes, given its uniform number; same shape."""
    kinds = np.zeros(field.shape, np.uint8)
    bounds = np.cumsum(settings.spawning)
    # From the last to the first, so that each keeps the numbers between the bound before it and its own.
    for kind, bound, probability in reversed(list(zip((GEM, FOOD, BONE), bounds, settings.spawning, strict=True))):
        if probability:
            kinds[field < bound] = kind
    return kinds
