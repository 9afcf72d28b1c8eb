"""Advantages against a reference that sums each stretch by itself, and against cases that others got wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.returns import gae

NEVER = np.zeros(3, bool)
LAST = np.array([False, False, True])
ONES, TWOS = np.ones(3), np.full(3, 2.0)
NUMBERS = st.floats(-1e3, 1e3)


@st.composite
def lanes(draw: st.DrawFn) -> dict[str, Any]:
    """Steps of some lanes, with ends anywhere."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 3)))
    ends = np.array(draw(st.lists(st.sampled_from("....tuc"), min_size=math.prod(shape), max_size=math.prod(shape))))
    ends = ends.reshape(shape)
    numbers = st.lists(NUMBERS, min_size=math.prod(shape), max_size=math.prod(shape))
    arrays = {name: np.array(draw(numbers)).reshape(shape) for name in ("rewards", "values", "next_values")}
    return {**arrays, "terminated": ends == "t", "ended": ends != "."}


def slow(told: dict[str, Any], step: int, lane: int, gamma: float, lam: float) -> float:
    """The advantage of one step, as a sum over what is left of its stretch."""
    parts, factor = [], 1.0
    for at in range(step, len(told["rewards"])):
        reward, value, after = (float(told[name][at, lane]) for name in ("rewards", "values", "next_values"))
        parts.append(factor * (reward - value + (0.0 if told["terminated"][at, lane] else gamma * after)))
        if told["ended"][at, lane]:
            break
        factor *= gamma * lam
    return math.fsum(parts)


@settings(max_examples=200, report_multiple_bugs=False)
@given(lanes(), st.floats(0, 1), st.floats(0, 1))
def test_advantages_equal_a_slow_reference_whatever_ends_in_between(
    told: dict[str, Any], gamma: float, lam: float
) -> None:
    advantages, returns = gae(**told, gamma=gamma, lam=lam)
    for step, lane in np.ndindex(told["rewards"].shape):
        expected = slow(told, step, lane, gamma, lam)
        assert advantages[step, lane] == pytest.approx(expected, rel=1e-9, abs=1e-8)
        assert returns[step, lane] == pytest.approx(expected + told["values"][step, lane], rel=1e-9, abs=1e-8)


@pytest.mark.parametrize(
    ("terminated", "ended", "expected"),
    [
        (NEVER, LAST, [2.06882, 1.484, 0.8]),
        (NEVER, NEVER, [2.06882, 1.484, 0.8]),
        (LAST, LAST, [0.752975, -0.055, -1.0]),
        (LAST, NEVER, [0.752975, -0.055, -1.0]),
    ],
    ids=["truncated", "goes on elsewhere", "terminated", "terminated alone"],
)
def test_e063_only_what_terminated_is_worth_nothing_afterwards(terminated, ended, expected):
    advantages, _ = gae(ONES, TWOS, TWOS, terminated, ended, 0.9, 0.95)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12)


def test_e064_a_timeout_bootstraps_from_the_terminal_observation():
    one = np.ones(1)
    assert gae(one, 2 * one, 5 * one, one < 0, one > 0, 0.9, 0.95)[1].tolist() == [5.5]


def test_e070_a_last_step_that_terminates_says_nothing_of_those_before():
    assert gae(0 * ONES, 0 * ONES, 5 * ONES, LAST, LAST, 1.0, 0.0)[1].tolist() == [5.0, 5.0, 0.0]


def test_e062_nothing_of_the_next_episode_is_in_a_stretch():
    """A truncated episode of two steps, and another one: the second one's rewards change nothing in the first."""
    ended = np.array([False, True, False, False])
    found = [
        gae(np.array([1.0, 1.0, later, later]), np.zeros(4), np.full(4, 3.0), np.zeros(4, bool), ended, 0.9, 0.95)[0]
        for later in (0.0, 1e6)
    ]
    assert found[0][:2].tolist() == found[1][:2].tolist()
    assert found[0][2] != found[1][2]


def test_what_follows_a_termination_is_not_looked_at():
    advantages, _ = gae(ONES, TWOS, np.array([2.0, 2.0, np.nan]), LAST, LAST, 0.9, 0.95)
    assert np.isfinite(advantages).all()


def test_numbers_of_single_precision_are_summed_in_double():
    single = np.full(3, 0.1, np.float32)
    advantages, returns = gae(single, single, single, NEVER, LAST, 0.9, 1.0)
    assert (advantages.dtype, returns.dtype) == (np.float64, np.float64)
    one = float(single[0])
    assert advantages[0] == pytest.approx(0.9 * one * (1 + 0.9 + 0.81), rel=1e-12)
