"""Where answers of environments are checked and laid down: every value that enters the library passes here.

`Rows` holds the newest two observations of every environment, one in each half, so that the last valid one is still
there when its successor turns out to be no observation. `settle` turns what ``step()`` returned into columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.scalars import as_flag, as_number
from headrace.vector.endings import ENDING
from headrace.vector.faults import Problem, broken_contract, not_finite, text_of
from headrace.vector.interrupts import is_programs
from headrace.vector.spaces import Layout, Part

_FLAGS = frozenset({bool, np.bool_})
_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})

Returned = tuple[Any, Any, Any, Any, Any]
"""Observation, reward, terminated, truncated, info."""

_Found = TypeVar("_Found")


class _Doubt(Exception):
    """At least one value of many does not fit at first sight."""


def row_of(env: Any, seq: Any, num_envs: int) -> Any:
    """Where the observation goes that answers question ``seq`` of an environment; numbers, or arrays of them."""
    return env + (seq & 1) * num_envs


def compact(numbers: list[int]) -> Sequence[int]:
    """The same numbers, as a range if they are neighbours: rows of such are written without a copy in between."""
    together = range(numbers[0], numbers[0] + len(numbers))
    return together if numbers == list(together) else numbers


class Rows:
    """Observations of ``num_envs`` environments, two halves of rows each.

    Args:
        layout: Of the observation space.
        arrays: One per array leaf, [2 * num_envs, ...]; somebody else may share them.
        check_finite: Whether NaN and infinity are faults.
        cast: Whether another dtype of the same kind, or a list, is converted, as Gymnasium does; otherwise it is a fault.
    """

    finals = False
    """Whether infos may hold an `ENDING`, whose observation is checked as well."""

    def __init__(
        self, layout: Layout, arrays: Sequence[NDArray[Any]], *, check_finite: bool, cast: bool = True
    ) -> None:
        self.layout = layout
        self.arrays = list(arrays)
        self.check_finite = check_finite
        self._cast = cast
        # [2 * num_envs * first, ...]: rows laid end to end, which `np.concatenate` fills fastest.
        self._joined = [_joined(array) for array in self.arrays]
        self._only = layout.arrays[0] if layout.single and layout.arrays else None

    @classmethod
    def private(cls, layout: Layout, num_envs: int, *, check_finite: bool, cast: bool = True) -> Rows:
        """Rows in this process's own memory."""
        arrays = [np.zeros((2 * num_envs, *part.shape), part.dtype) for part in layout.arrays]
        return cls(layout, arrays, check_finite=check_finite, cast=cast)

    def forget(self) -> None:
        """Give the memory back that others may share; nothing is read or written any more."""
        self.arrays, self._joined = [], []

    @property
    def checked_first(self) -> bool:
        """Whether an observation is known to fit before any of it is written, so that it may replace the one before."""
        floating = self._only is not None and self._only.dtype is not None and self._only.dtype.kind in "fc"
        return self._only is not None and not self.finals and not (floating and self.check_finite)

    def try_write(self, where: Sequence[int], values: Sequence[Any]) -> bool:
        """Lay observations down at once; False if at least one may not fit.

        Args:
            where: Their rows; a range if they are neighbours.
            values: One observation per row.
        """
        try:
            if self._only is not None:
                self._write_leaf(0, self._only, where, values)
            else:
                self._check_nodes(values)
                for place, part in enumerate(self.layout.arrays):
                    self._write_leaf(place, part, where, [part.of(value) for value in values])
        except (_Doubt, AttributeError):  # the latter for lists, which have no shape
            return False
        except Exception as error:  # a value may do anything when it is looked at; one by one it has an owner
            if is_programs(error):
                raise
            return False
        return True

    def write_plain(self, row: int, returned: Any) -> bool:
        """Lay one observation down, if it and everything beside it is of the plainest kind: one array, no info.

        Returns:
            Whether it is so; otherwise `settle` decides.
        """
        part = self._only
        if part is None or type(returned) is not tuple or len(returned) != 5:
            return False
        observation, reward, terminated, truncated, info = returned
        if (
            info
            or type(info) is not dict
            or type(reward) not in _NUMBERS
            or type(terminated) not in _FLAGS
            or type(truncated) not in _FLAGS
        ):
            return False
        if type(observation) is not np.ndarray or observation.dtype != part.dtype or observation.shape != part.shape:
            return False
        self.arrays[0][row] = observation
        try:
            finite = math.isfinite(reward)
        except OverflowError:  # a whole number that no float holds
            return False
        if not self.check_finite:
            return True
        return finite and (part.dtype.kind not in "fc" or _all_finite(observation))

    def take(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Copies of rows, one array per leaf, [B, ...]."""
        return [array.take(rows, axis=0) for array in self.arrays]

    def _check_nodes(self, values: Sequence[Any]) -> None:
        """Dicts and Tuples have as many parts as they should; which ones, the leaves tell."""
        for _, keys, space in self.layout.nodes:
            size = len(space.spaces)  # type: ignore[attr-defined]
            for value in values:
                for key in keys:
                    value = value[key]
                if len(value) != size:
                    raise _Doubt

    def _write_leaf(self, place: int, part: Part, where: Sequence[int], items: Sequence[Any]) -> None:
        """One leaf of several rows at once; of neighbours without a copy in between."""
        shape, dtype, count = part.shape, part.dtype, len(items)
        assert dtype is not None
        neighbours, first = type(where) is range, where[0]
        if shape:
            if [item.shape for item in items].count(shape) != count:
                raise _Doubt
            if neighbours:
                block = self._joined[place][first * shape[0] : (first + count) * shape[0]]
            else:
                block = np.empty((count * shape[0], *shape[1:]), dtype)
            np.concatenate(items, out=block, casting="same_kind" if self._cast else "equiv")
        else:
            if not self._cast and not all(_is_exact(part, item) for item in items):
                raise _Doubt
            found = np.array(items)
            if found.shape != (count,) or not np.can_cast(found.dtype, dtype, "same_kind"):
                raise _Doubt
            block = found.astype(dtype, copy=False)
            if neighbours:
                self.arrays[place][first : first + count] = block
        if self.check_finite and dtype.kind in "fc" and not _all_finite(block):
            raise _Doubt
        if not neighbours:
            self.arrays[place][where] = block.reshape(count, *shape)

    def write(self, row: int, value: Any, phase: str) -> Problem | None:
        """Lay one observation down; what is wrong with it, if anything is.

        Args:
            row: Where; if something is wrong it holds nothing of use.
            value: The observation.
            phase: For messages, ``step`` or ``reset``.
        """
        for path, keys, space in self.layout.nodes:
            problem = _wrong_node(path, keys, space, value, phase)
            if problem is not None:
                return problem
        for array, part in zip(self.arrays, self.layout.arrays, strict=True):
            assert part.dtype is not None
            given = part.of(value)
            try:
                found = np.asarray(given)
            except Exception as error:  # a value may do anything when it is looked at
                if is_programs(error):
                    raise
                found = np.array(None)
            fits = self._cast or _is_exact(part, given)
            if not fits or found.shape != part.shape or not np.can_cast(found.dtype, part.dtype, "same_kind"):
                expected = f"{part.dtype} of shape {part.shape}"
                described = _describe(found if fits and found.dtype != object else given)
                return broken_contract(phase, part.path, expected, described)
            with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by what follows
                array[row] = found
            if self.check_finite and part.dtype.kind in "fc" and not np.isfinite(array[row]).all():
                return not_finite(phase, part.path, _first_non_finite(found, np.asarray(array[row])))
        return None


def _joined(array: NDArray[Any]) -> NDArray[Any]:
    """Rows laid end to end; not by ``reshape(-1, ...)``, which cannot tell how many rows of no numbers there are."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]) if array.ndim > 1 else array


def _all_finite(array: NDArray[Any]) -> bool:
    """The same as ``np.isfinite(array).all()``, which takes twice as long for a few numbers."""
    return b"\0" not in np.isfinite(array).tobytes()


def _is_exact(part: Part, value: Any) -> bool:
    """Whether a value has the very dtype of its part, which of a Discrete space any whole number has."""
    if isinstance(part.space, spaces.Discrete):
        return np.asarray(value).dtype.kind in "iu"
    return isinstance(value, np.ndarray | np.generic) and value.dtype == part.dtype


def _wrong_node(path: str, keys: tuple[Any, ...], space: Any, value: Any, phase: str) -> Problem | None:
    for key in keys:
        value = value[key]
    if isinstance(space.spaces, Mapping):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            found = f"keys {list(value)}" if isinstance(value, Mapping) else type(value).__name__
            return broken_contract(phase, path, f"a dict with keys {list(space.spaces)}", found)
    elif not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        found = f"{len(value)} parts" if isinstance(value, tuple | list) else type(value).__name__
        return broken_contract(phase, path, f"a tuple of {len(space.spaces)} parts", found)
    return None


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"[:200]


def _first_non_finite(given: NDArray[Any], stored: NDArray[Any]) -> str:
    """What was given at the first place where that is not finite as it is stored."""
    place = np.unravel_index(int(np.isfinite(stored).argmin()), stored.shape)
    text = f"{given[place]} at index {tuple(int(i) for i in place)}"
    return f"{text}, which {stored.dtype} cannot hold" if np.isfinite(given[place]) else text


@dataclass(slots=True)
class Settled:
    """Answers of several environments as columns; where something is wrong, the columns hold 0 and False."""

    rewards: Sequence[float]
    terminated: Sequence[bool]
    truncated: Sequence[bool]
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By place; only those that are not empty."""
    objects: list[list[Any]] = field(default_factory=list)
    """One list per leaf of the observation space that is no array."""
    problems: dict[int, Problem] = field(default_factory=dict)
    """By place."""


def settle(
    rows: Rows, where: Sequence[int], returned: Sequence[Returned | Problem], resets: Container[int] = ()
) -> Settled:
    """Check what several environments returned, and lay their observations down.

    Args:
        rows: For the observations.
        where: One row each; a range if they are neighbours.
        returned: What each returned from ``step()``, or what is known to be wrong with it.
        resets: Places of those that were reset and not stepped, for messages.
    """
    try:
        settled, observations = _columns(rows, returned)
    except _Doubt:
        return _settle_each(rows, where, returned, resets)
    except Exception as error:  # what was returned may do anything when it is looked at
        if is_programs(error):
            raise
        return _settle_each(rows, where, returned, resets)
    if rows.finals and settled.infos:
        returned = _check_finals(rows, where, settled.infos, returned)
        if any(isinstance(one, Problem) for one in returned):
            return _settle_each(rows, where, returned, resets)
    if not rows.try_write(where, observations):
        return _settle_each(rows, where, returned, resets)
    if rows.layout.objects:
        objects = _objects(rows.layout, observations)
        if objects is None:
            return _settle_each(rows, where, returned, resets)
        settled.objects = objects
    return settled


def _objects(layout: Layout, observations: Sequence[Any]) -> list[list[Any]] | None:
    """Parts that are no arrays, a list per leaf; None if at least one may not fit.

    Nothing else tells whether what is found there is such a part at all.
    """
    try:
        for path, keys, space in layout.nodes:
            if any(_wrong_node(path, keys, space, observation, "") for observation in observations):
                return None
        return [[part.of(observation) for observation in observations] for part in layout.objects]
    except Exception as error:  # as above
        if is_programs(error):
            raise
        return None


def _columns(rows: Rows, returned: Sequence[Any]) -> tuple[Settled, Sequence[Any]]:
    """Everything but the observations, where all of it is as it should be at first sight."""
    if set(map(len, returned)) != {5}:
        raise _Doubt
    observations, rewards, terminated, truncated, infos = zip(*returned, strict=True)
    if not (_NUMBERS.issuperset(map(type, rewards)) and _FLAGS.issuperset(map(type, terminated + truncated))):
        raise _Doubt
    if not math.isfinite(math.fsum(rewards)) and rows.check_finite:
        raise _Doubt
    if set(map(type, infos)) != {dict}:
        raise _Doubt
    settled = Settled(rewards, terminated, truncated)
    if any(infos):
        settled.infos = {place: info for place, info in enumerate(infos) if info}
    return settled, observations


def _check_finals(
    rows: Rows, where: Sequence[int], infos: Mapping[int, Any], returned: Sequence[Returned | Problem]
) -> Sequence[Returned | Problem]:
    """The same answers, without those whose last observation does not fit. Their rows are written again later."""
    checked = list(returned)
    for place, info in infos.items():
        if ENDING in info:
            problem = _checked(rows.write, where[place], info[ENDING][0], "step")
            if problem is not None:
                checked[place] = problem
    return checked


def _settle_each(
    rows: Rows, where: Sequence[int], returned: Sequence[Returned | Problem], resets: Container[int]
) -> Settled:
    """The exact way: one by one, so that each problem has its owner."""
    count = len(returned)
    rewards, flags = [0.0] * count, ([False] * count, [False] * count)
    settled = Settled(rewards, *flags)
    settled.objects = [[None] * count for _ in rows.layout.objects]
    for place, (row, one) in enumerate(zip(where, returned, strict=True)):
        phase = "reset" if place in resets else "step"
        found = one if isinstance(one, Problem) else _checked(partial(_settle_one, rows), row, one, phase)
        if isinstance(found, Problem):
            settled.problems[place] = found
            continue
        objects, rewards[place], flags[0][place], flags[1][place], info = found
        if info:
            settled.infos[place] = info
        for column, value in zip(settled.objects, objects, strict=True):
            column[place] = value
    return settled


def _checked(check: Callable[[int, Any, str], _Found | Problem], row: int, value: Any, phase: str) -> _Found | Problem:
    """What a check of something finds, or that it cannot even be looked at."""
    try:
        return check(row, value, phase)
    except Exception as error:  # what was returned may do anything when it is looked at
        if is_programs(error):
            raise
        return broken_contract(phase, f"what {phase}() returned", "plain numbers, arrays and a dict", text_of(error))


def _settle_one(rows: Rows, row: int, returned: Any, phase: str) -> Returned | Problem:
    """The same as plain values, and instead of the observation, which is laid down, its parts that are no arrays."""
    if not isinstance(returned, tuple | list) or len(returned) != 5:
        expected = "observation, reward, terminated, truncated, info"
        return broken_contract(phase, "what step() returned", expected, _describe(returned))
    observation, reward, terminated, truncated, info = returned
    number = as_number(reward)
    if number is None:
        return broken_contract(phase, "reward", "a number", _describe(reward))
    if rows.check_finite and not math.isfinite(number):
        return not_finite(phase, "reward", f"{number}")
    ends = []
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        end = as_flag(flag)
        if end is None:
            return broken_contract(phase, name, "a bool", _describe(flag))
        ends.append(end)
    if not isinstance(info, Mapping):
        return broken_contract(phase, "info", "a dict", _describe(info))
    problem = None
    if rows.finals and ENDING in info:
        problem, phase = rows.write(row, info[ENDING][0], phase), "reset"
    problem = problem or rows.write(row, observation, phase)
    if problem is not None:
        return problem
    return [part.of(observation) for part in rows.layout.objects], number, ends[0], ends[1], dict(info)
