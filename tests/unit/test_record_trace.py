"""The trace of a run: what was written is read, and every way of being cut, damaged or refused is noticed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import RecordDamaged
from headrace.record import trace as module
from headrace.record.events import BatchesTrained, LearnerSucceeded, Note, PolicyPublished
from headrace.record.trace import MAX_PAYLOAD_BYTES, Trace, TraceWriter
from record_support import ONE_OF_EACH, events

HEADER = {"headrace": "0.1.0", "config_sha256": "ab" * 32, "threads": 1}
FRAME_BYTES = 9


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.bin"


def write(path, events=ONE_OF_EACH):
    """A finished trace; where the header and each event end."""
    with TraceWriter.create(path, HEADER) as writer:
        borders = [writer.position]
        for event in events:
            writer.write(event)
            borders.append(writer.position)
    return borders


def read(path, start=0):
    with Trace.open(path) as trace:
        return [event for _, event in trace.events(start)]


@contextlib.contextmanager
def largest_file(nbytes):
    """No file of this process may grow above so many bytes: a write is cut short there, and the next one refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))  # Python ignores the signal that goes with it
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Writing and reading


def test_a_trace_comes_back(path):
    borders = write(path)
    with Trace.open(path) as trace:
        assert trace.header == HEADER
        assert trace.start == borders[0]
        assert list(trace) == list(zip(borders[1:], ONE_OF_EACH, strict=True))
        assert trace.length() == borders[-1] == path.stat().st_size
        assert trace.torn_bytes == 0
        assert not trace.damaged


def test_reading_begins_at_any_event(path):
    borders = write(path)
    for number, border in enumerate(borders):
        assert read(path, border) == list(ONE_OF_EACH[number:])


@given(st.lists(events, max_size=12), st.integers(FRAME_BYTES, 200))
def test_any_events_come_back_however_they_are_read(tmp_path_factory, some, piece_bytes):
    path = tmp_path_factory.mktemp("trace") / "trace.bin"
    borders = write(path, some)
    with pytest.MonkeyPatch.context() as patch, Trace.open(path) as trace:
        patch.setattr(module, "_PIECE_BYTES", piece_bytes)
        assert list(trace) == list(zip(borders[1:], some, strict=True))
        assert trace.torn_bytes == 0


def test_a_trace_is_read_while_it_is_written(path):
    with TraceWriter.create(path, HEADER) as writer, Trace.open(path) as trace:
        assert list(trace) == []
        at = trace.start
        for event in ONE_OF_EACH:
            writer.write(event)
            assert [(after, found) for after, found in trace.events(at)] == [(writer.position, event)]
            assert trace.torn_bytes == 0
            at = writer.position
        assert [event for _, event in trace] == list(ONE_OF_EACH)


def test_an_event_is_one_write(path, monkeypatch):
    calls = []
    real = os.pwrite
    with TraceWriter.create(path, HEADER) as writer:
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: calls.append(len(data)) or real(fd, data, at))
        for event in ONE_OF_EACH:
            writer.write(event)
            assert path.stat().st_size == writer.position  # nothing is held back
    assert calls == [FRAME_BYTES + len(event.pack()) for event in ONE_OF_EACH]


def test_a_large_trace_is_read_in_pieces(path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 4096)
    write(path, [PolicyPublished(number, number, 0) for number in range(3000)])
    sizes = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: sizes.append(count) or real(fd, count, at))
    with Trace.open(path) as trace:
        assert sum(event.updates for _, event in trace) == sum(range(3000))
        assert trace.torn_bytes == 0
    assert max(sizes) == 4096
    assert sum(sizes) < 1.2 * path.stat().st_size  # and each of them about once


def test_sync_and_close(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    with TraceWriter.create(path, HEADER) as writer:
        writer.sync()
    assert synced == [path.stat().st_ino]
    writer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.write(ONE_OF_EACH[0])
    trace = Trace.open(path)
    trace.close()
    trace.close()


# Torn and damaged


def test_a_trace_cut_at_any_byte_is_sound_up_to_there_and_goes_on(path):
    borders = write(path)
    whole = path.read_bytes()
    for cut in range(borders[0], len(whole)):
        path.write_bytes(whole[:cut])
        sound = max(border for border in borders if border <= cut)
        kept = ONE_OF_EACH[: borders.index(sound)]
        with Trace.open(path) as trace:
            assert [event for _, event in trace] == list(kept)
            assert (trace.length(), trace.torn_bytes, trace.damaged) == (sound, cut - sound, False)
        with TraceWriter.resume(path, sound) as writer:
            writer.write(ONE_OF_EACH[-1])
        assert read(path) == [*kept, ONE_OF_EACH[-1]]


@pytest.mark.thin(9)
@pytest.mark.parametrize("number", range(len(ONE_OF_EACH)))
def test_every_flipped_bit_is_noticed(path, number):
    borders = write(path)
    whole = path.read_bytes()
    begin, end = borders[number : number + 2]
    for at in range(begin, end):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with Trace.open(path) as trace:
                assert [event for _, event in trace] == list(ONE_OF_EACH[:number])
                assert trace.torn_bytes == len(whole) - begin
                assert trace.damaged == (number < len(ONE_OF_EACH) - 1)


@pytest.mark.table
def test_every_flipped_bit_of_the_header_is_noticed(path):
    (end,) = write(path, [])
    whole = path.read_bytes()
    for at in range(end):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(RecordDamaged):
                Trace.open(path)


@pytest.mark.parametrize("garbage", [b"\0", b"\xff", bytes(range(256))], ids=["zeros", "ones", "bytes"])
def test_events_behind_damage_are_found_wherever_they_begin(path, monkeypatch, garbage):
    """The search goes in pieces; an event may begin anywhere in one, and lie across the border of two."""
    monkeypatch.setattr(module, "_PIECE_BYTES", 64)
    borders = write(path, ONE_OF_EACH[:1])
    sound = path.read_bytes()
    frame = sound[borders[0] :]
    for behind in range(1, 300):
        path.write_bytes(sound + (garbage * 300)[:behind])
        with Trace.open(path) as trace:
            assert (trace.torn_bytes, trace.damaged) == (behind, False)
            with path.open("ab") as file:
                file.write(frame)
            assert trace.damaged
            assert trace.length() == borders[1]


def test_a_large_event_behind_damage_is_found(path):
    borders = write(path, [ONE_OF_EACH[0], Note(0, "large", {"text": "x" * ((1 << 20) - 100)})])
    whole = bytearray(path.read_bytes())
    whole[borders[0] + FRAME_BYTES] ^= 1
    path.write_bytes(whole)
    with Trace.open(path) as trace:
        assert trace.damaged


def test_a_length_that_damage_made_enormous_is_not_read(path, monkeypatch):
    borders = write(path)
    whole = bytearray(path.read_bytes())
    whole[borders[0] : borders[0] + 4] = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little")
    path.write_bytes(whole)
    os.truncate(path, 4 * MAX_PAYLOAD_BYTES)  # a hole, so the length would fit
    sizes = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: sizes.append(count) or real(fd, count, at))
    assert read(path) == []
    assert max(sizes) < MAX_PAYLOAD_BYTES


def test_an_event_that_appears_while_damage_is_looked_for_is_no_damage(path, monkeypatch):
    """Between looking at the end and looking behind it the writer may have gone on by two events."""
    borders = write(path, ONE_OF_EACH[:3])
    whole = path.read_bytes()
    path.write_bytes(whole[: borders[1] + 5])
    with Trace.open(path) as trace:
        real = trace._frame_follows

        def later(at):
            path.write_bytes(whole)
            return real(at)

        monkeypatch.setattr(trace, "_frame_follows", later)
        assert not trace.damaged
        assert trace.length() == borders[3]


def test_a_trace_that_is_cut_while_it_is_open_is_measured_anew(path):
    borders = write(path)
    with Trace.open(path) as trace:
        assert trace.length() == borders[-1]
        os.truncate(path, borders[2] + 3)
        assert (trace.length(), trace.torn_bytes, trace.damaged) == (borders[2], 3, False)


# Refused writes


def test_a_full_disk_leaves_a_sound_trace_and_later_events_are_written(path):
    """A real refusal: the file may not grow above a limit, first a part of the event is taken, then nothing."""
    with TraceWriter.create(path, HEADER) as writer:
        writer.write(ONE_OF_EACH[0])
        before = writer.position
        frame_bytes = FRAME_BYTES + len(ONE_OF_EACH[1].pack())
        for room in range(frame_bytes):
            with largest_file(before + room), pytest.raises(OSError, match="too large") as caught:
                writer.write(ONE_OF_EACH[1])
            assert caught.value.errno == errno.EFBIG
            assert path.stat().st_size == writer.position == before
        with largest_file(before + frame_bytes):
            writer.write(ONE_OF_EACH[1])
        writer.write(ONE_OF_EACH[2])
    assert read(path) == list(ONE_OF_EACH[:3])


def test_what_cannot_be_cut_off_is_overwritten(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "no")

    with TraceWriter.create(path, HEADER) as writer:
        writer.write(ONE_OF_EACH[0])
        with largest_file(writer.position + 30), monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="too large"):
                writer.write(ONE_OF_EACH[1])
        assert path.stat().st_size == writer.position + 30
        with Trace.open(path) as trace:
            assert (trace.torn_bytes, trace.damaged) == (30, False)
        writer.write(ONE_OF_EACH[2])
    assert read(path) == [ONE_OF_EACH[0], ONE_OF_EACH[2]]


def test_a_file_that_takes_nothing_is_an_error(path, monkeypatch):
    with TraceWriter.create(path, HEADER) as writer:
        before = writer.position
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(OSError, match="takes no more bytes"):
            writer.write(ONE_OF_EACH[0])
        assert path.stat().st_size == writer.position == before


def test_an_event_written_in_parts_is_whole(path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:7], at))
    write(path)
    assert read(path) == list(ONE_OF_EACH)


def test_an_event_above_the_limit_is_refused_and_not_written(path):
    with TraceWriter.create(path, HEADER) as writer:
        before = writer.position
        with pytest.raises(OSError, match=r"a Note of 16,777,2\d\d bytes \(limit 16,777,216\)") as caught:
            writer.write(Note(0, "large", {"text": "x" * MAX_PAYLOAD_BYTES}))
        assert caught.value.errno == errno.EFBIG
        assert path.stat().st_size == writer.position == before
        writer.write(ONE_OF_EACH[0])
    assert read(path) == [ONE_OF_EACH[0]]


def test_a_trace_is_not_begun_over_another(path):
    write(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        TraceWriter.create(path, HEADER)
    assert path.read_bytes() == before


def test_a_trace_that_cannot_be_begun_leaves_nothing(path):
    with largest_file(10), pytest.raises(OSError, match="too large"):
        TraceWriter.create(path, HEADER)
    assert not path.exists()


# Going on


def test_a_resumed_trace_ends_where_it_was_told(path):
    borders = write(path)
    for number, border in reversed(list(enumerate(borders))):
        with TraceWriter.resume(path, border) as writer:
            assert writer.position == border == path.stat().st_size
            writer.write(LearnerSucceeded(3, 9))
        assert read(path) == [*ONE_OF_EACH[:number], LearnerSucceeded(3, 9)]


def test_a_resume_in_the_middle_of_an_event_is_refused(path):
    borders = write(path)
    before = path.read_bytes()
    for at in set(range(borders[-1])) - set(borders):
        with pytest.raises(RecordDamaged, match="no event of"):
            TraceWriter.resume(path, at)
    with pytest.raises(RecordDamaged) as caught:
        TraceWriter.resume(path, borders[1] + 1)
    assert str(caught.value) == (
        f"[REC-001] no event of {path} ends at byte {borders[1] + 1}\n"
        f"  an event ends at: {borders[2]}, the one before it at {borders[1]}\n"
        "  fix: take a position that came with an event or from a checkpoint of this run"
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_resume_behind_damage_is_refused(path, damage):
    borders = write(path)
    whole = bytearray(path.read_bytes())
    if damage == "cut":
        del whole[borders[3] + 2 :]
    else:
        whole[borders[3] + 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(RecordDamaged) as caught:
        TraceWriter.resume(path, borders[5])
    assert str(caught.value) == (
        f"[REC-001] {path} is sound up to byte {borders[3]}, and byte {borders[5]} is needed\n"
        f"  file bytes: {len(whole)}\n"
        "  fix: copy the record again, or go on from a checkpoint that ends before the damage"
    )
    assert path.read_bytes() == whole
    TraceWriter.resume(path, borders[3]).close()
    assert read(path) == list(ONE_OF_EACH[:3])


def test_a_resume_that_cannot_cut_says_so(path, monkeypatch):
    borders = write(path)

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="no"):
            TraceWriter.resume(path, borders[2])
    assert read(path) == list(ONE_OF_EACH)


@pytest.mark.parametrize("number", range(len(ONE_OF_EACH)))
def test_reading_from_the_middle_of_an_event_is_refused(path, number):
    borders = write(path)
    with pytest.raises(RecordDamaged, match="no event of"):
        read(path, borders[number] + 1)
    with pytest.raises(RecordDamaged, match="is sound up to byte"):
        read(path, borders[-1] + 1)


# Files that are no trace


def test_a_missing_trace_is_named(path):
    with pytest.raises(RecordDamaged) as caught:
        Trace.open(path)
    assert str(caught.value) == (
        f"[REC-001] {path} cannot be opened\n"
        "  problem: No such file or directory\n"
        "  fix: name the directory of a run that had record.enabled = true"
    )


@pytest.mark.parametrize("content", [b"", b"headrace rec", b"{}\n", b"\0" * 4096])
def test_what_is_no_trace_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(RecordDamaged, match="is not the trace of a run"):
        Trace.open(path)


def test_another_format_is_refused(path):
    write(path)
    path.write_bytes(path.read_bytes().replace(b"headrace record 1\n", b"headrace record 2\n"))
    with pytest.raises(RecordDamaged, match="has format 2, and format 1 is read here"):
        Trace.open(path)


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"{", module._frame(0, b"[1]"), module._frame(0, b"{"), module._frame(1, b"{}")]
)
def test_a_damaged_header_is_refused(path, header):
    path.write_bytes(b"headrace record 1\n" + header)
    with pytest.raises(RecordDamaged, match=r"the header of .* is damaged"):
        Trace.open(path)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(0, b"{}"), (77, b""), (PolicyPublished.code, b"short"), (Note.code, b"{"), (Note.code, b"{}")],
)
def test_a_whole_event_that_means_nothing_is_not_taken_for_a_torn_one(path, kind, payload):
    borders = write(path, ONE_OF_EACH[:1])
    with path.open("ab") as file:
        file.write(module._frame(kind, payload))
    with Trace.open(path) as trace:
        found = iter(trace)
        assert next(found)[1] == ONE_OF_EACH[0]
        with pytest.raises(RecordDamaged, match=f"the event at byte {borders[1]} of .* is whole and yet means nothing"):
            next(found)


def test_a_disk_that_cannot_be_read_is_no_torn_tail(path, monkeypatch):
    write(path)

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    with Trace.open(path) as trace:
        monkeypatch.setattr(os, "pread", refuse)
        with pytest.raises(RecordDamaged, match="cannot be read at byte"):
            list(trace)


def test_batches_are_not_held_by_the_file(path):
    """What was read stays valid when the file is gone."""
    write(path, [BatchesTrained(3, ONE_OF_EACH[2].prints)])
    (event,) = read(path)
    path.unlink()
    assert event.prints.tolist() == ONE_OF_EACH[2].prints.tolist()
