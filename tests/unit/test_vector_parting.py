"""Who shares a worker after one has ended."""

from __future__ import annotations

import itertools
import math

import pytest

from headrace.vector.parting import parted


def test_suspects_are_halved_and_the_others_stay_together() -> None:
    assert parted([2, 3, 5, 7, 9], {3, 7, 9}, again=False) == ([[3, 7], [9]], [[2, 5]])
    assert parted([2, 3, 5, 7, 9], {3}, again=False) == ([[3]], [[2, 5, 7, 9]])
    assert parted([2, 3], {2, 3}, again=False) == ([[2], [3]], [])
    assert parted([2], {2}, again=True) == ([[2]], [])
    assert parted([], {}, again=True) == ([], [])


def test_the_others_are_halved_where_suspecting_one_has_not_helped() -> None:
    assert parted([2, 3, 5, 7, 9], {3}, again=True) == ([[3]], [[2, 5], [7, 9]])


@pytest.mark.parametrize("count", range(2, 9))
def test_whoever_it_is_and_whoever_is_suspected_it_is_alone_before_long(count: int) -> None:
    """All ways in which it can go; it is only once that it costs more than halving."""

    def times(housed: list[int], culprit: int, *, again: bool) -> int:
        if len(housed) == 1:
            return 0
        worst = 0
        for size in range(1, len(housed) + 1):
            for suspects in itertools.combinations(housed, size):
                apart, together = parted(housed, suspects, again=again)
                [home] = [group for group in apart + together if culprit in group]
                worst = max(worst, 1 + times(home, culprit, again=True))
        return worst

    for culprit in range(count if count < 6 else 1):
        assert times(list(range(count)), culprit, again=False) <= 1 + math.ceil(math.log2(count))
