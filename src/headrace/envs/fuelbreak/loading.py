"""Real landscapes from files. What is missing or holds no data is an error; nothing is put in its place."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.rasters import LAYERS, Raster

BANDS = (
    "elevation",
    "slope",
    "aspect",
    "fuel_model",
    "canopy_cover",
    "canopy_height",
    "canopy_base_height",
    "canopy_bulk_density",
)
"""Bands of a landscape file, in the order of LANDFIRE's and FARSITE's."""

_TIFF = (".tif", ".tiff")

_Bands = NDArray[Any]


def load_raster(path: str | Path) -> Raster:
    """A landscape from a file, or from a folder of files.

    - A ``.npz`` with an array per name in `LAYERS`, in the units of `Raster`;
    - A GeoTIFF with the bands `BANDS`, or a folder with one single-band GeoTIFF per name in it (``slope.tif``, …), in
      the units of LANDFIRE: degrees, percent, m * 10, kg/m³ * 100; aspect -1 is flat. Needs rasterio or tifffile.

    Raises:
        ConfigError: The file, a map or a band is missing, cannot be read or is not a landscape.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return Raster.of(path.stem, _arrays(path))
    if path.suffix in _TIFF:
        bands = _read_tiff(path)
        if len(bands) != len(BANDS):
            raise _unreadable(path, f"{len(BANDS)} bands: {', '.join(BANDS)}", f"{len(bands)} bands")
        return Raster.of(path.stem, _from_landfire(dict(zip(BANDS, bands, strict=True))))
    if path.is_dir():
        return Raster.of(path.name, _from_landfire(_layers(path)))
    raise _unreadable(path, "a .npz, a .tif, or a folder of .tif", "no such file" if not path.exists() else "neither")


def raster_paths(path: str | Path) -> list[Path]:
    """What `load_raster` can load at or directly below ``path``, sorted.

    Raises:
        ConfigError: Nothing.
    """
    path = Path(path)
    if path.suffix in (".npz", *_TIFF) or _is_layers(path):
        return [path]
    inside = sorted(path.iterdir()) if path.is_dir() else []
    found = [one for one in inside if one.suffix in (".npz", *_TIFF) or _is_layers(one)]
    if not found:
        raise _unreadable(
            path, "rasters: .npz, .tif, or folders of .tif", "none" if path.is_dir() else "no such folder"
        )
    return found


def _is_layers(path: Path) -> bool:
    return path.is_dir() and any((path / f"{layer}{end}").exists() for layer in LAYERS for end in _TIFF)


def _arrays(path: Path) -> dict[str, _Bands]:
    expected = "an .npz archive of arrays"
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.ndarray):
            with file:
                return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file may make NumPy and the decompressors raise anything
        raise _unreadable(path, expected, f"{type(error).__name__}: {error}") from error
    raise _unreadable(path, expected, "a single array, as in a .npy")


def _layers(folder: Path) -> dict[str, _Bands]:
    layers: dict[str, _Bands] = {}
    for layer in LAYERS:
        files = [folder / f"{layer}{end}" for end in _TIFF if (folder / f"{layer}{end}").exists()]
        for file in files:
            bands = _read_tiff(file)
            if len(bands) != 1:
                raise _unreadable(file, "one band", f"{len(bands)} bands")
            layers[layer] = bands[0]
    return layers


def _from_landfire(maps: Mapping[str, _Bands]) -> dict[str, _Bands]:
    """Maps in LANDFIRE's units to ours. Its marks for "no data" stay out of bounds, and are refused with their cell."""
    maps = {name: values if name == "fuel_model" else values.astype(np.float64) for name, values in maps.items()}
    if "slope" in maps:
        degrees = maps["slope"]
        # Outside of [0, 90) the tangent would turn a mark into a slope.
        maps["slope"] = np.where((degrees >= 0) & (degrees < 90), np.tan(np.radians(degrees)), -1.0)
    if "aspect" in maps:
        maps["aspect"] = np.where(maps["aspect"] == -1, 0.0, maps["aspect"])
    scales = (("canopy_cover", 100), ("canopy_height", 10), ("canopy_base_height", 10), ("canopy_bulk_density", 100))
    for layer, scale in scales:
        if layer in maps:
            maps[layer] = maps[layer] / scale
    return maps


def _read_tiff(path: Path) -> _Bands:
    """All bands, [B, H, W].

    Raises:
        ConfigError: The file cannot be read, or nothing is installed that reads it.
    """
    for module, read in (("rasterio", _by_rasterio), ("tifffile", _by_tifffile)):
        try:
            library = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            continue
        try:
            return read(library, path)
        except Exception as error:  # as above, of these libraries
            raise _unreadable(path, "a GeoTIFF", f"{type(error).__name__}: {error}") from error
    raise ConfigError(
        f"{path} cannot be read: nothing that reads GeoTIFF is installed",
        fix="pip install rasterio, or tifffile, or convert the raster to .npz.",
    )


def _by_rasterio(library: Any, path: Path) -> _Bands:
    with library.open(path) as file:
        bands: _Bands = file.read()
    return bands


def _by_tifffile(library: Any, path: Path) -> _Bands:
    with library.TiffFile(path) as file:
        series = file.series[0]
        bands, axes = np.asarray(series.asarray()), str(series.axes)
    if bands.ndim == 2:
        return bands[None]
    if bands.ndim != 3:
        raise ValueError(f"an image with axes {axes}")
    return np.moveaxis(bands, -1, 0) if axes.endswith("S") else bands


def _unreadable(path: Path, expected: str, found: str) -> ConfigError:
    return ConfigError(
        f"{path} holds no landscape", fix="Name an existing raster, complete.", expected=expected, found=found
    )
