"""How long things took since the last batch, by metric name."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Times:
    """Adds seconds up on the event loop's clock, and keeps the largest of what is no time."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._largest: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add how long this takes."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            yield
        finally:
            self._sums[name] += loop.time() - begun_s

    def most(self, name: str, value: float) -> None:
        """Keep the largest."""
        self._largest[name] = max(value, self._largest.get(name, value))

    def taken(self) -> dict[str, float]:
        """All of them, which begin anew."""
        metrics = {**self._sums, **self._largest}
        self._sums.clear()
        self._largest.clear()
        return metrics
