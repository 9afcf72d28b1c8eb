"""Numbers and the tree of their sums: draws places in proportion to their numbers.

Two implementations of its two loops say the same, bit for bit: numpy, and numba where it is installed, in a tenth of the
time. So a run that was recorded with one can be replayed with the other.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from headrace.core.arrays import aligned

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Uint64 = NDArray[np.uint64]


WIDTH = 8
"""Nodes below one: what a cache line holds, so a mark waits for memory once in every third level of a tree of pairs."""
TOP, BEFORE = WIDTH - 1, WIDTH - 2
"""Node TOP is the uppermost one; below node n lies row n - BEFORE of the nodes as [N / WIDTH, WIDTH]."""


class Loops(Protocol):
    """What a tree does with its nodes [N], see `SumTree`."""

    def put(self, nodes: Float64, depth: int, places: Int64, numbers: Float64) -> None:
        """Change the numbers at these places, and the sums above; of a place that is named twice the last one counts."""
        ...

    def find(self, nodes: Float64, depth: int, marks: Float64) -> Int64:
        """Places at which the running sum passes each of ``marks``; never one whose number is 0."""
        ...


class NumpyLoops:
    """One numpy call a level and operation."""

    def put(self, nodes: Float64, depth: int, places: Int64, numbers: Float64) -> None:
        """See `Loops`."""
        rows = nodes.reshape(-1, WIDTH)
        at = places + first_of(depth)
        nodes[at] = numbers
        for level in range(depth - 1, -1, -1):
            at = at // WIDTH + BEFORE
            first, stop = first_of(level), min(first_of(level + 1), len(rows) + BEFORE)
            if len(at) >= stop - first:  # all of this level, and of those above it, are summed faster than some
                at = np.arange(first, stop)
            nodes[at] = _halved(_halved(_halved(rows[at - BEFORE])))[:, 0]

    def find(self, nodes: Float64, depth: int, marks: Float64) -> Int64:
        """See `Loops`."""
        rows, each = nodes.reshape(-1, WIDTH), np.arange(len(marks))
        node, left_of = np.full(len(marks), TOP), marks
        for _ in range(depth):
            below = rows[node - BEFORE]
            pairs = _halved(below)
            at = each
            for parts in (_halved(pairs).ravel(), pairs.ravel(), below.ravel()):
                at = 2 * at
                left = parts[at]
                # A mark that rounding has carried to the very end must not fall off it.
                right = (left_of >= left) & (parts[at + 1] > 0.0)
                left_of = left_of - left * right
                at += right
            node = WIDTH * (node - BEFORE - each) + at
        return node - first_of(depth)


def first_of(level: int) -> int:
    """The first node of a level; that of TOP is 0."""
    above: int = (WIDTH**level - 1) // (WIDTH - 1)
    return TOP + above


def _halved(rows: Float64) -> Float64:
    """Sums of neighbours."""
    found: Float64 = rows[:, 0::2] + rows[:, 1::2]
    return found


def fastest_loops() -> Loops:
    """Compiled ones, which takes a second, if numba can be imported, else numpy's."""
    try:
        compiled = importlib.import_module("headrace.lanes.compiled")
    except (ImportError, OSError):  # absent, made for another numpy, or its library does not load
        return NumpyLoops()
    return cast("Loops", compiled)


class SumTree:
    """Numbers of 0 or more, and above them a tree of their sums, each the sum of the eight below it.

    The eight are added as pairs, pairs of pairs and halves, and a mark goes by the same. So sums and draws are those of a
    tree of pairs, a function of the numbers alone, not of the order in which they were set; and a tree that is made again
    from its numbers draws the same, bit for bit.

    Args:
        size: How many numbers; all are 0.
        loops: What does the work, see `fastest_loops`.
    """

    def __init__(self, size: int, loops: Loops) -> None:
        self._loops = loops
        self._depth = 1
        while WIDTH**self._depth < size:
            self._depth += 1
        first = first_of(self._depth)
        self._nodes: Float64 = aligned(
            (first + -(-size // WIDTH) * WIDTH + WIDTH,), np.float64
        )  # the last eight stay 0
        self.numbers = self._nodes[first : first + size]
        """To be read; `set` changes them."""

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._nodes[TOP])

    def set(self, places: Int64, numbers: Float64) -> None:
        """Change the numbers at these places; of a place that is named twice the last one counts."""
        self._loops.put(self._nodes, self._depth, places, numbers)

    def find(self, marks: Float64) -> Int64:
        """Places at which the running sum passes each of ``marks``, in [0, `total`); never one whose number is 0."""
        return self._loops.find(self._nodes, self._depth, marks)

    def clear(self) -> None:
        """Make all numbers 0."""
        self._nodes[:] = 0.0
