"""Where the records of two runs that should be the same first differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import RecordDamaged
from headrace.record.diff import RowDifference, first_difference
from headrace.record.events import (
    BatchesTrained,
    ChunkCommitted,
    GroupSalvaged,
    PolicyPublished,
    RowPlace,
    WeightsHashed,
)
from headrace.record.rows import RowReader
from headrace.record.trace import Trace
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.refill import stops_of


@dataclass(frozen=True, slots=True)
class Step:
    """Something in a record that decides what is learned, in a form that does not hang on when it was written."""

    what: str
    """``chunk 17 of group 3``, ``batch of update 410``, …"""
    updates: int
    """Gradient steps made before it."""
    value: tuple[object, ...]
    """Equal for equal steps."""
    rows: tuple[tuple[int, int, int, RowPlace], ...] = ()
    """(lane, first row, row after the last, place in the row log) of a chunk."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two records part."""

    sentence: str
    facts: Mapping[str, str]


class RunRecord:
    """One record, open for reading; its rows too, if they were kept.

    Args:
        folder: ``record/`` of the run.
        stack: Closes what is opened.

    Raises:
        RecordDamaged: There is no record, or it cannot be read.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._trace = stack.enter_context(Trace.open(folder / TRACE_FILE))
        self._rows = stack.enter_context(RowReader(folder))
        header = self._trace.header
        self._dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_tuples(header["row_dtype"]))
        self._tail = int(header["observation_bytes"])
        self._group_size = int(header["group_size"])
        self._stops = [int(header["first_row"])] * int(header["lanes"])

    def steps(self) -> Iterator[Step]:
        """All of them, in order."""
        for _, event in self._trace.events():
            match event:
                case ChunkCommitted() | GroupSalvaged():
                    yield self._chunk(event)
                case BatchesTrained():
                    for number, prints in enumerate(event.prints.tolist()):
                        update = event.updates + number
                        yield Step(f"batch of update {update + 1:,}", update, tuple(prints))
                case PolicyPublished():
                    yield Step(f"policy {event.version}", event.updates, (event.updates, event.checksum))
                case WeightsHashed():
                    yield Step("weights", event.updates, (event.updates, event.sha256))

    def rows(self, start: int, stop: int, place: RowPlace) -> NDArray[np.void] | None:
        """[R] rows of a lane; None if they were not kept."""
        if place.segment < 0:
            return None
        try:
            return np.frombuffer(self._rows.read(place, (stop - start) * self._dtype.itemsize), self._dtype)
        except RecordDamaged:
            return None  # a segment that was not to be kept any longer

    def _chunk(self, event: ChunkCommitted | GroupSalvaged) -> Step:
        parts, offset, first = [], 0, event.group * self._group_size
        for lane, stop in enumerate(stops_of(event), first):
            start = self._stops[lane]
            parts.append((lane, start, stop, RowPlace(event.place.segment, event.place.offset + offset)))
            offset += (stop - start) * self._dtype.itemsize + self._tail
            self._stops[lane] = stop
        checksums = tuple((part.stop, part.checksum) for part in event.lanes)
        kind = "chunk" if isinstance(event, ChunkCommitted) else "salvaged chunk"
        value = (event.group, event.chunk, event.version, event.incarnation, *checksums)
        return Step(f"{kind} {event.chunk} of group {event.group}", event.updates, value, tuple(parts))


def first_difference_of(reference: Path, other: Path, names: tuple[str, str]) -> FirstDifference | None:
    """The first step in which two records differ, with lane, row and field where rows do and were kept.

    Args:
        reference: ``record/`` of one run.
        other: ``record/`` of the other one.
        names: What to call the two.

    Returns:
        None if they hold the same steps.

    Raises:
        RecordDamaged: One of them is missing, or cannot be read.
    """
    with ExitStack() as stack:
        left, right = RunRecord(reference, stack), RunRecord(other, stack)
        for one, two in zip_longest(left.steps(), right.steps()):
            if one is None or two is None:
                return _ended(one or two, names[0] if one is None else names[1])
            if one.what != two.what:
                where = f"after update {one.updates:,} {names[0]} came to {one.what} and {names[1]} to {two.what}"
                return FirstDifference(where, {})
            if one.value != two.value:
                return _told(one, _row_difference(left, right, one, two), names)
    return None


def _ended(step: Step | None, name: str) -> FirstDifference:
    assert step is not None, "one of the records went on"
    return FirstDifference(f"the record of {name} ends where the other one goes on with {step.what}", {})


def _row_difference(left: RunRecord, right: RunRecord, one: Step, two: Step) -> RowDifference | None:
    found = []
    for (lane, start, stop, place), (_, _, other_stop, other_place) in zip(one.rows, two.rows, strict=True):
        rows, others = left.rows(start, stop, place), right.rows(start, other_stop, other_place)
        if rows is not None and others is not None:
            found.append(first_difference(rows, others, lane=lane, first_row=start))
    return min((one for one in found if one is not None), key=lambda one: one.place, default=None)


def _told(step: Step, difference: RowDifference | None, names: tuple[str, str]) -> FirstDifference:
    where = f"{step.what}, after update {step.updates:,}"
    if difference is None:
        return FirstDifference(f"{where}: the two differ", {})
    sentence = (
        f"{where}, lane {difference.lane}, row {difference.row} (episode {difference.episode}, step {difference.t}): "
        f"{difference.value} is {difference.recorded} under {names[0]} and {difference.replayed} under {names[1]}"
    )
    return FirstDifference(
        sentence, {"lane": str(difference.lane), "row": str(difference.row), "field": difference.field}
    )


def _tuples(described: Any) -> Any:
    """What JSON has made lists of, as numpy wants it."""
    return [tuple(tuple(part) if isinstance(part, list) else part for part in field) for field in described]
