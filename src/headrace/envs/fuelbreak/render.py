"""Draws a landscape, how likely each cell is to burn, and the breaks, into an array: no window, no display."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.envs.fuelbreak.fires import Landscape, Mask
from headrace.envs.fuelbreak.rasters import CELL_M

_SHORTEST = 400
"""Pixels along each side, at least; cells are drawn as whole squares."""

_GROUND = {  # upper end of the fuel codes it holds for -> colour
    4: (214, 205, 140),  # grass
    7: (168, 178, 104),  # shrubs
    10: (92, 135, 84),  # forest
    13: (146, 128, 96),  # slash
    90: (146, 128, 96),
    97: (160, 160, 160),  # urban, snow, fields
    98: (120, 164, 200),  # water
    100: (150, 140, 132),  # bare ground
    120: (214, 205, 140),
    140: (191, 192, 120),  # grass and shrubs
    160: (168, 178, 104),
    180: (118, 154, 92),  # forest with undergrowth
    200: (78, 120, 78),  # forest with litter
    204: (146, 128, 96),
}
_FIRE = np.array((222, 45, 20), np.float64)
_BREAK = (30, 30, 34)
_STRONGEST = 0.85
"""Share of the fire's colour where every fire burns; the ground stays visible."""


def draw(landscape: Landscape, probability: NDArray[np.float64], broken: Mask) -> NDArray[np.uint8]:
    """One frame.

    Args:
        landscape: The ground.
        probability: Share of the fires that burn each cell, [H, W].
        broken: Where cuts were made, [H, W].

    Returns:
        uint8 [H * s, W * s, 3], a new array, with s pixels a cell so that no side is shorter than 400.
    """
    ground = _colours(landscape.raster.fuel_model) * _shade(landscape.raster.elevation)[..., None]
    weight = _STRONGEST * np.sqrt(probability)[..., None]  # the root, so that rare fires are seen as well
    picture = np.clip(ground * (1.0 - weight) + _FIRE * weight, 0.0, 255.0)
    picture[broken] = _BREAK
    pixels = -(-_SHORTEST // min(broken.shape))
    return picture.astype(np.uint8).repeat(pixels, axis=0).repeat(pixels, axis=1)


def _colours(codes: NDArray[np.int64]) -> NDArray[np.float64]:
    places = np.searchsorted(list(_GROUND), codes)
    return np.array(list(_GROUND.values()), np.float64)[places]


def _shade(elevation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Brightness of hills lit from the north-west, around 1, [H, W]."""
    southward, eastward = np.gradient(elevation, CELL_M)
    shade: NDArray[np.float64] = np.clip(1.0 + 0.5 * (eastward + southward), 0.6, 1.3)
    return shade
