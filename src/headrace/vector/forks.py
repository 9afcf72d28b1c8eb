"""A fork of a process that holds workers has copies of everything but them: to ask them anything would disturb their owner."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

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


def _shut_all() -> None:
    for holder in _HOLDERS:
        holder.shut = holder.shut or FORKED
    _HOLDERS.clear()


os.register_at_fork(after_in_child=_shut_all)
