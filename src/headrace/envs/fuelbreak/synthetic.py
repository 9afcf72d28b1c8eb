"""Synthetic landscapes: hills, forest, brush and grass, water and roads, from filtered noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.envs.fuelbreak.rasters import CELL_M, Raster

Floats = NDArray[np.float64]

_LAND = (
    # (share of the land from the driest on, fuel models from sparse to dense)
    (0.30, (101, 102, 104)),  # grass
    (0.20, (121, 122)),  # grass and shrubs
    (0.20, (141, 142, 145, 147)),  # shrubs
    (0.15, (161, 165)),  # forest with undergrowth
    (0.15, (183, 186, 188)),  # forest with litter
)
_FOREST_FROM = 0.70
"""Share of the land below which there are no trees; the last two kinds above."""

_WATER, _ROAD, _ROCK = 98, 91, 99


def synthesise(name: str, size: int, rng: np.random.Generator) -> Raster:
    """A landscape of ``size`` x ``size`` cells, determined by the state of ``rng``."""
    elevation = 400.0 + rng.uniform(40.0, 120.0) * _noise(size, 2.2, rng)
    slope, aspect = _relief(elevation)
    # Vegetation grows where it is low and on slopes that face north, and is patchy besides.
    north = np.cos(np.radians(aspect)) * np.minimum(slope, 1.0)
    moist = _rank(0.8 * _noise(size, 1.6, rng) - 0.3 * _standard(elevation) + 0.4 * north)
    density = _rank(_noise(size, 1.0, rng))
    fuel = _fuel(moist, density)
    canopy = _canopy(moist, density, rng)
    for code, where in _bare(elevation, slope, rng):
        fuel[where] = code
        for layer in canopy.values():
            layer[where] = 0.0
    return Raster(name, elevation=elevation, slope=slope, aspect=aspect, fuel_model=fuel, **canopy)


def _noise(size: int, roughness: float, rng: np.random.Generator) -> Floats:
    """Gaussian noise whose amplitude falls with frequency ** ``roughness``, mean 0, deviation 1; [size, size].

    It is cut from a larger field, for noise made by Fourier transform repeats itself at its edges.
    """
    wide = 2 * size
    frequency = np.hypot(np.fft.fftfreq(wide)[:, None], np.fft.rfftfreq(wide)[None, :])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((wide, wide))) * frequency**-roughness
    return _standard(np.fft.irfft2(spectrum, s=(wide, wide))[:size, :size])


def _standard(values: Floats) -> Floats:
    centred = values - values.mean()
    standard: Floats = centred / centred.std()
    return standard


def _rank(values: Floats) -> Floats:
    """Each value's place among all, in [0, 1)."""
    order = np.empty(values.size)
    order[np.argsort(values, axis=None, kind="stable")] = np.arange(values.size)
    return order.reshape(values.shape) / values.size


def _relief(elevation: Floats) -> tuple[Floats, Floats]:
    """Slope (rise over run) and the azimuth it faces, degrees; row 0 is north."""
    southward, eastward = np.gradient(elevation, CELL_M)
    slope = np.hypot(southward, eastward)
    aspect = np.degrees(np.arctan2(-eastward, southward)) % 360.0
    return slope, aspect


def _fuel(moist: Floats, density: Floats) -> NDArray[np.int64]:
    fuel = np.zeros(moist.shape, np.int64)
    low = 0.0
    for share, models in _LAND:
        within = (moist >= low) & (moist < low + share + 1e-9)
        grade = (density[within] * len(models)).astype(np.int64)
        fuel[within] = np.array(models)[grade]
        low += share
    return fuel


def _canopy(moist: Floats, density: Floats, rng: np.random.Generator) -> dict[str, Floats]:
    forest = moist >= _FOREST_FROM
    tallest = rng.uniform(12.0, 30.0)
    height = np.where(forest, tallest * (0.5 + 0.5 * density), 0.0)
    return {
        "canopy_cover": np.where(forest, 0.3 + 0.6 * density, 0.0),
        "canopy_height": height,
        "canopy_base_height": height * (0.1 + 0.3 * moist),
        "canopy_bulk_density": np.where(forest, 0.05 + 0.15 * density, 0.0),
    }


def _bare(
    elevation: Floats, slope: Floats, rng: np.random.Generator
) -> tuple[tuple[int, NDArray[np.bool_]], tuple[int, NDArray[np.bool_]], tuple[int, NDArray[np.bool_]]]:
    """Where nothing grows: the lowest flat land, the steepest, and parts of one winding line."""
    flat = slope < np.quantile(slope, 0.5)
    water = flat & (elevation < np.quantile(elevation, 0.06))
    rock = slope > np.quantile(slope, 0.985)
    line, reach = _noise(len(slope), 2.5, rng), _noise(len(slope), 2.0, rng)
    crossing = (line[:-1, :-1] > 0) != (line[1:, 1:] > 0)
    road = np.pad(crossing, ((0, 1), (0, 1))) & (reach > 0.3)
    return (_WATER, water), (_ROCK, rock), (_ROAD, road)
