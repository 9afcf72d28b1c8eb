"""From the 0/1 vector that was passed to step() to the cells that are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

Action = NDArray[np.generic] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of an action."""

    cells: NDArray[np.int64]
    """Indices of the cells to cut, ascending."""
    repeated: int
    """Chosen cells that were cut before."""
    over_limit: int
    """Chosen cells that go beyond what may be cut in this step."""


def choose(action: Action, broken: NDArray[np.bool_], limit: int) -> Choice:
    """The first ``limit`` chosen cells, in the order of their indices, that are not cut yet.

    Args:
        action: 0 or 1 for each cell, row by row, [H * W] of any integer, boolean or float type.
        broken: Where cuts were made, [H, W].
        limit: Cells that may be cut.

    Raises:
        ConfigError: It is anything else, such as the index of a cell.
    """
    chosen = _as_mask(action, broken.size)
    fresh = np.flatnonzero(chosen & ~broken.ravel())
    cells = fresh[:limit]
    return Choice(cells, int(chosen.sum()) - fresh.size, fresh.size - cells.size)


def _as_mask(action: Any, size: int) -> NDArray[np.bool_]:
    try:
        array = np.asarray(action)
    except ValueError as error:  # ragged
        raise _wrong(repr(action)[:200], size) from error
    if array.shape != (size,) or array.dtype.kind not in "biuf":
        found = f"{array.dtype} array of shape {array.shape}"
        raise _wrong(f"{found}: {action!r}"[:200] if array.shape == () else found, size)
    chosen: NDArray[np.bool_] = array != 0
    odd = chosen & (array != 1)  # NaN is neither 0 nor 1
    if odd.any():
        raise _wrong(f"{array[odd][0]} at place {int(odd.argmax())}", size)
    return chosen


def _wrong(found: str, size: int) -> ConfigError:
    return ConfigError(
        "FuelBreakEnv was given an action that is not in its action space",
        fix="Pass step() a vector with 1 at the cells to cut and 0 elsewhere; nothing was cut.",
        found=found,
        expected=f"{size} numbers, each 0 or 1, shape ({size},)",
    )
