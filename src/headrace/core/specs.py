"""Spaces taken apart into leaves: arrays with a name, a dtype and a shape.

A Gymnasium space is a tree; experience is stored as one row field per leaf. Paths read like
``obs`` (a space that is one array), ``obs.camera`` (a key of a Dict), ``obs.0`` (a place in a Tuple).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.core.errors import UnsupportedSpace

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    keys: tuple[str | int, ...] = ()
    """How to reach the leaf's value inside a value of the whole space."""

    def of(self, value: Any) -> Any:
        """The part of ``value``, a member of the whole space, that belongs to this leaf."""
        for key in self.keys:
            value = value[key]
        return value


def leaves(space: spaces.Space[Any], prefix: str) -> tuple[Leaf, ...]:
    """The leaves of ``space`` in a fixed order.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of such, nested at will.
        prefix: First part of each path, ``obs`` or ``action``.

    Raises:
        UnsupportedSpace: Any other space; the message names it. Or two parts have one path, as a key with a dot and a key of
            a Dict in it may; the message names both.
    """
    found = tuple(_leaves(space, prefix, ()))
    known: dict[str, Leaf] = {}
    for leaf in found:
        other = known.setdefault(leaf.path, leaf)
        if other is not leaf:
            both = (prefix + "".join(f"[{key!r}]" for key in one.keys) for one in (other, leaf))
            raise UnsupportedSpace(
                f"{prefix} space has two parts with one name",
                field=leaf.path,
                found=" and ".join(both),
                fix="rename a key in the environment, or in a wrapper around it: a dot in a key reads like another level",
            )
    return found


def _leaves(space: spaces.Space[Any], path: str, keys: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, f"{path}.{key}", (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for place, inner in enumerate(space.spaces):
            yield from _leaves(inner, f"{path}.{place}", (*keys, place))
    elif isinstance(space, _ARRAYS):
        yield Leaf(path, np.dtype(space.dtype), tuple(space.shape or ()), keys)
    else:
        raise UnsupportedSpace(
            f"{path.split('.', maxsplit=1)[0]} space has a part that cannot be stored as an array",
            field=path,
            expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these",
            found=f"{type(space).__name__}: {space}",
            fix="wrap the environment so that this part is one of the expected spaces",
        )


def handed_over(value: Any) -> Any:
    """A leaf's value as an environment is given it: its own copy, and a plain number where it has no dimension.

    An array without dimensions is no key of a dict, and no index of a list.
    """
    return value if isinstance(value, np.generic) else np.array(value)[()]


def assemble(space: spaces.Space[Any], values: dict[str, Any], path: str) -> Any:
    """Put leaf values back into a value of the whole space; the inverse of `Leaf.of`.

    Args:
        space: The space `leaves` took apart.
        values: One array per leaf path.
        path: The prefix that was given to `leaves`.
    """
    if isinstance(space, spaces.Dict):
        return {key: assemble(inner, values, f"{path}.{key}") for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assemble(inner, values, f"{path}.{place}") for place, inner in enumerate(space.spaces))
    return values[path]
