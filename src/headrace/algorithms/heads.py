"""What a policy that draws its actions makes of its network's outputs; numpy alone.

Letters in shapes: N lanes or rows, k components that are chosen at once, w choices of the component that has most,
n outputs of the network, A length of a continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.choices import Legal, nothing_to_choose
from headrace.algorithms.encoding import Float32, require_finite_actions
from headrace.core.errors import UnsupportedSpace
from headrace.core.specs import Leaf

_LOGPROB = Leaf("logprob", np.dtype(np.float32), ())
_HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2.0 * math.pi))
_IMPOSSIBLE = np.float32(-np.inf)
_FEW = 6
"""Columns that are cheaper one after the other than row by row."""


class Draws:
    """Random numbers of one lane; fulfils `headrace.algorithms.base.LaneNoise`. Nothing crosses a chunk's end."""

    __slots__ = ("carry", "normal", "uniform")

    def __init__(self, generator: np.random.Generator) -> None:
        self.carry = np.zeros(0, np.float32)
        self.uniform = generator.random
        self.normal = generator.standard_normal

    def begin_episode(self) -> None:
        """Nothing crosses from step to step."""


class CategoricalHead:
    """One of some choices in each of k components: Discrete, MultiDiscrete, and MultiBinary, whose parts are yes or no.

    The network has one output for each choice, component after component; a mask is laid out the same way.

    Args:
        space: Of one environment.
    """

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) -> None:
        counts, first = _counts(space)
        self.outputs = int(counts.sum())
        """n."""
        self.components, self.width = len(counts), int(counts.max())
        """k and w."""
        self.told: tuple[Leaf, ...] = (_LOGPROB,)
        """What it returns beside actions."""
        starts = counts.cumsum() - counts
        place = np.arange(self.width)
        self.absent: Legal | None = None if (counts == self.width).all() else place >= counts[:, None]
        """[k, w] where a component has no such choice; None: all have as many."""
        self.columns: NDArray[np.int64] | None = None
        """[k * w] which output stands there; 0 where none does. None: as they come."""
        if self.absent is not None:
            self.columns = np.where(self.absent, 0, starts[:, None] + place).ravel()
        self._first = first
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype)

    def act(self, outputs: Float32, legal: Legal | None, noise: Sequence[Draws] | None) -> dict[str, NDArray[Any]]:
        """Actions and how likely they were.

        Args:
            outputs: [N, n] scores: logarithms of probabilities, but for a constant.
            legal: [N, n] what can be chosen; what cannot has probability 0. None: everything.
            noise: One per lane; None: the likeliest of each component.

        Returns:
            ``action`` [N, ...] and, where it was drawn, ``logprob`` [N].

        Raises:
            ObservationMismatch: Nothing can be chosen of a component.
        """
        if noise is None and legal is None and self.absent is None:  # the highest score is the likeliest's
            return {"action": self._chosen(self._spread(outputs).argmax(axis=2))}
        logs = self.log_probabilities(outputs, legal)  # [N, k, w]
        if noise is None:
            return {"action": self._chosen(logs.argmax(axis=2))}
        places = self._draw(np.exp(logs), noise)  # [N, k]
        logprob = self.of_rows(logs.reshape(-1, self.width)[self.drawn(places)])
        return {"action": self._chosen(places), "logprob": logprob}

    def _chosen(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """The actions [N, ...] that these choices [N, k] are."""
        return (places + self._first).astype(self._dtype, copy=False).reshape(len(places), *self._shape)

    def places(self, action: NDArray[Any]) -> NDArray[np.int64]:
        """Which choice each component of stored actions [N, ...] is, [N, k]."""
        return action.reshape(len(action), -1).astype(np.int64) - self._first

    def drawn(self, places: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Where what was drawn, [N, k], stands in an array [N * k, w] of components that follow each other."""
        return np.arange(places.size), places.ravel()

    def of_rows(self, values: Float32) -> Float32:
        """Sums over components, [N], of values [N * k]."""
        if self.components == 1:
            return values
        sums: Float32 = np.add.reduce(values.reshape(-1, self.components), axis=1)
        return sums

    def log_probabilities(self, outputs: Float32, legal: Legal | None) -> Float32:
        """Of every choice, [N, k, w]; minus infinity of what cannot be chosen.

        Args:
            outputs: [N, n].
            legal: [N, n]; None: everything.

        Raises:
            ObservationMismatch: Nothing can be chosen of a component.
        """
        logits = self._spread(outputs)
        if legal is not None:
            allowed = self._spread(legal)
            if self.absent is not None:
                allowed = allowed & ~self.absent
            dead = np.flatnonzero(~allowed.any(axis=2))  # [N * k]
            if len(dead):
                raise nothing_to_choose(int(dead[0]) // self.components)
            logits = np.where(allowed, logits, _IMPOSSIBLE)
        elif self.absent is not None:
            logits = np.where(self.absent, _IMPOSSIBLE, logits)
        logits = logits - across(np.maximum, logits)[:, :, None]
        logs: Float32 = logits - np.log(across(np.add, np.exp(logits)))[:, :, None]
        return logs

    def gathered(self, grad: Float32) -> Float32:
        """Derivative by the network's outputs, [N, n], of one by what they are spread to, [N, k * w]."""
        if self.columns is None or self.absent is None:
            return grad
        there = ~self.absent.ravel()
        found: Float32 = np.empty((len(grad), self.outputs), np.float32)
        found[:, self.columns[there]] = grad[:, there]
        return found

    def _spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """[N, k, w] of [N, n]."""
        if self.columns is not None:
            values = values[:, self.columns]
        return values.reshape(len(values), self.components, self.width)

    def _draw(self, probabilities: Float32, noise: Sequence[Draws]) -> NDArray[np.int64]:
        # In double precision u < 1 stays below the sum, and the sum does not rise where nothing can be chosen.
        sums = sums_so_far(probabilities)
        if self.components == 1:
            uniform = np.array([lane.uniform() for lane in noise])[:, None]
        else:
            uniform = np.array([lane.uniform(self.components) for lane in noise])
        limits = uniform * sums[:, :, -1]
        if self.width == 2:  # as below, and half of what there is to do
            return (sums[:, :, 0] <= limits).astype(np.int64)
        found: NDArray[np.int64] = np.add.reduce(sums <= limits[:, :, None], axis=2, dtype=np.int64)
        return found


class GaussianHead:
    """A point drawn around the network's outputs, in the environment's units, and clipped into a box of any bounds.

    Args:
        space: Of one environment.
    """

    def __init__(self, space: spaces.Box) -> None:
        self._low, self._high = space.low, space.high
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        self.outputs = math.prod(self._shape)
        """A."""
        self.told: tuple[Leaf, ...] = (_LOGPROB, Leaf("raw_action", np.dtype(np.float32), (self.outputs,)))
        """What it returns beside actions."""

    def act(self, outputs: Float32, log_std: Float32, noise: Sequence[Draws] | None) -> dict[str, NDArray[Any]]:
        """Actions, what they were before they were clipped, and how likely that was.

        Args:
            outputs: [N, A] means.
            log_std: [A] logarithm of the standard deviation.
            noise: One per lane; None: the means themselves.

        Returns:
            ``action`` [N, ...] and, where it was drawn, ``raw_action`` [N, A] and ``logprob`` [N].

        Raises:
            NonFiniteValue: See `require_finite_actions`.
        """
        if noise is None:
            return {"action": self._clipped(outputs)}
        std: Float32 = np.exp(log_std)
        raw = np.empty_like(outputs)
        for lane, row in zip(noise, raw, strict=True):
            lane.normal(dtype=np.float32, out=row)
        raw *= std
        raw += outputs
        action = self._clipped(raw)
        deviation: Float32 = (
            raw - outputs
        ) / std  # not what was drawn: `raw` has been rounded, and it is what is stored
        return {"action": action, "raw_action": raw, "logprob": log_density(deviation, log_std)}

    def _clipped(self, points: Float32) -> NDArray[Any]:
        """Actions [N, ...] of points [N, A]."""
        require_finite_actions(points)
        return np.clip(points.reshape(len(points), *self._shape).astype(self._dtype), self._low, self._high)


Head = CategoricalHead | GaussianHead


def across(function: np.ufunc, values: Float32) -> Float32:
    """A function of two numbers over the last axis, like its ``reduce``, which spends most of its time on getting to a row."""
    width = values.shape[-1]
    if not 1 < width <= _FEW:
        whole: Float32 = function.reduce(values, axis=-1)
        return whole
    found: Float32 = function(values[..., 0], values[..., 1])
    for column in range(2, width):
        function(found, values[..., column], out=found)
    return found


def sums_so_far(values: Float32) -> NDArray[np.float64]:
    """Like ``accumulate`` over the last axis, in double precision; of few columns one after the other, see `across`."""
    width = values.shape[-1]
    if width > _FEW:
        whole: NDArray[np.float64] = np.add.accumulate(values, axis=-1, dtype=np.float64)
        return whole
    sums = values.astype(np.float64)
    for column in range(1, width):
        sums[..., column] += sums[..., column - 1]
    return sums


def log_density(deviation: Float32, log_std: Float32) -> Float32:
    """Of independent normal variables, [N], that lie so many standard deviations, [N, A], off; ``log_std`` [A]."""
    terms: Float32 = np.float32(0.5) * deviation * deviation + log_std + _HALF_LOG_TWO_PI
    density: Float32 = -np.add.reduce(terms, axis=1)
    return density


def head_of(space: spaces.Space[Any]) -> Head:
    """The head for a space of actions.

    Raises:
        UnsupportedSpace: It has none.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return CategoricalHead(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.low.size:
        return GaussianHead(space)
    raise UnsupportedSpace(
        "action space cannot be used by a policy that draws its actions",
        field="action",
        expected="one Discrete, MultiDiscrete or MultiBinary space, or one Box of floating-point numbers",
        found=f"{type(space).__name__}: {space}",
        fix="wrap the environment so that one of the expected spaces holds the whole action",
    )


def _counts(
    space: spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many choices each component has, and the number of the first one."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape or ())
        return np.full(size, 2), np.zeros(size, np.int64)
    counts = space.nvec.ravel().astype(np.int64)
    return counts, np.broadcast_to(space.start, space.nvec.shape).ravel().astype(np.int64)
