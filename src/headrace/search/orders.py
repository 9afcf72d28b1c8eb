"""Permutations of a few things, and how far apart they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

Order = tuple[str, ...]
MOST_ITEMS: Final = 8
"""Every order is looked at before one is chosen, and there are 40,320 of eight things."""


def all_orders(items: Sequence[str]) -> tuple[Order, ...]:
    """Every order of ``items``, beginning with their own.

    Raises:
        ConfigError: There are too few or too many of them, or one twice.
    """
    if not 2 <= len(items) <= MOST_ITEMS or len(set(items)) != len(items):
        raise ConfigError(
            f"an order is of 2 to {MOST_ITEMS} different things",
            found=", ".join(items),
            fix="leave out what occurs twice, or put things together that need no order",
        )
    return tuple(itertools.permutations(items))


def places(orders: Sequence[Order], items: Sequence[str]) -> NDArray[np.float64]:
    """Place of each item in each order, [N, n]; a model sees an order like this.

    Raises:
        ConfigError: One of them is no order of ``items``.
    """
    for order in orders:
        if sorted(order) != sorted(items):
            raise ConfigError(
                "this is not an order of the things that are searched over",
                found=", ".join(order),
                items=", ".join(items),
                fix="name each of them once",
            )
    return np.array([[order.index(item) for item in items] for order in orders], float).reshape(-1, len(items))


def pair_signs(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each pair of items whether the first comes before the second: 1 or -1, [N, n (n - 1) / 2]."""
    first, second = np.triu_indices(places.shape[1], k=1)
    signs: NDArray[np.float64] = np.sign(places[:, second] - places[:, first])
    return signs


def distances(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kendall's distance of every two orders, given by `places`: pairs of items that they arrange differently, [N, M]."""
    signs = pair_signs(left)
    together: NDArray[np.float64] = (signs.shape[1] - signs @ pair_signs(right).T) / 2.0
    return together


def distance(left: Order, right: Order) -> int:
    """Kendall's distance of two orders: neighbours that have to be swapped to make one of the other."""
    return int(distances(places([left], left), places([right], left))[0, 0])


def nearest(order: Order, scores: Mapping[Order, float]) -> Order | None:
    """The nearest of several orders; of equally near ones that with the highest score, then the first; None of none."""
    return min(scores, key=lambda other: (distance(order, other), -scores[other], other), default=None)
