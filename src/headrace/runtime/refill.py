"""Fills lanes again with the rows of a record, up to where a checkpoint was made."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import RecordDamaged
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry
from headrace.lanes.replay import LaneBooks
from headrace.record.events import ChunkCommitted, GroupSalvaged, RowPlace
from headrace.record.rows import RowReader, segment_name
from headrace.record.segments import SegmentContents
from headrace.record.trace import Trace

BOOKS = ("committed", "salvaged", "rejected", "evicted", "row", "resident_from")
"""What a checkpoint says of each lane's books, in this order; the episodes begun follow."""
_ROWS = "rows {:,} to {:,} of lane {} in the record differ"
RowEvent = ChunkCommitted | GroupSalvaged


def lane_facts(block: LaneBlock, books: LaneBooks, episodes_begun: Sequence[int]) -> list[list[int]]:
    """What a checkpoint has to say of each lane."""
    return [
        [*(int(getattr(books, name)[lane]) for name in BOOKS), episodes_begun[lane]]
        for lane in range(block.geometry.lanes)
    ]


def following_facts(block: LaneBlock, books: LaneBooks) -> list[int]:
    """CRC-32 of the observation behind each lane's newest row: in the record it lies where no event has a checksum of it."""
    return [zlib.crc32(block.following(lane, row)) for lane, row in enumerate(books.row.tolist())]


@dataclass(frozen=True, slots=True)
class Refilled:
    """What is known after lanes were filled."""

    contents: SegmentContents
    """Which rows lie in which segment."""
    episodes: dict[int, NDArray[np.void]]
    """Running episodes, see `headrace.collectors.restoring.Episodes`; none where they are not wanted."""


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
    on_event: Callable[[], None],
    *,
    episodes: bool = True,
) -> Refilled:
    """Put into new lanes what was in them when a checkpoint was made: rows, books, exploration.

    Args:
        block: New lanes.
        groups: Lanes of each group.
        trace: The record's events.
        rows: The record's rows.
        facts: Of the checkpoint: ``trace_bytes``, ``lanes`` (see `lane_facts`), ``running_from`` and, unless an earlier version
            wrote it, ``running`` and ``following`` (see `following_facts`).
        on_event: Called for every event that is read: there may be millions, and whoever waits is to see that it goes on.
        episodes: Whether the running ones are wanted, whole: they may be far longer than what is resident.

    Raises:
        RecordDamaged: Rows that are needed are gone, or differ from what was committed. Nothing may be read then.
    """
    g = block.geometry
    _restore_books(block, facts["lanes"])
    resident_from = [values[BOOKS.index("resident_from")] for values in facts["lanes"]]
    running = _Running(g, rows, facts, wanted=episodes)
    contents = SegmentContents(g.lanes)
    newest: dict[int, RowEvent] = {}
    for event, extents in _row_events(block, groups, trace, int(facts["trace_bytes"]), on_event):
        newest[event.group] = event
        checksums = [part.checksum for part in event.lanes]
        for (lane, start, stop, offset), checksum in zip(extents, checksums, strict=True):
            contents.note(event.place.segment, lane, stop)
            place = RowPlace(event.place.segment, event.place.offset + offset)
            if stop >= resident_from[lane] - (g.frame_stack - 1):
                _put(block, lane, start, stop, rows, place)
                _require(_ROWS.format(start, stop, lane), lane, place, checksum, block.checksum(lane, start, stop))
            running.add(lane, start, stop, place, checksum)
    for group, event in newest.items():
        _go_on(block, groups[group], event, facts.get("following"))
    return Refilled(contents, running.episodes())


def _go_on(block: LaneBlock, lanes: Sequence[int], event: RowEvent, following: Sequence[int] | None) -> None:
    """What else the newest event says of a group, whose rows are there."""
    for lane, stop in zip(lanes, stops_of(event), strict=True):
        if following is not None:
            what = f"the observation after row {stop:,} of lane {lane} in the record differs"
            _require(what, lane, event.place, following[lane], zlib.crc32(block.following(lane, stop)))
        block.chunk_begun[lane] = event.chunk, 0
        block.incarnation[lane] = event.incarnation
    if isinstance(event, ChunkCommitted):
        for lane, part in zip(lanes, event.lanes, strict=True):
            block.carry[lane] = np.frombuffer(part.carry, np.float32)  # in every slot: nobody need know which


class _Running:
    """Gathers the rows of running episodes, which may be longer than the replay."""

    def __init__(self, geometry: Geometry, rows: RowReader, facts: Mapping[str, Any], *, wanted: bool) -> None:
        self._geometry = geometry
        self._rows = rows
        self._begins = begins = facts["running_from"]
        running = facts.get("running", [row >= 0 for row in begins])  # checkpoints of before do not say it
        self._lanes: list[int] = np.flatnonzero(running).tolist() if wanted else []
        self._parts: dict[int, list[bytes]] = {lane: [] for lane in self._lanes if begins[lane] >= 0}

    def add(self, lane: int, start: int, stop: int, place: RowPlace, checksum: int) -> None:
        """Rows of an event, which are resident or not.

        Raises:
            RecordDamaged: They differ from what was committed.
        """
        begin, g = self._begins[lane], self._geometry
        if lane not in self._parts or stop <= begin:
            return
        try:
            nbytes = (stop - start) * g.dtype.itemsize
            data = self._rows.read(place, nbytes + g.head_offset)
        except RecordDamaged:  # no longer kept; the environment cannot be brought back then
            del self._parts[lane]
            return
        _require(
            _ROWS.format(start, stop, lane), lane, place, checksum, zlib.crc32(memoryview(data)[:nbytes]),
            "; with checkpoint.restore_episodes = false nobody reads rows that only the running episode needs",
        )  # fmt: skip
        parts = self._parts[lane]
        if parts:
            parts[-1] = parts[-1][: -g.head_offset]  # the observation after it is the next part's first
        parts.append(data[max(0, begin - start) * g.dtype.itemsize :])

    def episodes(self) -> dict[int, NDArray[np.void]]:
        """Whole episodes by lane; none of its rows where one is no longer kept."""
        # As bytes: joined as records they would lose the gaps between their fields.
        g = self._geometry
        tail = bytes(g.dtype.itemsize - g.head_offset)
        whole = {lane: np.frombuffer(b"".join([*parts, tail]), g.dtype) for lane, parts in self._parts.items()}
        return {lane: whole.get(lane, np.zeros(0, g.dtype)) for lane in self._lanes}


def _restore_books(block: LaneBlock, lanes: Sequence[Sequence[int]]) -> None:
    for lane, values in enumerate(lanes):
        *books, episodes_begun = values
        block.committed[lane, : len(BOOKS)] = books
        block.rows_written[lane] = books[BOOKS.index("row")]
        block.episodes_begun[lane] = episodes_begun


def _row_events(
    block: LaneBlock, groups: Sequence[tuple[int, ...]], trace: Trace, until: int, on_event: Callable[[], None]
) -> Iterator[tuple[RowEvent, list[tuple[int, int, int, int]]]]:
    extents = Extents(block, groups)
    for position, event in trace.events():
        if position > until:
            return
        on_event()
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


def _require(what: str, lane: int, place: RowPlace, checksum: int, found: int, otherwise: str = "") -> None:
    if found != checksum:
        raise RecordDamaged(
            f"{what} from what was committed",
            file=f"record/{segment_name(place.segment)}",
            lane=lane,
            expected=f"CRC-32 {checksum:08x}",
            found=f"CRC-32 {found:08x}",
            fix=f"the disk or somebody else has changed that file; resume from a copy, or start a new run{otherwise}",
        )
