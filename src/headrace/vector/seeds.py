"""Seeds as callers give them, checked before anybody is asked: an environment takes None, or a whole number from 0."""

from __future__ import annotations

import operator
from collections.abc import Sized
from typing import Any

from headrace.core.errors import VectorMisused


def counted_seeds(given: Any, count: int) -> list[int | None]:
    """A seed for each of ``count`` environments.

    Args:
        given: None; a number, from which they are counted; or one each.
        count: How many.

    Raises:
        VectorMisused: It is none of these.
    """
    if given is None:
        return [None] * count
    try:
        first = operator.index(given)
    except TypeError:
        return each_seed(given, count)
    return [_checked(first) + env for env in range(count)]


def each_seed(given: Any, count: int) -> list[int | None]:
    """The same, as listed: a number or None each.

    Raises:
        VectorMisused: It is no list of so many seeds.
    """
    try:
        listed = list(given)
    except TypeError:
        raise _no_seed(given) from None
    check_length(listed, count, "seeds")
    return [None if seed is None else _checked(seed) for seed in listed]


def check_length(given: Sized, count: int, what: str) -> None:
    """Whether there is one for each environment.

    Raises:
        VectorMisused: There are more or fewer.
    """
    if len(given) != count:
        raise VectorMisused(
            f"{len(given)} {what} for {count} environments; nothing was sent",
            fix="give one each, in the order in which the environments are named",
        )


def _checked(seed: Any) -> int:
    """A Python number: Gymnasium takes no other."""
    try:
        number = int(operator.index(seed))
    except TypeError:
        raise _no_seed(seed) from None
    if number < 0:
        raise _no_seed(number)
    return number


def _no_seed(found: object) -> VectorMisused:
    return VectorMisused(
        "a seed is None or a whole number from 0; nothing was sent", found=f"{found!r}"[:200], fix="correct the seed"
    )
