"""Landscapes: what is refused, that none is ever changed, synthetic ones, real ones from files."""

from __future__ import annotations

import sys
import types
import zlib

import numpy as np
import pytest

from fuelbreak_support import GRASS, WATER, layers, plain
from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.fuels import BURNABLE
from headrace.envs.fuelbreak.loading import BANDS, load_raster, raster_paths
from headrace.envs.fuelbreak.rasters import CELL_M, LAYERS, Raster
from headrace.envs.fuelbreak.sets import RasterSet
from headrace.envs.fuelbreak.settings import Task
from headrace.envs.fuelbreak.synthetic import synthesise

# What is refused


@pytest.mark.parametrize(
    ("layer", "value", "found"),
    [
        ("slope", np.nan, "nan at row 2, column 3"),
        ("slope", -1.0, "-1.0"),
        ("elevation", 32767.0, "32767.0"),
        ("aspect", -9999.0, "-9999.0"),
        ("canopy_cover", 70.0, "70.0"),
        ("canopy_bulk_density", np.inf, "inf"),
        ("fuel_model", 14, "14"),
        ("fuel_model", 101.5, "101.5"),
        ("fuel_model", np.nan, "nan"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_a_bad_cell_is_refused_and_named(layer, value, found):
    maps = layers(9)
    maps[layer] = maps[layer].astype(np.float64 if isinstance(value, float) else np.int64)
    maps[layer][2, 3] = value
    with pytest.raises(ConfigError, match=found) as caught:
        Raster.of("here", maps)
    assert caught.value.what == f"raster here has an unusable map {layer}"


@pytest.mark.parametrize(
    ("layer", "array"),
    [
        ("slope", np.zeros((9, 8))),
        ("slope", np.zeros(81)),
        ("fuel_model", np.zeros((0, 0))),
        ("aspect", np.full((9, 9), "north")),
    ],
)
def test_maps_that_do_not_fit_each_other_are_refused(layer, array):
    with pytest.raises(ConfigError, match="unusable map"):
        Raster.of("here", layers(9) | {layer: array})


@pytest.mark.parametrize("layer", LAYERS)
def test_a_missing_map_is_an_error_and_not_zeros(layer):
    maps = layers(9)
    del maps[layer]
    with pytest.raises(ConfigError, match=f"raster here lacks {layer}"):
        Raster.of("here", maps)


def test_a_landscape_without_anything_to_burn_is_refused():
    with pytest.raises(ConfigError, match="at least one cell that burns"):
        plain(fuel=WATER)


# That none is changed


@pytest.mark.parametrize("layer", LAYERS)
def test_maps_are_copied_and_cannot_be_written(layer):
    maps = layers(9)
    raster = Raster.of("here", maps)
    maps[layer][0, 0] = 91
    assert getattr(raster, layer)[0, 0] == (GRASS if layer == "fuel_model" else 0)
    with pytest.raises(ValueError, match="read-only"):
        getattr(raster, layer)[0, 0] = 91


# Synthetic ones


def same(one, other):
    return all(np.array_equal(getattr(one, layer), getattr(other, layer)) for layer in LAYERS)


@pytest.mark.parametrize("size", [4, 16, 50])
def test_synthetic_landscapes_are_valid_and_differ(size):
    rasters = [synthesise("x", size, seeding.generator(seed, "test")) for seed in range(20)]
    assert all(raster.shape == (size, size) for raster in rasters)
    assert not any(same(rasters[0], other) for other in rasters[1:])


def test_synthetic_landscapes_have_something_of_everything():
    rasters = [RasterSet(50, 40)[number] for number in range(40)]
    fuels = np.concatenate([raster.fuel_model.ravel() for raster in rasters])
    assert {101, 122, 145, 161, 183, 91, 98, 99} <= set(fuels.tolist())
    assert 0.85 < np.isin(fuels, BURNABLE).mean() < 0.98
    slopes = np.stack([raster.slope for raster in rasters])
    assert 0.05 < slopes.mean() < 0.6
    for raster in rasters:
        wooded = raster.canopy_cover > 0
        assert np.array_equal(wooded, raster.canopy_height > 0)
        assert np.array_equal(wooded, raster.fuel_model >= 161)
        assert (raster.canopy_base_height <= raster.canopy_height).all()


def test_slope_and_aspect_are_those_of_the_elevation():
    raster = RasterSet(50, 1)[0]
    downhill_east, downhill_north = (raster.slope * part(np.radians(raster.aspect)) for part in (np.sin, np.cos))
    rows, columns = np.gradient(raster.elevation, CELL_M)
    assert downhill_east == pytest.approx(-columns, abs=1e-9)
    assert downhill_north == pytest.approx(rows, abs=1e-9)


# Sets


def test_a_set_deals_the_same_landscape_under_the_same_number():
    one, other = RasterSet(16, 100, seed=3), RasterSet(16, 100, seed=3)
    assert same(one[7], other[7])
    assert not same(one[7], one[8])
    assert not same(one[7], RasterSet(16, 100, seed=4)[7])


def test_sets_that_do_not_overlap_share_no_landscape():
    assert same(RasterSet(16, 10, first=5)[0], RasterSet(16, 10)[5])
    assert RasterSet(16, 10, first=10)[0].name == "synthetic-0-10"


@pytest.mark.parametrize("number", [-1, 3])
def test_there_is_no_landscape_beyond_the_set(number):
    with pytest.raises(IndexError, match="there are 3 rasters"):
        RasterSet(16, 3)[number]


# Files


def save(path, maps):
    np.savez(path, **maps)
    return path


def test_an_archive_is_loaded_as_it_is(tmp_path):
    maps = {layer: np.array(getattr(RasterSet(12, 1)[0], layer)) for layer in LAYERS}
    assert same(load_raster(save(tmp_path / "valley.npz", maps | {"crs": np.zeros(3)})), RasterSet(12, 1)[0])


def test_an_archive_without_a_map_is_an_error(tmp_path):
    maps = layers(9)
    del maps["slope"]
    with pytest.raises(ConfigError, match="raster valley lacks slope"):
        load_raster(save(tmp_path / "valley.npz", maps))


def written(path):
    """What stands in the file of this name; those that are missing are not written."""
    if path.stem == "text":
        path.write_text("nothing")
    elif path.stem == "empty":
        path.touch()
    elif path.stem == "one":
        with path.open("wb") as file:
            np.save(file, layers(9)["slope"])
    elif path.stem == "damaged":
        np.savez_compressed(path, **layers(9))
        whole = bytearray(path.read_bytes())
        name_bytes = int.from_bytes(whole[26:28], "little") + int.from_bytes(whole[28:30], "little")
        whole[30 + name_bytes] = 0xFF  # the first byte that is compressed
        path.write_bytes(whole)
    return path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("missing.npz", "FileNotFoundError"),
        ("missing.tif", "nothing that reads GeoTIFF is installed"),
        ("missing", "no such file"),
        ("text.npz", "ValueError"),
        ("text.txt", "neither"),
        ("empty.npz", "EOFError"),
        ("one.npz", "a single array, as in a .npy"),
        ("damaged.npz", "error: Error -3 while decompressing data"),
    ],
)
def test_what_is_no_landscape_is_an_error_that_names_the_file(tmp_path, name, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "rasterio", None)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    path = written(tmp_path / name)
    with pytest.raises(ConfigError, match=found) as caught:
        load_raster(path)
    assert str(path) in caught.value.what


def test_a_set_of_files_is_sorted_and_of_one_size(tmp_path):
    for name, size in (("b.npz", 9), ("a.npz", 9), ("c.npz", 8)):
        save(tmp_path / name, layers(size))
    rasters = RasterSet.of(Task(size=9, raster_path=str(tmp_path)))
    assert [rasters[number].name for number in range(2)] == ["a", "b"]
    with pytest.raises(ConfigError, match="9 x 9") as caught:
        rasters[2]
    assert caught.value.facts == {"expected": "9 x 9 cells", "found": "8 x 8 cells"}


@pytest.mark.parametrize("ignored", [{"first_raster": 0}, {"rasters": 3, "raster_seed": 1}])
def test_what_deals_out_synthetic_landscapes_is_refused_with_real_ones(tmp_path, ignored):
    """Or whoever holds some out would evaluate what was trained on."""
    with pytest.raises(ConfigError, match=f"would ignore {', '.join(ignored)}: ") as caught:
        Task(raster_path=str(tmp_path), **ignored)
    assert "another folder" in caught.value.fix
    assert Task(raster_path=None, **ignored).model_fields_set == {"raster_path", *ignored}


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_folder_without_rasters_is_an_error_and_not_a_random_landscape(tmp_path, folder):
    with pytest.raises(ConfigError, match="holds no landscape"):
        raster_paths(tmp_path / folder)


# GeoTIFF, through stand-ins for the libraries: {file name: bands}

IN_LANDFIRE_UNITS = {
    "elevation": 850,
    "slope": 45,
    "aspect": 270,
    "fuel_model": 165,
    "canopy_cover": 55,
    "canopy_height": 180,
    "canopy_base_height": 12,
    "canopy_bulk_density": 11,
}
IN_OURS = {
    "elevation": 850,
    "slope": 1.0,
    "aspect": 270,
    "fuel_model": 165,
    "canopy_cover": 0.55,
    "canopy_height": 18.0,
    "canopy_base_height": 1.2,
    "canopy_bulk_density": 0.11,
}


class Opened:
    def __init__(self, bands, axes):
        self.bands, self.axes = bands, axes
        self.series = [self]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self):
        return self.bands

    def asarray(self):
        return np.moveaxis(self.bands, 0, -1) if self.axes == "YXS" else self.bands


def install(monkeypatch, library, files, axes="SYX"):
    """The named library, and no other."""

    def opened(path):
        if path.name not in files:
            raise OSError(f"{path.name}: no such file")
        return Opened(files[path.name], axes)

    stand_in = types.ModuleType(library)
    setattr(stand_in, {"rasterio": "open", "tifffile": "TiffFile"}[library], opened)
    for name in ("rasterio", "tifffile"):
        monkeypatch.setitem(sys.modules, name, stand_in if name == library else None)


def bands(**changes):
    return np.stack([np.full((3, 3), (IN_LANDFIRE_UNITS | changes)[band], np.int16) for band in BANDS])


def is_ours(raster):
    return all(getattr(raster, layer) == pytest.approx(IN_OURS[layer]) for layer in LAYERS)


@pytest.mark.parametrize(("library", "axes"), [("rasterio", "SYX"), ("tifffile", "SYX"), ("tifffile", "YXS")])
def test_a_landscape_file_is_converted(monkeypatch, tmp_path, library, axes):
    install(monkeypatch, library, {"valley.tif": bands()}, axes)
    assert is_ours(load_raster(tmp_path / "valley.tif"))


def test_whatever_a_library_makes_of_a_damaged_file_is_told_with_its_name(monkeypatch, tmp_path):
    install(monkeypatch, "rasterio", {})
    monkeypatch.setattr(sys.modules["rasterio"], "open", lambda _: zlib.decompress(b"no such thing"))
    with pytest.raises(ConfigError, match="error: Error -3 while decompressing data") as caught:
        load_raster(tmp_path / "valley.tif")
    assert str(tmp_path / "valley.tif") in caught.value.what


def test_one_file_per_map_is_converted(monkeypatch, tmp_path):
    folder = tmp_path / "valley"
    folder.mkdir()
    for layer in LAYERS:
        (folder / f"{layer}.tif").touch()
    install(monkeypatch, "rasterio", {f"{band}.tif": one[None] for band, one in zip(BANDS, bands(), strict=True)})
    assert is_ours(load_raster(folder))
    assert raster_paths(tmp_path) == [folder]
    assert raster_paths(folder) == [folder]
    (folder / "slope.tif").unlink()
    with pytest.raises(ConfigError, match="raster valley lacks slope"):
        load_raster(folder)


def test_flat_ground_faces_nowhere(monkeypatch, tmp_path):
    install(monkeypatch, "rasterio", {"valley.tif": bands(aspect=-1, slope=0)})
    raster = load_raster(tmp_path / "valley.tif")
    assert not raster.slope.any()
    assert not raster.aspect.any()


@pytest.mark.parametrize("layer", BANDS)
@pytest.mark.parametrize("mark", [-9999, 32767])
def test_cells_without_data_are_an_error(monkeypatch, tmp_path, layer, mark):
    install(monkeypatch, "rasterio", {"valley.tif": bands(**{layer: mark})})
    with pytest.raises(ConfigError, match=f"unusable map {layer}"):
        load_raster(tmp_path / "valley.tif")


@pytest.mark.parametrize("count", [1, 7, 9])
def test_a_file_with_missing_bands_is_an_error(monkeypatch, tmp_path, count):
    install(monkeypatch, "tifffile", {"valley.tif": np.zeros((count, 3, 3))})
    with pytest.raises(ConfigError, match=f"{count} bands"):
        load_raster(tmp_path / "valley.tif")


def test_several_bands_where_one_is_due_are_an_error(monkeypatch, tmp_path):
    (tmp_path / "slope.tif").touch()
    install(monkeypatch, "tifffile", {"slope.tif": np.zeros((2, 3, 3))})
    with pytest.raises(ConfigError, match="2 bands"):
        load_raster(tmp_path)


def test_a_file_that_cannot_be_read_is_an_error_with_its_reason(monkeypatch, tmp_path):
    install(monkeypatch, "rasterio", {})
    with pytest.raises(ConfigError, match=r"valley\.tif: no such file"):
        load_raster(tmp_path / "valley.tif")


def test_a_file_without_an_image_is_an_error(monkeypatch, tmp_path):
    install(monkeypatch, "tifffile", {"valley.tif": np.zeros((8, 3, 3))})
    monkeypatch.setattr(Opened, "asarray", lambda opened: list(opened.series)[1])  # as tifffile, an IndexError
    with pytest.raises(ConfigError, match="holds no landscape"):
        load_raster(tmp_path / "valley.tif")


def test_without_a_library_the_fix_is_named(monkeypatch, tmp_path):
    for name in ("rasterio", "tifffile"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="pip install rasterio"):
        load_raster(tmp_path / "valley.tif")
