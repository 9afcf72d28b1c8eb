"""The learning curves of a twin report as a picture: mean and band of every schedule over environment steps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from headrace.monitor.logplot import FAINT, GRID, INK, PAPER, Axis, bounds, font, labelled

WIDTH, HEIGHT = 900, 540
LEFT, RIGHT, TOP, BOTTOM = 90, 24, 72, 56
"""Room around the axes, in pixels."""
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "inline": (11, 98, 164),
    "async": (207, 92, 24),
    "lockstep": (60, 130, 70),
}
_BAND_ALPHA = 56


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """One schedule, ready to draw."""

    schedule: str
    points: Sequence[tuple[int, float, float, float]]
    """(environment steps, mean, lowest, highest), oldest first."""
    runs: int


def render(curves: Sequence[DrawnCurve], random: float | None, title: str) -> Image.Image | None:
    """The picture; None if there is no point to draw.

    Args:
        curves: Drawn in this order, the last on top.
        random: Mean return of random play, a dashed line; None: not known.
        title: In the top line.
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    values = [value for curve in curves for point in curve.points for value in point[1:]]
    values += [random] if random is not None else []
    steps = [0.0, *(float(point[0]) for curve in curves for point in curve.points)]
    x_axis = Axis(*bounds(steps, 0.0), LEFT, WIDTH - RIGHT)
    y_axis = Axis(*bounds(values, 0.06), HEIGHT - BOTTOM, TOP)
    picture = Image.new("RGBA", (WIDTH, HEIGHT), PAPER)
    _draw_axes(ImageDraw.Draw(picture), x_axis, y_axis)
    for curve in curves:
        picture = Image.alpha_composite(picture, _band(curve, x_axis, y_axis))
    pen = ImageDraw.Draw(picture)
    if random is not None:
        _draw_dashes(pen, x_axis, y_axis.at(random))
    for curve in curves:
        _draw_curve(pen, curve, x_axis, y_axis)
    pen.text((16, 12), title, fill=INK, font=font(18))
    _draw_legend(pen, curves, random)
    return picture.convert("RGB")


def png(picture: Image.Image) -> bytes:
    """The content of its file."""
    written = io.BytesIO()
    picture.save(written, format="PNG")
    return written.getvalue()


def _draw_axes(pen: ImageDraw.ImageDraw, x_axis: Axis, y_axis: Axis) -> None:
    small = font(13)
    for value, text in labelled(y_axis):
        pen.line([(x_axis.start, y_axis.at(value)), (x_axis.end, y_axis.at(value))], fill=GRID)
        pen.text((x_axis.start - 8, y_axis.at(value)), text, fill=FAINT, font=small, anchor="rm")
    for value, text in labelled(x_axis):
        pen.line([(x_axis.at(value), y_axis.start), (x_axis.at(value), y_axis.start + 4)], fill=FAINT)
        pen.text((x_axis.at(value), y_axis.start + 8), text, fill=FAINT, font=small, anchor="mt")
    pen.line([(x_axis.start, y_axis.end), (x_axis.start, y_axis.start), (x_axis.end, y_axis.start)], fill=FAINT)
    middle = (x_axis.start + x_axis.end) / 2
    pen.text((middle, y_axis.start + 28), "environment steps", fill=FAINT, font=small, anchor="mt")
    pen.text((16, TOP - 22), "mean return", fill=FAINT, font=small)


def _band(curve: DrawnCurve, x_axis: Axis, y_axis: Axis) -> Image.Image:
    """Where its runs lie, from the lowest to the highest, on a layer of its own."""
    layer = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    upper = [(x_axis.at(at), y_axis.at(high)) for at, _, _, high in curve.points]
    lower = [(x_axis.at(at), y_axis.at(low)) for at, _, low, _ in curve.points]
    if len(upper) > 1:
        ImageDraw.Draw(layer).polygon([*upper, *reversed(lower)], fill=(*COLOURS[curve.schedule], _BAND_ALPHA))
    return layer


def _draw_curve(pen: ImageDraw.ImageDraw, curve: DrawnCurve, x_axis: Axis, y_axis: Axis) -> None:
    points = [(x_axis.at(at), y_axis.at(mean)) for at, mean, _, _ in curve.points]
    pen.line(points, fill=COLOURS[curve.schedule], width=3, joint="curve")
    for x, y in points:
        pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=COLOURS[curve.schedule])


def _draw_dashes(pen: ImageDraw.ImageDraw, x_axis: Axis, y: float) -> None:
    for x in range(int(x_axis.start), int(x_axis.end), 12):
        pen.line([(x, y), (min(x + 6, x_axis.end), y)], fill=FAINT, width=2)


def _draw_legend(pen: ImageDraw.ImageDraw, curves: Sequence[DrawnCurve], random: float | None) -> None:
    x, y, small = float(LEFT + 40), TOP - 15, font(14)
    for curve in curves:
        runs = f"{curve.runs} seeds, lowest to highest" if curve.runs > 1 else "1 seed"
        text = f"{curve.schedule} ({runs})"
        pen.line([(x, y), (x + 26, y)], fill=COLOURS[curve.schedule], width=3)
        pen.text((x + 34, y), text, fill=INK, font=small, anchor="lm")
        x += 34 + pen.textlength(text, font=small) + 28
    if random is not None:
        pen.line([(x, y), (x + 6, y)], fill=FAINT, width=2)
        pen.line([(x + 12, y), (x + 18, y)], fill=FAINT, width=2)
        pen.text((x + 34, y), "random play", fill=INK, font=small, anchor="lm")
