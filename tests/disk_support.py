"""Seams in the calls that change a file system: the k-th fails, all from the k-th on do, or the process dies there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core import files

CALLS = ("open", "write", "fsync", "close", "replace", "unlink", "mkdir", "rmdir")


class Disk:
    """Counts the calls that change files, by name, and does something at one of them.

    Args:
        patch: Puts the seams in; they go with it.
        at: Number of the call, from 0.
        strike: What happens there instead; it may call what it is given to do a part of it. None: nothing does.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int = -1, strike: Callable[[str, Callable[[], Any]], Any] | None = None
    ) -> None:
        self.calls: list[str] = []
        self.struck = False
        self._at, self._strike = at, strike
        for name in CALLS:
            patch.setattr(os, name, self._seam(name, getattr(os, name)))

    def _seam(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seam(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_WRONLY:
                return call(*args, **kwargs)  # of a folder, to sync it
            self.calls.append(name)
            if self._strike is None or len(self.calls) - 1 != self._at:
                return call(*args, **kwargs)
            self.struck = True
            if name == "write":
                handle, data = args
                return self._strike(name, lambda: call(handle, data[: len(data) // 2]))
            return self._strike(name, lambda: call(*args, **kwargs))

        return seam


def fails_once(name: str, do: Callable[[], Any]) -> Any:
    """A full disk takes a part of what is written; a descriptor is closed also by a close that fails."""
    if name in ("write", "close"):
        do()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def dies(name: str, do: Callable[[], Any]) -> Any:
    """SIGKILL in the middle of a write, or right before anything else."""
    if name == "write":
        do()
    os.kill(os.getpid(), signal.SIGKILL)


class DeadDisk(Disk):
    """From the k-th call on every one fails; descriptors can still be closed."""

    def _seam(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._seam(name, call)

        def seam(*args: Any, **kwargs: Any) -> Any:
            if self.struck and name != "close":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return inner(*args, **kwargs)

        return seam


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_the_middle_of_writing(patch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Have somebody else act while the next file is half written."""
    write, due = files._write, iter([act])

    def halves(pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece[:1]
            for once in due:
                once()
            yield piece[1:]

    def interrupted(path: Path, pieces: Iterable[bytes]) -> Any:
        patch.setattr(files, "_write", write)
        return write(path, halves(pieces))

    patch.setattr(files, "_write", interrupted)
