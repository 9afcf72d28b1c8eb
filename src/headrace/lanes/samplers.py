"""Which rows a batch is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataLossError
from headrace.lanes.layout import STEP
from headrace.lanes.replay import Replay

_AHEAD = 16
"""Batches whose places are drawn in one go, while the rows that may be sampled stay the same."""


class UniformSampler:
    """Every transition of every lane with the same probability, with replacement.

    All lanes are one flat index: the resident rows of a lane are one or two pieces of the block, and a number
    drawn below the total length of all pieces names a row. Rows that hold no transition are drawn again.

    Args:
        replay: Where the rows are.
        generator: The learner's sampling stream.
    """

    def __init__(self, replay: Replay, generator: np.random.Generator) -> None:
        self._replay = replay
        self._generator = generator
        self._generation = -1
        self._ends = np.zeros(0, np.int64)
        self._shifts = np.zeros(0, np.int64)
        self._ahead: list[NDArray[np.int64]] = []

    @property
    def rows(self) -> int:
        """Rows to draw from."""
        self._refresh()
        return int(self._ends[-1]) if len(self._ends) else 0

    def sample(self, batch_size: int) -> NDArray[np.void]:
        """Draw transitions.

        Returns:
            [B, W] rows, as `Replay.windows` gives them; the row at place ``frame_stack - 1`` is of kind STEP.

        Raises:
            DataLossError: There is nothing to sample.
        """
        self._refresh()
        if not self._ahead or len(self._ahead[-1]) != batch_size:
            self._ahead = list(self._draw(_AHEAD * batch_size).reshape(_AHEAD, batch_size))
        return self._replay.windows(self._ahead.pop())

    def _draw(self, count: int) -> NDArray[np.int64]:
        """Flat places of ``count`` transitions."""
        places = self._draw_rows(count)
        for _ in range(64):
            empty = np.flatnonzero(self._replay.kinds(places) != STEP)
            if not len(empty):
                return places
            places[empty] = self._draw_rows(len(empty))
        raise DataLossError(
            "there is nothing to sample: no row of the replay holds a transition",
            rows=self.rows,
            fix="collect before sampling",
        )

    def _draw_rows(self, count: int) -> NDArray[np.int64]:
        total = self.rows
        if not total:
            raise DataLossError(
                "there is nothing to sample: the replay is empty", rows=0, fix="collect before sampling"
            )
        # A uniform double times the total is uneven by one part in 2**53 / total: nothing that could be measured,
        # at a fifth of the time that exact bounded integers take.
        numbers: NDArray[np.int64] = (self._generator.random(count) * total).astype(np.int64)
        if len(self._ends) == 1:
            numbers += self._shifts[0]
        else:
            numbers += self._shifts[np.searchsorted(self._ends, numbers, side="right")]
        return numbers

    def _refresh(self) -> None:
        """Find the pieces again after rows came or went."""
        replay = self._replay
        if self._generation == replay.generation:
            return
        self._generation = replay.generation
        self._ahead = []
        g, starts, lengths = replay.geometry, [], []
        for lane in range(g.lanes):
            first, last = replay.resident(lane)
            slot = (first - (g.frame_stack - 1)) % g.ring_rows
            whole = min(last - first, g.ring_rows - slot)
            for start, length in ((slot, whole), (0, last - first - whole)):
                if length > 0:
                    starts.append(lane * g.stride_rows + start)
                    lengths.append(length)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._shifts = np.asarray(starts, np.int64) - self._ends + np.asarray(lengths, np.int64)
