"""Shared memory without a name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.ipc import shm
from headrace.ipc.shm import SharedBlock


def test_two_attachments_see_the_same_bytes():
    with SharedBlock.create(1000) as ours, SharedBlock.attach(os.dup(ours.fd), 1000) as theirs:
        assert bytes(theirs.buf) == bytes(1000)
        ours.buf[7:10] = b"abc"
        assert bytes(theirs.buf[7:10]) == b"abc"


def test_arrays_share_the_block_and_honour_their_offset():
    kind = np.dtype([("reward", np.float64), ("t", np.int32)])
    with SharedBlock.create(256) as block:
        rows = block.array(kind, (4, 2), offset=16)
        rows["t"][3, 1] = -5
        assert (rows.shape, rows.dtype) == ((4, 2), kind)
        assert block.array(np.int32, (), offset=16 + 7 * kind.itemsize + 8)[()] == -5
        del rows


def test_an_array_outlives_the_block_it_was_taken_from():
    block = SharedBlock.create(4096)
    array = block.array(np.uint8, (4096,))
    array[:] = 7
    block.close()
    assert block.closed
    assert int(array.sum()) == 7 * 4096  # a mapping pulled away under the array would be a crash here


def test_closing_gives_descriptor_and_memory_back_and_again_is_harmless():
    block = SharedBlock.create(4096)
    fd = block.fd
    block.close()
    block.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_nothing_has_a_name_and_programs_do_not_inherit_it():
    names = set(Path("/dev/shm").iterdir())
    with SharedBlock.create(10) as block:
        assert not {name for name in set(Path("/dev/shm").iterdir()) - names if "headrace" in name.name}
        assert str(Path(f"/proc/self/fd/{block.fd}").readlink()).endswith("(deleted)")
        assert not os.get_inheritable(block.fd)


def test_without_memfd_an_unlinked_file_serves(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shm.tempfile, "tempdir", str(tmp_path))
    with SharedBlock.create(100) as block:
        block.buf[:3] = b"abc"
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(block.fd).st_size == 100


def test_a_block_that_is_smaller_than_said_is_refused_not_touched():
    with SharedBlock.create(10) as block, pytest.raises(ConfigError) as caught:
        SharedBlock.attach(os.dup(block.fd), 11)
    assert caught.value.facts == {"expected_bytes": 11, "found_bytes": 10}


@pytest.mark.parametrize("nbytes", [0, -1, 2**63])
def test_impossible_sizes_are_refused(nbytes):
    with pytest.raises(ConfigError, match="shared memory"):
        SharedBlock.create(nbytes)


def refusing(number: int) -> Callable[..., object]:
    def refuse(*_args: object) -> object:
        raise OSError(number, "refused")

    return refuse


GETS_SHARED_MEMORY: dict[str, Callable[[], SharedBlock]] = {
    "create": lambda: SharedBlock.create(10, fix="take less"),
    "sized": lambda: SharedBlock.sized(shm._anonymous_file(), 10, fix="take less"),
}


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("number", [errno.EFBIG, errno.ENOSPC, errno.ENOMEM, errno.EPERM])
@pytest.mark.parametrize("call", ["ftruncate", "mmap"])
@pytest.mark.parametrize("way", GETS_SHARED_MEMORY)
def test_memory_that_the_system_refuses_is_told_with_what_to_do(way, call, number, monkeypatch):
    before = open_files()
    monkeypatch.setattr(*((os, "ftruncate") if call == "ftruncate" else (shm.mmap, "mmap")), refusing(number))
    with pytest.raises(ConfigError, match="refused 10 bytes of shared memory") as caught:
        GETS_SHARED_MEMORY[way]()
    assert (caught.value.fix, caught.value.code) == ("take less", "CFG-001")
    assert open_files() == before


def test_a_block_of_others_that_cannot_be_mapped_is_told_alike(monkeypatch):
    with SharedBlock.create(10) as block:
        before = open_files()
        fd = os.dup(block.fd)
        monkeypatch.setattr(shm.mmap, "mmap", refusing(errno.ENOMEM))
        with pytest.raises(ConfigError, match="refused 10 bytes"):
            SharedBlock.attach(fd, 10)
        assert open_files() == before


def test_a_lack_of_files_is_no_lack_of_memory(monkeypatch):
    monkeypatch.setattr(shm.mmap, "mmap", refusing(errno.EMFILE))
    with pytest.raises(OSError, match="refused"):
        SharedBlock.create(10)


def test_a_block_that_is_given_another_size_keeps_what_it_holds():
    with SharedBlock.create(4) as block:
        block.buf[:] = b"abcd"
        with SharedBlock.sized(os.dup(block.fd), 8) as larger:
            assert bytes(larger.buf) == b"abcd" + bytes(4)


@pytest.mark.parametrize(("shape", "offset"), [((3,), 0), ((2,), 1), ((1,), -1)])
def test_an_array_beyond_the_block_is_refused(shape, offset):
    with SharedBlock.create(16) as block, pytest.raises(ConfigError, match="does not fit"):
        block.array(np.float64, shape, offset)
