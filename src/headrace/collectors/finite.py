"""Looks whether what was stored of a chunk is finite, and names the first value that is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import NonFiniteValue
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import STEP


def refuse_non_finite(block: LaneBlock, stretches: Iterable[tuple[int, int, int, bool]], environment: str) -> None:
    """Look at all rows of a chunk at once: no NaN is committed, and the first one is named.

    Args:
        block: The lanes.
        stretches: Of each lane: its number, the chunk's first row, the row after the last one, and whether an episode is
            running, so that this one holds an observation.
        environment: Its name.

    Raises:
        NonFiniteValue: A value is not finite.
    """
    paths = [leaf.path for leaf in block.geometry.observation if leaf.dtype.kind == "f"]
    for lane, start, stop, running in stretches:
        row = start
        for rows in block.pieces(lane, start, stop + running):
            found = _first_in(rows, paths, stop - row)
            if found is not None:
                place, path = found
                raise _non_finite(block, environment, lane, path, row + place)
            row += len(rows)


def _first_in(rows: NDArray[np.void], paths: Sequence[str], complete: int) -> tuple[int, str] | None:
    """Place and field of the first bad value in neighbouring rows, of which so many are complete; None: there is none."""
    bad = []
    # The observation of a row came before its reward, and may well be why that is bad too.
    for order, path in enumerate((*paths, "reward")):
        values = rows[path] if path != "reward" else rows[path][:complete]
        if not np.isfinite(values).all():
            bad.append((_first_bad(values), order, path))
    if not bad:
        return None
    place, _, path = min(bad)
    return place, path


def _non_finite(block: LaneBlock, environment: str, lane: int, path: str, row: int) -> NonFiniteValue:
    ring = block.geometry.ring_rows
    found = block.rows[lane, row % ring]
    # An observation is stored in the row after the step that returned it.
    source = found if path == "reward" else block.rows[lane, (row - 1) % ring]
    call = "step" if path == "reward" or source["kind"] == STEP else "reset"
    return NonFiniteValue(
        f"{environment} in lane {lane} returned a value that is not finite from {call}()",
        field=path,
        expected="finite numbers",
        found=found[path].copy(),
        lane=lane,
        step=int(source["transitions"]),
        fix="find out why the environment returns it; nothing of this chunk from here on was stored",
    )


def _first_bad(values: NDArray[Any]) -> int:
    """The first row, [R, ...], with a value that is not finite; there is one."""
    return int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
