"""Bars that show how far a command has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn

from headrace.cli import early


@contextmanager
def bar(*columns: str | ProgressColumn) -> Iterator[Progress]:
    """A bar on standard error while the block lasts; the cursor, which it hides, comes back whatever ends the command.

    Args:
        columns: Of the bar; none: those that rich has by itself.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        if console.is_terminal and not console.is_dumb_terminal:  # elsewhere rich hides no cursor
            stack.enter_context(early.drawing_a_bar())
        yield stack.enter_context(Progress(*columns, console=console, auto_refresh=False, transient=True))
