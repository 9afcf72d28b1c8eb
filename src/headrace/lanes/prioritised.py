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
from headrace.lanes.sumtree import Float64, Int64, Loops, SumTree, fastest_loops


class PrioritisedSampler:
    """Every transition with a probability in proportion to its priority, with replacement; fulfils `Sampler`.

    A new transition has the highest priority there has been, so each is likely to be looked at once. Draws are
    stratified: one from each of B equal parts of the sum of all priorities.

    Args:
        replay: Where the rows are.
        generator: The learner's sampling stream.
        config: Exponents, and their schedule.
        lanes: Whose rows; None: those of all lanes.
        loops: What does the work in the tree of priorities; None: the fastest there is. All draw the same.
    """

    def __init__(
        self,
        replay: Replay,
        generator: np.random.Generator,
        config: PriorityConfig,
        lanes: Sequence[int] | None = None,
        loops: Loops | None = None,
    ) -> None:
        g = replay.geometry
        self._others = np.setdiff1d(np.arange(g.lanes), range(g.lanes) if lanes is None else lanes)
        self.generator = generator
        self.places: Int64 = np.zeros(0, np.int64)
        """[B] places of the newest batch's windows, see `Replay.windows`."""
        self.dropped = 0
        """Errors that were learned too late: their rows had been evicted."""
        self._replay = replay
        self._config = config
        self._ring, self._stride, self._back = g.ring_rows, g.stride_rows, g.frame_stack - 1
        self._tree = SumTree(g.lanes * g.ring_rows, loops or fastest_loops())
        self._known = np.full((g.lanes, 2), g.first_row, np.int64)
        """Row numbers between which each lane's rows have their priority."""
        self._generation = -1
        self._highest = np.ones(1)
        self._leaves = np.zeros(0, np.int64)
        """[B] places of the newest batch in the tree."""
        self._parts: Float64 = np.zeros(0)
        """[B] 0 to B - 1."""
        self._drawn_from, self._drawn_at = self._known[:, 0].copy(), -1
        """First row of each lane when it was drawn, and the replay's generation."""

    @property
    def rows(self) -> int:
        """Rows to draw from; among them those that hold no transition, which are never drawn."""
        self._refresh()
        return int((self._known[:, 1] - self._known[:, 0]).sum())

    @property
    def ready(self) -> bool:
        """See `Sampler.ready`."""
        self._refresh()
        return self._tree.total > 0.0

    def sample(self, batch_size: int) -> NDArray[np.void]:
        """See `Sampler.sample`."""
        self._refresh()
        if not self._tree.total:
            why = "no row of the replay holds a transition" if self.rows else "the replay is empty"
            raise nothing_to_sample(why, self.rows)
        if len(self._parts) != batch_size:
            self._parts = np.arange(batch_size, dtype=np.float64)
        part = self._tree.total / batch_size
        self._leaves = self._tree.find((self._parts + self.generator.random(batch_size)) * part)
        self._drawn_from, self._drawn_at = self._known[:, 0].copy(), self._generation
        self.places = self._places(self._leaves)
        return self._replay.windows(self.places)

    @property
    def drawn(self) -> tuple[Int64, Int64]:
        """Lane and row number of each transition of the newest batch, [B]."""
        lanes, slots = np.divmod(self._leaves, self._ring)
        first = self._drawn_from[lanes]
        return lanes, first + (slots - (first - self._back)) % self._ring

    def priorities(self, lanes: Int64, rows: Int64) -> Float64:
        """Priorities of rows, by lane and row number; 0 for what is evicted or no transition."""
        self._refresh()
        found: Float64 = np.where(self._resident(lanes, rows), self._tree.numbers[self._leaf(lanes, rows)], 0.0)
        return found

    def weights(self, updates: int) -> Float64:
        """See `Sampler.weights`: against the bias of drawing some more often, the largest of the batch being 1."""
        config = self._config
        beta = config.beta + (1.0 - config.beta) * min(1.0, updates / config.beta_updates)
        priorities = self._tree.numbers[self._leaves]
        found: Float64 = (priorities.min() / priorities) ** beta
        return found

    def learned(self, errors: NDArray[np.floating[Any]] | None) -> None:
        """See `Sampler.learned`."""
        assert errors is not None, "the algorithm that is asked for priorities measures errors"
        if self._drawn_at == self._replay.generation:  # the usual case: no row has come or gone since
            self._set(self._leaves, self._priorities(errors))
        else:
            self.reprioritise(*self.drawn, errors)

    def reprioritise(self, lanes: Int64, rows: Int64, errors: NDArray[np.floating[Any]]) -> None:
        """Set priorities from TD errors.

        Args:
            lanes: [B] of the rows.
            rows: [B] row numbers; what is no longer resident is dropped, whatever lies in its place now.
            errors: [B] TD errors, of either sign.
        """
        self._refresh()
        priorities, here = self._priorities(errors), self._resident(lanes, rows)
        self.dropped += int((~here).sum())
        if here.any():
            self._set(self._leaf(lanes[here], rows[here]), priorities[here])

    def _priorities(self, errors: NDArray[np.floating[Any]]) -> Float64:
        found: Float64 = (np.abs(errors.astype(np.float64)) + self._config.floor) ** self._config.alpha
        return found

    def _set(self, leaves: Int64, priorities: Float64) -> None:
        self._tree.set(leaves, priorities)
        self._highest[0] = max(self._highest[0], priorities.max())

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Sampler.state`."""
        return {"priorities": self._tree.numbers, "known": self._known, "highest": self._highest}

    def load_state(self, arrays: Mapping[str, NDArray[Any]], *, same_rows: bool) -> None:
        """See `Sampler.load_state`; rows that have come since have the highest priority, as new ones."""
        self._tree.clear()
        self._highest[:] = arrays["highest"]
        resident = self._residents()
        starts = np.maximum(arrays["known"][:, 0], resident[:, 0])
        stops = np.maximum(starts, np.minimum(arrays["known"][:, 1], resident[:, 1]))
        leaves = self._stretches(np.arange(len(starts)), starts, stops)
        self._tree.set(leaves, arrays["priorities"][leaves])
        self._known[:] = np.stack([starts, stops], axis=1)
        self._generation = -1

    def _residents(self) -> Int64:
        """`Replay.residents`; of lanes that are not its own, none."""
        found = self._replay.residents()
        found[self._others] = self._replay.geometry.first_row
        return found

    def _resident(self, lanes: Int64, rows: Int64) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (rows >= self._known[lanes, 0]) & (rows < self._known[lanes, 1])
        return found

    def _leaf(self, lane: Int64 | int, rows: Int64) -> Int64:
        """Places in the tree: of each lane's ring those where the windows of its rows begin."""
        found: Int64 = lane * self._ring + (rows - self._back) % self._ring
        return found

    def _stretches(self, lanes: Int64, starts: Int64, stops: Int64) -> Int64:
        """Places in the tree of rows ``starts`` to ``stops`` of each of these lanes, one after the other."""
        counts = np.maximum(stops - starts, 0)
        before = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return self._leaf(np.repeat(lanes, counts), rows)

    def _places(self, leaves: Int64) -> Int64:
        """Places of the windows that belong to places in the tree; those of the first lane are the same."""
        if len(self._known) == 1:
            return leaves
        found: Int64 = leaves + leaves // self._ring * (self._stride - self._ring)
        return found

    def _refresh(self) -> None:
        """Forget rows that were evicted, take in those that have come."""
        if self._generation == self._replay.generation:
            return
        self._generation = self._replay.generation
        resident = self._residents()
        lanes = np.flatnonzero((resident != self._known).any(axis=1))
        (first, stop), (now_first, now_stop) = self._known[lanes].T, resident[lanes].T
        gone = self._stretches(lanes, first, np.minimum(stop, now_first))
        come = self._stretches(lanes, np.maximum(stop, now_first), now_stop)
        steps = self._replay.kinds(self._places(come)) == STEP
        numbers = np.zeros(len(gone) + len(come))
        numbers[len(gone) :] = np.where(steps, self._highest[0], 0.0)
        self._tree.set(np.concatenate([gone, come]), numbers)  # where a row came in place of one that went, the last
        self._known[:] = resident
