"""Writes what the learner does into the record of the run, as it does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Learning
from headrace.core.config import RecordConfig
from headrace.lanes.credits import Commit
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import STEP, steps_among
from headrace.learners.witness import Drawn, Salvaged, batch_print
from headrace.record.events import (
    GATHERED_NOTHING,
    NOT_KEPT,
    BatchesTrained,
    ChunkCommitted,
    Event,
    GroupSalvaged,
    LanePart,
    LearnerSucceeded,
    Note,
    PolicyPublished,
    RowPlace,
    SalvagedLane,
    StateSaved,
    StepsLost,
    WeightsHashed,
)
from headrace.record.rows import RowLog
from headrace.record.segments import SegmentContents
from headrace.record.trace import TraceWriter

_MOST_PRINTS = 1024
"""Fingerprints that are kept back at most."""


class Recorder:
    """A `Witness` that writes. A disk that takes no more ends the record, never the run.

    Args:
        config: What to record.
        trace: The order of events.
        rows: Where rows are kept; None: they are not.
        block: The lanes.
        groups: Lanes of each group.
        on_lost: Called once, with the reason, when the record has ended early.
    """

    def __init__(
        self,
        config: RecordConfig,
        trace: TraceWriter,
        rows: RowLog | None,
        block: LaneBlock,
        groups: Sequence[tuple[int, ...]],
        on_lost: Callable[[str], None],
    ) -> None:
        self.trace = trace
        self.rows = rows
        self.lost: str | None = None
        """Why the record has ended early; None: it has not."""
        self.contents = SegmentContents(block.geometry.lanes)
        """Which rows lie in which segment."""
        self._config = config
        self._block = block
        self._groups = groups
        self._on_lost = on_lost
        self._prints: NDArray[np.uint32] = np.zeros((_MOST_PRINTS, 3), np.uint32)
        self._kept_back = 0
        self._updates = 0
        self.saves = 0
        """Saves of the learner's state so far."""

    def committed(self, commit: Commit, starts: Sequence[int], updates: int) -> None:
        """See `Witness`."""
        block, slot = self._block, commit.chunk % self._block.geometry.carry_slots
        lanes = self._groups[commit.group]
        stretches = [(lane, start, part.stop) for lane, start, part in zip(lanes, starts, commit.lanes, strict=True)]
        place = self._keep(stretches)
        self._tell_lost(updates, commit.group, commit.chunk, stretches)
        self.write(
            ChunkCommitted(
                updates, commit.incarnation, commit.group, commit.chunk, commit.version, commit.last, place,
                tuple(
                    LanePart(part.stop, part.transitions, part.checksum, block.carry[lane, slot].tobytes())
                    for lane, part in zip(lanes, commit.lanes, strict=True)
                ),
            )
        )  # fmt: skip

    def salvaged(self, group: int, lanes: Sequence[Salvaged], updates: int) -> None:
        """See `Witness`."""
        block, numbers = self._block, self._groups[group]
        pairs = list(zip(numbers, lanes, strict=True))
        stretches = [(lane, found.start, found.stop) for lane, found in pairs]
        place, chunk = self._keep(stretches), int(block.chunk_begun[numbers[0]][0])
        self._tell_lost(updates, group, chunk, stretches)
        made = [piece for lane, found in pairs for piece in block.pieces(lane, found.start, found.stop) if len(piece)]
        version = max(found.version for found in lanes) or (int(made[0]["version"][0]) if made else 0)
        self.write(
            GroupSalvaged(
                updates, int(block.incarnation[numbers[0]]), group, chunk, version, place,
                tuple(
                    SalvagedLane(
                        found.stop, found.salvaged, found.rejected, found.cut, int(block.episodes_begun[lane]),
                        block.checksum(lane, found.start, found.stop),
                    )
                    for lane, found in pairs
                ),
            )
        )  # fmt: skip

    def drew(self, drawn: Drawn, updates: int) -> None:
        """See `Witness`."""
        if not self._config.batches or self.lost is not None:
            return
        if self._kept_back == _MOST_PRINTS:
            self._flush()
        self._updates = updates if not self._kept_back else self._updates
        self._prints[self._kept_back] = batch_print(drawn, updates)
        self._kept_back += 1

    def updated(self, algorithm: Learning) -> None:
        """See `Witness`."""
        if algorithm.updates % self._config.hash_every == 0:
            self.hash(algorithm)

    def hash(self, algorithm: Learning) -> str:
        """Note a hash of all weights now."""
        sha256 = algorithm.weights_sha256()
        self.write(WeightsHashed(algorithm.updates, sha256, algorithm.ledger()))
        return sha256

    def gathered_nothing(self, updates: int) -> None:
        """See `Witness`."""
        self.note(updates, GATHERED_NOTHING, {})

    def published(self, version: int, checksum: int, algorithm: Learning) -> None:
        """See `Witness`."""
        self.write(PolicyPublished(algorithm.updates, version, checksum, algorithm.ledger()))

    def saved(self, updates: int) -> int:
        """The learner's state is about to be kept for a successor; its number."""
        self.saves += 1
        self.write(StateSaved(updates, self.saves))
        return self.saves

    def succeeded(self, updates: int, number: int) -> None:
        """This learner has taken the place of one that died, from the save of that number; -1: from nothing."""
        self.write(LearnerSucceeded(updates, number))

    def note(self, updates: int, kind: str, facts: Mapping[str, Any]) -> None:
        """Anything else."""
        self.write(Note(updates, kind, facts))

    def write(self, event: Event) -> None:
        """Write an event, after the fingerprints of the batches before it."""
        self._flush()
        self._try(self.trace.write, event)

    def sync(self) -> None:
        """Have the disk hold everything written so far; of a record that has ended, here or before, nothing.

        Raises:
            OSError: It does not.
        """
        self._flush()
        if self.lost is not None:
            return
        if self.rows is not None:
            self.rows.sync()
        self.trace.sync()

    def drop_rows_before(self, segment: int) -> None:
        """Delete segments nobody needs, if the run keeps no more than the resident rows; otherwise only forget them."""
        if self.rows is not None and self._config.rows == "resident":
            self.rows.drop_before(segment)
        self.contents.forget_before(segment)

    def close(self) -> None:
        """Write what was kept back."""
        self._flush()
        self.trace.close()
        if self.rows is not None:
            self.rows.close()

    def _flush(self) -> None:
        if self._kept_back:
            prints, self._kept_back = self._prints[: self._kept_back], 0
            self._try(self.trace.write, BatchesTrained(self._updates, prints))

    def _tell_lost(self, updates: int, group: int, chunk: int, stretches: Sequence[tuple[int, int, int]]) -> None:
        """Which steps of a chunk, whose rows these are (lane, start, stop), brought a lane no transition."""
        lost = []
        for lane, start, stop in stretches:
            kinds = np.concatenate([piece["kind"] for piece in self._block.pieces(lane, start, stop)])
            steps = kinds[steps_among(kinds)]
            lost += [(lane, step) for step in np.flatnonzero(steps != STEP).tolist()]
        if lost:
            self.write(StepsLost(updates, group, chunk, tuple(lost)))

    def _keep(self, stretches: Sequence[tuple[int, int, int]]) -> RowPlace:
        """Append rows of lanes (lane, start, stop), each with the observation that follows them."""
        if self.rows is None or self.lost is not None:
            return NOT_KEPT
        pieces: list[Any] = []
        for lane, start, stop in stretches:
            pieces += self._block.raw(lane, start, stop)
            pieces.append(self._block.following(lane, stop))
        place: RowPlace | None = self._try(self.rows.append, pieces)
        if place is None:
            return NOT_KEPT
        for lane, _, stop in stretches:
            self.contents.note(place.segment, lane, stop)
        return place

    def _try(self, write: Callable[[Any], Any], what: Any) -> Any:
        """Write, unless the record has ended; a failure ends it."""
        if self.lost is not None:  # also since the call began: one event may be several writes
            return None
        try:
            return write(what)
        except OSError as error:
            self.lost = f"{type(error).__name__}: {error}"
            self._on_lost(self.lost)
            return None
