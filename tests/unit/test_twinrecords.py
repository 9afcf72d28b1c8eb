"""Where two records part, on records written by hand."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from headrace.core.errors import RecordDamaged
from headrace.core.specs import Leaf
from headrace.lanes import layout
from headrace.record.events import (
    NOT_KEPT,
    BatchesTrained,
    ChunkCommitted,
    LanePart,
    Note,
    PolicyPublished,
    StateSaved,
    WeightsHashed,
)
from headrace.record.rows import RowLog
from headrace.record.trace import TraceWriter
from headrace.runtime.twinrecords import first_difference_of

FLOAT = np.dtype(np.float32)
DTYPE = layout.row_dtype([Leaf("obs", FLOAT, (3,))], [Leaf("action", FLOAT, (2,))])
TAIL = 12
"""Bytes of an observation, which follows the rows of a lane."""
FIRST_ROW = 5
NAMES = ("inline", "lockstep")


def chunk_rows(chunk):
    """[2, 4] rows of both lanes of a group; the reward tells lane and row."""
    rows = np.zeros((2, 4), DTYPE)
    rows["kind"], rows["version"] = layout.STEP, 1
    rows["t"] = np.arange(4) + 4 * chunk
    rows["reward"] = rows["t"] + 100 * np.arange(2)[:, None]
    return rows


class Record:
    """Writes a record with one group of two lanes, whose chunks are four rows each."""

    def __init__(self, folder, *, keeps_rows=True):
        folder.mkdir()
        header = {
            "row_dtype": np.lib.format.dtype_to_descr(DTYPE), "row_bytes": DTYPE.itemsize, "observation_bytes": TAIL,
            "lanes": 2, "group_size": 2, "first_row": FIRST_ROW,
        }  # fmt: skip
        self.folder = folder
        self._trace = TraceWriter.create(folder / "trace.bin", header)
        self._rows = RowLog.create(folder, 2**20)
        self._keeps_rows = keeps_rows

    def chunk(self, number, rows=None):
        rows = chunk_rows(number) if rows is None else rows
        pieces = [piece for lane in rows for piece in (lane.tobytes(), bytes(TAIL))]
        place = self._rows.append(pieces) if self._keeps_rows else NOT_KEPT
        lanes = tuple(LanePart(FIRST_ROW + 4 * (number + 1), 4, zlib.crc32(lane.tobytes())) for lane in rows)
        return self.write(ChunkCommitted(0, 0, 0, number, 1, last=False, place=place, lanes=lanes))

    def write(self, *events):
        for event in events:
            self._trace.write(event)
        return self

    def end(self):
        self._trace.close()
        self._rows.close()
        return self.folder


def batches(updates, *prints):
    return BatchesTrained(updates, np.array([(one, one, 0) for one in prints], np.uint32))


@pytest.fixture
def record(tmp_path):
    numbers = iter(range(9))
    return lambda **options: Record(tmp_path / f"record-{next(numbers)}", **options)


def parted(one, two):
    found = first_difference_of(one.end(), two.end(), NAMES)
    return found.sentence if found is not None else None


def test_when_things_were_written_does_not_matter(record):
    """Batches are written before the next other event, and states are saved by the clock."""
    one = record().chunk(0).write(batches(0, 7, 8, 9), PolicyPublished(3, 1, 77))
    two = (
        record()
        .chunk(0)
        .write(batches(0, 7), StateSaved(1, 1), batches(1, 8, 9), Note(3, "x", {}), PolicyPublished(3, 1, 77))
    )
    assert parted(one, two) is None


def test_a_row_is_named_by_lane_number_and_field(record):
    changed = chunk_rows(1)
    changed["reward"][1, 2] = 7.5
    changed["reward"][0, 3] = 8.5
    assert parted(record().chunk(0).chunk(1), record().chunk(0).chunk(1, changed)) == (
        "chunk 1 of group 0, after update 0, lane 1, row 11 (episode 0, step 6): reward is 106.0 under inline and 7.5 under lockstep"
    )


def test_without_rows_the_chunk_is_named(record):
    changed = chunk_rows(1)
    changed["reward"][1, 2] = 7.5
    one, two = record(keeps_rows=False).chunk(0).chunk(1), record(keeps_rows=False).chunk(0).chunk(1, changed)
    assert parted(one, two) == "chunk 1 of group 0, after update 0: the two differ"


@pytest.mark.parametrize(
    ("one", "two", "told"),
    [
        (batches(0, 7, 8, 9), batches(0, 7, 8, 1), "batch of update 3, after update 2: the two differ"),
        (PolicyPublished(3, 1, 77), PolicyPublished(3, 1, 78), "policy 1, after update 3: the two differ"),
        (
            WeightsHashed(4, "aa" * 32, {}), WeightsHashed(4, "ab" * 32, {}),
            "weights, after update 4: the two differ",
        ),
        (batches(0, 7), PolicyPublished(0, 1, 7), "after update 0 inline came to batch of update 1 and lockstep to policy 1"),
    ],
)  # fmt: skip
def test_every_kind_of_step_is_compared(record, one, two, told):
    assert parted(record().chunk(0).write(one), record().chunk(0).write(two)) == told


def test_a_record_that_ends_early_is_told(record):
    one, two = record().chunk(0), record().chunk(0).write(batches(0, 7))
    assert parted(one, two) == "the record of inline ends where the other one goes on with batch of update 1"


def test_a_missing_record_is_an_error(record, tmp_path):
    with pytest.raises(RecordDamaged, match="cannot be opened"):
        first_difference_of(record().end(), tmp_path / "nowhere", NAMES)
