"""The numbers of a log over time, within bounded memory."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from headrace.monitor.logphrases import leaf

MOST_SERIES = 300
"""Names beyond these are not followed; a log with more of them names things by number."""
MOST_POINTS = 2000
RECENT = 256

EPISODES = re.compile(
    r"(?:n_|num_|total_|finished_)?(?:episodes?|eps?_(?:done|finished|count)|games|meta_?ep|ep)(?:_(?:done|finished|count|num))?"
)
_TIME_STEPS = r"(?:global|env|environment|total|train|training|agent)?_?(?:time_?)?steps?(?:_total)?|(?:env_?)?frames"
_ROUNDS = r"iter(?:ation)?s?|epochs?|progress"
STEPS = re.compile(f"{_TIME_STEPS}|{_ROUNDS}")
UPDATES = re.compile(
    r"train(?:s|ed|_?steps?|ing_?steps?)?|(?:n|num|total)_updates|updates?|(?:grad(?:ient)?|learner|optim(?:iser|izer)?)_?steps?"
)
AXES = (EPISODES, re.compile(_ROUNDS), re.compile(_TIME_STEPS))
"""What numbers are drawn over; the later the better."""
STORES = re.compile(r".*(?:buffer|replay|queue|memory).*")
SCORES = re.compile(r"(?:.*_)?(?:rew|rewards?|returns?|scores?)(?:_.*)?")
LOSSES = re.compile(r"(?:.*_)?(?:loss|losses)(?:_.*)?")
BY_ITSELF_STILL = re.compile(
    r"(?:.*_)?(?:threshold|limit|target|max|min|capacity|size|scale|std|goal|best|record)(?:_.*)?"
)
"""Settings and bounds: equal for ever by their nature."""


@dataclass(frozen=True, slots=True)
class Point:
    """One reading."""

    at_s: float
    step: float | None
    """The log's own counter at that moment, if it has one."""
    value: float


@dataclass(slots=True)
class Series:
    """One name's readings: all of them thinned, the newest in full, and what was counted on the way."""

    name: str
    count: int = 0
    first: float = math.nan
    last: float = math.nan
    lowest: float = math.inf
    highest: float = -math.inf
    rises: int = 0
    falls: int = 0
    run: int = 0
    """How many of the newest readings are equal."""
    longest_run: int = 0
    """Of the runs before the present one."""
    not_finite: int = 0
    """How many of the newest readings are NaN or infinite, without a finite one in between."""
    not_finite_line: int = 0
    """The line of the first of those."""
    changed_s: float = 0.0
    """When the present run began."""
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """(line, value) of the newest readings."""
    points: list[Point] = field(default_factory=list)
    _every: int = 1

    def add(self, line: int, point: Point) -> None:
        """Take one more reading."""
        self._compare(line, point)
        self.recent.append((line, point.value))
        if self.count % self._every == 0:
            self.points.append(point)
            if len(self.points) > MOST_POINTS:
                del self.points[1::2]
                self._every *= 2
        self.count += 1
        self.last = point.value

    def since(self, line: int) -> list[float]:
        """The readings that are still remembered, from this line on."""
        return [value for at, value in self.recent if at >= line]

    @property
    def is_counter(self) -> bool:
        """Whether it has only ever grown, but for a restart now and then."""
        return self.rises > 0 and self.falls <= 0.02 * self.count

    def run_start(self) -> int:
        """The line at which the present run of equal readings began, as far as remembered."""
        run = min(self.run, len(self.recent))
        return self.recent[-run][0]

    def _compare(self, line: int, point: Point) -> None:
        value = point.value
        if math.isfinite(value):
            self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
            self.not_finite = 0
        else:
            self.not_finite_line = self.not_finite_line if self.not_finite else line
            self.not_finite += 1
        if self.count == 0:
            self.first, self.run, self.changed_s = value, 1, point.at_s
        elif value == self.last:
            self.run += 1
        else:
            self.longest_run = max(self.longest_run, self.run)
            self.run, self.changed_s = 1, point.at_s
            self.rises += value > self.last
            self.falls += value < self.last


@dataclass(slots=True)
class Numbers:
    """All series of a log, by name."""

    series: dict[str, Series] = field(default_factory=dict)
    ignored: int = 0
    """Readings of names that came when there were too many already."""
    _axis: str = ""

    def add(self, line: int, at_s: float, found: dict[str, float]) -> None:
        """Take the numbers of one line."""
        for name in found:
            if name not in self.series:
                if len(self.series) >= MOST_SERIES:
                    self.ignored += 1
                    continue
                self.series[name] = Series(name)
        axis = self._choose_axis()
        step = found.get(axis.name, axis.last if axis.count else None) if axis is not None else None
        for name, value in found.items():
            if name in self.series:
                self.series[name].add(line, Point(at_s, step, value))

    def axis(self) -> Series | None:
        """The counter that the other numbers belong to: steps if the log has them, else rounds, else episodes."""
        return self.series.get(self._axis)

    def _choose_axis(self) -> Series | None:
        """Keep the axis unless there is a better one: two counters that grow in turn must not take turns as the axis."""
        best, rank = self.axis(), (False, -1)
        if best is not None and best.falls <= 0.02 * best.count:
            rank = best.is_counter, next(i for i, kind in enumerate(AXES) if kind.fullmatch(leaf(best.name)))
        for i, kind in enumerate(AXES):
            for series in self.called(kind):
                if series.falls <= 0.02 * series.count and (series.is_counter, i) > rank:
                    best, rank = series, (series.is_counter, i)
        if best is not None and best.name != self._axis:
            self._axis = best.name
            for series in self.series.values():  # steps of another counter mean nothing on this axis
                series.points = [replace(point, step=None) for point in series.points]
        return best

    def called(self, pattern: re.Pattern[str]) -> Iterator[Series]:
        """Series whose name means this."""
        return (series for series in self.series.values() if pattern.fullmatch(leaf(series.name)))

    def grown_since(self, line: int, patterns: Iterable[re.Pattern[str]]) -> tuple[str, float, float] | None:
        """A counter that has grown since a line: name, then and now; the one that has grown most."""
        best: tuple[str, float, float] | None = None
        for pattern in patterns:
            for series in self.called(pattern):
                seen = series.since(line)
                if len(seen) > 1 and series.is_counter and seen[-1] > seen[0]:
                    grown = (series.name, seen[0], seen[-1])
                    best = max(best or grown, grown, key=lambda each: each[2] - each[1])
        return best
