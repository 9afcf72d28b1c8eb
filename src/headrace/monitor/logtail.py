"""Follows a growing text file, whatever happens to it, within bounded memory and without ever writing to it."""

from __future__ import annotations

import io
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.errors import ConfigError

START_BYTES = 2**20
"""How much of what is already there is read."""
READ_BYTES = 2**22
"""Most that one `LogTail.read` reads; when more has come, the older part is skipped and counted."""
LINE_BYTES = 2**14
"""Longest line; what is beyond is cut off."""

_ENDS = re.compile(rb"[\r\n]+")  # a progress bar ends its lines with a bare carriage return
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd]")


@dataclass(frozen=True, slots=True)
class TailRead:
    """What one look at the file brought."""

    lines: tuple[str, ...] = ()
    """Complete lines that are not empty, without colours and control characters."""
    read_bytes: int = 0
    skipped_bytes: int = 0
    unreadable_bytes: int = 0
    """Bytes that are no text: NUL, other control characters, invalid UTF-8."""
    restarted: str = ""
    """Why reading began anew: ``truncated`` or ``replaced``; empty if it did not."""
    missing: bool = False
    """There is no file under this name now."""


class LogTail:
    """Reads what has been added to a file since the last look.

    The file may not exist yet, be truncated, be replaced (rotated) or be deleted; each is noticed at the next look.
    A file that is there at first is read from `START_BYTES` before its end.

    Args:
        path: The file; anything but a regular file is refused, since reading it could wait for ever.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._position = 0
        self._rest = b""
        self._cut = False
        """Whether the line that is being read has lost its start, and is to be left out."""
        self._opened_once = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def unfinished(self) -> str:
        """The last line as far as it is there, while its end is still missing."""
        return _text(self._rest)[0]

    def modified_s(self) -> float | None:
        """When the file was last written to, in seconds since 1970; None if there is none."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def read(self) -> TailRead:
        """Look once; never waits.

        Raises:
            ConfigError: The path is no regular file, or may not be read.
        """
        if self._file is None and not self._open():
            return TailRead(missing=True)
        restarted = self._if_truncated()
        taken = self._take()
        if taken.read_bytes == 0 and not restarted:
            # Only now: the end of a file that was moved away is read before its successor.
            moved, missing = self._moved()
            if missing:
                return TailRead(missing=True)
            if moved:
                self.close()
                self._forget()
                if not self._open():
                    return TailRead(missing=True)
                restarted, taken = "replaced", self._take()
        return TailRead(taken.lines, taken.read_bytes, taken.skipped_bytes, taken.unreadable_bytes, restarted=restarted)

    def _open(self) -> bool:
        try:
            # Without O_NONBLOCK, opening a FIFO would wait for a writer.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be read", reason=error.strerror, fix="name a log file that you may read"
            ) from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise ConfigError(
                f"{self.path} is not a regular file",
                fix="let the training write to a file, e.g. with 2>&1 | tee training.log, and name that file",
            )
        self._file = io.FileIO(fd, "r")
        if not self._opened_once:
            self._position = max(0, found.st_size - START_BYTES)
            self._cut = self._position > 0
        self._opened_once = True
        return True

    def _forget(self) -> None:
        self._position, self._rest, self._cut = 0, b"", False

    def _if_truncated(self) -> str:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size >= self._position:
            return ""
        self._forget()
        return "truncated"

    def _moved(self) -> tuple[bool, bool]:
        """Whether another file has the name now, and whether none has."""
        assert self._file is not None
        own = os.fstat(self._file.fileno())
        try:
            found = self.path.stat()
        except OSError:
            return False, True
        return (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino), False

    def _take(self) -> TailRead:
        assert self._file is not None
        size = os.fstat(self._file.fileno()).st_size
        skipped = max(0, size - self._position - READ_BYTES)
        if skipped:
            self._position += skipped
            self._rest, self._cut = b"", True
        data = os.pread(self._file.fileno(), READ_BYTES, self._position)
        self._position += len(data)
        lines, unreadable = self._split(data)
        return TailRead(tuple(lines), len(data), skipped, unreadable)

    def _split(self, data: bytes) -> tuple[list[str], int]:
        *whole, rest = _ENDS.split(self._rest + data)
        if self._cut and whole:
            del whole[0]
            self._cut = False
        texts = [_text(raw[:LINE_BYTES]) for raw in whole]
        if self._cut:
            rest = b""  # still within a line whose start was not read
        # A line that never ends must not be kept as a whole: its start says enough.
        self._rest = rest[:LINE_BYTES]
        return [text for text, _ in texts if text], sum(unreadable for _, unreadable in texts)


def _text(raw: bytes) -> tuple[str, int]:
    """A line as text, and how many characters of it were none."""
    text = _ESCAPES.sub("", raw.decode("utf-8", errors="replace"))
    text, unreadable = _CONTROLS.subn("", text.replace("\t", " "))
    return text.strip(), unreadable
