"""Who is admitted, who shares a pass, who moves, who is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.llm.engine.scheduling import Limits, Sessions, admissions, compaction, overflowing, sharing, token_limit

LIMITS = Limits(slots=16, context_tokens=100, max_waiting=4, prefill_tokens=64, patience_passes=8)


@pytest.mark.parametrize(
    ("waiting", "running", "passes_waited", "admitted"),
    [
        (0, 0, 0, 0),
        (5, 0, 0, 5),  # nobody is stopped by it
        (40, 0, 0, 16),
        (5, 16, 99, 0),
        (5, 15, 0, 0),  # one of five: saved up
        (5, 15, 8, 1),  # until someone was patient
        (5, 14, 0, 2),  # an eighth is free
        (1, 10, 0, 1),  # all who wait
    ],
)
def test_admissions(waiting: int, running: int, passes_waited: int, admitted: int) -> None:
    assert admissions(waiting, running, passes_waited, LIMITS) == admitted


@pytest.mark.parametrize(
    ("new_tokens", "together"),
    [([], 0), ([500], 1), ([16, 16, 16, 16, 16], 4), ([10, 40, 10], 1), ([1] * 100, 64)],
)
def test_sharing(new_tokens: list[int], together: int) -> None:
    assert sharing(new_tokens, LIMITS) == together


def test_sharing_looks_no_further_than_it_needs() -> None:
    seen = iter([40, 40, 40])
    assert sharing(seen, LIMITS) == 1
    assert list(seen) == [40]


def test_overflowing_counts_slots_that_are_free() -> None:
    assert not overflowing(20, 0, 0, LIMITS)
    assert overflowing(21, 0, 0, LIMITS)
    assert not overflowing(1, 16, 0, LIMITS)  # those that wait take the free slots with the next pass
    assert not overflowing(10, 10, 0, LIMITS)
    assert overflowing(11, 10, 0, LIMITS)
    assert overflowing(1, 4, 16, LIMITS)
    assert not overflowing(1, 3, 16, LIMITS)


def test_the_context_limits_a_completion() -> None:
    assert token_limit(90, 50, LIMITS) == 10
    assert token_limit(10, 50, LIMITS) == 50


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_compaction_leaves_no_gap_and_loses_nobody(case: tuple[int, set[int]]) -> None:
    running, finished = case
    to, source = compaction(sorted(finished), running)
    rows = list(range(running))
    for gap, mover in zip(to, source, strict=True):
        rows[gap] = mover
    left = rows[: running - len(finished)]
    assert sorted(left) == sorted(set(range(running)) - finished)
    assert len(to) <= len(finished)


def test_the_session_used_longest_ago_makes_room() -> None:
    sessions = Sessions(2)
    first, second = sessions.keep("a"), sessions.keep("b")
    assert {first, second} == {0, 1}
    assert sessions.keep("a") == first  # again: now the newer one
    assert sessions.keep("c") == second
    assert sessions.evictions == 1
    assert sessions.find("b") is None
    assert sessions.take("a") == first
    assert sessions.take("a") is None
    assert sessions.keep("d") == first
    sessions.clear()
    assert len(sessions) == 0
    assert {sessions.keep("e"), sessions.keep("f")} == {0, 1}


def test_nothing_is_kept_where_there_is_no_room() -> None:
    assert Sessions(0).keep("a") is None
