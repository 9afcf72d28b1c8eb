"""Placing breaks without learning, and judging any placement by the same fires."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.fires import Burn, Fires, Landscape, Mask
from headrace.envs.fuelbreak.rasters import Raster
from headrace.envs.fuelbreak.settings import Weather


@dataclass(frozen=True, slots=True, eq=False)
class PlanScore:
    """What some fires burn in a landscape without and with a plan; the same fires in both."""

    uncut: NDArray[np.int64]
    """Burned cells of each fire without any cut, [K]."""
    burned: NDArray[np.int64]
    """With the plan, [K]."""
    cut_cells: int
    """Cells of the plan."""

    @property
    def mean_burned(self) -> float:
        """Burned cells of a fire, on average."""
        return float(self.burned.mean())

    @property
    def reduction(self) -> float:
        """Share of the burned cells that the plan saves."""
        return 1.0 - float(self.burned.sum()) / float(self.uncut.sum())


def evaluate_plan(raster: Raster, plan: Mask, fires: Fires, weather: Weather | None = None) -> PlanScore:
    """Play ``fires`` in ``raster`` without and with the breaks of ``plan``.

    Compare plans by the same fires, and draw those from a generator that no plan was made with::

        fires = Landscape(raster, weather).draw(100, generator(seed, "held out"))

    Args:
        raster: The landscape; not changed.
        plan: True, or 1, at the cells to cut: [H, W], or row by row [H * W].
        fires: The fires.
        weather: Default: `Weather()`. ``wind_from`` is not looked at, the fires say where the wind is from.

    Raises:
        ConfigError: The plan is not of the raster's shape or not of 0 and 1, or the fires are not in the raster.
    """
    landscape = Landscape(raster, weather or Weather())
    mask = _mask(plan, raster)
    burn = Burn(landscape, fires)
    uncut = burn.burned
    burn.cut(mask)
    return PlanScore(uncut, burn.burned, int(mask.sum()))


def random_plan(landscape: Landscape, budget: int, rng: np.random.Generator) -> Mask:
    """``budget`` cells that burn, drawn without preference; bool [H, W]. All of them if there are fewer."""
    candidates = np.flatnonzero(landscape.burnable)
    return _at(rng.permutation(candidates)[:budget], landscape)


def influence_plan(landscape: Landscape, budget: int, fires: Fires, *, per_round: int | None = None) -> Mask:
    """Cut where most fire passes through, bool [H, W].

    A cell's influence is how many cells the fires reach by way of it (after Finney's node influence, which is also
    the betweenness of the cell in the trees of fastest paths). In each round the fires are played again, and the
    cells of highest influence are cut.

    Args:
        landscape: What to place breaks in; not changed.
        budget: Cells to cut; fewer if the fires pass through no more.
        fires: What to place them against. Judge the plan by others.
        per_round: Cells to cut before the fires are played again; default a twentieth of the budget.
    """
    burn = Burn(landscape, fires)
    plan = np.zeros(landscape.burnable.shape, np.bool_)
    while (left := budget - int(plan.sum())) > 0:
        influence = node_influence(burn).ravel()
        take = min(left, per_round or max(1, budget // 20), int(np.count_nonzero(influence)))
        if take == 0:
            break
        plan |= _at(np.argsort(-influence, kind="stable")[:take], landscape)
        burn.cut(plan)
    return plan


def node_influence(burn: Burn) -> NDArray[np.int64]:
    """How many cells the fires reach by way of each cell, itself included: int64 [H, W], summed over the fires."""
    parents = burn.predecessors().ravel()  # [K * H * W]
    through = np.isfinite(burn.times).ravel().astype(np.int64)
    for cells in reversed(_levels(parents)):  # the ends of the trees first: all behind a cell has been added
        np.add.at(through, parents[cells], through[cells])
    total: NDArray[np.int64] = through.reshape(burn.times.shape).sum(0)
    return total


def _levels(parents: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The cells that are 1, 2, … steps from where their fire began."""
    depth = np.zeros(len(parents), np.int64)
    cells = np.flatnonzero(parents >= 0)
    ancestors = parents[cells]
    while cells.size:
        depth[cells] += 1
        ancestors = parents[ancestors]
        cells, ancestors = cells[ancestors >= 0], ancestors[ancestors >= 0]
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.searchsorted(depth[order], np.arange(1, depth.max() + 1)))[1:]


def _at(cells: NDArray[np.int64], landscape: Landscape) -> Mask:
    plan = np.zeros(landscape.burnable.size, np.bool_)
    plan[cells] = True
    return plan.reshape(landscape.burnable.shape)


def _mask(plan: Mask, raster: Raster) -> Mask:
    array = np.asarray(plan)
    if array.size != raster.fuel_model.size or array.ndim not in (1, 2) or not np.isin(array, (0, 1)).all():
        raise ConfigError(
            "a plan does not fit its raster",
            fix="Give a map, or a flat vector, with 1 at the cells to cut and 0 elsewhere.",
            expected=f"{raster.fuel_model.size} cells, each 0 or 1, shape {raster.shape}",
            found=f"{array.dtype} array of shape {array.shape}",
        )
    return array.astype(np.bool_).reshape(raster.shape)
