"""The logs of several processes as one stream of lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_TURN_BYTES = 1 << 18
"""Most that is read of one log in one turn; what a component writes faster stays in its file."""
_TURN_LINES = 200
_LINE_CHARS = 2_000


class LogFollower:
    """Reads what was appended to logs since the last turn; never waits, and never keeps a writer from writing.

    Args:
        logs: File by component; those that are not there yet may come.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._at = {name: _size(path) for name, path in logs.items()}  # an earlier session's lines are old news
        self._rest = dict.fromkeys(logs, b"")

    def lines(self) -> Iterator[tuple[str, str]]:
        """Component and line, of all lines that were completed since the last turn."""
        for name, path in self._logs.items():
            for line in self._new(name, path):
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
        *whole, self._rest[name] = (self._rest[name] + data).split(b"\n")
        if len(self._rest[name]) > _LINE_CHARS:  # a progress bar, or binary: it never ends its line
            whole.append(self._rest[name])
            self._rest[name] = b""
        lines = [_text(line) for line in whole]
        left_out = len(lines) - _TURN_LINES
        if skipped or left_out > 0:
            lines = [f"… more than can be shown here; all of it is in {path}", *lines[-_TURN_LINES:]]
        return lines


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")[-_LINE_CHARS:]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
