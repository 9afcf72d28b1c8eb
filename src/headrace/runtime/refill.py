"""Fills lanes again with the rows of a record, up to where a checkpoint was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import RecordDamaged
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import LaneBooks
from headrace.record.events import ChunkCommitted, GroupSalvaged, RowPlace
from headrace.record.rows import RowReader
from headrace.record.segments import SegmentContents
from headrace.record.trace import Trace

BOOKS = ("committed", "salvaged", "rejected", "evicted", "row", "resident_from")
"""What a checkpoint says of each lane's books, in this order; the episodes begun follow."""
RowEvent = ChunkCommitted | GroupSalvaged


def lane_facts(block: LaneBlock, books: LaneBooks, episodes_begun: Sequence[int]) -> list[list[int]]:
    """What a checkpoint has to say of each lane."""
    return [
        [*(int(getattr(books, name)[lane]) for name in BOOKS), episodes_begun[lane]]
        for lane in range(block.geometry.lanes)
    ]


def stops_of(event: RowEvent) -> list[int]:
    """Row number after the last row of each of the event's lanes."""
    return [part.stop for part in event.lanes]


class Extents:
    """Where the rows of each event lie in the row log: each begins where the lane's rows before it ended.

    Args:
        block: The lanes.
        groups: Lanes of each group.
    """

    def __init__(self, block: LaneBlock, groups: Sequence[tuple[int, ...]]) -> None:
        self._geometry = block.geometry
        self._groups = groups
        self.stops = [block.geometry.first_row] * block.geometry.lanes
        """Row number after the last recorded row of each lane."""

    def of(self, event: RowEvent) -> list[tuple[int, int, int, int]]:
        """(lane, start, stop, offset from the event's place) of its lanes; each event is to be given once, in order."""
        size, tail, offset, found = self._geometry.dtype.itemsize, self._geometry.head_offset, 0, []
        for lane, stop in zip(self._groups[event.group], stops_of(event), strict=True):
            start = self.stops[lane]
            found.append((lane, start, stop, offset))
            offset += (stop - start) * size + tail
            self.stops[lane] = stop
        return found

    def end(self, event: RowEvent, extents: Sequence[tuple[int, int, int, int]]) -> RowPlace:
        """Where the row log went on after an event."""
        _, start, stop, offset = extents[-1]
        size = offset + (stop - start) * self._geometry.dtype.itemsize + self._geometry.head_offset
        return RowPlace(event.place.segment, event.place.offset + size)


def refill(
    block: LaneBlock,
    groups: Sequence[tuple[int, ...]],
    trace: Trace,
    rows: RowReader,
    facts: Mapping[str, Any],
) -> SegmentContents:
    """Put into new lanes what was in them when a checkpoint was made: rows, books, exploration.

    Args:
        block: New lanes.
        groups: Lanes of each group.
        trace: The record's events.
        rows: The record's rows.
        facts: Of the checkpoint: ``trace_bytes`` and ``lanes``, see `lane_facts`.

    Returns:
        Which rows lie in which segment.

    Raises:
        RecordDamaged: Rows that are needed are gone, or differ from what was committed. Nothing may be read then.
    """
    g = block.geometry
    _restore_books(block, facts["lanes"])
    floors = block.resident_from - (g.frame_stack - 1)
    contents = SegmentContents(g.lanes)
    newest: dict[int, RowEvent] = {}
    for event, extents in _row_events(block, groups, trace, int(facts["trace_bytes"])):
        newest[event.group] = event
        checksums = [part.checksum for part in event.lanes]
        for (lane, start, stop, offset), checksum in zip(extents, checksums, strict=True):
            contents.note(event.place.segment, lane, stop)
            if stop >= floors[lane]:
                _put(block, lane, start, stop, rows, RowPlace(event.place.segment, event.place.offset + offset))
                _require(block, lane, start, stop, checksum)
    for group, event in newest.items():
        for lane in groups[group]:
            block.chunk_begun[lane] = event.chunk, 0
            block.incarnation[lane] = event.incarnation
        if isinstance(event, ChunkCommitted):
            for lane, part in zip(groups[group], event.lanes, strict=True):
                block.carry[lane] = np.frombuffer(part.carry, np.float32)  # in every slot: nobody need know which
    return contents


def _restore_books(block: LaneBlock, lanes: Sequence[Sequence[int]]) -> None:
    for lane, values in enumerate(lanes):
        *books, episodes_begun = values
        block.committed[lane, : len(BOOKS)] = books
        block.rows_written[lane] = books[BOOKS.index("row")]
        block.episodes_begun[lane] = episodes_begun


def _row_events(
    block: LaneBlock, groups: Sequence[tuple[int, ...]], trace: Trace, until: int
) -> Iterator[tuple[RowEvent, list[tuple[int, int, int, int]]]]:
    extents = Extents(block, groups)
    for position, event in trace.events():
        if position > until:
            return
        if isinstance(event, ChunkCommitted | GroupSalvaged):
            yield event, extents.of(event)


def _put(block: LaneBlock, lane: int, start: int, stop: int, rows: RowReader, place: RowPlace) -> None:
    """Copy rows and the observation after them into a lane, mirror included."""
    g = block.geometry
    size = g.dtype.itemsize
    data = memoryview(rows.read(place, (stop - start) * size + g.head_offset))
    at = 0
    for piece in block.raw(lane, start, stop):
        piece[:] = data[at : at + len(piece)]
        at += len(piece)
    for piece in block.raw(lane, stop, stop + 1):
        piece[: g.head_offset] = data[at:]
    for slot in range(g.mirror_rows):
        block.rows[lane, g.ring_rows + slot] = block.rows[lane, slot]


def _require(block: LaneBlock, lane: int, start: int, stop: int, checksum: int) -> None:
    if block.checksum(lane, start, stop) != checksum:
        raise RecordDamaged(
            f"rows {start:,} to {stop:,} of lane {lane} in the record differ from what was committed",
            lane=lane,
            expected=f"checksum {checksum:08x}",
            found=f"checksum {block.checksum(lane, start, stop):08x}",
            fix="the disk or somebody else has changed record/rows-*.bin; resume from a copy, or start a new run",
        )
