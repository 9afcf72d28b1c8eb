"""What every comparison ends in: rows of ours beside theirs, as a table for people or an object for programs."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One comparison: the same work done by us and by a peer, in one run, taking turns."""

    name: str
    environment: str
    peer: str
    peer_version: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    """Ours better above 1."""
    spread: dict[str, list[float]]
    """Lowest and highest of all rounds, for both."""
    target: float | None = None
    """The ratio that is promised; None: nothing is."""
    note: str = ""
    """What else one has to know about how it came about."""


def take_turns(rounds: int, *sides: Callable[[], T]) -> list[list[T]]:
    """What each side measured in several rounds, after one that is thrown away."""
    found: list[list[T]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, rates in zip(sides, found, strict=True):
            rate = side()
            if number:
                rates.append(rate)
    return found


def compare(
    name: str, environment: str, peer: tuple[str, str], rates: tuple[Sequence[float], Sequence[float]], unit: str
) -> Row:
    """Medians of both sides. ``peer`` is name and version, ``rates`` ours and theirs, more is better."""
    ours, theirs = (statistics.median(side) for side in rates)
    spread = {side: [min(found), max(found)] for side, found in zip(("ours", "theirs"), rates, strict=True)}
    return Row(name, environment, *peer, ours, theirs, unit, ours / theirs, spread)


def less_is_better(row: Row) -> Row:
    """The same, when what was compared are seconds or bytes."""
    return replace(row, ratio=row.theirs / row.ours)


def machine() -> dict[str, object]:
    """What the numbers depend on. The load tells whether the machine had time for us."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model, "cpus": os.cpu_count(), "system": platform.system(), "python": platform.python_version(),
        "numpy": np.__version__, "load_1_min": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def to_json(rows: Sequence[Row], about: Mapping[str, object]) -> dict[str, Any]:
    """``machine`` and ``rows``; ``about`` is told of the machine."""
    return {"machine": dict(about), "rows": [asdict(row) for row in rows]}


def in_words(rows: Sequence[Row], about: Mapping[str, object]) -> Iterator[str]:
    """The same as lines of a table."""
    yield ", ".join(f"{name} {value}" for name, value in about.items())
    yield f"{'':34}{'peer':34}{'ours':>12}{'theirs':>12}{'ratio':>8}  unit; spread of ours, of theirs"
    for row in rows:
        spread = ", ".join(f"{number(low)}-{number(high)}" for low, high in row.spread.values())
        peer = f"{row.peer}, {row.peer_version}"
        numbers = f"{number(row.ours):>12}{number(row.theirs):>12}{row.ratio:8.2f}"
        yield f"{row.name:34}{peer:34}{numbers}  {row.unit}; {spread}{_verdict(row)}"
    yield from dict.fromkeys(f"{row.name}: {row.note}" for row in rows if row.note)


def number(value: float) -> str:
    """Three figures, or all of a whole part that is longer."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    return f"; target {row.target:g} {'met' if row.ratio >= row.target else 'MISSED'}"
