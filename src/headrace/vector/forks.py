"""A fork of a process that holds workers has copies of everything but them: to ask them anything would disturb their owner.

So would a copy of the object.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn, Protocol

from headrace.core.errors import VectorMisused

CLOSED = "this vector environment is closed", "make a new one"
FORKED = (
    "this vector environment belongs to the process that was forked, and so do its workers",
    "make one in each process that is to use one",
)


class Shuttable(Protocol):
    """Something that can be shut."""

    shut: tuple[str, str] | None
    """Why nothing can be asked of it any more, and what to do; None: it can be asked."""


# One for all: the system's list of what is called after a fork takes nothing back.
_HOLDERS: weakref.WeakSet[Shuttable] = weakref.WeakSet()


def shut_in_forks(holder: Shuttable) -> None:
    """From now on forks of this process find it shut. That costs nothing where it is used."""
    _HOLDERS.add(holder)


def refuse_copies(_holder: object) -> NoReturn:
    """``__getstate__`` of what is there once: `copy.copy`, `copy.deepcopy` and `pickle` ask for it.

    Unless a class derived from it says how it is made again (``__reduce__``, or a ``__getstate__`` of its own).

    Raises:
        VectorMisused: Always.
    """
    raise VectorMisused(
        "a vector environment cannot be copied or pickled: its environments, and the processes they are in, are there once",
        fix="hand over its factories and options, and make another one of these",
    )


def _shut_all() -> None:
    for holder in _HOLDERS:
        holder.shut = holder.shut or FORKED
    _HOLDERS.clear()


os.register_at_fork(after_in_child=_shut_all)
