"""Files that are there whole or not at all, whenever the writer or the machine dies."""

from __future__ import annotations

import errno
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Piece = bytes | memoryview

_PIECE_BYTES = 1 << 20  # small enough that what was summed up is still in the cache when it is written
_NO_FOLDERS = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""How file systems that know no such promise for folders answer (some network ones do)."""
_NO_SECOND_NAMES = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""How file systems answer where a file has one name only."""
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on the disk"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make its folder writable"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "keep its folder where it is until the run has ended"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "let more files be open at once (ulimit -n)"),
}
_PART = re.compile(r"\..+\.\d+(\.new)?")


@dataclass(frozen=True, slots=True)
class FileMark:
    """What a file is recognised by."""

    nbytes: int
    crc32: int


def write_whole(path: Path, pieces: Iterable[Piece]) -> FileMark:
    """Write a file, or replace it in one step, so that it outlives a power cut.

    Args:
        path: The file. Only one process writes it at a time.
        pieces: Its content.

    Raises:
        OSError: It cannot be written; the one before is unharmed, and nothing else is left.
    """
    part, mark = stage(path, pieces)
    try:
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return mark


def write_new(path: Path, pieces: Iterable[Piece]) -> FileMark:
    """Write a file that is not there yet, in one step as `write_whole` does; nobody else's is written over.

    Others may be writing the same file, so what one that died has left is removed by no other: whoever knows that nobody is
    at it does that, see `is_part`.

    Args:
        path: The file.
        pieces: Its content.

    Raises:
        FileExistsError: There is one, maybe only since this began; it is as it was.
        OSError: It cannot be written; nothing is left.
    """
    part, mark = _staged(path, ".new", pieces)
    try:
        _name_new(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)
    return mark


def stage(path: Path, pieces: Iterable[Piece]) -> tuple[Path, FileMark]:
    """Write all of a file except its name: renaming what is returned to ``path`` makes it appear.

    What an earlier writer of ``path`` left when it died is removed; of two at the same time one fails.

    Raises:
        OSError: It cannot be written; nothing is left.
    """
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+")  # and nobody else's: an editor keeps .NAME.swp beside a file
    for left in path.parent.iterdir():
        if ours.fullmatch(left.name) and not left.is_dir():
            left.unlink(missing_ok=True)
    return _staged(path, "", pieces)


def remedy(error: OSError) -> str:
    """What helps against an error of writing a file, as the beginning of a ``fix``."""
    return _REMEDIES.get(error.errno or 0, "see whether its disk is well")


def is_part(path: Path) -> bool:
    """Whether a function of this module made this file, and its writer died or has not finished."""
    return _PART.fullmatch(path.name) is not None


def mark_of(path: Path) -> FileMark:
    """The mark of a file as it lies there.

    Raises:
        OSError: It cannot be read.
    """
    nbytes, crc32 = 0, 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            crc32 = zlib.crc32(piece, crc32)
            nbytes += len(piece)
    return FileMark(nbytes, crc32)


def sync_folder(path: Path) -> None:
    """Make names that were given or taken away in a folder outlive a power cut, on a file system that can promise it.

    Raises:
        OSError: They may be lost.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDERS:
            raise
    finally:
        os.close(handle)


def _staged(path: Path, ending: str, pieces: Iterable[Piece]) -> tuple[Path, FileMark]:
    """Write a file under a name that no other writer has.

    Not after its process: in two containers, which may share a disk, processes have the same numbers.

    Raises:
        OSError: It cannot be written; nothing is left.
    """
    part = path.with_name(f".{path.name}.{secrets.randbits(60)}{ending}")
    try:
        return part, _write(part, pieces)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _name_new(part: Path, path: Path) -> None:
    """Give a staged file its name, if nobody has it: renaming would take it from whoever does."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        if not path.samefile(part):  # on a network an answer may get lost, and the question be asked twice
            raise
    except OSError as error:
        if error.errno not in _NO_SECOND_NAMES:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.replace(path)


def _write(path: Path, pieces: Iterable[Piece]) -> FileMark:
    nbytes, crc32 = 0, 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for piece in _small(pieces):
            crc32 = zlib.crc32(piece, crc32)
            nbytes += len(piece)
            _write_all(handle, piece)
        os.fsync(handle)
    finally:
        os.close(handle)
    return FileMark(nbytes, crc32)


def _small(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _PIECE_BYTES):
            yield view[start : start + _PIECE_BYTES]


def _write_all(handle: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(handle, piece) :]
