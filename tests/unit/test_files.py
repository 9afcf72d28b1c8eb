"""Files that are whole or not there, and arrays in them."""

from __future__ import annotations

import errno
import json
import os
import resource
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from disk_support import in_the_middle_of_writing
from headrace.core import files
from headrace.core.files import FileMark, is_part, mark_of, stage, write_new, write_whole
from headrace.weights.tensor_file import load_tensors, save_tensors

DTYPES = ["f8", "f4", "f2", "i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1", "?"]
ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "number": np.array(0.5),
    "nothing": np.zeros((0, 3), np.int16),
    "reversed": np.arange(5, dtype=np.int8)[::-1],
    "other_order": np.arange(3, dtype=">i4"),
    **{f"of {name}": np.array([[0, 1, 1]], name) for name in DTYPES},
}


def _raises(code):
    def fails(*_, **__):
        raise OSError(code, os.strerror(code))

    return fails


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_marked(tmp_path):
    data = os.urandom(2_500_000)  # more than is written at once
    mark = write_whole(tmp_path / "a", [b"", data, memoryview(b"end")])
    assert (tmp_path / "a").read_bytes() == data + b"end"
    assert mark == mark_of(tmp_path / "a") == FileMark(2_500_003, zlib.crc32(data + b"end"))
    assert names(tmp_path) == ["a"]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path):
    write_whole(tmp_path / "a", [b"old"])

    def broken():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", broken())
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False], ids=["", "no second names"])
def test_a_new_file_takes_nobodys_place(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", _raises(errno.EPERM))
    mark = write_new(tmp_path / "a", [b"first"])
    assert mark == mark_of(tmp_path / "a")
    with pytest.raises(FileExistsError, match="File exists"):
        write_new(tmp_path / "a", [b"second"])
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_a_new_file_whose_name_was_given_twice_is_new(tmp_path, monkeypatch):
    """As on a network that has lost the first answer."""
    link = os.link

    def twice(*given, **keys):
        link(*given, **keys)
        link(*given, **keys)

    monkeypatch.setattr(os, "link", twice)
    write_new(tmp_path / "a", [b"first"])
    assert names(tmp_path) == ["a"]


def test_a_new_file_that_cannot_be_named_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", _raises(errno.EDQUOT))
    with pytest.raises(OSError, match="quota"):
        write_new(tmp_path / "a", [b"first"])
    assert names(tmp_path) == []


def test_of_two_who_write_a_new_file_neither_writes_into_the_others(tmp_path, monkeypatch):
    """In two containers, which share the disk: both processes have the same number."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    in_the_middle_of_writing(monkeypatch, lambda: write_new(tmp_path / "a", [b"second"]))
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", [b"first"])
    assert (tmp_path / "a").read_bytes() == b"second"
    assert names(tmp_path) == ["a"]


def test_nobody_takes_a_new_file_that_is_being_written_for_a_dead_writers(tmp_path, monkeypatch):
    in_the_middle_of_writing(monkeypatch, lambda: write_whole(tmp_path / "a", [b"another"]))
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", [b"first"])
    assert (tmp_path / "a").read_bytes() == b"another"
    assert names(tmp_path) == ["a"]


def test_a_staged_file_appears_when_it_is_renamed(tmp_path):
    part, mark = stage(tmp_path / "a", [b"new"])
    assert not (tmp_path / "a").exists()
    assert is_part(part)
    assert not is_part(tmp_path / "a")
    part.replace(tmp_path / "a")
    assert mark_of(tmp_path / "a") == mark


def test_what_a_dead_writer_left_is_removed_by_the_next(tmp_path):
    for name in (".a.77", ".a.77.new", ".b.77"):
        (tmp_path / name).write_text("half")
    write_whole(tmp_path / "a", [b"new"])
    assert names(tmp_path) == [".a.77.new", ".b.77", "a"]  # whoever makes a new file may be alive


def test_what_others_keep_beside_a_file_stays(tmp_path):
    for name in (".a[1].swp", ".a[1].7.bak", ".a[1].7x", ".a1.7"):
        (tmp_path / name).write_text("theirs")
    (tmp_path / ".a[1].d").mkdir()
    (tmp_path / ".a[1].8").mkdir()
    (tmp_path / ".a[1].9").write_text("half")
    theirs = {".a[1].swp", ".a[1].7.bak", ".a[1].7x", ".a1.7", ".a[1].d", ".a[1].8"}
    write_whole(tmp_path / "a[1]", [b"new"])
    assert set(names(tmp_path)) == {*theirs, "a[1]"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_that_promises_nothing_about_names_is_enough(tmp_path, monkeypatch, code):
    fail_for_folders(monkeypatch, code)
    write_whole(tmp_path / "a", [b"new"])
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_name_that_may_be_lost_is_an_error(tmp_path, monkeypatch):
    fail_for_folders(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(tmp_path / "a", [b"new"])


def fail_for_folders(monkeypatch, code):
    fsync = os.fsync

    def failing(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir():
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)


def test_a_write_may_take_only_a_part(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, piece: write(handle, piece[:7]))
    assert write_whole(tmp_path / "a", [b"0123456789" * 10]).nbytes == 100
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 10


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_the_name_is(tmp_path, monkeypatch):
    calls = []

    def noted(name):
        call = getattr(os, name)

        def note(*args, **kwargs):
            calls.append((name, str(Path(f"/proc/self/fd/{args[0]}").readlink()) if name == "fsync" else str(args[0])))
            return call(*args, **kwargs)

        return note

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name))
    write_whole(tmp_path / "a", [b"new"])
    part = calls[0][1]
    assert is_part(Path(part))
    assert Path(part).parent == tmp_path
    assert calls == [("fsync", part), ("replace", part), ("fsync", str(tmp_path))]


def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path):
    write_whole(tmp_path / "a", [b"old"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_tensors(tmp_path / "a", {"x": np.zeros(1000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_arrays_come_back_with_dtype_shape_and_metadata(tmp_path):
    mark = save_tensors(tmp_path / "a", ARRAYS, {"text": 'quoted "ü"', "empty": ""})
    assert mark == mark_of(tmp_path / "a")
    arrays, metadata = load_tensors(tmp_path / "a")
    assert metadata == {"text": 'quoted "ü"', "empty": ""}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array.astype(array.dtype.newbyteorder("=")), strict=True)


def test_the_library_reads_it_like_its_own(tmp_path):
    native = {name: np.asarray(array, array.dtype.newbyteorder("="), order="C") for name, array in ARRAYS.items()}
    save_tensors(tmp_path / "ours", ARRAYS, {})
    save_file(native, tmp_path / "theirs")
    ours, theirs = load_file(tmp_path / "ours"), load_file(tmp_path / "theirs")
    assert {name: array.tobytes() for name, array in ours.items()} == {n: a.tobytes() for n, a in theirs.items()}
    with safe_open(tmp_path / "ours", framework="numpy") as file:
        assert file.get_slice("matrix")[1:2].tolist() == [[1.0, 4.0]]


def test_any_byte_that_is_flipped_is_found_or_changes_no_array(tmp_path):
    path = tmp_path / "a"
    save_tensors(path, ARRAYS, {"text": "beside them"})
    data, expected = path.read_bytes(), {name: array.tobytes() for name, array in load_tensors(path)[0].items()}
    taken = []
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            arrays, _ = load_tensors(path)
        except SafetensorError:
            continue
        taken.append(place)
        assert {name: array.tobytes() for name, array in arrays.items()} == expected
    assert all(data.index(b"crc32") <= place < data.index(b"crc32") + 5 for place in taken)


def test_content_and_checksum_that_differ(tmp_path):
    save_tensors(tmp_path / "a", {"x": np.zeros(2)}, {})
    data = bytearray((tmp_path / "a").read_bytes())
    data[-1] = 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(
        SafetensorError, match=r"content and checksum differ: CRC-32 [0-9a-f]{8} was written, [0-9a-f]{8} is"
    ):
        load_tensors(tmp_path / "a")


def test_a_file_without_a_checksum_is_taken_as_it_is(tmp_path):
    """An earlier version, or the library, wrote it."""
    save_file({"x": np.arange(3)}, tmp_path / "a", {"text": "theirs"})
    arrays, metadata = load_tensors(tmp_path / "a")
    assert (arrays["x"].tolist(), metadata) == ([0, 1, 2], {"text": "theirs"})


def test_without_arrays(tmp_path):
    save_tensors(tmp_path / "a", {}, {})
    assert load_tensors(tmp_path / "a") == ({}, {})


def test_the_data_begins_on_a_boundary(tmp_path):
    for length in range(1, 70):
        save_tensors(tmp_path / "a", {"x" * length: np.ones(1)}, {})
        header = 8 + int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")
        assert header % 64 == 0


def test_each_array_begins_at_a_multiple_of_its_own_width(tmp_path):
    arrays = {f"{place} {name}": np.ones(3, name) for place, name in enumerate(["?", "f8", "i1", "f4", "i2", "f8"])}
    save_tensors(tmp_path / "a", arrays, {})
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name in arrays:
            assert (8 + length + entry["data_offsets"][0]) % arrays[name].itemsize == 0


def test_pieces_are_small(monkeypatch):
    monkeypatch.setattr(files, "_PIECE_BYTES", 4)
    assert [bytes(piece) for piece in files._small([b"0123456789", b"", b"ab"])] == [b"0123", b"4567", b"89", b"ab"]
