"""Infos of several environments in one dict, as Gymnasium's vector environments have them.

Gymnasium adds them one environment and one key at a time. Where all of them hold the same numbers, which is the
commonest case, whole columns are laid down in shared memory and filled in instead; the result is the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.vector.endings import as_gymnasium_names
from headrace.vector.faults import Fault
from headrace.vector.interrupts import is_programs
from headrace.vector.rows import compact

_PYTHONS_OWN = (bool, int, float)
_WHOLE = frozenset({bool, int, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32})
_REAL = frozenset({float, np.float16, np.float32, np.float64})
Info = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What infos of the same make have in common: their keys, and a type of number for each, in order."""

    keys: tuple[str, ...]
    types: tuple[type, ...]

    def read(self, numbers: NDArray[np.float64], envs: list[int]) -> Columns:
        """What `Columns.lay_down` wrote."""
        return Columns(envs, self, self._arrays(numbers, index(envs)))

    def batch(self, numbers: NDArray[np.float64]) -> Info:
        """The infos of a batch of all environments, each of which has laid one down."""
        return _whole_batch(self, self._arrays(numbers, slice(None)))

    def _arrays(self, numbers: NDArray[np.float64], place: slice | list[int]) -> list[NDArray[Any]]:
        whole = numbers.view(np.int64)
        return [(whole if kind in _WHOLE else numbers)[row, place].astype(kind) for row, kind in enumerate(self.types)]


@dataclass(frozen=True, slots=True)
class Columns:
    """Infos of several environments that are of one form."""

    envs: list[int]
    form: Form
    arrays: list[NDArray[Any]]
    """Per key one number per environment."""

    def batch(self) -> Info:
        """The same as the infos of a batch of these environments alone."""
        return _whole_batch(self.form, self.arrays)

    def lay_down(self, numbers: NDArray[np.float64]) -> bool:
        """Write them into memory that is shared; False if they do not fit.

        Args:
            numbers: [K, N], whose 8 bytes hold a whole number or a real one, as the form has it.
        """
        if len(self.arrays) > len(numbers) or not all(kind in _WHOLE or kind in _REAL for kind in self.form.types):
            return False
        whole, place = numbers.view(np.int64), index(self.envs)
        for row, (kind, array) in enumerate(zip(self.form.types, self.arrays, strict=True)):
            (whole if kind in _WHOLE else numbers)[row, place] = array
        return True

    def one_by_one(self) -> dict[int, Info]:
        """The infos as they were, by environment."""
        columns = [
            array.tolist() if kind in _PYTHONS_OWN else list(array)
            for kind, array in zip(self.form.types, self.arrays, strict=True)
        ]
        rows = zip(*columns, strict=True)
        return {env: dict(zip(self.form.keys, row, strict=True)) for env, row in zip(self.envs, rows, strict=True)}


def index(envs: list[int]) -> slice | list[int]:
    """What picks these out of an array; neighbours at once."""
    together = compact(envs)
    return slice(together.start, together.stop) if isinstance(together, range) else envs


def columns_of(infos: Mapping[int, Info]) -> Columns | None:
    """Infos by environment as columns; None if they are not all alike, or hold something else than numbers."""
    keys = set(map(tuple, infos.values()))
    if len(keys) > 1:
        return None
    columns = list(zip(*[info.values() for info in infos.values()], strict=True))
    types = [set(map(type, column)) for column in columns]
    if any(len(kinds) > 1 for kinds in types):
        return None
    form = Form(keys.pop(), tuple(kinds.pop() for kinds in types))
    # Names alone: 1 and True are one key, and what else may be one need not be readable in another process.
    # And Gymnasium puts everything of this one name in a column of objects.
    if not all(type(key) is str for key in form.keys) or "final_obs" in form.keys:
        return None
    if not all(kind in _PYTHONS_OWN or issubclass(kind, np.number) for kind in form.types):
        return None
    try:
        arrays: list[NDArray[Any]] = [np.array(column, kind) for kind, column in zip(form.types, columns, strict=True)]
    except OverflowError:
        return None  # whole numbers that no array holds; the exact way says what Gymnasium says
    return Columns(list(infos), form, arrays)


def _whole_batch(form: Form, arrays: Sequence[NDArray[Any]]) -> Info:
    """A batch in which every environment has an info of this form."""
    batch: Info = {}
    for key, array in zip(form.keys, arrays, strict=True):
        batch[key], batch[f"_{key}"] = array, ~np.zeros(len(array), np.bool_)  # faster than ones
    return batch


class Infos:
    """Collects the infos of one batch.

    Args:
        count: How many environments are in the batch; arrays have as many entries.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._vector: gymnasium.vector.VectorEnv[Any, Any, Any] | None = None
        self.batch: dict[Any, Any] = {}

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
        self.batch = self._vector._add_info(  # noqa: SLF001 - the base class's own rule
            self.batch, as_gymnasium_names(info), place
        )

    def tell(self, faults: Mapping[int, Sequence[Fault]], valid: NDArray[np.bool_]) -> None:
        """What went wrong, by place, under the key ``headrace``."""
        for place, told in faults.items():
            self.add(place, {"headrace": _told(told)})
        self.batch["headrace"]["valid"] = valid.copy()

    def _fill_columns(self, columns: Sequence[Columns], places: Mapping[int, int] | None) -> None:
        where = [index(one.envs if places is None else [places[env] for env in one.envs]) for one in columns]
        if where == [slice(0, self._count)]:
            self.batch = columns[0].batch()
            return
        mask = np.zeros(self._count, np.bool_)
        for own in where:
            mask[own] = True
        form = columns[0].form if columns else Form((), ())
        for number, (key, kind) in enumerate(zip(form.keys, form.types, strict=True)):
            array: NDArray[Any] = np.zeros(self._count, kind)
            for one, own in zip(columns, where, strict=True):
                array[own] = one.arrays[number]
            self.batch[key], self.batch[f"_{key}"] = array, mask.copy()


class AsTheyAre(Infos):
    """Leaves the infos of a batch as their environments gave them: `batch` holds one per place, of those that have any.

    An ending stays under its own key, `headrace.vector.endings.ENDING`.

    Gymnasium's way of putting them together gives all numbers of a key the type of the first, and cannot put some together
    at all.
    """

    def fill(self, infos: Mapping[int, Info], columns: Sequence[Columns], places: Mapping[int, int] | None) -> None:
        """See `Infos.fill`."""
        everybody = {env: kept(info) for env, info in infos.items()}
        for one in columns:
            everybody |= one.one_by_one()
        self.batch = {env if places is None else places[env]: info for env, info in everybody.items()}

    def tell(self, faults: Mapping[int, Sequence[Fault]], valid: NDArray[np.bool_]) -> None:
        """See `Infos.tell`; each is in the info of its place."""
        for place, told in faults.items():
            self.batch.setdefault(place, {})["headrace"] = _told(told)


def _told(faults: Sequence[Fault]) -> Info:
    """The first one, which cut the episode if one was cut; what befell the replacements after it stands in its message."""
    first = faults[0]
    message = "\nand then: ".join(fault.message for fault in faults)
    return {"fault": first.kind.value, "message": message, "step": first.step, "phase": first.phase}


def kept(info: Any) -> Any:
    """A copy of one info: its environment may go on with what it gave."""
    try:
        return copy.deepcopy(info)
    except Exception as error:  # it may hold anything; then at least its entries stay
        if is_programs(error):
            raise
        return dict(info) if isinstance(info, Mapping) else info
