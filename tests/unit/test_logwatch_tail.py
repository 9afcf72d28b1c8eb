"""Following a file that is truncated, rotated, late, endless or no text at all."""

from __future__ import annotations

import os

import pytest

from headrace.core.errors import ConfigError
from headrace.monitor import logtail
from headrace.monitor.logtail import LogTail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training.log"


@pytest.fixture
def tail(path):
    with LogTail(path) as tail:
        yield tail


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_once_each(path, tail):
    append(path, b"one\ntwo\n")
    assert tail.read().lines == ("one", "two")
    assert tail.read().lines == ()
    append(path, b"three\n")
    assert tail.read().lines == ("three",)


def test_a_line_comes_when_its_end_does(path, tail):
    append(path, b"hal")
    assert (tail.read().lines, tail.unfinished) == ((), "hal")
    append(path, b"f\nmore")
    assert (tail.read().lines, tail.unfinished) == (("half",), "more")


def test_a_progress_bar_is_made_of_lines(path, tail):
    append(path, b"\r 1/10 [x]\r 2/10 [x]\r\nend\r\n")
    assert tail.read().lines == ("1/10 [x]", "2/10 [x]", "end")


def test_a_file_that_is_not_there_yet(path, tail):
    assert tail.read().missing
    append(path, b"here\n")
    found = tail.read()
    assert (found.lines, found.missing) == (("here",), False)


def test_a_late_file_is_read_from_near_its_end_as_well(path, tail, monkeypatch):
    monkeypatch.setattr(logtail, "START_BYTES", 10)
    assert tail.read().missing
    append(path, b"a long line before\nlast\n")
    assert tail.read().lines == ("last",)


def test_a_truncated_file_is_read_anew(path, tail):
    append(path, b"old line 1\nold line 2\nunfinish")
    tail.read()
    path.write_bytes(b"new\n")
    found = tail.read()
    assert (found.lines, found.restarted) == (("new",), "truncated")


def test_a_rotated_file_is_read_to_its_end_before_its_successor(path, tail):
    append(path, b"one\n")
    tail.read()
    append(path, b"two\n")
    path.rename(path.with_suffix(".1"))
    path.write_bytes(b"three\n")
    assert tail.read().lines == ("two",)
    found = tail.read()
    assert (found.lines, found.restarted) == (("three",), "replaced")
    assert tail.read().lines == ()


def test_a_deleted_file_is_missing_until_it_comes_back(path, tail):
    append(path, b"one\n")
    tail.read()
    path.unlink()
    assert tail.read().missing
    append(path, b"two\n")
    assert tail.read().lines == ("two",)


def test_a_huge_file_is_read_near_its_end_only(path, tail):
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # a hole: takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    found = tail.read()
    assert found.lines == ("the end",)
    assert found.read_bytes == logtail.START_BYTES


def test_what_comes_too_fast_is_skipped_and_counted(path, tail, monkeypatch):
    append(path, b"first\n")
    tail.read()
    monkeypatch.setattr(logtail, "READ_BYTES", 12)
    append(path, b"x" * 100 + b"\nfine\n")
    found = tail.read()
    assert (found.lines, found.skipped_bytes, found.read_bytes) == (("fine",), 94, 12)


def test_a_line_without_end_takes_bounded_memory(path, tail):
    for _ in range(5):
        append(path, b"x" * 2**16)
        assert tail.read().lines == ()
        assert len(tail._rest) == logtail.LINE_BYTES
    append(path, b"\nnext\n")
    lines = tail.read().lines
    assert [len(line) for line in lines] == [logtail.LINE_BYTES, 4]


def test_bytes_that_are_no_text_are_counted(path, tail):
    append(path, bytes(50) + b"\xff\xfe\n" + b"text\n")
    found = tail.read()
    assert (found.lines, found.unreadable_bytes) == (("text",), 52)


def test_random_bytes_do_no_harm(path, tail):
    append(path, bytes(range(256)) * 200)
    assert tail.read().unreadable_bytes > 10_000


def test_colours_are_left_out(path, tail):
    append(path, b"\x1b[32mINFO\x1b[0m step\t3 \x1b]0;title\x07ok\n")
    assert tail.read().lines == ("INFO step 3 ok",)


def test_a_pipe_is_refused_at_once(path, tail):
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        tail.read()


def test_a_folder_is_refused(tmp_path):
    with LogTail(tmp_path) as tail, pytest.raises(ConfigError, match="is not a regular file"):
        tail.read()


def test_the_file_is_never_changed(path, tail):
    append(path, b"one\n")
    path.chmod(0o400)
    before = path.stat()
    tail.read()
    after = path.stat()
    assert (before.st_mtime_ns, before.st_size, before.st_mode) == (after.st_mtime_ns, after.st_size, after.st_mode)
