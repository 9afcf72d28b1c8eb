"""Placements without learning, and judging placements by the same fires."""

from __future__ import annotations

import numpy as np
import pytest

from fuelbreak_support import GRASS, WATER, center, lit, plain
from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak import (
    Burn,
    Fires,
    Landscape,
    RasterSet,
    Weather,
    evaluate_plan,
    influence_plan,
    random_plan,
)
from headrace.envs.fuelbreak.plans import node_influence

LONG = Weather(wind_kmh=0.0, horizon_h=240.0)


def test_influence_counts_what_lies_behind_a_cell():
    corridor = np.full((5, 5), WATER)
    corridor[1] = GRASS
    burn = Burn(Landscape(plain(5, corridor), LONG), lit(5, count=2))  # at its western end
    assert node_influence(burn)[1].tolist() == [10, 8, 6, 4, 2]
    assert node_influence(burn).sum() == 30


def test_influence_of_the_ignition_is_the_whole_fire():
    land = Landscape(plain(), Weather(wind_kmh=0.0, horizon_h=12.0))
    burn = Burn(land, lit(center(9)))
    influence = node_influence(burn)
    assert influence.flat[center(9)] == burn.burned[0] == influence.max()
    assert np.array_equal(influence > 0, burn.probability > 0)


def test_predecessors_lead_back_to_the_ignition():
    land = Landscape(RasterSet(12, 1)[0], Weather())
    fires = land.draw(4, np.random.default_rng(0))
    burn = Burn(land, fires)
    parents, times = burn.predecessors().ravel(), burn.times.ravel()
    begun = np.flatnonzero(np.isfinite(times) & (parents < 0))
    assert np.array_equal(begun - np.arange(4) * 144, fires.cells)
    followed = np.flatnonzero(parents >= 0)
    assert (times[parents[followed]] < times[followed]).all()
    assert np.array_equal(followed // 144, parents[followed] // 144)


def test_a_random_plan_cuts_as_many_cells_as_it_may_and_only_such_as_burn():
    land = Landscape(RasterSet(16, 1)[0], Weather())
    plan = random_plan(land, 20, np.random.default_rng(0))
    assert plan.sum() == 20
    assert land.burnable[plan].all()
    assert not np.array_equal(plan, random_plan(land, 20, np.random.default_rng(1)))
    assert np.array_equal(random_plan(land, 1000, np.random.default_rng(0)), land.burnable)


def test_an_influence_plan_keeps_to_its_budget_and_ends_when_no_fire_is_left():
    land = Landscape(RasterSet(16, 1)[0], Weather())
    fires = land.draw(30, np.random.default_rng(0))
    assert influence_plan(land, 20, fires).sum() == 20
    assert influence_plan(land, 1, fires).sum() == 1
    few = Fires(fires.cells[:1], fires.winds[:1])
    assert influence_plan(land, 20, few).sum() == 1  # the ignition of the only fire


def test_placing_by_influence_beats_placing_at_random_under_fires_that_neither_has_seen():
    rasters = RasterSet(24, 4, first=1000)
    saved = []
    for number in range(len(rasters)):
        land = Landscape(rasters[number], Weather())
        rng = np.random.default_rng(number)
        plans = (influence_plan(land, 46, land.draw(100, rng)), random_plan(land, 46, rng))
        fires = land.draw(100, rng)
        saved.append([evaluate_plan(rasters[number], plan, fires).reduction for plan in plans])
    by_influence, at_random = np.mean(saved, axis=0)
    assert by_influence > at_random + 0.15
    assert at_random > 0


def test_a_score_compares_the_same_fires_without_and_with_the_plan():
    raster = plain()
    fires = lit(center(9), count=3)
    plan = np.zeros((9, 9), np.bool_)
    plan[3:6, 3:6] = True
    plan[4, 4] = False
    score = evaluate_plan(raster, plan, fires, LONG)
    assert score.uncut.tolist() == [81] * 3
    assert score.burned.tolist() == [1] * 3
    assert (score.mean_burned, score.cut_cells) == (1.0, 8)
    assert score.reduction == pytest.approx(80 / 81)
    again = evaluate_plan(raster, plan.ravel().astype(np.int8), fires, LONG)
    assert again.burned.tolist() == score.burned.tolist()


def test_judging_changes_neither_raster_nor_plan():
    raster, plan = RasterSet(16, 1)[0], np.zeros((16, 16), np.bool_)
    plan[8] = True
    fires = Landscape(raster, Weather()).draw(5, np.random.default_rng(0))
    first = evaluate_plan(raster, plan, fires)
    assert plan.sum() == 16
    second = evaluate_plan(raster, plan, fires)
    assert np.array_equal(first.burned, second.burned)
    assert np.array_equal(first.uncut, second.uncut)


@pytest.mark.parametrize("plan", [np.zeros(80), np.zeros((9, 8)), np.full((9, 9), 0.5), np.full((9, 9), np.nan)])
def test_a_plan_that_does_not_fit_is_refused(plan):
    with pytest.raises(ConfigError, match="does not fit its raster"):
        evaluate_plan(plain(), plan, lit(0))
