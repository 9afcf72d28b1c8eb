"""Opens the record of a run: a new one, one that goes on from a checkpoint, or one whose writer has died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.config import RecordConfig
from headrace.core.errors import HeadraceError, RecordDamaged
from headrace.core.seeding import STREAMS
from headrace.ipc.child import wrapped
from headrace.lanes.credits import LaneCommit
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import CUT
from headrace.lanes.replay import Replay
from headrace.learners.recorder import Recorder
from headrace.learners.witness import Salvaged
from headrace.record.events import (
    ChunkCommitted,
    GroupSalvaged,
    PolicyPublished,
    RowPlace,
    StateSaved,
    updates_after,
)
from headrace.record.machine import fingerprint
from headrace.record.rows import RowLog
from headrace.record.segments import SegmentContents
from headrace.record.trace import Trace, TraceWriter
from headrace.runtime.config import ExperimentConfig, config_sha256
from headrace.runtime.refill import Extents

TRACE_FILE = "trace.bin"
"""Name of the file that holds the order of events, in the record's folder."""
_MIB = 2**20


def failure(error: Exception) -> dict[str, str]:
    """What a learner ended with, as facts of a note of kind `FAILED`."""
    ours = error if isinstance(error, HeadraceError) else wrapped("learner", error)
    return {"code": ours.code, "what": ours.what} | ({} if ours is error else {"error": str(ours.facts["error"])})


def new_record(
    folder: Path, config: ExperimentConfig, header: Mapping[str, Any], on_lost: Callable[[str], None], block: LaneBlock,
    groups: Sequence[tuple[int, ...]],
) -> Recorder:  # fmt: skip
    """The record of a run that begins.

    Args:
        folder: ``record/`` of the run.
        config: Of the run.
        header: From `header_facts`.
        on_lost: Called once if the record ends early.
        block: The lanes.
        groups: Lanes of each group.

    Raises:
        OSError: It cannot be written.
    """
    trace = TraceWriter.create(folder / TRACE_FILE, header)
    kept = config.record.rows != "none"
    rows = RowLog.create(folder, config.record.segment_mib * _MIB) if kept else None
    return Recorder(config.record, trace, rows, block, groups, on_lost)


def record_goes_on(
    folder: Path, config: RecordConfig, trace_bytes: int, rows_at: RowPlace | None, on_lost: Callable[[str], None],
    block: LaneBlock, groups: Sequence[tuple[int, ...]],
) -> Recorder:  # fmt: skip
    """The record from a place on; what had been written beyond it is taken away.

    Raises:
        OSError: It cannot be written.
        RecordDamaged: There is no such place.
    """
    trace = TraceWriter.resume(folder / TRACE_FILE, trace_bytes)
    rows = RowLog.resume(folder, rows_at, config.segment_mib * _MIB) if rows_at is not None else None
    return Recorder(config, trace, rows, block, groups, on_lost)


def header_facts(config: ExperimentConfig, block: LaneBlock, environment: Sequence[str]) -> dict[str, Any]:
    """What is fixed for a whole record: the machine, the libraries, the layout of rows.

    Args:
        config: Of the run.
        block: The lanes.
        environment: Modules that the environment comes from.
    """
    g = block.geometry
    return {
        "machine": fingerprint(environment),
        "config_sha256": config_sha256(config),
        "seed": config.run.seed,
        "streams": STREAMS,
        "schedule": config.run.schedule,
        "threads": {"collect": config.collect.threads, "learn": config.learn.threads},
        "lanes": g.lanes,
        "group_size": config.env.group_size,
        "agents": config.agents.count,
        "row_dtype": np.lib.format.dtype_to_descr(g.dtype),
        "row_bytes": g.dtype.itemsize,
        "observation_bytes": g.head_offset,
        "first_row": g.first_row,
    }


class Inherited:
    """A record whose writer has died, brought into agreement with the books it also kept.

    Commits are written before they change the books, and policies before anybody sees them, so the record may be one
    commit or one policy ahead: that one is completed. Salvages are written after, so the books may be ahead by one of
    them: that one is written.

    Args:
        folder: ``record/`` of the run.
        replay: The lanes, whose books have been settled.
        groups: Lanes of each group.
        on_event: Called for every event that is read.
    """

    def __init__(
        self, folder: Path, replay: Replay, groups: Sequence[tuple[int, ...]], on_event: Callable[[], None]
    ) -> None:
        self._replay = replay
        self._groups = groups
        extents = Extents(replay.block, groups)
        self.rows_at: RowPlace | None = None
        """Where the row log goes on; None: it keeps no rows."""
        self.saves = 0
        """Saves of the learner's state so far."""
        self.updates = 0
        """Gradient steps the record knows of."""
        self.version = 0
        """The newest policy the record knows of."""
        self.contents = SegmentContents(replay.geometry.lanes)
        self._rejected = [0] * replay.geometry.lanes
        newest: ChunkCommitted | GroupSalvaged | None = None
        trace = Trace.open(folder / TRACE_FILE)
        self.trace_bytes = trace.start
        for position, event in trace.events():
            on_event()
            self.trace_bytes, self.updates = position, updates_after(event)
            if isinstance(event, StateSaved):
                self.saves = event.number
            elif isinstance(event, PolicyPublished):
                self.version = event.version
            if not isinstance(event, ChunkCommitted | GroupSalvaged):
                continue
            newest = event
            found = extents.of(event)
            if event.place.segment >= 0:
                self.rows_at = extents.end(event, found)
                for lane, _, stop, _ in found:
                    self.contents.note(event.place.segment, lane, stop)
            if isinstance(event, GroupSalvaged):
                for (lane, *_), part in zip(found, event.lanes, strict=True):
                    self._rejected[lane] += part.rejected
        trace.close()
        self._stops = extents.stops
        if isinstance(newest, ChunkCommitted):
            self._complete(newest)

    def _complete(self, commit: ChunkCommitted) -> None:
        books = self._replay.books
        for lane, part in zip(self._groups[commit.group], commit.lanes, strict=True):
            if books.row[lane] < part.stop:
                self._replay.take_over(lane, LaneCommit(part.stop, part.transitions, part.checksum))

    def write_missing(self, recorder: Recorder) -> None:
        """Write the salvage the books are ahead by, if they are; one that was made of some lanes is made of all first.

        Raises:
            RecordDamaged: They are ahead by more than is still in the lanes.
        """
        for group, lanes in enumerate(self._groups):
            if not any(self._is_ahead(lane) for lane in lanes):
                continue
            for lane in lanes:
                if not self._is_ahead(lane):
                    self._replay.salvage(lane)
            recorder.salvaged(group, [self._ahead(lane) for lane in lanes], self.updates)

    def _is_ahead(self, lane: int) -> bool:
        books = self._replay.books
        return bool(books.row[lane] > self._stops[lane] or books.rejected[lane] > self._rejected[lane])

    def _ahead(self, lane: int) -> Salvaged:
        books, start, stop = self._replay.books, self._stops[lane], int(self._replay.books.row[lane])
        if books.written(lane) - start >= self._replay.geometry.ring_rows - 1:  # the row before is needed too
            raise _too_far_ahead(lane, start, stop)
        made = books.transitions_before(lane, stop) - books.transitions_before(lane, start)
        last = self._replay.block.rows[lane, (stop - 1) % self._replay.geometry.ring_rows]
        cut = stop > start and bool(last["kind"] == CUT)
        return Salvaged(start, stop, made, int(books.rejected[lane]) - self._rejected[lane], cut)


def _too_far_ahead(lane: int, start: int, stop: int) -> RecordDamaged:
    return RecordDamaged(
        f"the record lacks more of lane {lane} than can be made good: its oldest rows have been written over",
        recorded_rows=f"{start:,}",
        taken_over=f"{stop:,}",
        fix="resume the run from its newest checkpoint, or start a new one; if nothing ended the record, file a bug",
    )
