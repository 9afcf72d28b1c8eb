"""What the agent sees of a landscape: eight maps, each between 0 and 1."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.envs.fuelbreak.fires import Landscape
from headrace.envs.fuelbreak.fuels import BURNABLE, rows_of

Observation = NDArray[np.float32]

CHANNELS = (
    "slope",
    "aspect",
    "canopy_cover",
    "fuel_model",
    "intensity_north",
    "intensity_east",
    "intensity_south",
    "intensity_west",
)
HOTTEST = 100_000.0
"""Fire-line intensity that is shown as 1, kW/m; more is shown as 1 too."""


def space(size: int) -> spaces.Box:
    """The observation space, float32 [8, size, size] in [0, 1]."""
    return spaces.Box(0.0, 1.0, (len(CHANNELS), size, size), np.float32)


def view(landscape: Landscape) -> Observation:
    """The landscape before any cut, float32 [8, H, W]. A cut cell is 0 in every channel.

    The fuel channel is 0 for the non-burnable codes; the others come in ascending order in equal steps up to 1.
    """
    raster = landscape.raster
    rows, burnable = rows_of(raster.fuel_model)
    maps = [
        np.arctan(raster.slope) / (np.pi / 2.0),
        raster.aspect / 360.0,
        raster.canopy_cover,
        np.where(burnable, (rows + 1.0) / len(BURNABLE), 0.0),
        *np.minimum(np.log1p(landscape.intensity) / np.log1p(HOTTEST), 1.0),
    ]
    return np.stack(maps).astype(np.float32)
