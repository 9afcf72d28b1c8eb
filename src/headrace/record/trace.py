"""The trace: the events of a run in one file, readable while it grows and after any way of dying.

    magic and format version, a line | frame | frame | ...
    frame: u32 bytes of payload, u8 kind, u32 CRC-32 over kind and payload, payload; little-endian

The first frame is the header, a JSON object. An event is one frame, written with one call. A process that is killed,
or a machine that loses power, leaves at most a torn tail, which readers recognise and leave out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from headrace.core.errors import RecordDamaged
from headrace.core.files import sync_folder
from headrace.record.events import KINDS, Event

FORMAT = 1
"""Version of the layout of files; another one cannot be read."""
MAX_PAYLOAD_BYTES = 1 << 24
"""Of one event; a length above it is damage."""

_MAGIC = b"headrace record %d\n"
_MAGIC_PATTERN = re.compile(rb"headrace record (\d{1,9})\n")
_HEAD = struct.Struct("<IBI")
_HEADER = 0
"""Kind of the frame that holds the header."""
_KIND_CHECKSUMS = tuple(zlib.crc32(bytes((kind,))) for kind in range(256))
_PIECE_BYTES = 1 << 20
"""How much is read at once; behind damage, only events up to this size are looked for."""


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), kind, zlib.crc32(payload, _KIND_CHECKSUMS[kind])) + payload


class TraceWriter:
    """Appends events to a trace. One writer per file.

    A frame is written at a position of ours, not at the file's end: what a failed write leaves behind is cut off, and
    where even that fails, overwritten.

    Args:
        path: For messages.
        fd: The file, open for writing; the writer owns it from now on.
        position: Where the next frame goes.
    """

    def __init__(self, path: Path, fd: int, position: int) -> None:
        self.path = path
        self._fd = fd
        self._position = position

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Self:
        """Begin a trace.

        Args:
            path: Must not exist.
            header: What holds for the whole run, as JSON knows it.

        Raises:
            OSError: It exists, or cannot be written; a half file is removed.
        """
        start = _MAGIC % FORMAT + _frame(_HEADER, json.dumps(dict(header)).encode())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        writer = cls(path, fd, 0)
        try:
            writer._append(start)
            sync_folder(path.parent)
        except OSError:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def resume(cls, path: Path, at: int) -> Self:
        """Go on with a trace behind byte ``at``; events behind it are removed for good.

        Raises:
            RecordDamaged: The trace is missing, not sound up to there, or no event ends there; nothing was removed.
            OSError: It cannot be written.
        """
        with Trace.open(path) as trace:
            trace.require(at)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, at)
        except OSError:
            os.close(fd)
            raise
        return cls(path, fd, at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> int:
        """Bytes of the trace so far."""
        return self._position

    def write(self, event: Event) -> None:
        """Append one event. It survives the process at once, the machine after the next `sync`.

        Raises:
            OSError: It cannot be written. The trace is as before, and the next event may be tried.
        """
        payload = event.pack()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise OSError(
                errno.EFBIG,
                f"a {type(event).__name__} of {len(payload):,} bytes (limit {MAX_PAYLOAD_BYTES:,})",
                str(self.path),
            )
        self._append(_frame(event.code, payload))

    def sync(self) -> None:
        """Wait until the disk holds everything written so far.

        Raises:
            OSError: It does not.
        """
        sync_file(self._fd)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, frame: bytes) -> None:
        try:
            written = self._write(frame, self._position)
            while written < len(frame):  # a disk that is full takes a part; the next try says why
                more = self._write(frame[written:], self._position + written)
                if not more:
                    raise OSError(errno.EIO, "the file takes no more bytes", str(self.path))
                written += more
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._position)
            raise
        self._position += len(frame)

    def _write(self, frame: bytes, at: int) -> int:
        return os.pwrite(self._fd, frame, at)


class Trace:
    """Reads a trace, also one that is being written.

    A file that was cut for a resume has to be opened again.

    Args:
        path: For messages.
        fd: The file, open for reading; the trace owns it from now on, also when the constructor fails.

    Raises:
        RecordDamaged: It is no trace, or has no sound header.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._sound = -1
        """Bytes that are known to be sound; moved on by whoever reads there."""
        try:
            start, header = self._read_header()
        except RecordDamaged:
            self.close()
            raise
        self.header: Mapping[str, Any] = header
        """What holds for the whole run."""
        self.start = self._sound = start
        """Byte at which the first event begins."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a trace.

        Raises:
            RecordDamaged: It is missing, cannot be read, is no trace, or has no sound header.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RecordDamaged(
                f"{path} cannot be opened",
                problem=error.strerror,
                fix="name the directory of a run that had record.enabled = true",
            ) from error
        return cls(path, fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        return self.events()

    def events(self, start: int = 0) -> Iterator[tuple[int, Event]]:
        """The events behind byte ``start``, each with the position after it; until a torn, damaged or missing frame.

        Args:
            start: A position that came with an event, or `start`; 0: the first event.

        Raises:
            RecordDamaged: No event of a sound trace ends at ``start``, or an event is whole and yet means nothing.
        """
        at = start = start or self.start
        for after, kind, payload in self._frames(start):
            yield after, self._decoded(kind, payload, at)
            at = after
        if at == start != self.length():
            self.require(start)

    def length(self) -> int:
        """Bytes from the file's begin to the end of the last event before any damage."""
        if self._size() < self._sound:
            self._sound = self.start
        for _ in self._frames(self._sound):
            pass
        return self._sound

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the sound part: an event that was not written whole, or whatever is behind damage."""
        return max(0, self._size() - self.length())

    @property
    def damaged(self) -> bool:
        """Whether whole events follow the sound part. A writer that died does not leave that; it is worse."""
        sound = self.length()
        return self._frame_follows(sound + 1) and self.length() == sound  # else it was being written just then

    def require(self, at: int) -> None:
        """Make sure that the trace is sound up to byte ``at`` and that an event, or the header, ends there.

        Raises:
            RecordDamaged: It is not.
        """
        before, after = 0, self.start
        frames = self._frames(self.start)
        while after < at:
            before = after
            after = next(frames, (before, 0, b""))[0]
            if after == before:
                raise RecordDamaged(
                    f"{self.path} is sound up to byte {after}, and byte {at} is needed",
                    file_bytes=self._size(),
                    fix="copy the record again, or go on from a checkpoint that ends before the damage",
                )
        if after != at:
            raise RecordDamaged(
                f"no event of {self.path} ends at byte {at}",
                an_event_ends_at=f"{after}, the one before it at {before}" if before else str(after),
                fix="take a position that came with an event or from a checkpoint of this run",
            )

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_header(self) -> tuple[int, Mapping[str, Any]]:
        line = _MAGIC_PATTERN.match(self._read(0, 64))
        if line is None:
            raise RecordDamaged(
                f"{self.path} is not the trace of a run",
                file_bytes=self._size(),
                fix="copy the record again; a run that was killed while it started has none",
            )
        if int(line[1]) != FORMAT:
            raise RecordDamaged(
                f"{self.path} has format {int(line[1])}, and format {FORMAT} is read here",
                fix="read it with the version of Headrace that wrote it",
            )
        after, kind, payload = next(self._frames(line.end()), (0, -1, b""))
        with contextlib.suppress(ValueError):
            header = json.loads(payload)
            if kind == _HEADER and isinstance(header, dict):
                return after, header
        raise RecordDamaged(
            f"the header of {self.path} is damaged",
            file_bytes=self._size(),
            fix="copy the record again; without its header it cannot be used",
        )

    def _frames(self, at: int) -> Iterator[tuple[int, int, bytes]]:
        """Position after, kind and payload of each sound frame from byte ``at`` on."""
        piece, begin = b"", at  # bytes of the file from `begin` on
        while True:
            head = at - begin
            if len(piece) - head < _HEAD.size:
                piece, begin, head = self._read(at, _PIECE_BYTES), at, 0
                if len(piece) < _HEAD.size:
                    return
            size, kind, checksum = _HEAD.unpack_from(piece, head)
            after = head + _HEAD.size + size
            if after > len(piece):
                if size > MAX_PAYLOAD_BYTES:
                    return
                piece, begin, head = self._read(at, max(_PIECE_BYTES, _HEAD.size + size)), at, 0
                after = _HEAD.size + size
            payload = piece[head + _HEAD.size : after]
            if len(payload) < size or zlib.crc32(payload, _KIND_CHECKSUMS[kind]) != checksum:
                return
            if self._sound == at:
                self._sound += _HEAD.size + size
            at += _HEAD.size + size
            yield at, kind, payload

    def _decoded(self, kind: int, payload: bytes, at: int) -> Event:
        try:
            return KINDS[kind].unpack(payload)
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise RecordDamaged(
                f"the event at byte {at} of {self.path} is whole and yet means nothing",
                kind=kind,
                bytes=len(payload),
                problem=f"{type(error).__name__}: {error}",
                fix="read it with the version of Headrace that wrote it",
            ) from error

    def _frame_follows(self, at: int) -> bool:
        """Whether a sound frame begins anywhere from byte ``at`` on."""
        size = self._size()
        while at + _HEAD.size <= size:
            piece = self._read(at, 2 * _PIECE_BYTES)
            count = min(_PIECE_BYTES, len(piece) - _HEAD.size + 1)
            if count <= 0:
                return False
            if any(_is_sound(piece, where) for where in _possible_frames(piece, count)):
                return True
            at += count
        return False

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _read(self, at: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, at)
        except OSError as error:
            raise RecordDamaged(
                f"{self.path} cannot be read at byte {at}",
                problem=error.strerror,
                fix="check the disk, or use a copy of the record",
            ) from error


def _possible_frames(piece: bytes, count: int) -> list[int]:
    """Which of the first ``count`` bytes may begin a frame that ends inside ``piece``, by kind and length."""
    raw = np.frombuffer(piece, np.uint8)
    low, middle, high = (raw[shift : shift + count].astype(np.int64) << 8 * shift for shift in range(3))
    kinds = raw[4 : 4 + count]
    ends = np.arange(count) + _HEAD.size + (low | middle | high)
    fits = (raw[3 : 3 + count] == 0) & (ends <= len(piece))
    known = (kinds >= min(KINDS)) & (kinds <= max(KINDS))
    return [int(where) for where in np.flatnonzero(fits & known)]


def _is_sound(piece: bytes, where: int) -> bool:
    size, kind, checksum = _HEAD.unpack_from(piece, where)
    body = where + _HEAD.size
    found = zlib.crc32(memoryview(piece)[body : body + size], _KIND_CHECKSUMS[kind])
    return bool(found == checksum)


def sync_file(fd: int) -> None:
    """Wait until the disk holds the bytes of a file.

    Raises:
        OSError: It does not.
    """
    getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync
