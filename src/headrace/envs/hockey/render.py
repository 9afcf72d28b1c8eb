"""Draws the rink into an array, with Pillow: no window, no display."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.envs.hockey.field import CENTER_X, CENTER_Y, GOAL_HALF_HEIGHT, HEIGHT, PUCK_RADIUS, SCALE, WIDTH
from headrace.envs.hockey.physics import goal_polygon, wall_polygons

Point = tuple[float, float]

_SMOOTH = 2
"""The picture is drawn this many times too large and shrunk, which smooths its edges."""

_SIZE = (int(WIDTH * SCALE) * _SMOOTH, int(HEIGHT * SCALE) * _SMOOTH)
_WHITE = (255, 255, 255)
_BLACK = (0, 0, 0)
_LINE = (204, 204, 204)
_GOAL = (128, 128, 128)
_CREASE = (239, 203, 138)
_ONE = (235, 98, 53)
_TWO = (93, 158, 199)


def draw(one: Sequence[Point], two: Sequence[Point], puck: Point) -> NDArray[np.uint8]:
    """One frame.

    Args:
        one: Corners of player one's racket, in field units.
        two: Corners of player two's racket.
        puck: Centre of the puck.

    Returns:
        uint8 [480, 600, 3], a new array.
    """
    picture = _rink().copy()
    pen = ImageDraw.Draw(picture)
    pen.polygon(_pixels(one), fill=_ONE)
    pen.polygon(_pixels(two), fill=_TWO)
    pen.ellipse(_circle(puck, PUCK_RADIUS), fill=_BLACK)
    return np.array(picture.reduce(_SMOOTH), dtype=np.uint8)


@cache
def _rink() -> Image.Image:
    """Everything that never moves; copied, not drawn into."""
    picture = Image.new("RGB", _SIZE, _WHITE)
    pen = ImageDraw.Draw(picture)
    pen.ellipse(_circle((CENTER_X, CENTER_Y), 100.0 / SCALE), fill=_LINE)
    for side in (-1.0, 1.0):
        center_x = CENTER_X + side * 250.0 / SCALE
        pen.ellipse(_circle((center_x, CENTER_Y), GOAL_HALF_HEIGHT), fill=_CREASE)
        inner_x = CENTER_X + side * 240.0 / SCALE
        outside = [(inner_x, 2.0), (inner_x + side * 2.0, 2.0), (inner_x + side * 2.0, 6.0), (inner_x, 6.0)]
        pen.polygon(_pixels(outside), fill=_WHITE)
    shapes = [(wall, _BLACK) for wall in wall_polygons()] + [(goal_polygon(side), _GOAL) for side in (-1.0, 1.0)]
    for (center, corners), color in shapes:
        pen.polygon(_pixels((center[0] + x, center[1] + y) for x, y in corners), fill=color)
    return picture


def _pixels(points: Iterable[Point]) -> list[Point]:
    """Field units, y up, to pixels, y down."""
    return [(x * SCALE * _SMOOTH, (HEIGHT - y) * SCALE * _SMOOTH) for x, y in points]


def _circle(center: Point, radius: float) -> list[Point]:
    """The box Pillow draws an ellipse into."""
    left, top = center[0] - radius, center[1] + radius
    return _pixels([(left, top), (left + 2.0 * radius, top - 2.0 * radius)])
