"""Who is started, stopped and given up in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.commands.ordering import blocked_by, hopeless, needed_by, next_to_stop, ring, startable

RL = {"inference": [], "environments": [], "orchestrator": ["inference", "environments"], "trainer": ["orchestrator"]}


def test_who_needs_nobody_is_started_first():
    assert startable(RL, set(RL), set()) == ["inference", "environments"]
    assert startable(RL, {"orchestrator", "trainer"}, {"inference"}) == []
    assert startable(RL, {"orchestrator", "trainer"}, {"inference", "environments"}) == ["orchestrator"]
    assert blocked_by("orchestrator", RL, {"inference"}) == "environments"
    assert blocked_by("inference", RL, set()) is None


def test_nobody_is_stopped_while_somebody_needs_it():
    alive = set(RL)
    waves = []
    while alive:
        wave = next_to_stop(RL, alive)
        waves.append(wave)
        alive -= set(wave)
    assert waves == [["trainer"], ["orchestrator"], ["environments", "inference"]]


def test_who_waits_for_one_that_is_gone_is_hopeless_through_others_too():
    assert hopeless(RL, {"orchestrator", "trainer"}, {"environments"}) == {
        "orchestrator": "environments",
        "trainer": "orchestrator",
    }
    assert hopeless(RL, {"trainer"}, {"environments"}) == {}
    assert needed_by("inference", RL) == ["orchestrator", "trainer"]


def test_a_ring_is_found():
    assert ring(RL) == []
    assert ring({"a": ["a"]}) == ["a"]
    assert ring({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]}) == ["b", "c", "d"]


@given(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8))
def test_whatever_has_no_ring_can_be_started_and_stopped_whole(wanted):
    names = [str(number) for number in range(len(wanted))]
    needs = {name: [str(one) for one in ones if one < len(names)] for name, ones in zip(names, wanted, strict=True)}
    ready: set[str] = set()
    while more := startable(needs, set(names) - ready, ready):
        ready |= set(more)
    assert (ready == set(names)) == (ring(needs) == [])
    while wave := next_to_stop(needs, ready):
        assert not {one for name in ready - set(wave) for one in needs[name]} & set(wave)
        ready -= set(wave)
    assert not ready or ring(needs)
