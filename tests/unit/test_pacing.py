"""How far on-policy collectors may be ahead, and when a rollout is complete."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.lanes.rollouts import Arrived, oldest
from headrace.runtime.pacing import Grant, Pace, window_chunks

EVERYBODY = (0, 1, 2)
STEPS = 8


def pace(lag: int, *, ordered: bool = True) -> Pace:
    return Pace(len(EVERYBODY), STEPS, lag, ordered=ordered)


def arrived(*chunks: tuple[int, int, int]) -> list[Arrived]:
    """(group, chunk, version)"""
    return [Arrived(group, chunk, version, (0,)) for group, chunk, version in chunks]


def test_strictly_on_policy_a_round_begins_when_the_one_before_was_trained_on():
    p = pace(0)
    assert p.grant(1, 1000, [], EVERYBODY) == [Grant(0, 0, 1), Grant(1, 0, 1), Grant(2, 0, 1)]
    assert p.grant(1, 1000, [], EVERYBODY) == []
    p.on_commit(1)
    there = arrived((1, 0, 1))
    assert p.busy == [0, 2]
    assert not p.complete(1, there, EVERYBODY)
    p.on_commit(0)
    p.on_commit(2)
    there += arrived((0, 0, 1), (2, 0, 1))
    assert p.complete(1, there, EVERYBODY)
    assert p.grant(1, 1000, there, EVERYBODY) == []
    assert p.grant(2, 1000, [], EVERYBODY) == [Grant(0, 1, 2), Grant(1, 1, 2), Grant(2, 1, 2)]


def test_with_a_lag_the_next_rounds_are_granted_at_once():
    p = pace(2)
    assert p.grant(1, 1000, [], EVERYBODY) == [Grant(group, 0, 3) for group in EVERYBODY]
    for group in EVERYBODY:
        p.on_commit(group)
    assert p.grant(2, 1000, [], EVERYBODY) == [Grant(group, 1, 4) for group in EVERYBODY]


def test_a_round_is_granted_whole_and_none_beyond_what_is_wanted():
    p = pace(4)
    assert {grant.limit for grant in p.grant(1, STEPS * 3 + 1, [], EVERYBODY)} == {2}
    assert p.grant(1, STEPS * 6, [], EVERYBODY) == []


def test_who_is_lost_is_not_awaited_and_who_joins_begins_with_the_others():
    p = pace(0)
    p.grant(1, 1000, [], EVERYBODY)
    p.on_lost(2)
    p.on_commit(0)
    p.on_commit(1)
    there = arrived((0, 0, 1), (1, 0, 1), (2, 0, 1))  # the last one salvaged
    assert p.complete(1, there, (0, 1))
    assert p.grant(2, 1000, [], (0, 1)) == [Grant(0, 1, 2), Grant(1, 1, 2)]
    for group in (0, 1):
        p.on_commit(group)
    assert p.grant(3, 1000, [], EVERYBODY) == [Grant(group, 2, 3) for group in EVERYBODY]


@pytest.mark.parametrize("lag", [0, 2])
def test_a_round_that_everybody_was_lost_in_before_its_first_step_is_waited_for_by_nobody(lag):
    p = pace(lag)
    p.grant(1, 1000, [], EVERYBODY)
    for group in EVERYBODY:
        p.on_lost(group)
    assert p.grant(1, 1000, [], EVERYBODY) == [Grant(group, lag + 1, 2 * lag + 2) for group in EVERYBODY]


def test_nobody_there_is_granted_nothing():
    assert pace(0).grant(1, 1000, [], ()) == []


def test_by_arrival_the_slow_are_not_waited_for_until_the_lag_is_reached():
    p = pace(1, ordered=False)
    p.grant(1, 1000, [], EVERYBODY)
    for _ in range(2):
        for group in (0, 1):
            p.on_commit(group)
    there = arrived((0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1))
    assert p.complete(1, there, EVERYBODY)  # group 2 has sent nothing
    there = there[3:]
    p.grant(2, 1000, there, EVERYBODY)
    for group in (0, 1):
        p.on_commit(group)
    there += arrived((0, 2, 2), (1, 2, 2))
    assert not p.complete(2, there, EVERYBODY)  # or what group 2 is making would be two versions old


def test_a_cut_without_a_step_makes_nobody_wait_longer_than_the_lag():
    p = pace(1, ordered=False)
    p.grant(1, 1000, [], EVERYBODY)
    there = arrived((2, 0, 1), (2, 1, 1))
    p.on_commit(2)
    p.on_commit(2)
    p.on_lost(2)
    there.append(Arrived(2, 2, 1, (0,), has_steps=False))
    for group, chunk in ((1, 0), (0, 0), (1, 1), (0, 1)):
        p.on_commit(group)
        there += arrived((group, chunk, 1))
    for version in (1, 2):
        assert p.complete(version, there, (0, 1))
        there = _trained(p, there, version, 1, ordered=False)
    assert not there


def test_a_run_goes_on_with_numbers_nobody_has_used():
    p = pace(1)
    p.grant(1, 1000, [], EVERYBODY)
    q = pace(1)
    q.go_on(p.state())
    assert {grant.chunk for grant in q.grant(9, 1000, [], EVERYBODY)} == {2}


@pytest.mark.parametrize("ordered", [True, False])
@given(data=st.data(), lag=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_nothing_is_trained_on_later_than_declared_and_nobody_waits_for_ever(ordered, data, lag):
    p, version, there, room = pace(lag, ordered=ordered), 1, list[Arrived](), STEPS * 30
    running: list[list[tuple[int, int]]] = [[] for _ in EVERYBODY]  # (chunk, version it is acted with)
    made = turn = 0
    deaths = {} if ordered else data.draw(st.dictionaries(st.integers(1, 40), st.booleans(), max_size=4))
    while True:
        for group, chunk, limit in p.grant(version, room - made, there, EVERYBODY):
            known = {number for number, _ in running[group]}
            running[group] += [(number, version) for number in range(chunk, limit) if number not in known]
        busy = [group for group in EVERYBODY if running[group]]
        assert sorted(p.busy) == busy
        turn += 1
        if busy and turn in deaths:  # its collector dies, before its next step or in a chunk
            group = busy[turn % len(busy)]
            chunk, since = running[group][0]
            running[group].clear()
            p.on_lost(group)
            there.append(Arrived(group, chunk, since, (0,), has_steps=deaths[turn]))
            made += STEPS * deaths[turn]
            continue
        if p.complete(version, there, EVERYBODY) and (not busy or data.draw(st.booleans())):
            there = _trained(p, there, version, lag, ordered=ordered)
            version += 1
        elif busy:
            group = data.draw(st.sampled_from(busy))
            chunk, since = running[group].pop(0)
            p.on_commit(group)
            there.append(Arrived(group, chunk, since, (0,)))
            made += STEPS
            assert sum(one.group == group for one in there) + len(running[group]) <= window_chunks(lag, ordered=ordered)
        else:
            break
    assert made >= room
    assert not there


def _trained(p: Pace, there: list[Arrived], version: int, lag: int, *, ordered: bool) -> list[Arrived]:
    lowest = min(one.chunk for one in there)
    taken = [one for one in there if one.chunk == lowest] if ordered else oldest(there, len(EVERYBODY))
    assert max((version - one.version for one in taken if one.has_steps), default=0) <= lag
    return [one for one in there if one not in taken]
