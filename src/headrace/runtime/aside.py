"""Steps of putting aside what a session that goes on would be taken for, each with how it is undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.core.errors import RunDirectoryError


@contextmanager
def told(run: Path) -> Iterator[None]:
    """An OSError in the words of whoever resumes."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"the run directory {run} cannot be written",
            problem=f"{type(error).__name__}: {error}",
            fix="make room on its disk, or make it writable; nothing in it has changed",
        ) from None


def made(folder: Path, undo: ExitStack) -> None:
    """See that a folder is there."""
    if not folder.exists():
        folder.mkdir()
        undo.callback(folder.rmdir)


def moved(path: Path, place: Path, undo: ExitStack) -> None:
    """Move what is there."""
    path.rename(place)
    undo.callback(place.rename, path)
