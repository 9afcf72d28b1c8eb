"""Arrival times of fires on a grid: minimum travel time over eight neighbours, many fires at once.

The method is Finney's (2002): fire reaches a cell along the fastest of all paths. Times are relaxed until no
neighbour offers an earlier one, so they are the minimum over all paths, whatever the order of the work. From this
follows, exactly and not only up to rounding: removing edges never makes a fire arrive earlier anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError

Times = NDArray[np.float32]

DIRECTIONS = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""(row, column) steps to the neighbours, clockwise from north."""

_SWEEPS_PER_LOOK = 4
"""Looking for changes costs as much as a part of a sweep."""

_TOGETHER = 8
"""Fires that are relaxed at once: few enough that their times and edges stay in a processor's cache."""


def padded(values: NDArray[np.generic], fill: float) -> Times:
    """Maps with a border of one cell of ``fill``: [..., H, W] to float32 [..., H + 2, W + 2]."""
    edge = [(0, 0)] * (values.ndim - 2) + [(1, 1), (1, 1)]
    return np.pad(values.astype(np.float32), edge, constant_values=fill)


def arrivals(start: Times, edges: Times, horizon: float) -> Times:
    """When fire reaches every cell.

    Args:
        start: Times that are known, float32 [K, H + 2, W + 2] in C order: 0 at ignitions, infinity elsewhere, or an
            earlier result in which what is no longer right was put back to infinity. Overwritten.
        edges: Time to come *into* a cell from its neighbour against ``DIRECTIONS[d]``, float32
            [8, K, H + 2, W + 2], positive, infinity where there is no way, in particular on the border.
        horizon: Later times are reported as infinity.

    Returns:
        ``start``.

    Raises:
        HeadraceError: The times did not settle, which only NaN or negative edges could cause.
    """
    for first in range(0, len(start), _TOGETHER):
        _relax(start[first : first + _TOGETHER], edges[:, first : first + _TOGETHER], horizon)
    return start


def _relax(times: Times, edges: Times, horizon: float) -> None:
    """Let neighbours offer each other earlier arrivals until nothing changes; as `arrivals`, for a few fires."""
    pitch = times.shape[-1]
    flat = times.reshape(-1)
    first, last = pitch + 1, flat.size - pitch - 1  # all but the outermost of the border: each has its neighbours
    here = flat[first:last]
    offers = []
    for (row, column), cost in zip(DIRECTIONS, edges, strict=True):
        shift = row * pitch + column
        offers.append((flat[first - shift : last - shift], cost.reshape(-1)[first:last]))
    candidate, before = np.empty_like(here), np.empty_like(flat)
    for _ in range(times[0].size // _SWEEPS_PER_LOOK + 2):  # no path has more cells than the map
        np.copyto(before, flat)
        for _ in range(_SWEEPS_PER_LOOK):
            for source, cost in offers:
                np.add(source, cost, out=candidate)
                np.minimum(here, candidate, out=here)
        flat[flat > horizon] = np.inf
        if np.array_equal(flat, before):
            return
    raise HeadraceError(
        "a fire's arrival times did not settle",
        sweeps=times[0].size + 2 * _SWEEPS_PER_LOOK,
        cells=times[0].size,
        fix="file a bug with the raster: travel times must be positive numbers",
    )
