"""Looks at what a process shows outside of its output: HTTP answers and files. In a thread, for a look may hang."""

from __future__ import annotations

import contextlib
import glob
import http.client
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from headrace.commands.config import ProgressConfig, ReadyConfig
from headrace.commands.readings import json_holds, json_number, prometheus
from headrace.ipc.channel import LONGEST_S, Deadline

_MOST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 16
_SHOWN = 200
_IN_A_URL = "%/:?#[]@!$&'()*+,;="
"""Of a path or a query, what is not spelled otherwise: all that may be in one, and what is spelled out already."""
_OWN_LIMIT_S = 0.5
"""What a look is given beyond its own limit, so that it can tell itself what it waited for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look has found."""

    good: bool
    """Whether the sign is there; of a number, whether there is one."""
    number: float | None = None
    idle: bool = False
    """Whether nobody wants anything of it."""
    why: str = ""
    """Of one that is not good: what was found instead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To an HTTP request."""

    status: int
    text: str


def fetch(url: str, timeout_s: float) -> Answer:
    """GET a URL, all of it within ``timeout_s`` seconds, however slowly it drips.

    Raises:
        OSError: No connection, or no complete answer in time.
        http.client.HTTPException: What answers does not speak HTTP.
    """
    deadline = Deadline(min(timeout_s, LONGEST_S))
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=max(0.01, deadline.left_s()))
    try:
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_IN_A_URL)
        connection.request("GET", target, headers={"Accept": "*/*", "Connection": "close"})
        sock = connection.sock
        response = connection.getresponse()
        body = bytearray()
        while len(body) < _MOST_BYTES:
            left_s = deadline.left_s()
            if left_s <= 0.0:
                raise TimeoutError(f"no complete answer within {timeout_s:g} s")
            if sock is not None and sock.fileno() >= 0:
                sock.settimeout(left_s)
            piece = response.read1(_PIECE_BYTES)
            if not piece:
                break
            body += piece
        return Answer(response.status, body.decode(errors="replace"))
    finally:
        connection.close()


Files = frozenset[tuple[str, int]]
"""Names and the times of their last change."""


def files_of(pattern: str, cwd: Path) -> Files:
    """The files that match now."""
    return frozenset((name, stat.st_mtime_ns) for name, stat in _matching(pattern, cwd))


def look_ready(ready: ReadyConfig, cwd: Path, before: Files = frozenset()) -> Seen:
    """Whether the sign of readiness is there: ``http`` or ``file``.

    Args:
        ready: What is looked for.
        cwd: Where relative patterns begin.
        before: Files that were there before the process was; they say nothing about it.
    """
    if ready.file is not None:
        new = files_of(ready.file, cwd) - before
        old = " that is newer than the process" if before else ""
        return Seen(good=bool(new), why="" if new else f"nothing matches {ready.file}{old}")
    url = ready.http or ""
    try:
        answer = fetch(url, ready.probe_s)
    except (OSError, http.client.HTTPException) as error:
        return Seen(good=False, why=f"GET {url}: {_short(error)}")
    if answer.status != ready.status:
        return Seen(good=False, why=f"GET {url} answered {answer.status}: {answer.text[:_SHOWN].strip()}")
    if ready.json_holds is not None and not json_holds(answer.text, ready.json_holds):
        return Seen(good=False, why=f"GET {url} answered without what is expected: {answer.text[:_SHOWN].strip()}")
    return Seen(good=True)


def look_progress(progress: ProgressConfig, cwd: Path) -> Seen:
    """The number that has to grow: ``http`` or ``file``."""
    if progress.file is not None:
        return Seen(good=True, number=_of_files(progress.file, progress.by, cwd))
    url = progress.http or ""
    try:
        answer = fetch(url, progress.probe_s)
    except (OSError, http.client.HTTPException) as error:
        return Seen(good=False, why=f"GET {url}: {_short(error)}")
    if answer.status != http.client.OK:
        return Seen(good=False, why=f"GET {url} answered {answer.status}")
    read = prometheus if progress.metric is not None else json_number
    wanted = [
        progress.metric or progress.json_path or "",
        *([progress.pending] if progress.pending is not None else []),
    ]
    numbers = [read(answer.text, name) for name in wanted]
    missing = [name for name, number in zip(wanted, numbers, strict=True) if number is None]
    why = f"{url} has no number {' and no '.join(missing)}" if missing else ""
    return Seen(good=not missing, number=numbers[0], idle=len(numbers) > 1 and numbers[1] == 0.0, why=why)


def _of_files(pattern: str, by: str, cwd: Path) -> float:
    stats = [stat for _, stat in _matching(pattern, cwd)]
    match by:
        case "count":
            return float(len(stats))
        case "size":
            return float(sum(stat.st_size for stat in stats))
    return max((stat.st_mtime for stat in stats), default=0.0)


def _matching(pattern: str, cwd: Path) -> Iterator[tuple[str, os.stat_result]]:
    for name in glob.iglob(pattern, root_dir=cwd, recursive=True):  # noqa: PTH207 - absolute patterns are meant as well
        with contextlib.suppress(OSError):  # it went away in between
            yield name, (cwd / name).stat()


def _short(error: Exception) -> str:
    return str(error) or type(error).__name__


def taken(look: Callable[[], Seen]) -> Seen:
    """What a look finds; whatever it raises is no sign, and no end of whoever looks."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - the border of looks: servers, and patterns of files, are somebody else's
        return Seen(good=False, why=f"{type(error).__name__}: {error}")


class Prober:
    """Takes one look at a time, in a thread of its own; whoever asked is woken through a descriptor.

    A look that takes longer than it may is given up: it counts as no. The next one waits for its end, so that looks that
    hang for good do not pile up.

    Args:
        look: What is done; it bounds itself, but files on a lost network share may not let it.
        limit_s: Seconds a look may take.
        every_s: Seconds between two looks.
        wake_fd: Written to when a look has ended.
    """

    def __init__(self, look: Callable[[], Seen], limit_s: float, every_s: float, wake_fd: int) -> None:
        self._look = look
        self._limit_s = min(limit_s, LONGEST_S)
        self._every_s = every_s
        self._wake_fd = wake_fd
        self._results: deque[tuple[int, Seen]] = deque()
        self._number = 0
        self._due: Deadline | None = None
        """Of the look that goes on; None: there is none."""
        self._next = Deadline(0.0)
        self._thread: threading.Thread | None = None

    def turn(self) -> Seen | None:
        """Begin a look if it is time to; what the last one has found, once."""
        seen = self._taken()
        if self._due is not None and self._due.passed:
            seen, self._due = Seen(good=False, why=f"a look took longer than {self._limit_s:g} s"), None
        if self._due is None and self._next.passed and not self._looking():
            self._begin()
        return seen

    def last(self) -> Seen:
        """One look more, whatever the time: at what was left by a program that has ended. Waits for it as long as it may take."""
        deadline = Deadline(self._limit_s + _OWN_LIMIT_S)
        self._join(deadline)  # one that was begun before the end may have come too early
        if not self._looking():
            self._begin()
            self._join(deadline)
        return self._taken() or Seen(good=False, why=f"a look took longer than {self._limit_s:g} s")

    def _taken(self) -> Seen | None:
        seen = None
        while self._results:
            number, result = self._results.popleft()
            if number == self._number and self._due is not None:  # or it was given up
                seen, self._due = result, None
        return seen

    def _looking(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self, deadline: Deadline) -> None:
        if self._thread is not None:
            self._thread.join(deadline.left_s())

    def _begin(self) -> None:
        self._number += 1
        self._due, self._next = Deadline(self._limit_s + _OWN_LIMIT_S), Deadline(self._every_s)
        self._thread = threading.Thread(target=self._work, args=(self._number,), daemon=True)
        self._thread.start()

    def _work(self, number: int) -> None:
        self._results.append((number, taken(self._look)))
        os.write(self._wake_fd, b"1")
