"""``events.jsonl``: what happened in a run, one JSON object a line, from any process of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.clock import Clock, MonotonicClock


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: numpy numbers become numbers, NaN and infinity null, anything unknown its text.

    All of it can be written as UTF-8, see `writable`.
    """
    if isinstance(value, Mapping):
        return {writable(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    return writable(str(value))


def writable(text: str) -> str:
    """``text`` with what UTF-8 cannot hold spelled out.

    A file name in another encoding has half characters in Python (U+DCE9), and so have the errors that name the file.
    """
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class JsonLines:
    """Appends JSON objects to a file, each line with one write, so that lines of several processes never mix.

    A line that cannot be written (disk full) is counted in ``lost`` and never ends the run.

    Raises:
        OSError: From the constructor, when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._torn = _ends_torn(path)
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, values: Mapping[str, Any]) -> bool:
        """Write one line; False if it was lost."""
        line = json.dumps(plain(values), ensure_ascii=False).encode() + b"\n"
        if self._torn:  # or this line would become the end of the half that was written before
            line = b"\n" + line
        try:
            written = self._write(line)
        except OSError:
            written = 0
        if written == len(line):
            self._torn = False
            return True
        self._torn = self._torn or written > 0
        self.lost += 1
        return False

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _write(self, line: bytes) -> int:
        return os.write(self._handle, line)


def _ends_torn(path: Path) -> bool:
    """Whether the file ends in half a line: its writer lost its machine, or its disk was full."""
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
    except OSError:  # not there yet, or not to be read; the constructor finds out
        return False


class EventLog:
    """What happened, appended to ``events.jsonl``. Any process of the run may hold one on the same file.

    Args:
        path: The file; made if missing.
        clock: Monotonic; the same machine-wide clock in every process.
        started_s: The clock's reading at the run's start, from which ``t_s`` counts; None: now. A run that is resumed
            says when it would have started had it never stopped, so that its time goes on.
    """

    def __init__(self, path: Path, clock: Clock | None = None, started_s: float | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self.started_s = self._clock.now() if started_s is None else started_s
        self._lines = JsonLines(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def lost(self) -> int:
        """Events that could not be written."""
        return self._lines.lost

    def emit(self, kind: str, component: str, text: str, *, pid: int | None = None, **facts: object) -> None:
        """Note one event; never raises on a full disk.

        Args:
            kind: started, ready, fault, stacks, salvaged, restarted, evaluated, checkpoint, verdict, ended, …
            component: Whom it happened to, e.g. ``collector-0``.
            text: One sentence for a person.
            pid: The component's process; None: the process that writes.
            **facts: Values a program may want, beside the sentence.
        """
        event = {
            "t_s": round(self._clock.now() - self.started_s, 6),
            "kind": kind,
            "component": component,
            "pid": os.getpid() if pid is None else pid,
            "text": text,
        }
        self._lines.append(event | facts)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._lines.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a run, also while it writes or after it was killed.

    A last line without its end is left out: it is being written, or never will be. A damaged line in the middle
    becomes an event of kind ``unreadable`` instead of vanishing, and an empty one, which `JsonLines` leaves where the disk
    was full, one of kind ``empty``: the event at place n is that of line n + 1. A file that is not there has no events.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    complete = data[: data.rfind(b"\n") + 1].decode(errors="replace")
    return [_event(line) for line in complete.split("\n")[:-1]]


def is_number(value: object) -> bool:
    """Whether what a line holds is a number that can be reckoned with: a disk may have made anything of it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _event(line: str) -> dict[str, Any]:
    if not line:
        return {"kind": "empty", "component": "events.jsonl", "text": ""}
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"kind": "unreadable", "component": "events.jsonl", "text": line[:200]}
