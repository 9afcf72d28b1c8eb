"""Whether one schedule learns what another does: scores, intervals and findings, on curves made up by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.runtime.comparing import Comparison, Curve, Estimate, Finding, compare, seeds_needed, t_quantile

NAN = math.nan


def curve(score, seed=0, schedule="inline", random=0.0):
    """Three evaluations, the last of which is the score."""
    return Curve(schedule, seed, ((40, 0.0), (80, 1.0), (120, score)), random)


def compared(inline, other, share=0.1, random=0.0):
    left = [curve(score, seed, random=random) for seed, score in enumerate(inline)]
    right = [curve(score, seed, "async", random) for seed, score in enumerate(other)]
    return compare(left, right, steps=120, share=share)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 15, 29, 30, 31, 40, 100])
def test_a_t_interval_holds_ninety_five_percent(freedom):
    """Against the density itself, integrated; with one degree of freedom it has a closed form."""
    half = t_quantile(freedom)
    if freedom == 1:
        inside = 2 * math.atan(half) / math.pi
    else:
        at = np.linspace(-half, half, 200_001)
        constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
        inside = float(np.trapezoid(constant * (1 + at**2 / freedom) ** (-(freedom + 1) / 2), at))
    assert inside == pytest.approx(0.95, abs=1.5e-5)  # four digits of the quantile


def test_an_estimate_is_students():
    found = Estimate.of([1.0, 2.0, 4.0])
    half = 4.3027 * math.sqrt(7 / 3) / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half))
    assert Estimate.of([3.0]) == Estimate(3.0, None, None, 1)
    assert (Estimate.of([3.0, 3.0]).low, Estimate.of([3.0, 3.0]).high) == (3.0, 3.0)


def test_a_score_is_the_mean_of_the_last_third():
    points = tuple((at, float(at)) for at in range(10, 130, 10))
    assert Curve("async", 0, points).score(120) == (90 + 100 + 110 + 120) / 4
    assert Curve("async", 0, ((10, 3.0), (20, 5.0))).score(120) == 5.0
    assert Curve("async", 0, ()).score(120) is None


def test_a_score_is_not_made_of_what_is_left_beside_nan():
    assert Curve("async", 0, ((100, NAN), (120, 3.0))).score(120) is None
    assert Curve("async", 0, ((20, NAN), (120, 3.0))).score(120) == 3.0


def test_a_curve_has_values_between_and_near_its_points():
    found = Curve("async", 0, ((100, 0.0), (200, 10.0), (300, NAN)))
    assert [found.at(step, 25) for step in (100, 150, 200)] == [0.0, 5.0, 10.0]
    assert (found.at(80, 25), found.at(70, 25)) == (0.0, None)
    assert (found.at(250, 25), found.at(310, 25)) == (None, None)
    assert Curve("async", 0, ()).at(10, 25) is None


def test_a_curve_of_a_summary():
    summary = {
        "schedule": "async", "seed": 3, "random_baseline": {"mean_reward": -5.0},
        "evaluations": [{"env_steps": 100, "mean_reward": 1.0}, {"env_steps": 200, "mean_reward": None}],
    }  # fmt: skip
    found = Curve.of(summary)
    assert (found.schedule, found.seed, found.random, found.points[0]) == ("async", 3, -5.0, (100, 1.0))
    assert math.isnan(found.points[1][1])
    assert Curve.of(summary | {"random_baseline": None, "evaluations": None}) == Curve("async", 3, ())
    assert Curve.of(summary | {"random_baseline": {"mean_reward": None}}).random is None


def test_the_same_is_within_the_margin():
    found = compared([100, 104, 96], [101, 103, 97])
    assert found.finding is Finding.SAME
    assert (found.difference.mean, found.margin) == pytest.approx((1 / 3, 10.0))
    assert compared([100, 104, 96], [100, 104, 96]).finding is Finding.SAME


@pytest.mark.parametrize("by", [-2.0, 2.0])
def test_a_sure_difference_that_is_small_is_the_same(by):
    found = compared([100, 104, 96], [100 + by, 104 + by, 96 + by])
    assert found.difference.sign == np.sign(by)
    assert found.finding is Finding.SAME


def test_less_and_more():
    assert compared([100, 104, 96], [50, 54, 46]).finding is Finding.LESS
    assert compared([100, 104, 96], [150, 154, 147]).finding is Finding.MORE


def test_what_is_not_sure_is_not_told_as_the_same():
    found = compared([100, 104, 96], [120, 104, 76])
    assert found.difference.mean == 0.0
    assert found.finding is Finding.UNDECIDED


def test_pairs_count_not_two_groups():
    """Seeds differ by far more than the schedules do, which does not blur the difference."""
    assert compared([100, 1000, 500], [101, 1001, 500]).finding is Finding.SAME
    assert compared([100, 1000, 500], [1000, 100, 500]).finding is not Finding.SAME


def test_one_seed_cannot_tell():
    found = compared([100], [100])
    assert (found.finding, found.difference, found.gain.low) == (Finding.UNDECIDED, Estimate(0.0, None, None, 1), None)


def test_equal_failure_is_nothing_learned():
    assert compared([1, -1, 0], [0, 1, -1]).finding is Finding.NOTHING_LEARNED
    assert compared([-5, -6, -7], [-5, -6, -7]).finding is Finding.NOTHING_LEARNED
    assert compared([-5, -6, -7], [-5, -6, -7]).margin is None
    assert compared([1, -1, 0], [100, 101, 99]).finding is Finding.MORE


def test_without_a_baseline_only_a_difference_can_be_told():
    assert compared([100, 104, 96], [100, 104, 97], random=None).finding is Finding.UNDECIDED
    assert compared([100, 104, 96], [50, 54, 46], random=None).finding is Finding.LESS


def test_a_missing_score_is_named_and_nothing_is_compared():
    found = compared([100, NAN], [100, 104])
    assert found == Comparison(Finding.NOT_COMPARED, missing=("inline with seed 1",))
    assert found.to_json()["difference"] is None


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_seeds_that_are_said_to_be_needed_are(share):
    difference = Estimate.of([1.0, -9.0, 6.0, 3.0])
    margin = share * 100.0
    count = seeds_needed(difference, margin)
    spread = math.sqrt(sum((value - 0.25) ** 2 for value in (1.0, -9.0, 6.0, 3.0)) / 3)
    widths = [0.25 + t_quantile(n - 1) * spread / math.sqrt(n) for n in (count - 1, count) if n > 1]
    assert widths[-1] <= margin
    assert len(widths) == 1 or widths[0] > margin


def test_no_number_of_seeds_helps_against_a_difference():
    assert seeds_needed(Estimate.of([20.0, 21.0]), 10.0) is None
    assert seeds_needed(Estimate.of([20.0]), 100.0) is None
