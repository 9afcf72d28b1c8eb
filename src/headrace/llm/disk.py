"""A disk that is full or broken, told in words that name what was being written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import RunDirectoryError

_UNFINISHED = re.compile(r"\.\d+\.(\d+|gone)")


def remove_unfinished(folder: Path) -> None:
    """Remove what a writer of numbered folders left there that was killed while it wrote, or removed, one. Nobody else may write."""
    for path in folder.glob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing(what: str, place: Path) -> Iterator[None]:
    """Do something that writes ``what`` to ``place``.

    Raises:
        RunDirectoryError: Instead of the system's own error, which often does not say where.
    """
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"{what} cannot be written",
            place=place,
            error=error,
            fix="make room on that disk or repair it, then resume the run",
        ) from error
