"""The row log: every append is read back whole from one segment, through ends of segments, full disks and resumes."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import RecordDamaged
from headrace.record import rows as module
from headrace.record.events import NOT_KEPT, RowPlace
from headrace.record.rows import RowLog, RowReader, segment_name, segments_in

SEGMENT_BYTES = 100
ROW = np.dtype({"names": ["obs", "kind"], "formats": ["<f4", "u1"], "offsets": [0, 32], "itemsize": 64})


def rows_of(count, first=0):
    rows = np.zeros(count, ROW)
    rows["obs"] = np.arange(first, first + count)
    return rows


@contextlib.contextmanager
def largest_file(nbytes):
    """No file of this process may grow above so many bytes: a write is cut short there, and the next one refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))  # Python ignores the signal that goes with it
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def sizes(folder):
    return {number: (folder / segment_name(number)).stat().st_size for number in segments_in(folder)}


@pytest.fixture
def log(tmp_path):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        yield log


@pytest.fixture
def reader(tmp_path):
    with RowReader(tmp_path) as reader:
        yield reader


# Appending and reading


def test_pieces_lie_one_behind_the_other(log, reader):
    rows = rows_of(3)
    place = log.append([rows[1:2], rows[:0], memoryview(rows)[2:], b"tail", bytearray(b"!")])
    assert place == RowPlace(0, 0)
    assert log.position == RowPlace(0, 2 * ROW.itemsize + 5)
    assert reader.read(place, 2 * ROW.itemsize + 5) == rows[1:].tobytes() + b"tail!"
    assert log.append([b"next"]) == RowPlace(1, 0)


def test_an_append_is_not_divided_between_segments(log, reader, tmp_path):
    places = [log.append([bytes([number]) * 30, bytes([number]) * 10]) for number in range(6)]
    assert places == [RowPlace(segment, offset) for segment in range(3) for offset in (0, 40)]
    assert [reader.read(place, 40) for place in places] == [bytes([number]) * 40 for number in range(6)]
    assert log.segments() == [0, 1, 2]
    assert sizes(tmp_path) == {0: 80, 1: 80, 2: 80}


def test_a_segment_is_filled_to_its_last_byte(log):
    assert [log.append([b"x" * nbytes]) for nbytes in (60, 40, 1)] == [RowPlace(0, 0), RowPlace(0, 60), RowPlace(1, 0)]


def test_an_append_above_the_size_of_a_segment_has_its_own(log, reader):
    places = [log.append([b"x" * nbytes]) for nbytes in (250, 10, 300, 5)]
    assert places == [RowPlace(0, 0), RowPlace(1, 0), RowPlace(2, 0), RowPlace(3, 0)]
    assert reader.read(places[2], 300) == b"x" * 300


def test_an_append_of_nothing_has_a_place(log):
    log.append([b"x" * 100])
    assert log.append([rows_of(0), b""]) == RowPlace(0, 100) == log.position


def test_more_pieces_than_the_system_takes_at_once(tmp_path, reader):
    pieces = [f"{number:>5}".encode() for number in range(2 * os.sysconf("SC_IOV_MAX") + 3)]
    with RowLog.create(tmp_path, 1 << 20) as log:
        place = log.append(pieces)
    assert reader.read(place, 5 * len(pieces)) == b"".join(pieces)


def test_an_append_is_one_call(log, monkeypatch):
    calls = []
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: calls.append(len(views)) or real(fd, views, at))
    log.append([b"a", b"", rows_of(1), b"b"])
    assert calls == [3]


@pytest.mark.parametrize("most", [1, 7, 64, 65])
def test_a_write_that_is_cut_short_is_continued(tmp_path, reader, monkeypatch, most):
    def short(fd, views, at):
        return os.pwrite(fd, b"".join(bytes(view) for view in views)[:most], at)

    monkeypatch.setattr(os, "pwritev", short)
    with RowLog.create(tmp_path, 1 << 20) as log:
        log.append([b"before"])
        place = log.append([rows_of(2), b"middle", rows_of(3, 2), b"end"])
    assert reader.read(place, 5 * 64 + 9) == rows_of(2).tobytes() + b"middle" + rows_of(3, 2).tobytes() + b"end"


def test_rows_are_read_while_they_are_written(log, reader):
    for number in range(20):
        place = log.append([rows_of(1, number)])
        assert reader.read(place, 64) == rows_of(1, number).tobytes()


def test_a_log_is_not_begun_over_another(tmp_path):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        log.append([b"rows"])
    with pytest.raises(FileExistsError):
        RowLog.create(tmp_path, SEGMENT_BYTES)
    assert (tmp_path / segment_name(0)).read_bytes() == b"rows"


def test_other_files_are_no_segments(tmp_path):
    for name in (
        "rows-000007.bin",
        "rows-000010.bin",
        "rows-1234567.bin",
        "rows-7.bin",
        "rows-000001.bin.part",
        "trace.bin",
    ):
        (tmp_path / name).touch()
    assert segments_in(tmp_path) == [7, 10, 1234567]
    assert segment_name(1234567) == "rows-1234567.bin"


# Refused writes


@pytest.mark.parametrize("offset", [0, 30])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path, reader, offset):
    """A real refusal: the file may not grow above a limit, first a part of the rows is taken, then nothing."""
    with RowLog.create(tmp_path, 1000) as log:
        log.append([b"x" * offset])
        for room in range(0, 200, 13):
            with largest_file(offset + room), pytest.raises(OSError, match="too large") as caught:
                log.append([rows_of(2), b"y" * 72])
            assert caught.value.errno == errno.EFBIG
            assert log.position == RowPlace(0, offset)
            assert sizes(tmp_path) == {0: offset}
        with largest_file(offset + 200):
            place = log.append([rows_of(2), b"y" * 72])
        assert place == RowPlace(0, offset)
        assert reader.read(place, 200) == rows_of(2).tobytes() + b"y" * 72


def test_a_full_disk_at_the_begin_of_a_segment(log, reader, tmp_path):
    log.append([b"x" * 100])
    with largest_file(50), pytest.raises(OSError, match="too large"):
        log.append([b"y" * 60])
    assert log.position == RowPlace(1, 0)
    assert sizes(tmp_path) == {0: 100, 1: 0}
    assert reader.read(log.append([b"z" * 60]), 60) == b"z" * 60


def test_a_segment_that_cannot_be_begun_leaves_the_log_as_it_was(log, reader, tmp_path):
    log.append([b"x" * 100])
    in_the_way = tmp_path / segment_name(1)
    in_the_way.mkdir()
    with pytest.raises(FileExistsError):
        log.append([b"y"])
    assert log.position == RowPlace(0, 100)
    in_the_way.rmdir()
    assert reader.read(log.append([b"y"]), 1) == b"y"


def test_what_cannot_be_cut_off_is_overwritten(log, reader, monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(errno.EIO, "no")

    with largest_file(20), monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="too large"):
            log.append([b"y" * 30])
    assert sizes(tmp_path) == {0: 20}
    places = [log.append([b"z" * 10]), log.append([b"w" * 25])]
    assert places == [RowPlace(0, 0), RowPlace(0, 10)]
    assert [reader.read(places[0], 10), reader.read(places[1], 25)] == [b"z" * 10, b"w" * 25]


def test_a_file_that_takes_nothing_is_an_error(log, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        log.append([b"rows"])
    assert log.position == RowPlace(0, 0)


# Syncing and dropping


@pytest.fixture
def synced(monkeypatch):
    """Names of the files whose bytes were waited for."""
    names = []
    real = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: names.append(Path(f"/proc/self/fd/{fd}").readlink().name) or real(fd)
    )
    return names


def test_every_segment_written_since_is_synced(log, synced):
    for _ in range(3):
        log.append([b"x" * 80])
    log.sync()
    assert synced == [segment_name(number) for number in range(3)]
    log.sync()
    assert synced[3:] == []
    log.append([b"x" * 20])
    log.append([b"x" * 20])
    log.sync()
    assert synced[3:] == [segment_name(2), segment_name(3)]


def test_the_folder_is_synced_when_a_segment_was_begun(log, monkeypatch):
    folders = []
    monkeypatch.setattr(module, "sync_folder", folders.append)
    for _ in range(3):
        log.append([b"x" * 40])
        log.sync()
    assert folders == [log.folder, log.folder]


def test_what_could_not_be_synced_is_tried_again(log, synced, monkeypatch):
    log.append([b"x" * 80])
    log.append([b"x" * 80])

    def refuse(_fd):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="Input/output"):
            log.sync()
    log.sync()
    assert synced == [segment_name(0), segment_name(1)]


def test_old_segments_are_dropped_and_the_newest_never(log, synced, tmp_path):
    for _ in range(4):
        log.append([b"x" * 80])
    log.drop_before(2)
    assert log.segments() == [2, 3]
    log.drop_before(1)
    assert log.segments() == [2, 3]
    log.drop_before(99)
    assert log.segments() == [3]
    log.sync()
    assert synced == [segment_name(3)]
    assert log.append([b"x" * 80]) == RowPlace(4, 0)
    assert sizes(tmp_path) == {3: 80, 4: 80}


# Going on


def test_a_resumed_log_ends_where_it_was_told(tmp_path, reader):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        places = [log.append([bytes([number]) * 40]) for number in range(9)]
        log.drop_before(1)
    with RowLog.resume(tmp_path, places[5], SEGMENT_BYTES) as log:
        assert log.position == places[5] == RowPlace(2, 40)
        assert sizes(tmp_path) == {1: 80, 2: 40}
        assert log.append([b"n" * 40]) == RowPlace(2, 40)
        assert log.append([b"m" * 40]) == RowPlace(3, 0)
    assert reader.read(places[4], 80) == b"\4" * 40 + b"n" * 40
    assert sizes(tmp_path) == {1: 80, 2: 80, 3: 40}


def test_a_log_is_resumed_at_its_end_and_at_its_begin(tmp_path):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        for _ in range(3):
            log.append([b"x" * 80])
        end = log.position
    with RowLog.resume(tmp_path, end, SEGMENT_BYTES) as log:
        assert log.position == end
    assert sizes(tmp_path) == {0: 80, 1: 80, 2: 80}
    with RowLog.resume(tmp_path, RowPlace(0, 0), SEGMENT_BYTES) as log:
        assert log.append([b"y"]) == RowPlace(0, 0)
    assert sizes(tmp_path) == {0: 1}


@pytest.mark.parametrize(
    ("at", "said"), [(RowPlace(1, 81), "ends before"), (RowPlace(2, 0), "is missing"), (NOT_KEPT, "not kept")]
)
def test_a_resume_where_there_are_no_rows_is_refused(tmp_path, at, said):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        log.append([b"x" * 80])
        log.append([b"x" * 80])
    with pytest.raises(RecordDamaged, match=said):
        RowLog.resume(tmp_path, at, SEGMENT_BYTES)
    assert sizes(tmp_path) == {0: 80, 1: 80}


def test_a_resume_that_cannot_cut_says_so(tmp_path, monkeypatch):
    with RowLog.create(tmp_path, SEGMENT_BYTES) as log:
        log.append([b"x" * 80])

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match="no"):
        RowLog.resume(tmp_path, RowPlace(0, 40), SEGMENT_BYTES)
    assert sizes(tmp_path) == {0: 80}


@given(
    st.lists(st.lists(st.binary(max_size=50), max_size=4), min_size=1, max_size=30),
    st.integers(1, 120),
    st.data(),
)
def test_every_append_is_read_back_also_after_a_resume(tmp_path_factory, appends, segment_bytes, data):
    folder = tmp_path_factory.mktemp("rows")
    whole = [b"".join(pieces) for pieces in appends]
    cut = data.draw(st.integers(0, len(appends) - 1))
    with RowLog.create(folder, segment_bytes) as log:
        places = [log.append(pieces) for pieces in appends]
    with RowLog.resume(folder, places[cut], segment_bytes) as log:
        again = [log.append(pieces) for pieces in appends]
    with RowReader(folder) as reader:
        for place, held in zip(places[:cut] + again, whole[:cut] + whole, strict=True):
            assert reader.read(place, len(held)) == held
    held = places[:cut] + again
    assert held == sorted(held)
    for number, size in sizes(folder).items():
        parts = [
            len(bytes_) for place, bytes_ in zip(held, whole[:cut] + whole, strict=True) if place.segment == number
        ]
        assert size == sum(parts)
        assert size <= segment_bytes or sum(map(bool, parts)) == 1


# Reading what is not there


def test_a_dropped_segment_is_named_with_the_reason(log, reader, tmp_path):
    places = [log.append([b"x" * 80]) for _ in range(4)]
    log.drop_before(2)
    with pytest.raises(RecordDamaged) as caught:
        reader.read(places[1], 80)
    assert str(caught.value) == (
        "[REC-001] rows-000001.bin is no longer kept: record.rows = 'resident'\n"
        f"  folder: {tmp_path}\n"
        "  kept: rows-000002.bin to rows-000003.bin\n"
        '  fix: set record.rows = "all" before a run of which every row will be needed'
    )
    log.drop_before(9)
    with pytest.raises(RecordDamaged, match=r"kept: rows-000003\.bin\n"):
        reader.read(places[0], 80)


def test_a_segment_that_is_missing_is_named(log, reader, tmp_path):
    places = [log.append([b"x" * 80]) for _ in range(3)]
    (tmp_path / segment_name(1)).unlink()
    with pytest.raises(RecordDamaged, match=r"rows-000001\.bin is missing"):
        reader.read(places[1], 80)
    with pytest.raises(RecordDamaged, match=r"rows-000003\.bin is missing"):
        reader.read(RowPlace(3, 0), 80)
    assert reader.read(places[2], 80) == b"x" * 80


def test_a_folder_that_is_missing_is_named(tmp_path):
    with RowReader(tmp_path / "gone") as reader, pytest.raises(RecordDamaged, match="kept: none"):
        reader.read(RowPlace(0, 0), 1)


def test_a_segment_that_is_too_short_is_named(log, reader, tmp_path):
    place = log.append([b"x" * 80])
    with pytest.raises(RecordDamaged) as caught:
        reader.read(place, 81)
    assert str(caught.value) == (
        "[REC-001] rows-000000.bin ends before the rows that the trace says are in it\n"
        f"  folder: {tmp_path}\n"
        "  file bytes: 80\n"
        "  needed bytes: 81\n"
        "  fix: copy the folder of the record again, or go on from a checkpoint that ends before"
    )
    assert reader.read(place, 80) == b"x" * 80


def test_rows_that_were_not_kept_are_not_read(reader):
    with pytest.raises(RecordDamaged, match=r"were not kept: record\.rows = 'none'"):
        reader.read(NOT_KEPT, 64)


def test_a_disk_that_cannot_be_read_is_named(log, reader, monkeypatch):
    place = log.append([b"x"])

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(RecordDamaged, match=r"rows-000000\.bin cannot be read\n  problem: Input/output error"):
        reader.read(place, 1)


def held(folder):
    """How many files of a folder this process has open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            links.append(entry.readlink())
    return sum(link.parent == folder for link in links)


def test_a_log_holds_one_segment_open(log):
    for _ in range(5):
        log.append([b"x" * 80])
        log.sync()
        assert held(log.folder) == 1
    log.close()
    log.close()
    assert held(log.folder) == 0


def test_few_segments_are_held_open(log, reader):
    places = [log.append([bytes([number]) * 80]) for number in range(12)]
    before = held(log.folder)
    for number, place in [*enumerate(places), *reversed(list(enumerate(places)))]:
        assert reader.read(place, 80) == bytes([number]) * 80
        assert held(log.folder) - before <= 4
    reader.close()
    assert held(log.folder) == before
    assert reader.read(places[0], 80) == b"\0" * 80
