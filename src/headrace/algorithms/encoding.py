"""From stored arrays to what a network sees, and from what it says to actions; numpy alone.

Acting and learning call the very same functions, so they cannot disagree about an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays
from headrace.core.arrays import aligned
from headrace.core.errors import NonFiniteValue, UnsupportedSpace
from headrace.core.specs import Leaf, leaves

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

OBSERVATION_CLIP = np.float32(10.0)
"""Largest normalised observation. A value that hardly ever moved has a tiny deviation; one move must not swamp the rest."""

_VARIANCE_FLOOR = 1e-8  # keeps the deviation of a constant away from zero


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of an encoded observation are a leaf's."""

    start: int
    stop: int
    shape: tuple[int, ...]
    """Of the leaf."""

    @property
    def plain(self) -> bool:
        """Whether they are its numbers one by one, not one-hot."""
        return self.stop - self.start == math.prod(self.shape)


class ObservationEncoder:
    """Observation leaves -> one float32 vector per row.

    Box and MultiBinary are flattened, Discrete and MultiDiscrete become one-hot, leaves follow each other in
    the order of `headrace.core.specs.leaves`. Values are taken as valid: they were checked when stored.

    Args:
        space: The observation space.

    Raises:
        UnsupportedSpace: A part of it is no array, or it has no element at all.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._parts: list[tuple[str, Callable[[NDArray[Any], Float32], None]]] = []
        self.size = 0
        """Length O of the encoded observation."""
        self.columns: dict[str, Columns] = {}
        """Where each leaf is in it."""
        for leaf, part in zip(leaves(space, "obs"), _parts(space), strict=True):
            width, write = _writer(leaf, part, self.size)
            self._parts.append((leaf.path, write))
            self.columns[leaf.path] = Columns(self.size, self.size + width, leaf.shape)
            self.size += width
        if not self.size:
            raise UnsupportedSpace(
                "observation space has no element",
                field="obs",
                expected="at least one number",
                found=str(space),
                fix="wrap the environment so that it observes something, or a constant",
            )

    def encode(self, obs: Arrays, out: Float32) -> None:
        """Fill ``out`` [N, O] from leaves [N, ...]."""
        for path, write in self._parts:
            write(obs[path], out)


@dataclass(frozen=True, slots=True)
class MapPlace:
    """Where in an encoded observation the map is."""

    start: int
    stop: int
    channels: int
    """Those of all stacked frames."""
    height: int
    width: int


def map_place(path: str, encoder: ObservationEncoder, actions: int) -> MapPlace:
    """The map that the leaf ``path`` is.

    Raises:
        UnsupportedSpace: There is none, or it has not one cell per action.
    """
    columns = encoder.columns.get(path)
    if columns is not None and columns.plain and len(columns.shape) in (3, 4):
        *stacked, height, width = columns.shape
        if height * width == actions:
            return MapPlace(columns.start, columns.stop, math.prod(stacked), height, width)
    raise UnsupportedSpace(
        "the observation has no map with one cell per action",
        field=path,
        expected=f"an array [C, H, W] with H x W = {actions}",
        found=", ".join(f"{name} {list(part.shape)}" for name, part in encoder.columns.items()),
        fix="set algorithm.map.leaf to the part of the observation that is a map, or remove it to use a perceptron",
    )


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The array spaces inside ``space``, in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        return [part for inner in space.spaces.values() for part in _parts(inner)]
    if isinstance(space, spaces.Tuple):
        return [part for inner in space.spaces for part in _parts(inner)]
    return [space]


def _writer(leaf: Leaf, space: spaces.Space[Any], start: int) -> tuple[int, Callable[[NDArray[Any], Float32], None]]:
    """How many columns this leaf takes, and the function that fills them from column ``start``."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]), start)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.ravel(), np.broadcast_to(space.start, space.nvec.shape).ravel(), start)
    return _copy(leaf.shape, start)


def _copy(shape: tuple[int, ...], start: int) -> tuple[int, Callable[[NDArray[Any], Float32], None]]:
    end = start + int(np.prod(shape))

    def write(values: NDArray[Any], out: Float32) -> None:
        columns = out[:, start:end]
        # Splitting the last axis of ``out`` is always a view; flattening ``values``, rows of a lane, would copy.
        (columns if len(shape) == 1 else columns.reshape(len(values), *shape))[...] = values

    return end - start, write


def _one_hot(
    counts: NDArray[Any], first: NDArray[Any], start: int
) -> tuple[int, Callable[[NDArray[Any], Float32], None]]:
    """One column per possible value; a column is 1 where its own component has its own value."""
    component = np.repeat(np.arange(len(counts)), counts)  # [columns]
    value = np.concatenate([low + np.arange(n) for n, low in zip(counts, first, strict=True)])  # [columns]
    end = start + len(value)

    def write(values: NDArray[Any], out: Float32) -> None:
        out[:, start:end] = values.reshape(len(values), -1)[:, component] == value

    return end - start, write


def normalize(x: Float32, mean: Float32, std: Float32) -> None:
    """Scale ``x`` [N, O] in place by ``mean`` [O] and ``std`` [O], clipped to `OBSERVATION_CLIP`."""
    np.subtract(x, mean, out=x)
    np.divide(x, std, out=x)
    np.maximum(x, -OBSERVATION_CLIP, out=x)
    np.minimum(x, OBSERVATION_CLIP, out=x)


class RunningMoments:
    """Mean and variance of a stream of vectors, in float64.

    *Source*: Chan, Golub and LeVeque 1979, the pairwise merge; stable where sums of squares are not.
    """

    def __init__(self, size: int) -> None:
        self.count = np.zeros(1, np.int64)
        self.mean: Float64 = np.zeros(size)
        self.m2: Float64 = np.zeros(size)
        """Sum of squared differences from the mean."""
        self.mean32 = aligned((size,))
        """What is published: the mean, float32 [O]; zero before the first row."""
        self.std32 = aligned((size,))
        """What is published: the standard deviation, float32 [O]; one before the first row."""
        self.refresh()

    def add(self, rows: NDArray[Any]) -> None:
        """Merge ``rows`` [N, O] in; N may be 0."""
        n = len(rows)
        if not n:
            return
        rows64 = rows.astype(np.float64)
        mean = rows64.mean(axis=0)
        before = int(self.count[0])
        delta = mean - self.mean
        self.mean += delta * (n / (before + n))
        self.m2 += np.square(rows64 - mean).sum(axis=0) + np.square(delta) * (before * n / (before + n))
        self.count += n
        self.refresh()

    def refresh(self) -> None:
        """Bring the published arrays up to date, in place."""
        self.mean32[:] = self.mean
        self.std32[:] = np.sqrt(self.m2 / self.count + _VARIANCE_FLOOR) if self.count[0] else 1.0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The live state; after writing to it, call `refresh`."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}


class ActionBox:
    """Actions in [-1, 1]^A for the network, in ``[low, high]`` for the environment.

    Args:
        space: The action space: one Box of floating-point numbers with finite bounds, low below high.

    Raises:
        UnsupportedSpace: Anything else; the message names what was found.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        box = _finite_box(space)
        self._low = box.low.ravel()
        self._high = box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._middle = low + (high - low) / 2
        self._half = (high - low) / 2
        _require_room(self._half > 0)
        self._inverse = 1.0 / self._half
        self._shape = tuple(box.shape)
        self._dtype = np.dtype(box.dtype)
        self.size = len(low)
        """Length A of an action."""

    def normalize(self, action: NDArray[Any], out: Float32) -> None:
        """Fill ``out`` [N, A] in [-1, 1] from stored actions [N, ...]; what leaves the range by rounding is clipped."""
        scaled = (action.reshape(len(action), -1) - self._middle) * self._inverse
        np.clip(scaled, -1.0, 1.0, out=scaled)
        out[...] = scaled

    def denormalize(self, action: Float32) -> NDArray[Any]:
        """From [N, A], where [-1, 1] is the range, to the space's shape [N, ...] and dtype, clipped; a new array each time.

        Raises:
            NonFiniteValue: See `require_finite_actions`.
        """
        require_finite_actions(action)
        scaled = (action * self._half + self._middle).astype(self._dtype)
        np.maximum(scaled, self._low, out=scaled)
        np.minimum(scaled, self._high, out=scaled)
        return scaled.reshape(len(scaled), *self._shape)


def require_finite_actions(action: Float32) -> None:
    """Refuse to hand what is no number to an environment, which would be blamed for what it makes of it.

    Args:
        action: [N, A], before it is clipped.

    Raises:
        NonFiniteValue: One of them is NaN or infinite; ``row`` among its facts says whose.
    """
    finite = np.isfinite(action)
    if b"\0" not in finite.tobytes():  # half as long as `all` for so few
        return
    row, number = np.argwhere(~finite)[0].tolist()
    raise NonFiniteValue(
        "the policy chose an action that is not finite; the environment was not given it",
        field="action",
        found=f"{action[row, number]} as number {number} (from 0)",
        row=row,
        fix="see that observations are not that large: scale them in the environment; or lower the learning rates",
    )


def _finite_box(space: spaces.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise _unsupported(f"{type(space).__name__}: {space}", "choose an algorithm for this action space, or wrap it")
    if not np.issubdtype(space.dtype, np.floating):
        raise _unsupported(
            f"Box of {space.dtype}", "wrap the environment so that its actions are floating-point numbers"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise _unsupported(
            f"Box from {space.low.min()} to {space.high.max()}",
            "give the action space finite bounds, e.g. with gymnasium.wrappers.RescaleAction or ClipAction's bounds",
        )
    if not space.low.size:
        raise _unsupported(f"Box of shape {space.shape}, which has no element", "give the action space a dimension")
    return space


def _require_room(moves: NDArray[np.bool_]) -> None:
    """Refuse numbers of an action that cannot move: whatever an actor proposes is the same one, and critics would value them all."""
    stuck = np.flatnonzero(~moves).tolist()
    if stuck:
        raise _unsupported(
            f"low = high in number {', '.join(map(str, stuck))} of {len(moves)} (from 0)",
            "wrap the environment so that its actions leave out what cannot move, e.g. with gymnasium.wrappers.TransformAction",
        )


def _unsupported(found: str, fix: str) -> UnsupportedSpace:
    return UnsupportedSpace(
        "action space cannot be used by an algorithm for continuous actions",
        field="action",
        expected="one Box of floating-point numbers with finite low and high, low below high",
        found=found,
        fix=fix,
    )
