"""The row log: the bytes of all committed rows, in files (segments) that are numbered and end at a size.

``rows-000000.bin``, ``rows-000001.bin``, ... hold nothing but rows; where which rows lie is in the trace. Old segments can
be dropped whole, so a run that keeps only what its replay holds needs no more disk than that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import RecordDamaged
from headrace.core.files import sync_folder
from headrace.record.events import RowPlace
from headrace.record.trace import sync_file

Piece = bytes | bytearray | memoryview | NDArray[Any]
"""Contiguous memory, of any type."""

_NAME = re.compile(r"rows-(\d{6,})\.bin")
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
"""How many pieces the system takes in one call."""
_MOST_OPEN = 4
"""Segments a reader keeps open."""


def segment_name(segment: int) -> str:
    """Name of a segment's file."""
    return f"rows-{segment:06d}.bin"


def segments_in(folder: Path) -> list[int]:
    """Numbers of the segments in a folder, ascending."""
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(name[1]) for name in found if name is not None)


class RowLog:
    """Appends rows. One log per folder.

    Bytes are written at a position of ours, not at the file's end: what a failed write leaves behind is cut off, and
    where even that fails, overwritten.

    Args:
        folder: Where the segments are.
        segment_bytes: Size above which a segment is ended; one append is never divided, however large.
        fd: The newest segment, open for writing; the log owns it from now on.
        position: Where the next append goes, if it fits there.
    """

    def __init__(self, folder: Path, segment_bytes: int, fd: int, position: RowPlace) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._fd = fd
        self._position = position
        self._unsynced = {position.segment}
        self._folder_changed = True

    @classmethod
    def create(cls, folder: Path, segment_bytes: int) -> Self:
        """Begin a row log in a folder that has none.

        Raises:
            OSError: It has one, or cannot be written.
        """
        return cls(folder, segment_bytes, _new_segment(folder, 0), RowPlace(0, 0))

    @classmethod
    def resume(cls, folder: Path, at: RowPlace, segment_bytes: int) -> Self:
        """Go on behind ``at``; rows behind it are removed for good.

        Raises:
            RecordDamaged: The segment is gone, or ends before ``at``; nothing was removed.
            OSError: It cannot be written.
        """
        with RowReader(folder) as reader:
            reader.require(at)
        fd = os.open(folder / segment_name(at.segment), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, at.offset)
            for segment in reversed(segments_in(folder)):
                if segment > at.segment:
                    (folder / segment_name(segment)).unlink()
        except OSError:
            os.close(fd)
            raise
        return cls(folder, segment_bytes, fd, at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> RowPlace:
        """Where the log ends."""
        return self._position

    def segments(self) -> list[int]:
        """Numbers of the segments that are kept, ascending."""
        return segments_in(self.folder)

    def append(self, pieces: Sequence[Piece]) -> RowPlace:
        """Append pieces one behind the other; where the first of them lies.

        Raises:
            OSError: They cannot be written. The log holds what it held, and the next append may be tried.
        """
        views = [view for piece in pieces if (view := np.frombuffer(piece, np.uint8)).size]
        total = sum(view.size for view in views)
        if self._position.offset and self._position.offset + total > self._segment_bytes:
            self._begin_segment()
        place = self._position
        self._unsynced.add(place.segment)
        try:
            self._write(views, place.offset)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, place.offset)
            raise
        self._position = RowPlace(place.segment, place.offset + total)
        return place

    def sync(self) -> None:
        """Wait until the disk holds every row appended so far.

        Raises:
            OSError: It does not.
        """
        for segment in sorted(self._unsynced):
            if segment == self._position.segment:
                sync_file(self._fd)
            else:
                _sync_closed(self.folder / segment_name(segment))
            self._unsynced.discard(segment)
        if self._folder_changed:
            sync_folder(self.folder)
            self._folder_changed = False

    def drop_before(self, segment: int) -> None:
        """Remove the segments before this one, except the one that is written.

        Raises:
            OSError: One cannot be removed; older ones are gone.
        """
        for old in self.segments():
            if old < min(segment, self._position.segment):
                (self.folder / segment_name(old)).unlink()
                self._unsynced.discard(old)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        segment = self._position.segment + 1
        fd = _new_segment(self.folder, segment)
        os.close(self._fd)
        self._fd, self._position, self._folder_changed = fd, RowPlace(segment, 0), True

    def _write(self, views: list[Any], at: int) -> None:
        while views:
            written = os.pwritev(self._fd, views[:_MOST_PIECES], at)
            if not written:
                raise OSError(errno.EIO, "the file takes no more bytes", str(self.folder))
            at += written
            views = _without(views, written)


class RowReader:
    """Reads rows where the trace says they are, also while a run appends.

    Args:
        folder: Where the segments are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: OrderedDict[int, int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, place: RowPlace, nbytes: int) -> bytes:
        """Bytes from ``place`` on.

        Raises:
            RecordDamaged: Its segment is gone, too short, or cannot be read, or the rows were never kept.
        """
        fd = self._descriptor(place)
        try:
            found = os.pread(fd, nbytes, place.offset)
        except OSError as error:
            raise _unreadable(self.folder / segment_name(place.segment), error) from error
        if len(found) < nbytes:
            raise self._too_short(place, place.offset + nbytes)
        return found

    def require(self, end: RowPlace) -> None:
        """Make sure that a segment reaches as far as ``end``.

        Raises:
            RecordDamaged: It is gone or too short.
        """
        if os.fstat(self._descriptor(end)).st_size < end.offset:
            raise self._too_short(end, end.offset)

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, place: RowPlace) -> int:
        segment = place.segment
        if segment < 0:
            raise RecordDamaged(
                "the rows were not kept: record.rows = 'none', or the disk took no more",
                folder=self.folder,
                fix='set record.rows = "resident" or "all" before the next run',
            )
        if segment not in self._open:
            path = self.folder / segment_name(segment)
            try:
                self._open[segment] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise self._gone(segment) from error
            except OSError as error:
                raise _unreadable(path, error) from error
        self._open.move_to_end(segment)
        if len(self._open) > _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return self._open[segment]

    def _gone(self, segment: int) -> RecordDamaged:
        kept = segments_in(self.folder) if self.folder.is_dir() else []
        facts: dict[str, Any] = {"folder": self.folder, "kept": _range(kept)}
        if kept and segment < kept[0]:
            return RecordDamaged(
                f"{segment_name(segment)} is no longer kept: record.rows = 'resident'",
                **facts,
                fix='set record.rows = "all" before a run of which every row will be needed',
            )
        return RecordDamaged(
            f"{segment_name(segment)} is missing",
            **facts,
            fix="copy the folder of the record again, whole",
        )

    def _too_short(self, place: RowPlace, needed: int) -> RecordDamaged:
        return RecordDamaged(
            f"{segment_name(place.segment)} ends before the rows that the trace says are in it",
            folder=self.folder,
            file_bytes=os.fstat(self._open[place.segment]).st_size,
            needed_bytes=needed,
            fix="copy the folder of the record again, or go on from a checkpoint that ends before",
        )


def _new_segment(folder: Path, segment: int) -> int:
    return os.open(folder / segment_name(segment), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _sync_closed(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def _without(views: list[Any], written: int) -> list[Any]:
    """What is left of ``views`` (arrays of bytes) when their first ``written`` bytes are on disk."""
    for number, view in enumerate(views):
        if written < view.size:
            return [view[written:], *views[number + 1 :]]
        written -= view.size
    return []


def _range(segments: Sequence[int]) -> str:
    if not segments:
        return "none"
    first, last = segment_name(segments[0]), segment_name(segments[-1])
    return first if first == last else f"{first} to {last}"


def _unreadable(path: Path, error: OSError) -> RecordDamaged:
    return RecordDamaged(
        f"{path} cannot be read", problem=error.strerror, fix="check the disk, or use a copy of the record"
    )
