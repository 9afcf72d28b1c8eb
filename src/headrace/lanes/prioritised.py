"""Draws transitions in proportion to their priorities (Schaul et al. 2016, arXiv:1511.05952, section 3.3).

A priority belongs to a row of a lane, by its number, and not to the place where it lies: what is learned of a row that
has been overwritten since is dropped. Everything is a function of the rows, of the errors that were learned, and of
the sampling stream, so a replay of the run draws the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.configs import PriorityConfig
from headrace.lanes.layout import STEP
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import nothing_to_sample

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class SumTree:
    """Numbers of 0 or more, and above them a tree of their sums, each the sum of the two below it.

    The sums are a function of the numbers alone, not of the order in which they were set; so a tree that is made
    again from its numbers draws the same, bit for bit.

    Args:
        size: How many numbers; all are 0.
    """

    def __init__(self, size: int) -> None:
        self._depth = max(0, size - 1).bit_length()
        self._first = 1 << self._depth
        self._sums: Float64 = np.zeros(2 * self._first)
        self.numbers = self._sums[self._first : self._first + size]
        """To be read; `set` changes them."""

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._sums[1])

    def set(self, places: Int64, numbers: Float64 | float) -> None:
        """Change the numbers at these places; of a place that is named twice the last one counts."""
        sums, nodes = self._sums, places + self._first
        sums[nodes] = numbers
        if len(places) * self._depth > self._first:
            self._sum_all()
            return
        for _ in range(self._depth):
            nodes = nodes >> 1
            sums[nodes] = sums[2 * nodes] + sums[2 * nodes + 1]

    def find(self, marks: Float64) -> Int64:
        """Places at which the running sum passes each of ``marks``, in [0, `total`); never one whose number is 0."""
        sums, node, left_of = self._sums, np.ones(len(marks), np.int64), marks.copy()
        for _ in range(self._depth):
            left = 2 * node
            below = sums[left]
            # A mark that rounding has carried to the very end must not fall off it.
            right = (left_of >= below) & (sums[left + 1] > 0.0)
            left_of = np.where(right, left_of - below, left_of)
            node = left + right
        return node - self._first

    def _sum_all(self) -> None:
        first = self._first
        while first > 1:
            below = self._sums[first : 2 * first].reshape(-1, 2)
            self._sums[first // 2 : first] = below[:, 0] + below[:, 1]
            first //= 2


class PrioritisedSampler:
    """Every transition with a probability in proportion to its priority, with replacement; fulfils `Sampler`.

    A new transition has the highest priority there has been, so each is likely to be looked at once. Draws are
    stratified: one from each of B equal parts of the sum of all priorities.

    Args:
        replay: Where the rows are.
        generator: The learner's sampling stream.
        config: Exponents, and their schedule.
        lanes: Whose rows; None: those of all lanes.
    """

    def __init__(
        self,
        replay: Replay,
        generator: np.random.Generator,
        config: PriorityConfig,
        lanes: Sequence[int] | None = None,
    ) -> None:
        g = replay.geometry
        self._own = tuple(range(g.lanes) if lanes is None else lanes)
        self.generator = generator
        self.places: Int64 = np.zeros(0, np.int64)
        """[B] places of the newest batch's windows, see `Replay.windows`."""
        self.dropped = 0
        """Errors that were learned too late: their rows had been evicted."""
        self._replay = replay
        self._config = config
        self._ring, self._stride, self._back = g.ring_rows, g.stride_rows, g.frame_stack - 1
        self._tree = SumTree(g.lanes * g.ring_rows)
        self._known = np.full((g.lanes, 2), g.first_row, np.int64)
        """Row numbers between which each lane's rows have their priority."""
        self._generation = -1
        self._highest = np.ones(1)
        self._lanes, self._rows = np.zeros((2, 0), np.int64)

    @property
    def rows(self) -> int:
        """Rows to draw from; among them those that hold no transition, which are never drawn."""
        self._refresh()
        return int((self._known[:, 1] - self._known[:, 0]).sum())

    def sample(self, batch_size: int) -> NDArray[np.void]:
        """See `Sampler.sample`."""
        self._refresh()
        if not self._tree.total:
            why = "no row of the replay holds a transition" if self.rows else "the replay is empty"
            raise nothing_to_sample(why, self.rows)
        part = self._tree.total / batch_size
        found = self._tree.find((np.arange(batch_size) + self.generator.random(batch_size)) * part)
        self._lanes, slots = np.divmod(found, self._ring)
        first = self._known[self._lanes, 0]
        self._rows = first + (slots - (first - self._back)) % self._ring
        self.places = self._lanes * self._stride + slots
        return self._replay.windows(self.places)

    @property
    def drawn(self) -> tuple[Int64, Int64]:
        """Lane and row number of each transition of the newest batch, [B]."""
        return self._lanes, self._rows

    def priorities(self, lanes: Int64, rows: Int64) -> Float64:
        """Priorities of rows, by lane and row number; 0 for what is evicted or no transition."""
        self._refresh()
        found: Float64 = np.where(self._resident(lanes, rows), self._tree.numbers[self._leaf(lanes, rows)], 0.0)
        return found

    def weights(self, updates: int) -> Float64:
        """See `Sampler.weights`: against the bias of drawing some more often, the largest of the batch being 1."""
        config = self._config
        beta = config.beta + (1.0 - config.beta) * min(1.0, updates / config.beta_updates)
        priorities = self._tree.numbers[self._leaf(*self.drawn)]
        found: Float64 = (priorities.min() / priorities) ** beta
        return found

    def learned(self, errors: NDArray[np.floating[Any]] | None) -> None:
        """See `Sampler.learned`."""
        assert errors is not None, "the algorithm that is asked for priorities measures errors"
        self.reprioritise(*self.drawn, errors)

    def reprioritise(self, lanes: Int64, rows: Int64, errors: NDArray[np.floating[Any]]) -> None:
        """Set priorities from TD errors.

        Args:
            lanes: [B] of the rows.
            rows: [B] row numbers; what is no longer resident is dropped, whatever lies in its place now.
            errors: [B] TD errors, of either sign.
        """
        self._refresh()
        priorities = (np.abs(errors.astype(np.float64)) + self._config.floor) ** self._config.alpha
        here = self._resident(lanes, rows)
        self.dropped += int((~here).sum())
        if here.any():
            self._tree.set(self._leaf(lanes[here], rows[here]), priorities[here])
            self._highest[0] = max(self._highest[0], priorities[here].max())

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Sampler.state`."""
        return {"priorities": self._tree.numbers, "known": self._known, "highest": self._highest}

    def load_state(self, arrays: Mapping[str, NDArray[Any]], *, same_rows: bool) -> None:
        """See `Sampler.load_state`; rows that have come since have the highest priority, as new ones."""
        self._tree = SumTree(len(self._tree.numbers))
        self._highest[:] = arrays["highest"]
        for lane in self._own:
            first, stop = arrays["known"][lane].tolist()
            resident = self._replay.resident(lane)
            first, stop = max(first, resident[0]), max(first, resident[0], min(stop, resident[1]))
            leaves = self._leaf(lane, np.arange(first, stop))
            self._tree.set(leaves, arrays["priorities"][leaves])
            self._known[lane] = first, stop
        self._generation = -1

    def _resident(self, lanes: Int64, rows: Int64) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (rows >= self._known[lanes, 0]) & (rows < self._known[lanes, 1])
        return found

    def _leaf(self, lane: Int64 | int, rows: Int64) -> Int64:
        """Places in the tree: of each lane's ring those where the windows of its rows begin."""
        found: Int64 = lane * self._ring + (rows - self._back) % self._ring
        return found

    def _refresh(self) -> None:
        """Forget rows that were evicted, take in those that have come."""
        if self._generation == self._replay.generation:
            return
        self._generation = self._replay.generation
        for lane in self._own:
            first, stop = self._known[lane].tolist()
            now_first, now_stop = self._replay.resident(lane)
            if (first, stop) == (now_first, now_stop):
                continue
            self._tree.set(self._leaf(lane, np.arange(first, min(stop, now_first))), 0.0)
            new = np.arange(max(stop, now_first), now_stop)
            leaves = self._leaf(lane, new)
            steps = self._replay.kinds(lane * self._stride + leaves % self._ring) == STEP
            self._tree.set(leaves, np.where(steps, self._highest[0], 0.0))
            self._known[lane] = now_first, now_stop
