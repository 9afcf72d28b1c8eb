"""The learner's side of the lanes: commits, eviction, salvage, and which rows may be sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataLossError
from headrace.lanes.credits import LaneCommit
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import CUT, HEAD, STEP, end_word, place_word

_FIELDS = ("committed", "salvaged", "rejected", "evicted", "row", "resident_from")
"""Columns of a lane's books in shared memory, each written by the learner alone."""

_COMMIT, _SALVAGE, _CUT = 1, 2, 3
"""Marks of an intended change: the books alone; the lane's row number too, since its collector is gone; and also make
the last row the end of a cut episode."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one lane that have just become available, in order."""

    lane: int
    rows: list[NDArray[np.void]]
    """One or two views of the ring; valid until the lane's next credit."""


class LaneBooks:
    """The books of every lane, in shared memory, so that they outlive whoever keeps them.

    All counts are transitions. What is in flight is what a collector has written and nobody has committed yet.
    """

    def __init__(self, block: LaneBlock) -> None:
        self._block = block
        columns = dict(zip(_FIELDS, block.committed.T, strict=False))
        self.committed, self.salvaged = columns["committed"], columns["salvaged"]
        self.rejected, self.evicted = columns["rejected"], columns["evicted"]
        self.row, self.resident_from = columns["row"], columns["resident_from"]
        self._columns = [columns[name] for name in _FIELDS]
        self._intended, self._mark = block.intended[:, : len(_FIELDS) + 1], block.intended[:, -1]

    def change(self, lane: int, values: Sequence[int], *, written: int | None = None, cut: bool = False) -> None:
        """Change all books of a lane as one: whoever is killed in the middle leaves what `settle` completes.

        Args:
            lane: Which.
            values: What each of `_FIELDS` shall be.
            written: Complete rows of the lane, as a row number; None: that is still its collector's to say.
            cut: Whether the last of these rows is to become the end of a cut episode.
        """
        self._intended[lane] = (*values, written or 0)
        # The one store that decides: before it nothing has happened, from here on all of it will, if not by us.
        self._mark[lane] = _COMMIT if written is None else _CUT if cut else _SALVAGE
        self.settle(lane)

    def settle(self, lane: int) -> None:
        """Complete a change that was begun, if there is one. May itself be killed, and repeated."""
        mark = int(self._mark[lane])
        if not mark:
            return
        *values, written = (int(value) for value in self._intended[lane])
        if mark == _CUT:
            self._mark_cut(lane, written - 1)
        if mark != _COMMIT:
            self._block.rows_written[lane] = written
        for column, value in zip(self._columns, values, strict=True):
            column[lane] = value
        self._mark[lane] = 0

    def _mark_cut(self, lane: int, row: int) -> None:
        """Close the running episode with a row of kind CUT, which already holds the last observation."""
        g, block = self._block.geometry, self._block
        last, slot = block.rows[lane, (row - 1) % g.ring_rows], row % g.ring_rows
        at = g.rows_offset + (lane * g.stride_rows + slot) * g.dtype.itemsize + g.head_offset
        place = place_word(int(last["episode"]), int(last["t"]) + 1)
        head = 0.0, int(last["version"]), int(last["transitions"]), place, end_word(CUT)
        HEAD.pack_into(block.buffer, at, *head)
        for leaf in g.acted:  # of a step that never returned; a replay of the run knows nothing of it
            block.rows[leaf.path][lane, slot] = 0
        if slot < g.mirror_rows:
            block.rows[lane, g.ring_rows + slot] = block.rows[lane, slot]

    def transitions_before(self, lane: int, row: int) -> int:
        """Transitions of the lane in all complete rows before ``row``."""
        g = self._block.geometry
        return int(self._block.rows[lane, (row - 1) % g.ring_rows]["transitions"]) if row > g.first_row else 0

    def chunk_begun(self, lane: int) -> tuple[int, int]:
        """Number of the lane's newest chunk, and the lane's transitions before it."""
        chunk, row = (int(value) for value in self._block.chunk_begun[lane])
        return chunk, self.transitions_before(lane, row)

    def written(self, lane: int) -> int:
        """Complete rows of the lane, as a row number."""
        return int(self._block.rows_written[lane])

    def lane(self, lane: int) -> dict[str, int]:
        """One lane's books.

        ``produced``, ``in_flight`` and ``resident`` are found in the rows themselves, the others were counted while
        the run went on; that both agree is what `balanced` asks.
        """
        written = self.written(lane)
        produced = self.transitions_before(lane, written)
        in_flight = produced - self.transitions_before(lane, int(self.row[lane]))
        rejected = int(self.rejected[lane])
        left = int(self.evicted[lane])
        consumed = self._block.geometry.consumed
        return {
            "produced": produced + rejected,
            "committed": int(self.committed[lane]),
            "salvaged": int(self.salvaged[lane]),
            "rejected": rejected,
            "evicted": 0 if consumed else left,
            **({"consumed": left} if consumed else {}),
            "resident": self._resident(lane),
            "in_flight": in_flight,
        }

    def _resident(self, lane: int) -> int:
        start, stop = int(self.resident_from[lane]), int(self.row[lane])
        return sum(int((rows["kind"] == STEP).sum()) for rows in self._block.pieces(lane, start, stop))

    def release(self) -> None:
        """Drop all views of the block."""
        for name in (*_FIELDS, "_columns", "_intended", "_mark", "_block"):
            delattr(self, name)


def balanced(books: Mapping[str, int]) -> bool:
    """Whether every transition that was produced is accounted for, to the unit."""
    stored = books["committed"] + books["salvaged"]
    arrived = stored + books["rejected"] + books["in_flight"]
    return books["produced"] == arrived and stored == books["resident"] + books["evicted"] + books.get("consumed", 0)


class Replay:
    """Rows of all lanes that have been committed and not evicted.

    Args:
        block: The shared block, which `LaneBlock.begin` has prepared.
        resume: Whether the block already holds what another learner had taken over.
    """

    def __init__(self, block: LaneBlock, *, resume: bool = False) -> None:
        g = block.geometry
        self.block = block
        self.geometry = g
        self.books = LaneBooks(block)
        self.generation = 0
        """Rises whenever the rows that may be sampled change."""
        if resume:
            for lane in range(g.lanes):
                self.books.settle(lane)
        else:
            self.books.row[:] = g.first_row
            self.books.resident_from[:] = g.first_row
        self._windows = block.windows(g.window_rows)
        # The kind of a window's own row, by the place where the window begins.
        self._kinds = block.rows["kind"].reshape(-1)[g.frame_stack - 1 :]
        self._float_fields = [leaf.path for leaf in (*g.observation, *g.acted) if leaf.dtype.kind == "f"]

    @property
    def env_steps(self) -> int:
        """Transitions committed or salvaged in all lanes."""
        return int(self.books.committed.sum() + self.books.salvaged.sum())

    def commit(self, lane: int, commit: LaneCommit) -> Stretch:
        """Look at the rows a collector has committed, and take them over.

        Raises:
            DataLossError: The rows are not those the collector wrote, or not as many.
        """
        self.check(lane, commit)
        return self.take_over(lane, commit)

    def take_over(self, lane: int, commit: LaneCommit) -> Stretch:
        """Take over rows that `check` has looked at."""
        return self._advance(lane, commit.stop, committed=commit.transitions)

    def check(self, lane: int, commit: LaneCommit) -> None:
        """Look at the rows a collector has committed.

        Raises:
            DataLossError: The rows are not those the collector wrote, or not as many.
        """
        start = int(self.books.row[lane])
        before = self.books.transitions_before(lane, start)
        found = self.block.checksum(lane, start, commit.stop)
        counted = self.books.transitions_before(lane, commit.stop) - before
        if found != commit.checksum or counted != commit.transitions:
            raise DataLossError(
                f"the rows of lane {lane} differ from what its collector committed",
                rows=f"{start} to {commit.stop}",
                expected=f"{commit.transitions} transitions, checksum {commit.checksum:08x}",
                found=f"{counted} transitions, checksum {found:08x}",
                fix="keep the run directory and file a bug: this is never the user's fault",
            )

    def salvage(self, lane: int) -> tuple[Stretch, bool]:
        """Take over what a collector that is gone had written and not committed, and mark the cut.

        Only after its process has been reaped and its last commits have been taken.

        Returns:
            The salvaged rows, and whether an episode was cut.
        """
        start, written = int(self.books.row[lane]), int(self.block.rows_written[lane])
        stop = self._sound_rows(lane, start, written)
        before = self.books.transitions_before(lane, start)
        good = self.books.transitions_before(lane, stop) - before
        lost = self.books.transitions_before(lane, written) - before - good
        cut = stop > self.geometry.first_row and bool(self._row(lane, stop - 1)["kind"] == STEP)
        # Without a cut too: rows that are rejected are no rows of the lane any more.
        end = stop + 1 if cut else stop
        return self._advance(lane, end, salvaged=good, rejected=lost, cut=cut), cut

    def _sound_rows(self, lane: int, start: int, stop: int) -> int:
        """The first row from ``start`` whose transition holds a value that is not finite, or ``stop``."""
        for row in range(start, stop):
            if self._row(lane, row)["kind"] != STEP:
                continue
            values = [self._row(lane, row)["reward"]]
            values += [self._row(lane, at)[path] for path in self._float_fields for at in self._sources(path, row)]
            if not all(np.isfinite(value).all() for value in values):
                return row
        return stop

    def _sources(self, path: str, row: int) -> tuple[int, ...]:
        return (row, row + 1) if any(leaf.path == path for leaf in self.geometry.observation) else (row,)

    def _row(self, lane: int, row: int) -> np.void:
        record: np.void = self.block.rows[lane, row % self.geometry.ring_rows]
        return record

    def _advance(self, lane: int, stop: int, *, cut: bool = False, **more: int) -> Stretch:
        """Take the rows up to ``stop`` over, and let the oldest go.

        Args:
            lane: Which.
            stop: Row number after the last one taken over.
            cut: Whether that last one is to be made the end of a cut episode.
            **more: What is to be added to ``committed``, ``salvaged`` and ``rejected``.
        """
        books, start = self.books, int(self.books.row[lane])
        keep_from = max(stop - self.geometry.resident_rows, int(books.resident_from[lane]))
        if self.geometry.consumed and keep_from > books.resident_from[lane]:
            raise self._unread(lane, stop)
        evicted = int(books.evicted[lane])
        if keep_from > books.resident_from[lane]:
            evicted = self._evicted(lane, keep_from)
        counts = [int(getattr(books, name)[lane]) + more.get(name, 0) for name in ("committed", "salvaged", "rejected")]
        written = stop if "salvaged" in more else None
        books.change(lane, (*counts, evicted, stop, keep_from), written=written, cut=cut)
        self.generation += 1
        return Stretch(lane, self.block.pieces(lane, start, stop))

    def consume(self, lane: int, stop: int) -> None:
        """Let the rows of a lane before row number ``stop`` go: they have been copied out to be trained on."""
        books = self.books
        values = [int(getattr(books, name)[lane]) for name in ("committed", "salvaged", "rejected")]
        books.change(lane, (*values, self._evicted(lane, stop), int(books.row[lane]), stop))
        self.generation += 1

    def _unread(self, lane: int, stop: int) -> DataLossError:
        return DataLossError(
            f"lane {lane} holds more rows that were not trained on than there is room for",
            rows=stop - int(self.books.resident_from[lane]),
            room=self.geometry.resident_rows,
            fix="raise rollout.kept_rows above the length of the longest episode, or set rollout.whole_episodes = false",
        )

    def _evicted(self, lane: int, keep_from: int) -> int:
        # The row before the first that stays is still whole: it lies in the guard zone, which the
        # worker reaches only with credits that are given after this.
        return self.books.transitions_before(lane, keep_from)

    def resident(self, lane: int) -> tuple[int, int]:
        """Row numbers between which rows may be sampled."""
        start, stop = self.residents()[lane].tolist()
        return start, stop

    def residents(self) -> NDArray[np.int64]:
        """[L, 2] `resident` of every lane."""
        start, stop = self.books.resident_from, self.books.row - (self.geometry.n_step - 1)
        return np.stack([start, np.maximum(start, stop)], axis=1)

    def holds_transition(self, lanes: NDArray[np.int64]) -> bool:
        """Whether any of these lanes holds a transition that may be sampled."""
        books, last = self.books, self.geometry.n_step - 1
        held = books.committed[lanes] + books.salvaged[lanes] - books.evicted[lanes]
        if (held > last).any():  # the newest rows, whose n steps have not all come, are no more than that
            return True
        found = self.residents()[lanes].tolist()
        return any(
            bool((piece["kind"] == STEP).any())
            for lane, (start, stop) in zip(lanes.tolist(), found, strict=True)
            for piece in self.block.pieces(lane, start, stop)
        )

    def windows(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        """Copy windows of neighbouring rows out of the lanes.

        Args:
            places: [B] flat index of each window's first row, see `place`.

        Returns:
            [B, W] rows.
        """
        gathered = self._windows[places]
        return np.ndarray((len(places), self.geometry.window_rows), self.geometry.dtype, gathered.data)

    def kinds(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Kinds of the rows whose windows begin at ``places``, [B]."""
        found: NDArray[np.uint8] = self._kinds[places]
        return found

    def place(self, lane: int, row: int) -> int:
        """Flat index of the window whose transition is ``row`` of ``lane``."""
        return self.block.place(lane, row - (self.geometry.frame_stack - 1))

    def release(self) -> None:
        """Drop all views of the block."""
        self.books.release()
        del self._windows, self._kinds
