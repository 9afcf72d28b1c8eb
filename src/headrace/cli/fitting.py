"""What is drawn over in place is no higher than the terminal, which would cut off its end: each part gives way in its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment, SegmentLines

Line = list[Segment]
T = TypeVar("T")


def even_choice(many: Sequence[T], most: int) -> list[T]:
    """So many at most, the first and the last included; of one alone the last."""
    if len(many) <= most:
        return list(many)
    return [many[round(place * (len(many) - 1) / (most - 1))] for place in range(most)] if most > 1 else [many[-1]]


def beginning(lines: Sequence[Line], room: int, what: str = "lines", head: int = 0) -> list[Line]:
    """The first lines, and in the last one how many more there are; ``head``: lines that are none of these."""
    return [*lines[: room - 1], [Segment(f"and {len(lines) - max(room - 1, head)} more {what}")]]


def thinned(lines: Sequence[Line], room: int) -> list[Line]:
    """The first line, and of the others an even choice with the last, which is left alone where there is room for one."""
    return [lines[0], *even_choice(lines[1:], room - 1)] if room > 1 else [lines[-1]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a picture."""

    content: RenderableType
    rank: int
    """The lower it is, the sooner the part is given room."""
    least: int | None = None
    """Lines that it is given before any part is given more than that; None: all."""
    shorten: Callable[[Sequence[Line], int], list[Line]] = beginning
    """From all its lines to so many, one or more."""
    gap: bool = False
    """Whether an empty line parts it from the one above, where there is room for everything."""


table_of = partial(beginning, head=1)
"""Shortens lines under a headline."""


class Picture:
    """Parts below each other, as many lines of each as the terminal is high enough for.

    Args:
        parts: From top to bottom.
        whole: Draw all lines, however high the terminal is.
    """

    def __init__(self, parts: Sequence[Part], *, whole: bool = False) -> None:
        self._parts = parts
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The protocol of rich."""
        free = options.update(height=None)
        drawn = [console.render_lines(part.content, free, pad=False) for part in self._parts]
        gaps: list[list[Line]] = [[[]] if part.gap and place else [] for place, part in enumerate(self._parts)]
        if self._whole or sum(map(len, drawn)) + sum(map(len, gaps)) <= console.height:
            shown = [[*gap, *lines] for gap, lines in zip(gaps, drawn, strict=True)]
        else:
            rooms = shared_out(console.height, self._parts, [len(lines) for lines in drawn])
            shown = [
                lines if room >= len(lines) else part.shorten(lines, room) if room else []
                for part, lines, room in zip(self._parts, drawn, rooms, strict=True)
            ]
        yield SegmentLines([line for lines in shown for line in lines], new_lines=True)


def shared_out(height: int, parts: Sequence[Part], lengths: Sequence[int]) -> list[int]:
    """Lines for each part: by rank, first what it needs at least and then what it has more."""
    rooms, left = [0] * len(parts), height
    order = sorted(range(len(parts)), key=lambda place: parts[place].rank)
    for more in (False, True):
        for place in order:
            least = parts[place].least
            wanted = lengths[place] if more or least is None else min(least, lengths[place])
            given = max(0, min(wanted - rooms[place], left))
            rooms[place] += given
            left -= given
    return rooms
