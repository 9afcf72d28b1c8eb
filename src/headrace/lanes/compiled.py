"""The loops of a sum tree, compiled with numba when this module is imported; see `headrace.lanes.sumtree`.

Additions and comparisons are those of `headrace.lanes.sumtree.NumpyLoops`, in the same order, without ``fastmath``.
Nothing is cached on disk: compiling takes a second, and a run leaves no file outside its directory.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.lanes.sumtree import Float64, Int64

_ONE = np.uint64(1)  # places without a sign: numba need not ask whether they count from the end, a quarter of the time


def _put(sums: Float64, depth: int, places: Int64, numbers: Float64) -> None:
    count = len(places)
    nodes = np.empty(count, np.uint64)
    for k in range(count):
        nodes[k] = np.uint64(places[k] + (1 << depth))
        sums[nodes[k]] = numbers[k]
    for _ in range(depth):
        kept, newest = 0, np.uint64(0)
        for k in range(count):  # neighbours soon have their sums in common
            node = nodes[k] >> _ONE
            if node != newest:
                nodes[kept] = newest = node
                kept += 1
        count = kept
        for k in range(count):
            left = nodes[k] << _ONE
            sums[nodes[k]] = sums[left] + sums[left | _ONE]


def _find(sums: Float64, depth: int, marks: Float64) -> Int64:
    nodes, left_of = np.ones(len(marks), np.uint64), marks.copy()
    for _ in range(depth):  # level by level: one mark waits for memory while the others go on
        for k in range(len(marks)):
            left, mark = nodes[k] << _ONE, left_of[k]
            below = sums[left]
            right = (mark >= below) & (sums[left | _ONE] > 0.0)
            left_of[k] = mark - below if right else mark
            nodes[k] = left | np.uint64(right)
    return nodes.view(np.int64) - (1 << depth)


put = numba.njit("void(float64[::1], int64, int64[::1], float64[::1])")(_put)
"""See `headrace.lanes.sumtree.Loops`; arrays are contiguous."""
find = numba.njit("int64[::1](float64[::1], int64, float64[::1])")(_find)
"""See `headrace.lanes.sumtree.Loops`; arrays are contiguous."""
