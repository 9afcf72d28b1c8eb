"""A process that is killed while it writes a record leaves whole events, their rows, and a record that goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from headrace.record.events import ChunkCommitted, LanePart, RowPlace
from headrace.record.rows import RowLog, RowReader
from headrace.record.trace import Trace, TraceWriter

pytestmark = pytest.mark.process

SEGMENT_BYTES = 20_000
SAID_EVERY = 50
"""Events between two bytes that the writer sends."""
FRAME_BYTES = 9 + 52 + 20


def rows_of(number):
    return (number * 2654435761 % 2**32).to_bytes(4, "little") * (1 + number * 7 % 300)


def write(trace, rows, number):
    """Append the rows of one chunk, then its event, as a learner does."""
    data = rows_of(number)
    place = rows.append([data[:100], data[100:]])
    part = LanePart(number + 1, 1, zlib.crc32(data), b"")
    trace.write(ChunkCommitted(number, 0, 0, number, 1, last=False, place=place, lanes=(part,)))


def write_for_ever(folder):
    with TraceWriter.create(folder / "trace.bin", {}) as trace, RowLog.create(folder, SEGMENT_BYTES) as rows:
        for number in itertools.count():
            write(trace, rows, number)
            if number % SAID_EVERY == SAID_EVERY - 1:
                os.write(1, b".")


def read(folder):
    """Places of all whole events; each is what was written, and its rows are there."""
    places = []
    with Trace.open(folder / "trace.bin") as trace, RowReader(folder) as rows:
        for number, (_, event) in enumerate(trace):
            assert isinstance(event, ChunkCommitted)
            assert event.chunk == number
            assert zlib.crc32(rows.read(event.place, len(rows_of(number)))) == event.lanes[0].checksum
            places.append(event.place)
        assert not trace.damaged
        assert trace.torn_bytes < FRAME_BYTES  # the kernel may be killed between two pages of one call
    return places


@pytest.mark.thin(5)
@pytest.mark.parametrize("said", [1, 2, 5, 11, 40])
def test_a_killed_writer_leaves_a_record_that_is_read_and_goes_on(tmp_path, said):
    command = [sys.executable, __file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        assert b"".join(child.stdout.read(1) for _ in range(said)) == b"." * said
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    places = read(tmp_path)
    assert len(places) >= said * SAID_EVERY
    assert max(places).segment > 0

    with Trace.open(tmp_path / "trace.bin") as trace:
        at = trace.length()
    last = RowPlace(places[-1].segment, places[-1].offset + len(rows_of(len(places) - 1)))
    with TraceWriter.resume(tmp_path / "trace.bin", at) as writer, RowLog.resume(tmp_path, last, SEGMENT_BYTES) as rows:
        for number in range(len(places), len(places) + 100):
            write(writer, rows, number)
    assert len(read(tmp_path)) == len(places) + 100


if __name__ == "__main__":  # the writer
    write_for_ever(Path(sys.argv[1]))
