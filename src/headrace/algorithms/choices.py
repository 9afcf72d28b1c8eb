"""What can be chosen, and which of it is best: one of n actions, or k of n cells; numpy alone.

Acting and learning call the very same functions. Letters: B rows, O encoded observation, n actions or cells, k cells
chosen at once (1 where an action is one of n).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.configs import ActionsConfig
from headrace.algorithms.encoding import Columns, Float32, ObservationEncoder
from headrace.algorithms.exploration import RandomChoice
from headrace.core.errors import ObservationMismatch, UnsupportedSpace

Chosen = NDArray[np.int64]
"""[B, k] numbers of what was chosen, from 0; -1 where less than k can be."""
Legal = NDArray[np.bool_]
"""[B, n] what can be chosen."""

NOTHING = -1


class Choices:
    """Actions of a Discrete or MultiBinary space as choices among n.

    Args:
        space: Of one environment.
        config: Says how many cells are chosen at once.

    Raises:
        UnsupportedSpace: It is neither, or does not go with ``config``.
    """

    def __init__(self, space: spaces.Space[Any], config: ActionsConfig) -> None:
        kind = spaces.Discrete if config.cells is None else spaces.MultiBinary
        if not isinstance(space, kind):
            raise _unsupported_action(space, config)
        self.size = int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or ())
        """n."""
        self.k = config.cells or 1
        if self.k > self.size:
            raise _unsupported_action(space, config)
        self._first = int(space.start) if isinstance(space, spaces.Discrete) else None
        self._shape = tuple(space.shape or ())
        self._dtype = np.dtype(space.dtype)

    def best(self, q: Float32, legal: Legal | None) -> Chosen:
        """The k highest of ``q`` [B, n] that can be chosen; of equal ones the first."""
        if legal is not None:
            q = np.where(legal, q, np.float32(-np.inf))
        if self.k == 1:
            chosen: Chosen = q.argmax(axis=1)[:, None]
        else:
            chosen = np.argsort(-q, axis=1, kind="stable")[:, : self.k]
        if legal is not None:
            chosen = np.where(np.take_along_axis(legal, chosen, axis=1), chosen, NOTHING)
        return chosen

    def random(self, noise: RandomChoice, legal: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """K of what can be chosen in one row, ``legal`` [n], at random: [k], as one row of `Chosen`."""
        candidates = np.arange(self.size) if legal is None else np.flatnonzero(legal)
        found = noise.choose(candidates, self.k)
        chosen = np.full(self.k, NOTHING, np.int64)
        chosen[: len(found)] = found
        return chosen

    def actions(self, chosen: Chosen) -> NDArray[Any]:
        """As the space has them, [B, ...]; a new array each time.

        Raises:
            ObservationMismatch: Nothing can be chosen in a row, and the space is Discrete.
        """
        if self._first is not None:
            if (chosen == NOTHING).any():
                raise nothing_to_choose(int(np.flatnonzero(chosen[:, 0] == NOTHING)[0]))
            return (chosen[:, 0] + self._first).astype(self._dtype)
        made = np.zeros((len(chosen), self.size), self._dtype)
        rows, places = np.nonzero(chosen != NOTHING)
        made[rows, chosen[rows, places]] = 1
        return made.reshape(len(chosen), *self._shape)

    def shares(self, action: NDArray[Any], out: Float32) -> None:
        """Fill ``out`` [B, n] from stored actions [B, ...]: what was chosen shares 1 evenly, the rest has 0.

        The sum of ``out * q`` is then the value of an action: the mean of its cells'.
        """
        if self._first is not None:
            out.fill(0.0)
            out[np.arange(len(action)), action - self._first] = 1.0
            return
        out[...] = action.reshape(len(action), -1)
        out /= np.maximum(out.sum(axis=1, keepdims=True), np.float32(1.0))


class Mask:
    """Reads out of an encoded observation what can be chosen.

    Args:
        config: Where it is, and which number says no.
        encoder: Of the observations.
        size: n.

    Raises:
        UnsupportedSpace: The observation has no such part, or it has not one number per action.
    """

    def __init__(self, config: ActionsConfig, encoder: ObservationEncoder, size: int) -> None:
        self._columns: slice | None = None
        self._value = np.float32(config.mask_value)
        if config.mask_leaf is None:
            return
        columns = encoder.columns.get(config.mask_leaf)
        start = None if columns is None else _first_column(columns, config.mask_channel, size)
        if start is None:
            raise _unsupported_mask(config, encoder, size)
        self._columns = slice(start, start + size)

    def legal(self, x: Float32) -> Legal | None:
        """What can be chosen for observations ``x`` [B, O] as encoded, not normalised; None: everything."""
        return None if self._columns is None else x[:, self._columns] != self._value


def _first_column(columns: Columns, channel: int | None, size: int) -> int | None:
    """Column of the mask's first number, in the newest frame where frames are stacked; None: it does not fit."""
    shape = columns.shape
    if not columns.plain:
        return None
    if channel is None:
        # [n], [H, W] or [S, n], of which the newest frame is the last one. [S, H, W] might as well be a map's channels.
        fits = math.prod(shape) == size or (len(shape) == 2 and shape[1] == size)
        return columns.stop - size if fits else None
    if len(shape) not in (3, 4) or shape[-1] * shape[-2] != size or channel >= shape[-3]:
        return None
    return columns.stop - (shape[-3] - channel) * size


def nothing_to_choose(row: int) -> ObservationMismatch:
    """The error that says that a mask forbids everything."""
    return ObservationMismatch(
        "the mask in the observation leaves no action to choose",
        expected="at least one action that can be chosen in every observation an action follows",
        found="none",
        row=row,
        fix="end the episode there, or correct the mask; algorithm.actions says where it is read",
    )


def _unsupported_action(space: spaces.Space[Any], config: ActionsConfig) -> UnsupportedSpace:
    cells = config.cells
    expected = "one Discrete space" if cells is None else f"one MultiBinary space of {cells} cells or more"
    fix = "choose an algorithm for this action space, or wrap it"
    if isinstance(space, spaces.MultiBinary):
        fix = "set algorithm.actions.cells to the number of cells that one action chooses"
    elif isinstance(space, spaces.Discrete):
        fix = "remove algorithm.actions.cells: one action is chosen at a time"
    return UnsupportedSpace(
        "action space cannot be used by an algorithm that chooses",
        field="action",
        expected=expected,
        found=f"{type(space).__name__}: {space}",
        fix=fix,
    )


def _unsupported_mask(config: ActionsConfig, encoder: ObservationEncoder, size: int) -> UnsupportedSpace:
    where = f"{config.mask_leaf} of shape [C, H, W]" if config.mask_channel is not None else f"{config.mask_leaf}"
    parts = ", ".join(f"{path} {list(columns.shape)}" for path, columns in encoder.columns.items())
    return UnsupportedSpace(
        "the mask of actions cannot be read from this observation",
        field=str(config.mask_leaf),
        expected=f"{where} with {size} numbers"
        + ("" if config.mask_channel is None else f" in channel {config.mask_channel}"),
        found=parts,
        fix="set algorithm.actions.mask_leaf and mask_channel to where the observation says what can be chosen",
    )
