"""Numbers and the tree of their sums: draws places in proportion to their numbers.

Two implementations of its two loops say the same, bit for bit: numpy, and numba where it is installed, in a tenth of the
time. So a run that was recorded with one can be replayed with the other.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class Loops(Protocol):
    """What a tree does with its sums [2 ** (depth + 1)], whose second half are the numbers."""

    def put(self, sums: Float64, depth: int, places: Int64, numbers: Float64) -> None:
        """Change the numbers at these places, and the sums above; of a place that is named twice the last one counts."""
        ...

    def find(self, sums: Float64, depth: int, marks: Float64) -> Int64:
        """Places at which the running sum passes each of ``marks``; never one whose number is 0."""
        ...


class NumpyLoops:
    """One numpy call a level and operation."""

    def put(self, sums: Float64, depth: int, places: Int64, numbers: Float64) -> None:
        """See `Loops`."""
        nodes = places + (1 << depth)
        sums[nodes] = numbers
        for above in range(depth - 1, -1, -1):
            if len(places) >= 1 << above:  # all of this level, and of those above it, are summed faster than some
                self._sum_all(sums, 1 << above)
                return
            nodes = nodes >> 1
            left = 2 * nodes
            sums[nodes] = sums.take(left) + sums.take(left + 1)

    def find(self, sums: Float64, depth: int, marks: Float64) -> Int64:
        """See `Loops`."""
        node, left_of = np.ones(len(marks), np.int64), marks.copy()
        for _ in range(depth):
            left = 2 * node
            below = sums[left]
            # A mark that rounding has carried to the very end must not fall off it.
            right = (left_of >= below) & (sums[left + 1] > 0.0)
            left_of = np.where(right, left_of - below, left_of)
            node = left + right
        return node - (1 << depth)

    @staticmethod
    def _sum_all(sums: Float64, first: int) -> None:
        while first:
            np.add(sums[2 * first : 4 * first : 2], sums[2 * first + 1 : 4 * first : 2], out=sums[first : 2 * first])
            first //= 2


def fastest_loops() -> Loops:
    """Compiled ones, which takes a second, if numba can be imported, else numpy's."""
    try:
        compiled = importlib.import_module("headrace.lanes.compiled")
    except (ImportError, OSError):  # absent, made for another numpy, or its library does not load
        return NumpyLoops()
    return cast("Loops", compiled)


class SumTree:
    """Numbers of 0 or more, and above them a tree of their sums, each the sum of the two below it.

    The sums are a function of the numbers alone, not of the order in which they were set; so a tree that is made
    again from its numbers draws the same, bit for bit.

    Args:
        size: How many numbers; all are 0.
        loops: What does the work, see `fastest_loops`.
    """

    def __init__(self, size: int, loops: Loops) -> None:
        self._loops = loops
        self._depth = max(0, size - 1).bit_length()
        first = 1 << self._depth
        self._sums: Float64 = np.zeros(2 * first)
        self.numbers = self._sums[first : first + size]
        """To be read; `set` changes them."""

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._sums[1])

    def set(self, places: Int64, numbers: Float64) -> None:
        """Change the numbers at these places; of a place that is named twice the last one counts."""
        self._loops.put(self._sums, self._depth, places, numbers)

    def find(self, marks: Float64) -> Int64:
        """Places at which the running sum passes each of ``marks``, in [0, `total`); never one whose number is 0."""
        return self._loops.find(self._sums, self._depth, marks)

    def clear(self) -> None:
        """Make all numbers 0."""
        self._sums[:] = 0.0
