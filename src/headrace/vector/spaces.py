"""What of a space lies in memory as arrays, and what has to travel as objects.

Box, Discrete, MultiDiscrete and MultiBinary, nested in Dict and Tuple at will, are arrays. Text, Graph, Sequence,
OneOf and spaces of others are objects; Gymnasium's own functions batch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError, VectorMisused
from headrace.vector.interrupts import is_programs

Space = spaces.Space[Any]
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf of a space."""

    path: str
    """``obs`` (the whole), ``obs.camera``, ``obs.0``."""
    space: Space
    keys: tuple[Any, ...]
    """How to reach its value inside a value of the whole space."""
    dtype: np.dtype[Any] | None
    """None: it is not an array."""
    shape: tuple[int, ...]

    def of(self, value: Any) -> Any:
        """The part of ``value``, a member of the whole space, that belongs to this leaf."""
        for key in self.keys:
            value = value[key]
        return value


class Layout:
    """A space taken apart.

    Args:
        space: Of one environment.
        name: First part of each path, ``obs`` or ``action``.
        as_objects: Take the whole space as one object, whatever it is.
    """

    def __init__(self, space: Space, name: str, *, as_objects: bool = False) -> None:
        self.space = space
        self.name = name
        whole = Part(name, space, (), None, ())
        parts = (whole,) if as_objects else tuple(_parts(space, name, ()))
        self.arrays = tuple(part for part in parts if part.dtype is not None)
        self.objects = tuple(part for part in parts if part.dtype is None)
        self.single = len(parts) == 1 and not parts[0].keys
        """Whether the whole space is one leaf."""
        self.nodes = () if as_objects else tuple(_nodes(space, name, ()))
        """Dicts and Tuples with their paths, keys and lengths."""

    def batch(self, arrays: Sequence[NDArray[Any]], objects: Sequence[Sequence[Any]]) -> Any:
        """A batch as Gymnasium makes it.

        Args:
            arrays: One per array leaf, [B, ...].
            objects: One list of B values per object leaf.
        """
        if self.single and self.arrays:
            return arrays[0]
        values: dict[tuple[Any, ...], Any] = {part.keys: array for part, array in zip(self.arrays, arrays, strict=True)}
        for part, items in zip(self.objects, objects, strict=True):
            empty = create_empty_array(part.space, n=len(items), fn=np.zeros)
            values[part.keys] = concatenate(part.space, items, empty)  # type: ignore[arg-type]  # None where it is ignored
        return self._merge(self.space, (), values)

    def merge(self, leaves: Sequence[Any]) -> Any:
        """A value of the space, from the values of its array leaves; only where there are no objects."""
        if self.single:
            return leaves[0]
        return self._merge(self.space, (), {part.keys: leaf for part, leaf in zip(self.arrays, leaves, strict=True)})

    def one(self, arrays: Sequence[NDArray[Any]], objects: Sequence[Any]) -> Any:
        """A value of the space, from all of its leaves."""
        values: dict[tuple[Any, ...], Any] = {part.keys: leaf for part, leaf in zip(self.arrays, arrays, strict=True)}
        values.update({part.keys: leaf for part, leaf in zip(self.objects, objects, strict=True)})
        return self._merge(self.space, (), values)

    def _merge(self, space: Space, keys: tuple[Any, ...], values: Mapping[tuple[Any, ...], Any]) -> Any:
        if keys in values:
            return values[keys]
        if isinstance(space, spaces.Dict):
            return {key: self._merge(inner, (*keys, key), values) for key, inner in space.spaces.items()}
        assert isinstance(space, spaces.Tuple)
        return tuple(self._merge(inner, (*keys, place), values) for place, inner in enumerate(space.spaces))


def _parts(space: Space, path: str, keys: tuple[Any, ...]) -> Iterator[Part]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, inner in _items(space):
            yield from _parts(inner, f"{path}.{key}", (*keys, key))
    elif isinstance(space, _ARRAYS):
        yield Part(path, space, keys, np.dtype(space.dtype), tuple(space.shape or ()))
    else:
        yield Part(path, space, keys, None, ())


def _nodes(space: Space, path: str, keys: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...], Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, keys, space
        for key, inner in _items(space):
            yield from _nodes(inner, f"{path}.{key}", (*keys, key))


def _items(space: spaces.Dict | spaces.Tuple[Any]) -> Iterator[tuple[Any, Space]]:
    return iter(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


class ActionCodec:
    """Actions of a batch taken apart once, and put together again where they are used.

    Args:
        single: Action space of one environment.
        batched: Gymnasium's batch of it.
    """

    def __init__(self, single: Space, batched: Space) -> None:
        layout = Layout(single, "action")
        # One leaf that is no array decides for all: Gymnasium iterates over such batches in its own way.
        self.layout = Layout(single, "action", as_objects=True) if layout.objects else layout
        self._batched = batched
        self.as_objects = bool(layout.objects)

    def encode(self, actions: Any, count: int) -> tuple[list[NDArray[Any]], list[Any]]:
        """Check a batch and take it apart.

        Args:
            actions: As the batched action space has them, for ``count`` environments.
            count: How many there must be.

        Returns:
            One array per leaf, [count, ...]; and the actions one by one if they are objects.

        Raises:
            VectorMisused: The number, a shape or a dtype does not fit, or a number not into its dtype.
        """
        try:
            if self.as_objects:
                items = self._items(actions)
                if len(items) != count:
                    raise _wrong_count(len(items), count)
                return [], items
            columns = [self._column(part, part.of(actions), count) for part in self.layout.arrays]
        except HeadraceError:
            raise
        except Exception as error:  # what was given may do anything when it is looked at
            if is_programs(error):
                raise
            raise VectorMisused(
                "the actions have not the structure of the action space",
                expected=self._batched,
                found=type(actions).__name__,
                problem=f"{type(error).__name__}: {error}",
                fix="give a batch as action_space.sample() makes it",
            ) from None
        return columns, []

    def decode(self, columns: Sequence[NDArray[Any]]) -> list[Any]:
        """The actions one by one, of the types Gymnasium hands out; arrays are nobody else's."""
        # Not Python's own numbers: Gymnasium's Discrete checks those more slowly than numpy's.
        leaves = [list(column if column.ndim == 1 else column.copy()) for column in columns]
        if self.layout.single:
            return leaves[0]
        return [self.layout.merge(values) for values in zip(*leaves, strict=True)]

    def _items(self, actions: Any) -> list[Any]:
        if isinstance(self._batched, spaces.Tuple) and isinstance(actions, tuple | list):
            try:
                return list(iterate(self._batched, tuple(actions)))
            except (IndexError, ValueError):
                return list(actions)  # of the wrong length; the count tells
        return list(iterate(self._batched, actions))

    def _column(self, part: Part, value: Any, count: int) -> NDArray[Any]:
        array = np.asarray(value)
        assert part.dtype is not None
        if array.shape != (count, *part.shape):
            if array.shape[1:] == part.shape and array.ndim:
                raise _wrong_count(len(array), count)
            raise VectorMisused(
                f"{part.path} has not the shape of the action space",
                expected=f"{(count, *part.shape)}",
                found=f"{array.shape}",
                fix="give one action per environment, as action_space.sample() makes them",
            )
        if array.dtype is part.dtype:
            return array
        if not np.can_cast(array.dtype, part.dtype, "same_kind"):
            raise VectorMisused(
                f"{part.path} has not the dtype of the action space",
                expected=part.dtype,
                found=array.dtype,
                fix="convert the actions; they are not rounded silently",
            )
        cast = kept_in(array, part.dtype)
        if cast is None:
            raise VectorMisused(
                f"{part.path} holds a number that the dtype of the action space cannot hold; nothing was sent",
                expected=part.dtype,
                found=f"{array.dtype} from {np.fmin.reduce(array, None)} to {np.fmax.reduce(array, None)}",
                fix="clip the actions to the bounds of the space",
            )
        return cast


def kept_in(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Numbers in another dtype; None if not all of them are there what they were.

    Those that are real afterwards may be rounded, but none becomes infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # NaN as a whole number is then found to be another one
        cast = array.astype(dtype)
    if np.can_cast(array.dtype, dtype):
        return cast
    if dtype.kind in "biu":
        same = np.array_equal(cast, array)
    else:
        same = bool(np.isfinite(cast).all()) or np.array_equal(np.isfinite(cast), np.isfinite(array))
    return cast if same else None


def _wrong_count(found: int, expected: int) -> VectorMisused:
    return VectorMisused(
        f"{found} actions for {expected} environments; nothing was sent",
        expected=expected,
        found=found,
        fix="give one action per environment",
    )
