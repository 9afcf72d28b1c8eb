"""Fires in a landscape: which are lit, what they burn, and what is left of them after cells were cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.behavior import Behavior, behavior
from headrace.envs.fuelbreak.rasters import CELL_M, Raster
from headrace.envs.fuelbreak.settings import SIDES, Weather
from headrace.envs.fuelbreak.spread import DIRECTIONS, Times, arrivals, padded

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Fires:
    """Where and under which wind fires are lit; the same fires can be played on any plan.

    Args:
        cells: Index of the ignited cell, row * W + column, int64 [K].
        winds: Where the wind comes from, place in `SIDES`, int64 [K].
    """

    cells: NDArray[np.int64]
    winds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cells)


class Landscape:
    """A raster under some weather: travel times and intensities for wind from each side, computed once.

    Args:
        raster: What burns.
        weather: Under which conditions.

    Raises:
        ConfigError: It is too moist for anything to burn.
    """

    def __init__(self, raster: Raster, weather: Weather) -> None:
        self.raster = raster
        self.weather = weather
        found = behavior(raster, weather)
        self.burnable: Mask = found.rate.min(0) > 0.0  # [H, W]
        if not self.burnable.any():
            raise ConfigError(
                f"nothing in raster {raster.name} burns: all fuel is moister than it can be for a fire to spread",
                fix="Lower the moistures, or use another raster.",
                dead_1h_percent=weather.dead_1h_percent,
            )
        self.intensity = found.intensity  # kW/m, [4, H, W]
        self.edges = _edges(found, ~np.pad(self.burnable, 1))  # minutes, [8, 4, H + 2, W + 2]
        for array in (self.burnable, self.intensity, self.edges):
            array.setflags(write=False)

    def draw(self, count: int, rng: np.random.Generator) -> Fires:
        """``count`` fires, lit in cells that burn, each as likely as the other; from ``wind_from`` or any side."""
        cells = rng.choice(np.flatnonzero(self.burnable), count)
        winds = rng.integers(len(SIDES), size=count)  # drawn in any case, so that the cells stay the same
        if self.weather.wind_from is not None:
            winds[:] = SIDES.index(self.weather.wind_from)
        return Fires(cells, winds)


class Burn:
    """Some fires in a landscape that is being cut.

    Cells can only be added to the cut ones. After a cut only those fires are played again that had used a way that is
    closed now, and only from the moment they did; the result is bit for bit that of playing all from the start.

    Args:
        landscape: Where; not changed.
        fires: Which.
        plan: Cells that are cut before the fires are played at all, bool [H, W].

    Raises:
        ConfigError: A fire is lit outside the map, or under a wind that does not exist.
    """

    def __init__(self, landscape: Landscape, fires: Fires, plan: Mask | None = None) -> None:
        rows, columns = landscape.raster.shape
        if len(fires) == 0 or not _within(fires.cells, rows * columns) or not _within(fires.winds, len(SIDES)):
            raise ConfigError(
                "a fire is lit outside of the map, or there is none",
                fix="Draw fires from the landscape they are played in.",
                expected=f"one or more cells from 0 to {rows * columns - 1}, winds from 0 to {len(SIDES) - 1}",
                found=f"cells {fires.cells.tolist()}, winds {fires.winds.tolist()}",
            )
        self.fires = fires
        self._horizon = landscape.weather.horizon_h * 60.0
        self._edges = landscape.edges.take(fires.winds, axis=1)  # a copy, [8, K, H + 2, W + 2]
        self._closed = ~np.pad(landscape.burnable, 1)  # [H + 2, W + 2]
        places = fires.cells // columns + 1, fires.cells % columns + 1
        self._ignitions = np.full((len(fires), rows + 2, columns + 2), np.inf, np.float32)
        self._ignitions[np.arange(len(fires)), *places] = 0.0
        self._ignitions[:, self._closed] = np.inf
        if plan is not None:
            self._close(plan)
        self._times = arrivals(self._ignitions.copy(), self._edges, self._horizon)

    @property
    def times(self) -> Times:
        """Minutes until each fire reaches each cell, infinity where it never does: float32 [K, H, W], read-only."""
        view = self._times[:, 1:-1, 1:-1].view()
        view.setflags(write=False)
        return view

    @property
    def burned(self) -> NDArray[np.int64]:
        """Cells that each fire burns, [K]."""
        counts: NDArray[np.int64] = np.isfinite(self._times).sum((1, 2))
        return counts

    @property
    def probability(self) -> NDArray[np.float64]:
        """Share of the fires that burn each cell, [H, W]."""
        share: NDArray[np.float64] = np.isfinite(self.times).mean(0)
        return share

    def predecessors(self) -> NDArray[np.int64]:
        """From which place fire came to each, -1 where it began or never came: int64 [K, H, W].

        Places are counted through all fires: fire * H * W + row * W + column.
        """
        times = self._times
        places = np.arange(self.times.size).reshape(self.times.shape)
        parents = np.full(times.shape, -1)
        for (row, column), edges in zip(DIRECTIONS, self._edges, strict=True):
            # Times have settled, so the neighbour that fire came from offers the very same number.
            came = (np.roll(times, (row, column), (1, 2)) + edges == times) & np.isfinite(times)
            inner = came[:, 1:-1, 1:-1]
            parents[came] = places[inner] - (row * self.times.shape[2] + column)
        return parents[:, 1:-1, 1:-1]

    def cut(self, plan: Mask) -> None:
        """Take the fuel from the cells of ``plan``, bool [H, W], for good, and play what this changes again."""
        touched = self._close(plan)
        if touched.any():
            reached = self._times[:, touched].min(1)  # [K], when each fire first came to where a way is closed now
            self._replay(np.flatnonzero(np.isfinite(reached)), reached)

    def repeat(self) -> None:
        """Play all fires from the start; changes nothing, and costs what it costs."""
        arrivals(self._ignitions.copy(), self._edges, self._horizon)

    def _close(self, plan: Mask) -> Mask:
        """Take the fuel from the cells of ``plan``, and tell into which cells a way is closed now, [H + 2, W + 2]."""
        closed = self._closed | np.pad(plan, 1)
        touched = closed & ~self._closed
        self._ignitions[:, touched] = np.inf
        if touched.any():
            for d in range(len(DIRECTIONS)):
                barred = _barred(closed, d) & ~_barred(self._closed, d)
                self._edges[d][:, barred] = np.inf
                touched |= barred
        self._closed = closed
        return touched

    def _replay(self, which: NDArray[np.int64], reached: Times) -> None:
        if not which.size:
            return
        # A fastest path holds earlier cells only, so what was reached before the first change stays as it is.
        times = self._times[which]
        kept = np.where(times < reached[which, None, None], times, self._ignitions[which])
        self._times[which] = arrivals(kept, self._edges.take(which, axis=1), self._horizon)


def _edges(found: Behavior, closed: Mask) -> Times:
    """Minutes into each cell from its neighbour: half the way at that one's rate, half at its own; [8, 4, H+2, W+2]."""
    edges: list[Times] = []
    for d, (row, column) in enumerate(DIRECTIONS):
        steps = math.hypot(row, column)
        with np.errstate(divide="ignore"):
            half = padded(CELL_M * steps / 2.0 / found.rate_toward(column / steps, -row / steps), np.inf)
        edges.append(half + np.roll(half, (row, column), (-2, -1)))
        edges[-1][:, _barred(closed, d)] = np.inf
    return np.stack(edges)


def _barred(closed: Mask, d: int) -> Mask:
    """Cells into which nothing comes in direction ``d``: closed ones, and those behind a closed corner; [H + 2, W + 2].

    On a diagonal, fire passes the corner that the two cells beside its way have in common. If both are closed, they
    are a break without a gap.
    """
    row, column = DIRECTIONS[d]
    if row == 0 or column == 0:
        return closed
    return closed | (np.roll(closed, row, 0) & np.roll(closed, column, 1))


def _within(values: NDArray[np.int64], limit: int) -> bool:
    return bool((values >= 0).all() and (values < limit).all())
