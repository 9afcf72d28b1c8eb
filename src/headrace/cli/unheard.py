"""Standard output that nobody reads any more: `headrace train … | head`, or a log on a full disk.

A run of a week is not ended by that; what is still printed goes nowhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import click

T = TypeVar("T")


def go_unheard() -> None:
    """Print into nothing from now on; the interpreter flushes standard output at its exit, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def going_on(show: Callable[[T], None]) -> Callable[[T], None]:
    """The same, but the caller goes on where standard output takes no more; that is told once on standard error."""

    def shown(what: T) -> None:
        try:
            show(what)
            sys.stdout.flush()
        except OSError as error:
            go_unheard()
            with contextlib.suppress(OSError):
                click.echo(f"standard output takes no more ({error.strerror}); the run goes on", err=True)

    return shown
