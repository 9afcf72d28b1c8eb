"""Both rewards, in numbers worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from headrace.envs.fuelbreak.rewards import Outcome, reward


def outcome(**changes):
    """On a map of 1000 cells 100 burned at first, 90 before this step, and never less than 80."""
    plain = {"initial": 100.0, "previous": 90.0, "best": 80.0, "coverage": 0.02, "cells": 1000, "finished": False}
    return Outcome(**(plain | changes))


@pytest.mark.parametrize(("burned", "value"), [(70.0, 0.02), (90.0, 0.0), (95.0, -0.005)])
def test_the_first_version_pays_what_the_step_saved(burned, value):
    assert reward(outcome(burned=burned), 1) == pytest.approx(value)
    assert reward(outcome(burned=burned, finished=True), 1) == pytest.approx(value)


def test_the_first_version_adds_up_to_what_was_saved_in_all():
    burned = [100.0, 90.0, 95.0, 40.0, 42.5]
    steps = [reward(outcome(previous=before, burned=after), 1) for before, after in itertools.pairwise(burned)]
    assert sum(steps) == pytest.approx((100.0 - 42.5) / 1000)


# 0.4 * step / 1000 + 0.5 * in all / 1000 + 0.2 * record / 1000, then bonuses and the term for efficiency
@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"burned": 90.0}, 0.5 * 0.01),  # efficiency 0.1 / 0.02 = 5: neither good nor bad
        ({"burned": 85.0}, 0.4 * 0.005 + 0.5 * 0.015),
        ({"burned": 75.0, "coverage": 0.05}, 0.4 * 0.015 + 0.5 * 0.025 + 0.2 * 0.005),  # a record
        ({"burned": 99.0}, -0.4 * 0.009 + 0.5 * 0.001 - 0.05),  # efficiency 0.5
        ({"burned": 75.0}, 0.4 * 0.015 + 0.5 * 0.025 + 0.2 * 0.005 + 0.1),  # efficiency 12.5
        ({"burned": 70.0, "coverage": 0.1}, 0.4 * 0.02 + 0.5 * 0.03 + 0.2 * 0.01),  # 30 % is not above 30 %
        ({"burned": 69.0, "coverage": 0.1}, 0.4 * 0.021 + 0.5 * 0.031 + 0.2 * 0.011 + 0.1),
        ({"burned": 49.0, "coverage": 0.1}, 0.4 * 0.041 + 0.5 * 0.051 + 0.2 * 0.031 + 0.2),
        ({"burned": 29.0, "coverage": 0.1}, 0.4 * 0.061 + 0.5 * 0.071 + 0.2 * 0.051 + 0.3),
        ({"burned": 110.0}, -0.4 * 0.02 - 0.5 * 0.01 - 0.05),
        ({"burned": 100.0, "previous": 100.0, "best": 100.0, "coverage": 0.0}, 0.0),  # nothing cut: no efficiency
    ],
)
def test_the_second_version(changes, value):
    assert reward(outcome(**changes), 2) == pytest.approx(value)


@pytest.mark.parametrize(
    ("burned", "bonus"),
    [(80.0, 0.4), (60.0, 0.8), (59.0, 0.82 + 0.2), (39.0, 1.22 + 0.5), (19.0, 1.62 + 1.0), (110.0, -0.2)],
)
def test_the_second_version_pays_for_the_whole_when_the_budget_is_used_up(burned, bonus):
    extra = reward(outcome(burned=burned, finished=True), 2) - reward(outcome(burned=burned), 2)
    assert extra == pytest.approx(bonus)
