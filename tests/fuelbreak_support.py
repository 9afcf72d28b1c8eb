"""Small landscapes for the tests of fuel breaks."""

from __future__ import annotations

import heapq
import math

import numpy as np

from headrace.envs.fuelbreak.fires import Fires
from headrace.envs.fuelbreak.rasters import CELL_M, LAYERS, Raster
from headrace.envs.fuelbreak.spread import DIRECTIONS

GRASS, SHRUBS, WATER = 102, 145, 98


def layers(size=9, fuel=GRASS, **maps):
    """All maps of a landscape: flat, treeless and of one fuel, but for those given as a number or a map."""
    found = {layer: np.zeros((size, size)) for layer in LAYERS}
    found["fuel_model"] = np.full((size, size), fuel)
    for name, values in maps.items():
        found[name] = np.broadcast_to(np.asarray(values), (size, size)).copy()
    return found


def plain(size=9, fuel=GRASS, **maps):
    return Raster.of("plain", layers(size, fuel, **maps))


def hill(size=9, steepness=0.4, fuel=GRASS):
    """Rises to the north; faces south."""
    return plain(size, fuel, slope=steepness, aspect=180.0)


def lit(cell, wind=0, count=1):
    """``count`` like fires at one cell."""
    return Fires(np.full(count, cell), np.full(count, wind))


def center(size):
    return size // 2 * size + size // 2


def one_by_one(landscape, fires, closed):
    """Arrival times by a method of its own: Dijkstra's, one fire and one cell at a time, float32 [K, H, W]."""
    height, width = landscape.burnable.shape
    closed = closed | ~landscape.burnable
    times = np.full((len(fires), height, width), np.inf, np.float32)
    for fire, (cell, wind) in enumerate(zip(fires.cells.tolist(), fires.winds.tolist(), strict=True)):
        queue = [] if closed.flat[cell] else [(np.float32(0), cell)]
        while queue:
            now, cell = heapq.heappop(queue)
            row, column = divmod(cell, width)
            if times[fire, row, column] <= now:
                continue
            times[fire, row, column] = now
            for d, (down, right) in enumerate(DIRECTIONS):
                r, c = row + down, column + right
                if not (0 <= r < height and 0 <= c < width) or closed[r, c]:
                    continue
                if down and right and closed[r, column] and closed[row, c]:
                    continue
                when = now + landscape.edges[d, wind, r + 1, c + 1]
                if when <= landscape.weather.horizon_h * 60 and when < times[fire, r, c]:
                    heapq.heappush(queue, (when, r * width + c))
    return times


def minutes(rate, steps=1.0):
    """Over one cell at m/min."""
    return CELL_M * steps / rate


def diagonal():
    return math.sqrt(2.0)
