"""A landscape as a stack of maps of one size, checked once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.fuels import KNOWN_CODES, rows_of

CELL_M = 30.0
"""Width of a cell."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "elevation": (-500.0, 9000.0),
    "slope": (0.0, 60.0),
    "aspect": (0.0, 360.0),
    "canopy_cover": (0.0, 1.0),
    "canopy_height": (0.0, 150.0),
    "canopy_base_height": (0.0, 150.0),
    "canopy_bulk_density": (0.0, 5.0),
}
LAYERS = (*_BOUNDS, "fuel_model")
"""Names of the maps."""


@dataclass(frozen=True, slots=True, eq=False)
class Raster:
    """One landscape of cells 30 m wide; row 0 is its northern edge, column 0 its western.

    Every map is copied and made read-only, so that nothing that is done to a landscape stays in it.

    Args:
        name: What to call it in messages.
        elevation: m; drawn, not used by the fire.
        slope: Rise over run (tangent of the angle).
        aspect: Where the slope faces (downhill), degrees clockwise from north.
        canopy_cover: Share of the ground under trees.
        canopy_height: m.
        canopy_base_height: Lowest leaves above the ground, m.
        canopy_bulk_density: kg/m³.
        fuel_model: Codes of Anderson's or Scott and Burgan's models; 91, 92, 93, 98 and 99 do not burn.

    Raises:
        ConfigError: The maps differ in shape, one is not of finite numbers within its bounds, a code is unknown, or
            nothing burns. Names the raster, the map and the first bad cell.
    """

    name: str
    elevation: NDArray[np.float64]
    slope: NDArray[np.float64]
    aspect: NDArray[np.float64]
    canopy_cover: NDArray[np.float64]
    canopy_height: NDArray[np.float64]
    canopy_base_height: NDArray[np.float64]
    canopy_bulk_density: NDArray[np.float64]
    fuel_model: NDArray[np.int64]

    def __post_init__(self) -> None:
        shape = np.shape(self.fuel_model)
        for layer in LAYERS:
            array = np.asarray(getattr(self, layer))
            if array.ndim != 2 or array.shape != shape or 0 in shape:
                expected = f"a 2-D map as large as fuel_model, {shape}"
                raise self._bad(layer, expected, f"an array of shape {array.shape}")
            if array.dtype.kind not in "fiu":
                raise self._bad(layer, "numbers", f"dtype {array.dtype}")
            kept = self._checked(layer, array)
            kept.setflags(write=False)
            object.__setattr__(self, layer, kept)
        if not self.burnable.any():
            raise self._bad("fuel_model", "at least one cell that burns", "non-burnable codes only")

    @classmethod
    def of(cls, name: str, layers: Mapping[str, NDArray[Any]]) -> Raster:
        """The raster of these maps by name; further ones are not looked at.

        Raises:
            ConfigError: One is missing, or unusable as said above.
        """
        missing = [layer for layer in LAYERS if layer not in layers]
        if missing:
            raise ConfigError(
                f"raster {name} lacks {', '.join(missing)}",
                fix="Add the missing maps: nothing is put in their place.",
                expected=", ".join(LAYERS),
                found=", ".join(layers) or "nothing",
            )
        return cls(name, **{layer: layers[layer] for layer in LAYERS})

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.fuel_model.shape
        return rows, columns

    @property
    def burnable(self) -> NDArray[np.bool_]:
        """Where there is something to burn, bool [H, W]."""
        return rows_of(self.fuel_model)[1]

    def _checked(self, layer: str, array: NDArray[Any]) -> NDArray[Any]:
        if layer == "fuel_model":
            kept = array.astype(np.int64)
            bad = (kept != array) | ~np.isin(kept, list(KNOWN_CODES))
            expected = "a code of Anderson's or Scott and Burgan's fuel models"
        else:
            low, high = _BOUNDS[layer]
            kept = array.astype(np.float64)
            bad = ~((kept >= low) & (kept <= high))  # true for NaN as well
            expected = f"a number from {low:g} to {high:g}"
        if bad.any():
            row, column = (int(place) for place in np.argwhere(bad)[0])
            raise self._bad(layer, expected, f"{array[row, column]} at row {row}, column {column}")
        return kept

    def _bad(self, layer: str, expected: str, found: str) -> ConfigError:
        return ConfigError(
            f"raster {self.name} has an unusable map {layer}",
            fix="Correct the map, or leave the raster out; cells without data have to be filled or cropped away before.",
            expected=expected,
            found=found,
        )
