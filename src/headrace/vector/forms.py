"""Infos of a worker that lie in the slab, and what they look like there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.vector.infos import Columns, Form
from headrace.vector.messages import NewForm
from headrace.vector.slab import FIRST_FORM, Slab


class Forms:
    """The forms of one worker, by the numbers it calls them in `Slab.note`.

    Args:
        read: Takes in what the worker has said; it says what a number means before it uses it.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self._known: dict[int, Form] = {}

    def add(self, message: NewForm) -> None:
        """The worker has said what a number means."""
        self._known[message.number] = message.form

    def columns(self, ids: NDArray[np.int64], slab: Slab) -> list[Columns]:
        """Infos that lie in the slab, of these environments of the worker."""
        notes = slab.note[ids]
        numbers = [number for number in sorted(set(notes.tolist())) if number >= FIRST_FORM]
        return [self._of(number).read(slab.numbers, ids[notes == number].tolist()) for number in numbers]

    def common(self, notes: NDArray[np.uint8]) -> Form | None:
        """The form of all infos with these notes, if each has one in the slab, and all are of one form."""
        number = int(notes[0])
        return self._of(number) if number >= FIRST_FORM and bool((notes == number).all()) else None

    def _of(self, number: int) -> Form:
        if number not in self._known:
            self._read()
        return self._known[number]
