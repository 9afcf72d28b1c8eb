"""The logs of several processes as one stream of lines, and what is put into them beside what the processes print."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.supervision.child import LAUNCHER_MARK

_TURN_BYTES = 1 << 18
"""Most that is read of one log in one turn; what a component writes faster stays in its file."""
_TURN_LINES = 200
_LINE_CHARS = 2_000


class LogFollower:
    """Reads what was appended to logs since the last turn; never waits, and never keeps a writer from writing.

    What it writes itself it does not read again: it knows which bytes those are, for all writers append.

    Args:
        logs: File by component; those that are not there yet may come.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._at = {name: _size(path) for name, path in logs.items()}  # an earlier session's lines are old news
        self._rest = dict.fromkeys(logs, b"")
        self._own: dict[str, list[tuple[int, int]]] = {name: [] for name in logs}
        """Begin and end of what was written here and lies beyond what was read; those that touch are one."""
        self.lost = 0
        """Lines that could not be written."""

    def write(self, name: str, text: str) -> None:
        """Append to a component's log what is told of it, a mark before each line; of others than ours, do nothing.

        Args:
            name: Of the component.
            text: One line or several.
        """
        path = self._logs.get(name)
        if path is None:
            return
        lines = text.splitlines()
        data = "".join(f"{LAUNCHER_MARK}{line}\n" for line in lines).encode(errors="replace")
        try:
            begin, end = _append(path, data)
        except OSError:  # a full disk is told by the count, and ends no run
            self.lost += len(lines)
            return
        own = self._own[name]
        if own and own[-1][1] == begin:
            begin = own.pop()[0]
        own.append((begin, end))

    def lines(self, *ended: str) -> Iterator[tuple[str, str]]:
        """Component and line, of all lines that were completed since the last turn.

        Args:
            ended: Components that print no more: what they have not completed is a line as well, their last words.
        """
        for name, path in self._logs.items():
            lines = self._new(name, path)
            if name in ended:
                lines += self._new(name, path)  # what one turn did not get to
                lines += [_text(self._rest[name])] if self._rest[name] else []
                self._rest[name] = b""
            for line in lines:
                yield name, line

    def _new(self, name: str, path: Path) -> list[str]:
        size = _size(path)
        begin = self._at[name]
        if size <= begin:
            return []
        skipped = size - begin > 2 * _TURN_BYTES
        if skipped:
            begin, self._rest[name] = size - _TURN_BYTES, b""
        try:
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read(_TURN_BYTES)
        except OSError:
            return []
        self._at[name] = begin + len(data)
        *whole, self._rest[name] = (self._rest[name] + self._without_own(name, data, begin)).split(b"\n")
        if len(self._rest[name]) > _LINE_CHARS:  # a progress bar, or binary: it never ends its line
            whole.append(self._rest[name])
            self._rest[name] = b""
        lines = [_text(line) for line in whole]
        left_out = len(lines) - _TURN_LINES
        if skipped or left_out > 0:
            lines = [f"… more than can be shown here; all of it is in {path}", *lines[-_TURN_LINES:]]
        return lines

    def _without_own(self, name: str, data: bytes, at: int) -> bytes:
        """What of ``data``, which begins at byte ``at`` of the log, the component has printed."""
        printed, here, end = [], at, at + len(data)
        for first, last in self._own[name]:
            printed.append(data[here - at : max(here, first) - at])
            here = min(max(here, last), end)
        self._own[name] = [(first, last) for first, last in self._own[name] if last > end]
        return b"".join([*printed, data[here - at :]])


def _append(path: Path, data: bytes) -> tuple[int, int]:
    """Write behind whatever else was written; where it begins and ends. A line that is not complete is ended before.

    Raises:
        OSError: It cannot be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.lseek(handle, 0, os.SEEK_END)
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data
        written = os.write(handle, data)
        end = os.lseek(handle, 0, os.SEEK_CUR)  # another writer may have been first, so this is not `size` and more
        return end - written, end
    finally:
        os.close(handle)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")[-_LINE_CHARS:]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
