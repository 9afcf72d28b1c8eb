"""Infos of several environments in one dict, as Gymnasium's vector environments have them.

Gymnasium adds them one environment and one key at a time. Where all of them hold the same numbers, which is the
commonest case, whole columns are packed, sent and filled in instead; the result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.vector.faults import Fault

_PYTHONS_OWN = (bool, int, float)
Info = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Infos of several environments that hold numbers of the same types under the same keys."""

    envs: list[int]
    keys: tuple[str, ...]
    types: tuple[type, ...]
    arrays: list[NDArray[Any]]
    """Per key one number per environment."""

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for those that can be put together."""
        return self.keys, self.types

    def one_by_one(self) -> dict[int, Info]:
        """The infos as they were, by environment."""
        columns = [
            array.tolist() if kind in _PYTHONS_OWN else list(array)
            for kind, array in zip(self.types, self.arrays, strict=True)
        ]
        rows = zip(*columns, strict=True)
        return {env: dict(zip(self.keys, row, strict=True)) for env, row in zip(self.envs, rows, strict=True)}


def columns_of(infos: Mapping[int, Info]) -> Columns | None:
    """Infos by environment as columns; None if they are not all alike, or hold something else than numbers."""
    values = list(infos.values())
    keys, types = tuple(values[0]), tuple(map(type, values[0].values()))
    if not all(kind in _PYTHONS_OWN or issubclass(kind, np.number) for kind in types):
        return None
    for info in values[1:]:
        if tuple(info) != keys or tuple(map(type, info.values())) != types:
            return None
    try:
        arrays: list[NDArray[Any]] = [
            np.array([info[key] for info in values], kind) for key, kind in zip(keys, types, strict=True)
        ]
    except OverflowError:
        return None  # whole numbers that no array holds; the exact way says what Gymnasium says
    return Columns(list(infos), keys, types, arrays)


class Infos:
    """Collects the infos of one batch.

    Args:
        count: How many environments are in the batch; arrays have as many entries.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._vector: gymnasium.vector.VectorEnv[Any, Any, Any] | None = None
        self.batch: Info = {}

    def fill(self, infos: Mapping[int, Info], columns: Sequence[Columns], places: Mapping[int, int] | None) -> None:
        """The infos of a whole batch.

        Args:
            infos: By environment.
            columns: Those of other environments.
            places: Of each environment in the batch; None: its number.
        """
        if not infos and all(one.form == columns[0].form for one in columns):
            self._fill_columns(columns, places)
            return
        everybody = dict(infos)
        for one in columns:
            everybody |= one.one_by_one()
        for env in sorted(everybody):  # dtypes follow the first
            self.add(env if places is None else places[env], everybody[env])

    def add(self, place: int, info: Mapping[str, Any]) -> None:
        """The info of one environment."""
        if self._vector is None:
            self._vector = gymnasium.vector.VectorEnv()
            self._vector.num_envs = self._count
        self.batch = self._vector._add_info(self.batch, dict(info), place)  # noqa: SLF001 - the base class's own rule

    def tell(self, faults: Mapping[int, Fault], valid: NDArray[np.bool_]) -> None:
        """What went wrong, by place, under the key ``headrace``."""
        for place, fault in faults.items():
            told = {"fault": fault.kind.value, "message": fault.message, "step": fault.step, "phase": fault.phase}
            self.add(place, {"headrace": told})
        self.batch["headrace"]["valid"] = valid.copy()

    def _fill_columns(self, columns: Sequence[Columns], places: Mapping[int, int] | None) -> None:
        where = [one.envs if places is None else [places[env] for env in one.envs] for one in columns]
        mask = np.zeros(self._count, np.bool_)
        for own in where:
            mask[own] = True
        for number, key in enumerate(columns[0].keys if columns else ()):
            array: NDArray[Any] = np.zeros(self._count, columns[0].types[number])
            for one, own in zip(columns, where, strict=True):
                array[own] = one.arrays[number]
            self.batch[key], self.batch[f"_{key}"] = array, mask.copy()
