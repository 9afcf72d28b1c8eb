"""How many updates are due, and how many steps are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.lanes.rate_limiter import RateLimiter

LIMITERS = st.builds(
    RateLimiter, st.integers(1, 10_000), st.floats(1e-4, 100), st.integers(1, 5_000), st.integers(1, 10**9)
)


@pytest.mark.parametrize(("env_steps", "updates"), [(0, 0), (99, 0), (100, 1), (103, 1), (104, 2), (108, 3)])
def test_updates_become_due_one_by_one(env_steps: int, updates: int) -> None:
    assert RateLimiter(100, 0.25, 10, 10_000).updates_due(env_steps) == updates


@pytest.mark.parametrize(("updates", "steps"), [(0, 110), (1, 114), (2, 118), (5_000, 10_000)])
def test_steps_are_allowed_as_updates_are_made(updates: int, steps: int) -> None:
    assert RateLimiter(100, 0.25, 10, 10_000).steps_allowed(updates) == steps


@given(LIMITERS, st.integers(0, 10**7))
def test_a_learner_that_has_caught_up_allows_more_steps(limiter: RateLimiter, env_steps: int) -> None:
    updates = limiter.updates_due(env_steps)
    assert limiter.steps_allowed(updates) > env_steps or env_steps >= limiter.target_steps


@given(LIMITERS, st.integers(0, 10**6))
def test_collecting_is_never_ahead_by_more_than_the_slack(limiter: RateLimiter, updates: int) -> None:
    allowed = limiter.steps_allowed(updates)
    steps_of_the_updates = limiter.learning_starts + updates / limiter.ratio  # type: ignore[operator]
    assert allowed <= steps_of_the_updates + limiter.slack_steps + 1


@given(LIMITERS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_neither_side_is_ever_called_back(limiter: RateLimiter, now: int, more: int) -> None:
    assert limiter.updates_due(now) <= limiter.updates_due(now + more)
    assert limiter.steps_allowed(now) <= limiter.steps_allowed(now + more)


def test_what_is_due_and_cannot_be_made_allows_as_many_steps_as_bring_a_transition_and_no_more() -> None:
    limiter = RateLimiter(100, 0.25, 10, 10_000, draw_steps=160)
    assert limiter.steps_allowed(0) == 110
    assert limiter.steps_allowed(0, starved=True) == 270
    assert limiter.steps_allowed(0, 4, starved=True) == 264
    assert RateLimiter(100, 0.25, 10, 200, draw_steps=160).steps_allowed(0, starved=True) == 200


def test_free_running_bounds_nothing_but_the_target() -> None:
    limiter = RateLimiter(5, None, 1, 70)
    assert limiter.steps_allowed(0) == 70
    assert limiter.updates_due(4) == 0
    assert limiter.updates_due(5) > 10**15


@pytest.mark.parametrize(
    ("env_steps", "updates", "ratio"), [(0, 0, None), (100, 1, None), (150, 0, None), (150, 25, 0.5)]
)
def test_the_measured_ratio_is_absent_until_it_was_measured(env_steps: int, updates: int, ratio: float | None) -> None:
    assert RateLimiter(100, 0.5, 1, 1_000).measured(env_steps, updates) == ratio


@pytest.mark.parametrize(("starts", "slack"), [(0, 5), (5, 0), (-1, 1)])
def test_settings_that_wait_for_ever_are_refused(starts: int, slack: int) -> None:
    with pytest.raises(ConfigError) as caught:
        RateLimiter(starts, 1.0, slack, 100)
    assert str(caught.value) == (
        "[CFG-001] the run would wait for ever: the learner waits for steps nobody may collect\n"
        f"  slack steps: {slack}\n"
        f"  learning starts: {starts}\n"
        "  fix: raise replay.slack_steps to the steps of one chunk or more, replay.learning_starts to 1 or more"
    )


@pytest.mark.parametrize("ratio", [0.0, -1.0])
def test_a_ratio_that_is_none_at_all_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match=f"ratio: {ratio}"):
        RateLimiter(1, ratio, 1, 100)
