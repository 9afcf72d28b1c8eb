"""Which rows a batch is made of: who draws them, and the one that draws all alike.

`headrace.lanes.prioritised` draws by priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataLossError
from headrace.lanes.layout import STEP
from headrace.lanes.replay import Replay

_AHEAD = 16
"""Batches whose places are drawn in one go, while the rows that may be sampled stay the same."""
_REDRAWS = 8
"""Times that rows without a transition are drawn again before all rows are looked at. At most every second row
has none, except where a lane's few rows are all there is."""
_BUCKET_BITS = 10
"""Logarithm of the number of equal parts a number is first looked up in; see `UniformSampler._places`."""


class Sampler(Protocol):
    """Draws the rows of batches from a replay, by the learner's sampling stream alone."""

    generator: np.random.Generator
    places: NDArray[np.int64]
    """[B] places of the newest batch's windows, see `Replay.windows`."""

    @property
    def rows(self) -> int:
        """Rows to draw from."""
        ...

    @property
    def ready(self) -> bool:
        """Whether there is a transition to draw."""
        ...

    def sample(self, batch_size: int) -> NDArray[np.void]:
        """Draw transitions.

        Returns:
            [B, W] rows, as `Replay.windows` gives them; the row at place ``frame_stack - 1`` is of kind STEP.

        Raises:
            DataLossError: There is nothing to sample.
        """
        ...

    def weights(self, updates: int) -> NDArray[np.float64] | None:
        """Weight of each transition of the newest batch in the loss, [B] in (0, 1]; None: all are 1.

        Args:
            updates: Made so far.
        """
        ...

    def learned(self, errors: NDArray[np.floating[Any]] | None) -> None:
        """An update was made with the newest batch; ``errors`` [B] are its TD errors, None where nobody measures them."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All that drawing hangs on besides the rows and the generator. Live; copied to keep."""
        ...

    def load_state(self, arrays: Mapping[str, NDArray[Any]], *, same_rows: bool) -> None:
        """Go on from a `state`, with the rows there were then, or with others that have come and gone since."""
        ...


class UniformSampler:
    """Every transition of its lanes with the same probability, with replacement.

    All these lanes are one flat index: the resident rows of a lane are one or two pieces of the block, and a number
    drawn below the total length of all pieces names a row. Rows that hold no transition are drawn again.

    Args:
        replay: Where the rows are.
        generator: The learner's sampling stream.
        lanes: Whose rows; None: those of all lanes.
    """

    def __init__(self, replay: Replay, generator: np.random.Generator, lanes: Sequence[int] | None = None) -> None:
        self._replay = replay
        self._lanes = np.arange(replay.geometry.lanes) if lanes is None else np.array(lanes)
        self.generator = generator
        self._generation = -1
        self._ends = np.zeros(0, np.int64)
        self._shifts = np.zeros(0, np.int64)
        self._bits = 0
        self._piece_of = np.zeros(0, np.int64)
        self._pieces_per_bucket = 0
        self._ahead: list[NDArray[np.int64]] = []
        self.places = np.zeros(0, np.int64)
        """[B] places of the newest batch's windows, see `Replay.windows`."""

    @property
    def rows(self) -> int:
        """Rows to draw from."""
        self._refresh()
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def ready(self) -> bool:
        """See `Sampler.ready`."""
        return self._replay.holds_transition(self._lanes)

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
        self.places = self._ahead.pop()
        return self._replay.windows(self.places)

    def ahead(self) -> NDArray[np.int64]:
        """[N, B] places that are drawn and not used yet, the next batch last; N is 0 where rows have come since."""
        self._refresh()
        return np.stack(self._ahead) if self._ahead else np.zeros((0, 0), np.int64)

    def go_on(self, ahead: NDArray[np.int64]) -> None:
        """Use these places next, of a sampler that had the same rows to draw from."""
        self._refresh()
        self._ahead = list(ahead.astype(np.int64))

    def weights(self, updates: int) -> None:
        """See `Sampler.weights`."""

    def learned(self, errors: NDArray[np.floating[Any]] | None) -> None:
        """See `Sampler.learned`; nothing is made of it."""

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Sampler.state`."""
        return {"ahead": self.ahead()}

    def load_state(self, arrays: Mapping[str, NDArray[Any]], *, same_rows: bool) -> None:
        """See `Sampler.load_state`; where rows have come, nothing is drawn ahead any more."""
        if same_rows:
            self.go_on(arrays["ahead"])

    def _draw(self, count: int) -> NDArray[np.int64]:
        """Flat places of ``count`` transitions."""
        places = self._draw_rows(count)
        for _ in range(_REDRAWS):
            empty = np.flatnonzero(self._replay.kinds(places) != STEP)
            if not len(empty):
                return places
            places[empty] = self._draw_rows(len(empty))
        every = self._places(np.arange(self.rows))
        every = every[self._replay.kinds(every) == STEP]
        if not len(every):
            raise nothing_to_sample("no row of the replay holds a transition", self.rows)
        empty = np.flatnonzero(self._replay.kinds(places) != STEP)
        places[empty] = every[self.generator.integers(len(every), size=len(empty))]
        return places

    def _draw_rows(self, count: int) -> NDArray[np.int64]:
        total = self.rows
        if not total:
            raise nothing_to_sample("the replay is empty", 0)
        # A uniform double times the total is uneven by one part in 2**53 / total: nothing that could be measured,
        # at a fifth of the time that exact bounded integers take.
        return self._places((self.generator.random(count) * total).astype(np.int64))

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flat places of numbers below `rows`.

        Which piece a number lies in is what a binary search would say, at a third of its time: numbers in no order
        make every branch of a search a surprise. Each bucket knows the piece its first number lies in.
        """
        places: NDArray[np.int64]
        if len(self._ends) == 1:
            places = numbers + self._shifts[0]
            return places
        piece = self._piece_of[numbers >> self._bits]
        for _ in range(self._pieces_per_bucket):
            piece += numbers >= self._ends[piece]
        places = numbers + self._shifts[piece]
        return places

    def _refresh(self) -> None:
        """Find the pieces again after rows came or went."""
        replay = self._replay
        if self._generation == replay.generation:
            return
        self._generation = replay.generation
        self._ahead = []
        g = replay.geometry
        first, last = replay.residents()[self._lanes].T
        slot = (first - (g.frame_stack - 1)) % g.ring_rows
        whole = np.minimum(last - first, g.ring_rows - slot)
        begin = self._lanes * g.stride_rows
        starts = np.stack([begin + slot, begin], axis=1).reshape(-1)  # each lane's up to two pieces, in order
        lengths = np.stack([whole, last - first - whole], axis=1).reshape(-1)
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        self._ends = np.cumsum(lengths)
        self._shifts = starts - self._ends + lengths
        if not len(lengths):
            return
        total = self.rows
        self._bits = max(0, total.bit_length() - _BUCKET_BITS)
        begins = np.arange(((total - 1) >> self._bits) + 2) << self._bits
        piece_of = np.searchsorted(self._ends, begins, side="right")
        self._piece_of = piece_of[:-1]
        self._pieces_per_bucket = int(np.diff(piece_of).max())


def nothing_to_sample(why: str, rows: int) -> DataLossError:
    """The error that says so."""
    return DataLossError(f"there is nothing to sample: {why}", rows=rows, fix="collect before sampling")
