"""The loops of a sum tree, compiled with numba when this module is imported; see `headrace.lanes.sumtree`.

Additions and comparisons are those of `headrace.lanes.sumtree.NumpyLoops`, in the same order, without ``fastmath``.
Nothing is cached on disk: compiling takes a second, and a run leaves no file outside its directory.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.lanes.sumtree import BEFORE, TOP, WIDTH, Float64, Int64, Uint64, first_of

# Without a sign: numba need not ask whether they count from the end, a quarter of the time.
_TOP, _BEFORE, _BITS = np.uint64(TOP), np.uint64(BEFORE), np.uint64(3)
_1, _2, _4 = np.uint64(1), np.uint64(2), np.uint64(4)
_first_of = numba.njit("int64(int64)")(first_of)


@numba.njit("float64(float64[::1], uint64)")
def _two(nodes: Float64, n: np.uint64) -> float:
    return float(nodes[n] + nodes[n | _1])


@numba.njit("float64(float64[::1], uint64)")
def _four(nodes: Float64, n: np.uint64) -> float:
    return _two(nodes, n) + _two(nodes, n | _2)


@numba.njit("void(uint64[::1], float64[::1], float64[::1], uint64)")
def _turn(at: Uint64, left_of: Float64, below: Float64, bit: np.uint64) -> None:
    """Marks that pass what is to their left go right. Without branches, since nobody can foresee them."""
    for k in range(len(at)):
        right = left_of[k] >= below[k]
        left_of[k] = left_of[k] - below[k] if right else left_of[k]
        at[k] = at[k] | bit if right else at[k]


@numba.njit("uint64(float64[::1], int64, float64)")
def _within(nodes: Float64, depth: int, mark: float) -> np.uint64:
    """The node of one mark, which rounding has carried to the very end: it must not fall off it."""
    n = _TOP
    for _ in range(depth):
        n = (n - _BEFORE) << _BITS
        if mark >= _four(nodes, n) and _four(nodes, n | _4) > 0.0:
            mark, n = mark - _four(nodes, n), n | _4
        if mark >= _two(nodes, n) and _two(nodes, n | _2) > 0.0:
            mark, n = mark - _two(nodes, n), n | _2
        if mark >= nodes[n] and nodes[n | _1] > 0.0:
            mark, n = mark - nodes[n], n | _1
    return n


def _put(nodes: Float64, depth: int, places: Int64, numbers: Float64) -> None:
    count, first = len(places), _first_of(depth)
    at = np.empty(count, np.uint64)
    for k in range(count):
        at[k] = np.uint64(first + places[k])
        nodes[at[k]] = numbers[k]
    for _ in range(depth):
        kept, newest = 0, np.uint64(0)
        for k in range(count):  # neighbours soon have their sums in common
            node = (at[k] >> _BITS) + _BEFORE
            if node != newest:
                at[kept] = newest = node
                kept += 1
        count = kept
        for k in range(count):
            n = (at[k] - _BEFORE) << _BITS
            nodes[at[k]] = _four(nodes, n) + _four(nodes, n | _4)


def _find(nodes: Float64, depth: int, marks: Float64) -> Int64:
    at, left_of, below = np.full(len(marks), _TOP), marks.copy(), np.empty(len(marks))
    last = np.uint64(len(nodes) - WIDTH)  # zeros, where marks end that rounding has carried beyond all numbers
    for _ in range(depth):  # level by level: one mark waits for memory while the others go on
        for k in range(len(marks)):
            at[k] = min((at[k] - _BEFORE) << _BITS, last)
            below[k] = _four(nodes, at[k])
        _turn(at, left_of, below, _4)
        for k in range(len(marks)):
            below[k] = _two(nodes, at[k])
        _turn(at, left_of, below, _2)
        for k in range(len(marks)):
            below[k] = nodes[at[k]]
        _turn(at, left_of, below, _1)
    for k in range(len(marks)):
        if nodes[at[k]] == 0.0:
            at[k] = _within(nodes, depth, marks[k])
    return at.view(np.int64) - _first_of(depth)


put = numba.njit("void(float64[::1], int64, int64[::1], float64[::1])")(_put)
"""See `headrace.lanes.sumtree.Loops`; arrays are contiguous."""
find = numba.njit("int64[::1](float64[::1], int64, float64[::1])")(_find)
"""See `headrace.lanes.sumtree.Loops`; arrays are contiguous."""
