"""A run in numbers and lines: pure functions from values to text, and the two views that put it on the screen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.fitting import Part, Picture, even_choice, table_of, thinned
from headrace.cli.unheard import going_on, never_waiting, pass_on
from headrace.core.clock import Clock, MonotonicClock
from headrace.runtime.progress import EvaluationPoint, Progress
from headrace.telemetry.wording import amount

CURVE_CELLS = 40
CURVE_ROWS = 12
NOTHING = "-"
"""Drawn where a value has no source."""


class View(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, progress: Progress) -> None:
        """Take notice of the newest state; cheap, may be called as often as one likes."""
        ...


def make_view(*, terminal: bool | None = None) -> View:
    """A table that is drawn over where standard output is a terminal, else a line now and then."""
    if sys.stdout.isatty() if terminal is None else terminal:
        return LiveView()
    return LineView()


@contextmanager
def showing() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a run while the block lasts, to whoever looks on; neither ends the run nor holds it up."""
    with never_waiting(), make_view() as view:
        show = going_on(view.show)

        def shown(progress: Progress) -> None:
            pass_on()  # what found no room before; the view may have nothing to say for a while
            show(progress)

        yield shown


class LiveView:
    """One table, drawn over in place. It has no thread of its own: it moves when progress arrives.

    Args:
        console: Where to draw; None: standard output.
        clock: For the pause between two drawings.
        every_s: Shortest time between two drawings; progress in between is skipped.
    """

    def __init__(self, console: Console | None = None, clock: Clock | None = None, every_s: float = 0.25) -> None:
        self._live = Live(console=console or Console(), auto_refresh=False)
        self._clock = clock or MonotonicClock()
        self._every_s = every_s
        self._due_s = -math.inf
        self._newest: Progress | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._newest is not None:
            self._live.update(table(self._newest))  # which its end draws
        self._live.stop()

    def show(self, progress: Progress) -> None:
        """See `View.show`."""
        self._newest = progress
        now_s = self._clock.now()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self._live.update(Picture(_parts(progress)), refresh=True)


class LineView:
    """A line every few seconds, and one for each message and evaluation at once; for pipes and log files."""

    def __init__(self, clock: Clock | None = None, every_s: float = 5.0) -> None:
        self._clock = clock or MonotonicClock()
        self._every_s = every_s
        self._due_s = -math.inf
        self._message: str | None = None
        self._evaluations = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back: lines stay where they are."""

    def show(self, progress: Progress) -> None:
        """See `View.show`."""
        if progress.message is not None and progress.message != self._message:
            click.echo(f"{progress.wall_s:8.1f} s  {progress.message}")
        self._message = progress.message
        for point in progress.evaluations[self._evaluations :]:
            click.echo(f"{progress.wall_s:8.1f} s  evaluation at {_whole(point.env_steps)} steps: {mean(point)}")
        self._evaluations = len(progress.evaluations)
        now_s = self._clock.now()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            click.echo(line(progress))


def line(progress: Progress) -> str:
    """The run in one line; what has no source is left out."""
    target = f"/{progress.env_steps_target:,}" if progress.env_steps_target is not None else ""
    parts = [f"{progress.wall_s:8.1f} s  env steps {progress.env_steps:,}{target}{_per_s(progress.env_steps_per_s)}"]
    if progress.updates is not None:
        parts.append(f"updates {progress.updates:,}{_per_s(progress.updates_per_s)}")
    if progress.replay_ratio is not None:
        parts.append(f"ratio {progress.replay_ratio:.2f}")
    if progress.policy_lag is not None:
        parts.append(f"lag {progress.policy_lag:.1f}")
    if progress.episodes is not None:
        parts.append(f"episodes {progress.episodes:,}")
    if progress.mean_return is not None:
        parts.append(f"return {number(progress.mean_return)}")
    return "  ".join(parts)


def table(progress: Progress) -> RenderableType:
    """The run as the live view shows it where the terminal is high enough, and at the end."""
    return Picture(_parts(progress), whole=True)


def _parts(progress: Progress) -> list[Part]:
    components = partial(table_of, what="components")
    parts = [Part(_numbers(progress), 1, least=2), Part(_components(progress), 2, least=1, shorten=components)]
    if progress.evaluations:
        rows = curve(progress.evaluations, progress.random_baseline)
        parts.append(Part(Text("\n".join(rows), no_wrap=True), 3, least=2, shorten=thinned, gap=True))
    if progress.message is not None:
        parts.append(Part(Text(progress.message, style="yellow"), 0))
    return parts


def curve(points: Sequence[EvaluationPoint], baseline: EvaluationPoint | None = None) -> list[str]:
    """Evaluations as a curve that runs downwards, one line each.

    ``●`` is the mean return, ``─`` its interval, ``░`` the interval of uniformly random actions. Where there are
    more than `CURVE_ROWS` points, an even choice of them is drawn, the first and the last included.
    """
    shown = even_choice(points, CURVE_ROWS)
    everything = [value for point in (*shown, *([baseline] if baseline else [])) for value in _span(point)]
    if not everything:
        return [f"{'no finite return':>{CURVE_CELLS}}"] if shown else []
    low, high = min(everything), max(everything)
    scale = _Scale(low, high)
    rows = [f"{'env steps':>12}  {'mean return':>12}  {number(low)} … {number(high)}"]
    if baseline is not None:
        rows.append(f"{'random':>12}  {number(baseline.mean_reward):>12}  {scale.row(None, baseline)}")
    rows += [
        f"{_whole(point.env_steps):>12}  {number(point.mean_reward):>12}  {scale.row(point, baseline)}"
        for point in shown
    ]
    return rows


def mean(point: EvaluationPoint) -> str:
    """A mean return with its interval and the number of episodes."""
    interval = f" ({number(point.interval[0])} to {number(point.interval[1])})" if point.interval else ""
    return f"mean return {number(point.mean_reward)}{interval} over {amount(point.episodes, 'episode')}"


def number(value: float) -> str:
    """Four figures at most, thousands set off."""
    if not math.isfinite(value):
        return str(value)
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}"


class _Scale:
    """Places returns on a line of cells."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._width = (high - low) or 1.0

    def row(self, point: EvaluationPoint | None, baseline: EvaluationPoint | None) -> str:
        cells = [" "] * CURVE_CELLS
        if baseline is not None:
            self._fill(cells, baseline, "░")
        if point is not None:
            self._fill(cells, point, "─")
        marked = point or baseline
        if marked is not None and math.isfinite(marked.mean_reward):
            cells[self._cell(marked.mean_reward)] = "●" if point is not None else "▒"
        return "".join(cells).rstrip()

    def _fill(self, cells: list[str], point: EvaluationPoint, mark: str) -> None:
        span = _span(point)
        if span:
            first, last = self._cell(min(span)), self._cell(max(span))
            cells[first : last + 1] = [mark] * (last + 1 - first)

    def _cell(self, value: float) -> int:
        return round((value - self._low) / self._width * (CURVE_CELLS - 1))


def _span(point: EvaluationPoint) -> list[float]:
    return [value for value in (point.mean_reward, *(point.interval or ())) if math.isfinite(value)]


def _numbers(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 3))
    target = f" of {progress.env_steps_target:,}" if progress.env_steps_target is not None else ""
    cells = [
        ("env steps", f"{progress.env_steps:,}{target}"),
        ("env steps/s", _or_dash(progress.env_steps_per_s, ",.0f")),
        ("updates", _or_dash(progress.updates, ",")),
        ("updates/s", _or_dash(progress.updates_per_s, ",.0f")),
        ("replay ratio", _or_dash(progress.replay_ratio, ".2f")),
        ("policy lag", _or_dash(progress.policy_lag, ".1f")),
        ("episodes", _or_dash(progress.episodes, ",")),
        ("mean return", NOTHING if progress.mean_return is None else number(progress.mean_return)),
        ("mean length", _or_dash(progress.mean_length, ",.0f")),
        ("time", f"{progress.wall_s:,.0f} s"),
    ]
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        grid.add_row(Text(left[0], style="dim"), left[1], Text(right[0], style="dim"), right[1])
    return grid


def _components(progress: Progress) -> Table:
    columns = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for title in ("component", "state", "activity", "since", "waits on", "rate"):
        columns.add_column(title, justify="right" if title in ("since", "rate") else "left", no_wrap=True)
    for one in progress.components:
        columns.add_row(
            one.id,
            one.state,
            one.activity or NOTHING,
            NOTHING if one.since_s is None else f"{one.since_s:.1f} s",
            one.waits_on or NOTHING,
            NOTHING if one.rate is None else f"{one.rate:,.0f}/s",
        )
    return columns


def _or_dash(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _per_s(rate: float | None) -> str:
    return "" if rate is None else f" ({rate:,.0f}/s)"


def _whole(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"
