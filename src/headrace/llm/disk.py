"""A disk that is full or broken, told in words that name what was being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import RunDirectoryError


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
