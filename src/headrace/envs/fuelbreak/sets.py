"""Many landscapes, dealt out by number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.envs.fuelbreak.loading import load_raster, raster_paths
from headrace.envs.fuelbreak.rasters import Raster
from headrace.envs.fuelbreak.settings import Task
from headrace.envs.fuelbreak.synthetic import synthesise


@dataclass(frozen=True, slots=True)
class RasterSet:
    """A number of landscapes of one size, each made or loaded when it is asked for.

    Args:
        size: Rows and columns of each.
        count: How many there are.
        first: Number of the first synthetic one: sets that do not overlap share no landscape.
        seed: Of the synthetic ones.
        paths: Files of real ones; then there is nothing synthetic.
    """

    size: int
    count: int
    first: int = 0
    seed: int = 0
    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, task: Task) -> Self:
        """The set that the environment's settings describe.

        Raises:
            ConfigError: ``raster_path`` leads to no raster.
        """
        if task.raster_path is None:
            return cls(task.size, task.rasters, task.first_raster, task.raster_seed)
        paths = tuple(raster_paths(task.raster_path))
        return cls(task.size, len(paths), paths=paths)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Raster:
        """Landscape ``number``, from 0; the same number gives the same one at any time in any process.

        Raises:
            IndexError: There is no such number.
            ConfigError: Its file cannot be used, or it is of another size.
        """
        if not 0 <= number < self.count:
            raise IndexError(f"there are {self.count} rasters, none is number {number}")
        if not self.paths:
            number += self.first
            rng = seeding.generator(self.seed, "fuelbreak.raster", number)
            return synthesise(f"synthetic-{self.seed}-{number}", self.size, rng)
        raster = load_raster(self.paths[number])
        if raster.shape != (self.size, self.size):
            raise ConfigError(
                f"raster {raster.name} does not have the size that was asked for",
                fix="Crop the raster, or set size.",
                expected=f"{self.size} x {self.size} cells",
                found=f"{raster.shape[0]} x {raster.shape[1]} cells",
            )
        return raster
