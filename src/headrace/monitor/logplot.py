"""The numbers of a log as a picture: one small panel a number, over the log's own counter or over time."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from headrace.core.errors import ConfigError
from headrace.monitor.logfindings import number
from headrace.monitor.lognumbers import LOSSES, SCORES, UPDATES, Numbers, Series
from headrace.monitor.logphrases import leaf

MOST_PANELS = 12
COLUMNS = 3
WIDTH, HEIGHT = 440, 270
"""Of a panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 72, 18, 40, 42
"""Room around the axes of a panel, in pixels."""
HEAD = 44

INK, FAINT, GRID, PAPER = "#22303c", "#6b7884", "#e3e8ec", "#ffffff"
RAW, CURVE = "#a9cbe6", "#0b62a4"
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, slots=True)
class Panel:
    """One curve, ready to draw."""

    title: str
    x_label: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A stretch of numbers on a stretch of pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def check_plot_path(path: Path) -> None:
    """Refuse a place where no picture can be written, before a long watch.

    Raises:
        ConfigError: It is no PNG, or its folder does not exist.
    """
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {path} is no PNG", fix=f"write --plot {shlex.quote(str(path.with_suffix('.png')))}")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"--plot {path} cannot be written", fix="name a file in a folder that exists")


def draw(numbers: Numbers, path: Path, title: str) -> bool:
    """Draw the numbers that say most; at once, so that a reader of the file never sees half a picture.

    Returns:
        False if no number has been read twice; then there is no picture.

    Raises:
        ConfigError: The picture cannot be written.
    """
    chosen = panels(numbers)
    if not chosen:
        return False
    picture = render(chosen, title)
    half = path.with_name(f".{path.name}.part")
    try:
        picture.save(half, format="PNG")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise ConfigError(
            f"--plot {path} cannot be written", reason=error.strerror, fix="name a file in a folder you may write to"
        ) from None
    return True


def panels(numbers: Numbers) -> list[Panel]:
    """The curves worth a panel: scores, losses, progress, then the rest by how often they were read."""
    axis = numbers.axis()
    axis = axis if axis is not None and axis.is_counter else None
    worth = [
        series
        for series in numbers.series.values()
        if series is not axis and len(series.points) > 1 and math.isfinite(series.lowest)
    ]
    return [_panel(series, axis) for series in sorted(worth, key=_rank)[:MOST_PANELS]]


def render(chosen: Sequence[Panel], title: str) -> Image.Image:
    """The picture of some panels; at least one."""
    columns = min(COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    picture = Image.new("RGB", (columns * WIDTH, HEAD + rows * HEIGHT), PAPER)
    pen = ImageDraw.Draw(picture)
    pen.text((16, 14), title, fill=INK, font=font(18))
    for place, panel in enumerate(chosen):
        _draw_panel(pen, panel, (place % columns) * WIDTH, HEAD + (place // columns) * HEIGHT)
    return picture


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two bounds: steps of 1, 2 or 5 times a power of ten, at most ``most`` of them."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor * most >= (high - low) * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)][: most + 1]


def tick_text(value: float, step: float, biggest: float) -> str:
    """A tick's number, short: ``20k``, ``1.5M``, ``0.025``.

    Args:
        value: The number.
        step: From one tick to the next; says how many digits are needed.
        biggest: On the whole axis; says the unit, so that all ticks have the same.
    """
    if value == 0:
        return "0"
    for bound, scale, unit in ((1e9, 1e9, "G"), (2e6, 1e6, "M"), (1e4, 1e3, "k")):
        if biggest >= bound:
            return f"{value / scale:.6g}{unit}"
    if biggest < 1e-3:
        return f"{value:.2g}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def smoothed(ys: Sequence[float]) -> list[float]:
    """The mean of the readings around each reading, a twentieth of all of them."""
    half = len(ys) // 40
    sums = [0.0, *itertools.accumulate(ys)]
    spans = ((max(0, i - half), min(len(ys), i + half + 1)) for i in range(len(ys)))
    return [(sums[end] - sums[start]) / (end - start) for start, end in spans]


def _rank(series: Series) -> tuple[bool, int, int, str]:
    name = leaf(series.name)
    order = (SCORES, LOSSES, UPDATES)
    group = next((i for i, pattern in enumerate(order) if pattern.fullmatch(name)), len(order))
    return series.lowest == series.highest and group > 1, group, -series.count, series.name


def _panel(series: Series, axis: Series | None) -> Panel:
    points = [point for point in series.points if math.isfinite(point.value)]
    stepped = [point for point in points if point.step is not None]
    use_step = axis is not None and 2 * len(stepped) > len(points)
    chosen = stepped if use_step else points
    xs = [point.step or 0.0 for point in chosen] if use_step else [point.at_s for point in chosen]
    label = axis.name if use_step and axis is not None else "seconds"
    if not use_step:
        xs = [x - xs[0] for x in xs]
    if xs[0] == xs[-1]:  # a log without times that was read at once
        xs, label = [float(i) for i in range(len(xs))], "reading"
    return Panel(f"{series.name}  {number(series.last)}", label, xs, [point.value for point in chosen])


def _draw_panel(pen: ImageDraw.ImageDraw, panel: Panel, left: int, top: int) -> None:
    x_axis = Axis(*bounds(panel.xs, 0.0), left + LEFT, left + WIDTH - RIGHT)
    y_axis = Axis(*bounds(panel.ys, 0.06), top + HEIGHT - BOTTOM, top + TOP)
    small = font(12)
    pen.text((left + LEFT, top + 14), _shortened(panel.title), fill=INK, font=font(14))
    for value, text in labelled(y_axis):
        pen.line([(x_axis.start, y_axis.at(value)), (x_axis.end, y_axis.at(value))], fill=GRID)
        pen.text((x_axis.start - 8, y_axis.at(value)), text, fill=FAINT, font=small, anchor="rm")
    for value, text in labelled(x_axis):
        pen.line([(x_axis.at(value), y_axis.start), (x_axis.at(value), y_axis.start + 4)], fill=FAINT)
        pen.text((x_axis.at(value), y_axis.start + 7), text, fill=FAINT, font=small, anchor="mt")
    pen.line([(x_axis.start, y_axis.end), (x_axis.start, y_axis.start), (x_axis.end, y_axis.start)], fill=FAINT)
    middle = (x_axis.start + x_axis.end) / 2
    pen.text((middle, y_axis.start + 23), panel.x_label, fill=FAINT, font=small, anchor="mt")
    many = len(panel.ys) > 60
    for ys, colour, width in ((panel.ys, RAW if many else CURVE, 1 if many else 2), (smoothed(panel.ys), CURVE, 2)):
        for stretch in _stretches(panel.xs, ys) if many or ys is panel.ys else ():
            pen.line([(x_axis.at(x), y_axis.at(y)) for x, y in stretch], fill=colour, width=width, joint="curve")


def _stretches(xs: Sequence[float], ys: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """The curve, cut where its counter began anew: a line back across the panel would say nothing."""
    stretch: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        if stretch and x < stretch[-1][0]:
            yield stretch
            stretch = []
        stretch.append((x, y))
    yield stretch


def labelled(axis: Axis) -> list[tuple[float, str]]:
    """Where an axis has its ticks, and what stands beside them."""
    values = ticks(axis.low, axis.high)
    step = values[1] - values[0] if len(values) > 1 else abs(axis.high - axis.low)
    biggest = max(abs(axis.low), abs(axis.high))
    return [(value, tick_text(value, step, biggest)) for value in values]


def bounds(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Where an axis begins and ends: a margin beyond the values, as a share of their spread."""
    low, high = min(values), max(values)
    room = (high - low) * margin
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value only: the axis needs a length
        room = abs(high) / 2 or 0.5
    return low - room, high + room


def _shortened(title: str, most: int = 46) -> str:
    return title if len(title) <= most else "…" + title[1 - most :]


def font(pixels: int) -> Font:
    """The font that comes with Pillow, so tall."""
    return ImageFont.load_default(pixels)
