"""How fast and how hot a fire runs through each cell of a landscape: fuel, moisture, slope, wind and crowns.

Surface fire after `fuels`; wind at flame height after Albini and Baughman (1979), INT-221, as in Andrews (2012),
RMRS-GTR-266; the ellipse after Anderson (1983), INT-305; crown fire after Van Wagner (1977) and Cruz, Alexander and
Wakimoto (2005). What is left out, and why, is in docs/reference/fuelbreak.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.envs.fuelbreak.fuels import FPM_PER_KMH, M_PER_FT, MPS_PER_FPM, FuelBeds, fuel_beds, rows_of
from headrace.envs.fuelbreak.rasters import Raster
from headrace.envs.fuelbreak.settings import SIDES, Weather

Floats = NDArray[np.float64]

_MOST_ELONGATED = 8.0
"""Longest ellipse, length over width: beyond it the formula was never fitted."""

_OPEN_BELOW = 0.05
"""Share of the air filled by crowns below which they do not shelter the ground."""

_CROWN_HEAT = 18_000.0  # kJ/kg
_ACTIVE_FLOW = 3.0
"""Crown fuel that an active crown fire must meet, kg/m²/min (Van Wagner)."""

_CROWN_COVER = 0.4
"""Share of the ground under trees from which fire passes from crown to crown."""


@dataclass(frozen=True, slots=True)
class Behavior:
    """Fire in every cell under wind from each of `SIDES`; arrays float64 [4, H, W], 0 where nothing burns."""

    rate: Floats
    """Fastest spread, m/min."""
    east: Floats
    """Where that is: the eastern part of a vector of length 1."""
    north: Floats
    """Its northern part."""
    eccentricity: Floats
    """Of the ellipse that a fire in uniform cells like this one becomes, in [0, 1)."""
    intensity: Floats
    """Byram's fire-line intensity at the head, kW/m."""

    def rate_toward(self, east: float, north: float) -> Floats:
        """Spread in the direction of a vector of length 1, m/min [4, H, W]: an ellipse lit at its rear focus."""
        e = self.eccentricity
        return self.rate * (1.0 - e) / (1.0 - e * (east * self.east + north * self.north))


def behavior(raster: Raster, weather: Weather) -> Behavior:
    """Fire in ``raster`` under ``weather``, for wind from each side whatever ``weather.wind_from`` says."""
    beds = fuel_beds(weather)
    rows, burnable = rows_of(raster.fuel_model)
    x, y = _push(raster, weather, beds, rows)  # [4, H, W], east and north parts of the combined coefficient
    length = np.hypot(x, y)
    push = np.minimum(length, beds.wind(beds.wind_limit[rows], rows))
    surface = beds.rate[rows] * (1.0 + push)
    heat = beds.heat[rows]
    crown_rate, crown_heat = _crowns(raster, weather, surface, heat)
    rate = np.where(burnable, np.maximum(surface, crown_rate), 0.0)
    return Behavior(
        rate=rate,
        east=np.divide(x, length, out=np.zeros_like(x), where=length > 0),
        north=np.divide(y, length, out=np.ones_like(y), where=length > 0),
        eccentricity=_eccentricity(beds.effective_wind(push, rows) * MPS_PER_FPM),
        intensity=rate * (heat + crown_heat) / 60.0,
    )


def _push(raster: Raster, weather: Weather, beds: FuelBeds, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Wind and slope coefficients added as vectors, one pointing downwind, the other uphill."""
    midflame = weather.wind_kmh * FPM_PER_KMH * _wind_adjustment(raster, beds.depth[rows])
    by_wind = beds.wind(midflame, rows)  # [H, W]
    by_slope = beds.slope_factor[rows] * raster.slope**2
    uphill = np.radians(raster.aspect) + np.pi
    downwind = np.arange(len(SIDES))[:, None, None] * (np.pi / 2.0) + np.pi
    return (
        by_wind * np.sin(downwind) + by_slope * np.sin(uphill),
        by_wind * np.cos(downwind) + by_slope * np.cos(uphill),
    )


def _wind_adjustment(raster: Raster, depth: Floats) -> Floats:
    """Wind at flame height over wind 20 ft above the vegetation, [H, W]."""
    height = raster.canopy_height / M_PER_FT
    crown = np.clip(raster.canopy_height - raster.canopy_base_height, 0.0, None)
    ratio = np.divide(crown, raster.canopy_height, out=np.zeros_like(height), where=height > 0)
    filled = raster.canopy_cover * ratio / 3.0
    open_air = 1.83 / np.log((20.0 + 0.36 * depth) / (0.13 * depth))
    tall = np.maximum(height, 1.0)  # under lower trees nothing is sheltered, and the logarithm stays positive
    below = 0.555 / (np.sqrt(np.maximum(filled, _OPEN_BELOW) * tall) * np.log((20.0 + 0.36 * tall) / (0.13 * tall)))
    sheltered: Floats = np.where(filled > _OPEN_BELOW, np.minimum(below, open_air), open_air)
    return sheltered


def _crowns(raster: Raster, weather: Weather, surface: Floats, heat: Floats) -> tuple[Floats, Floats]:
    """Spread of the crown fire (0 where none is active), m/min, and the heat of burning crowns, kJ/m²; [4, H, W]."""
    ignition = 460.0 + 25.9 * weather.foliar_percent  # kJ/kg
    critical = (0.01 * raster.canopy_base_height * ignition) ** 1.5  # kW/m
    load = raster.canopy_bulk_density * np.clip(raster.canopy_height - raster.canopy_base_height, 0.0, None)  # kg/m²
    lit = (load > 0) & (surface > 0) & (surface * heat / 60.0 >= critical)
    wind = (1.15 * weather.wind_kmh) ** 0.9  # at 10 m above the ground, km/h
    run = 11.02 * wind * raster.canopy_bulk_density**0.19 * np.exp(-0.17 * weather.dead_1h_percent)  # [H, W]
    active = (raster.canopy_cover >= _CROWN_COVER) & (run * raster.canopy_bulk_density >= _ACTIVE_FLOW)
    return np.where(lit & active, run, 0.0), np.where(lit, load * _CROWN_HEAT, 0.0)


def _eccentricity(wind_mps: Floats) -> Floats:
    """Of the ellipse under an effective midflame wind."""
    ratio = 0.936 * np.exp(0.2566 * wind_mps) + 0.461 * np.exp(-0.1548 * wind_mps) - 0.397
    ratio = np.clip(ratio, 1.0, _MOST_ELONGATED)
    return np.sqrt(1.0 - ratio**-2)
