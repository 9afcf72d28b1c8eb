"""Memory for numbers, and which of them float32 has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
"""Bytes."""
SURELY_HELD = float(np.finfo(np.float32).max) ** 2
"""Of numbers whose squares add up to no more, none is too large for float32."""


def aligned(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Zeros that begin with a cache line, so that vector code and matrix products take the same path in every process."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def first_too_large(values: NDArray[Any], dtype: DTypeLike = np.float32) -> tuple[int, ...] | None:
    """Where the first finite number is that a floating-point ``dtype`` would make infinite; None: there is none.

    Args:
        values: [...] real numbers. NaN and infinity are none that are too large.
        dtype: What they are to become.
    """
    if dtype is np.float32:
        if values.dtype.kind != "f" or values.dtype.itemsize <= 4:
            return None  # there is no such number
        if np.vdot(values, values) <= SURELY_HELD:  # one pass instead of three
            return None
    large = (np.abs(values) > np.finfo(dtype).max) & np.isfinite(values)
    return tuple(int(place) for place in np.argwhere(large)[0]) if large.any() else None
