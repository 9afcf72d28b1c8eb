"""The tree of sums: what is found by what mark, and that numpy and numba say the same, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.lanes import compiled
from headrace.lanes.sumtree import NumpyLoops, SumTree, fastest_loops

LOOPS = {"numpy": NumpyLoops(), "numba": compiled}
NUMBERS = st.one_of(st.just(0.0), st.floats(0, 1e6), st.floats(1e-12, 1e-6))


@pytest.fixture(params=list(LOOPS))
def loops(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]


@pytest.mark.parametrize("name", list(LOOPS))
@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=70), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_mark_finds_the_number_whose_part_of_the_sum_it_lies_in(
    name: str, numbers: list[float], marks: list[float]
) -> None:
    tree = SumTree(len(numbers), LOOPS[name])
    tree.set(np.arange(len(numbers)), np.array(numbers))
    assert tree.total == pytest.approx(sum(numbers))
    if not tree.total:
        return
    at = np.array(marks) * tree.total
    found = tree.find(at)
    ends = np.cumsum(numbers)
    slack = 1e-9 * tree.total
    for mark, place in zip(at, found, strict=True):
        assert numbers[place] > 0.0
        assert ends[place] - numbers[place] - slack <= mark <= ends[place] + slack


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.lists(st.lists(st.tuples(st.integers(0, 299), NUMBERS), max_size=80), max_size=6),
       st.lists(st.floats(0, 1), max_size=30))  # fmt: skip
def test_numpy_and_numba_are_the_same_bit_for_bit(
    size: int, changes: list[list[tuple[int, float]]], marks: list[float]
) -> None:
    trees = [SumTree(size, loops) for loops in LOOPS.values()]
    for change in changes:
        places = np.array([place % size for place, _ in change], np.int64)
        numbers = np.array([number for _, number in change], np.float64)
        for tree in trees:
            tree.set(places, numbers)
        assert trees[0]._nodes.tobytes() == trees[1]._nodes.tobytes()
        last = dict(zip(places.tolist(), numbers.tolist(), strict=True))
        assert [trees[0].numbers[place] for place in last] == list(last.values())
        at = np.array(marks) * trees[0].total
        assert trees[0].find(at).tolist() == trees[1].find(at).tolist()


@pytest.mark.parametrize("mark", [0.0, 0.5, 1.0, 2.0])
def test_what_has_priority_zero_is_never_found_not_even_at_the_very_ends(mark: float, loops: Any) -> None:
    tree = SumTree(4, loops)
    tree.set(np.array([2]), np.ones(1))
    assert tree.find(np.array([mark])).tolist() == [2]


def test_sums_hang_on_the_numbers_alone_and_not_on_the_order_they_came_in(loops: Any) -> None:
    rng = np.random.default_rng(0)
    one_by_one, at_once = SumTree(1000, loops), SumTree(1000, loops)
    for _ in range(400):
        places = rng.integers(0, 1000, 8)
        one_by_one.set(places, rng.random(8) * 10.0 ** rng.integers(-6, 6))
    at_once.set(np.arange(1000), one_by_one.numbers.copy())
    assert one_by_one._nodes.tobytes() == at_once._nodes.tobytes()


class Pairs:
    """The textbook's tree, each sum that of two: what ours sums and finds, eight at a time."""

    def __init__(self, numbers: list[float]) -> None:
        first = 1 << max(0, len(numbers) - 1).bit_length()
        self._sums = np.zeros(2 * first)
        self._sums[first : first + len(numbers)] = numbers
        for node in range(first - 1, 0, -1):
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def find(self, mark: float) -> int:
        node = 1
        while 2 * node < len(self._sums):
            node *= 2
            if mark >= self._sums[node] and self._sums[node + 1] > 0.0:
                mark, node = mark - self._sums[node], node + 1
        return node - len(self._sums) // 2


@pytest.mark.parametrize("name", list(LOOPS))
@settings(max_examples=150, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=600), st.lists(st.floats(0, 1.001), min_size=1, max_size=40))
def test_sums_and_places_are_those_of_a_tree_of_pairs_bit_for_bit(
    name: str, numbers: list[float], marks: list[float]
) -> None:
    tree, pairs = SumTree(len(numbers), LOOPS[name]), Pairs(numbers)
    tree.set(np.arange(len(numbers)), np.array(numbers))
    assert tree.total == pairs.total
    at = np.array(marks) * tree.total
    assert tree.find(at).tolist() == [pairs.find(mark) for mark in at]


def test_the_eight_below_a_node_lie_in_one_cache_line(loops: Any) -> None:
    assert all(SumTree(size, loops)._nodes.ctypes.data % 64 == 0 for size in (1, 8, 9, 1000))


def test_of_a_place_that_is_set_twice_the_last_number_counts(loops: Any) -> None:
    tree = SumTree(64, loops)
    tree.set(np.array([5, 9, 5]), np.array([3.0, 2.0, 1.0]))
    assert (tree.numbers[5], tree.total) == (1.0, 3.0)


def test_a_cleared_tree_is_a_new_one(loops: Any) -> None:
    tree = SumTree(5, loops)
    tree.set(np.arange(5), np.ones(5))
    tree.clear()
    assert tree._nodes.tobytes() == SumTree(5, loops)._nodes.tobytes()


def test_without_numba_it_is_numpy() -> None:
    assert fastest_loops() is compiled
    with mock.patch.dict(sys.modules, {"numba": None}):
        del sys.modules["headrace.lanes.compiled"]
        assert isinstance(fastest_loops(), NumpyLoops)


def test_who_draws_nothing_by_priority_does_not_import_numba() -> None:
    code = (
        "import sys; import headrace.lanes.prioritised, headrace.runtime.asynchronous, headrace.collectors.collector; "
        "print([name for name in sys.modules if name.partition('.')[0] in ('numba', 'llvmlite')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
