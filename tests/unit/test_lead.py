"""How far collecting is let ahead of learning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.lanes.lead import Lead


def test_a_learner_that_never_waits_keeps_collecting_close() -> None:
    lead = Lead(16, 32)
    assert lead.steps == 16
    lead.arrived(1_000)
    assert lead.steps == 16


def test_each_wait_lets_collecting_a_quarter_of_a_round_further_ahead() -> None:
    lead = Lead(16, 32)
    found = []
    for _ in range(6):
        lead.waited()
        found.append(lead.steps)
    assert found == [20, 24, 28, 32, 32, 32]


def test_without_waits_collecting_is_called_back_slowly() -> None:
    lead = Lead(16, 32)
    lead.waited()
    lead.arrived(256)
    assert lead.steps == 19
    lead.arrived(3 * 256)
    assert lead.steps == 16


def test_all_is_allowed_where_nobody_would_go_on() -> None:
    lead = Lead(16, 32)
    lead.stuck()
    assert lead.steps == 32


@given(st.integers(1, 500), st.integers(0, 500), st.lists(st.sampled_from(["waited", "stuck", "arrived"]), max_size=60))
def test_it_never_leaves_its_bounds(least: int, more: int, events: list[str]) -> None:
    lead = Lead(least, least + more)
    for event in events:
        lead.arrived(40) if event == "arrived" else getattr(lead, event)()
        assert least <= lead.steps <= least + more
