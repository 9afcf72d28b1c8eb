"""Numbers and flags as environments return them, read in one way by everybody."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np


def as_number(value: Any) -> float | None:
    """A real number, or an array that holds exactly one, as a float; None: it is anything else, or too large for one.

    Args:
        value: Arrays of shape () or (1,) may be those of any library that hands them to numpy, as torch's and JAX's do.
    """
    one = _taken_out(value)
    if not isinstance(one, Real | np.bool_):
        return None
    try:
        return float(one)
    except OverflowError:  # a whole number that no float holds
        return None


def as_flag(value: Any) -> bool | None:
    """A bool, 0 or 1, or an array that holds exactly one such, as a bool; None: it is anything else. Arrays as of `as_number`."""
    if value is True or value is False:
        return bool(value)
    one = _taken_out(value)
    return bool(one) if isinstance(one, Integral | np.bool_) and one in (0, 1) else None


def _taken_out(value: Any) -> Any:
    """The one number an array holds; what is no such array as it is."""
    if isinstance(value, np.generic) or not hasattr(type(value), "__array__"):
        return value
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001 - of a library that will not hand it over, or of the user's
        return value
    return array.item() if array.shape in ((), (1,)) and array.dtype.kind in "fiub" else value
