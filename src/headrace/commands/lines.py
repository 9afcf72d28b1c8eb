"""A stream of bytes as lines of bounded length; what a process prints, and what of it is shown. Pure."""

from __future__ import annotations

import re
from collections import deque

LINE_BYTES = 8192
"""A longer line is cut into pieces, so that a flood without a line break costs no memory."""

_ENDS = re.compile(rb"[\r\n]")


class LineCutter:
    """Cuts what arrives into lines. A carriage return ends one too: progress bars know no other end."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now; empty ones are left out."""
        *whole, self._rest = _ENDS.split(self._rest + data)
        found = [piece for line in whole for piece in _pieces(line)]
        while len(self._rest) >= LINE_BYTES:
            found.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        return [piece.decode(errors="replace") for piece in found if piece.strip()]

    def end(self) -> list[str]:
        """The last line, if it was not ended."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest.strip() else []


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + LINE_BYTES] for at in range(0, len(line), LINE_BYTES)]


class Shown:
    """Lines on their way to whoever looks on: bounded, and honest about what was left out.

    Args:
        most_bytes: Text that is kept until it is taken.
        most_lines: Lines that are.
    """

    def __init__(self, most_bytes: int = 1 << 18, most_lines: int = 2000) -> None:
        self._lines: deque[tuple[float, str]] = deque()
        self._most_bytes, self._most_lines = most_bytes, most_lines
        self._bytes = 0
        self.left_out = 0
        """Lines that found no room since the last `take`."""
        self.seen = 0
        """Lines altogether."""

    def add(self, at_s: float, line: str) -> None:
        """Keep a line, or count it as left out."""
        self.seen += 1
        if len(self._lines) >= self._most_lines or self._bytes + len(line) > self._most_bytes:
            self.left_out += 1
            return
        self._lines.append((at_s, line))
        self._bytes += len(line)

    def take(self, most: int) -> list[tuple[float, str]]:
        """The oldest lines, which are kept no longer."""
        taken = [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
        self._bytes -= sum(len(line) for _, line in taken)
        return taken

    def __len__(self) -> int:
        return len(self._lines)
