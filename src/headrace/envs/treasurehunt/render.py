"""Draws a map and the agents on it into an array, with Pillow: no window, no display."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.envs.treasurehunt.views import AGENT, BONE, EMPTY, FOOD, GEM, WALL

FPS = 6
"""Turns a second at which an epoch is pleasant to watch."""

TILE = 24
"""Pixels along each side of a cell."""

_SMOOTH = 4
"""A tile is drawn this many times too large and shrunk, which smooths its edges."""
_SIDE = TILE * _SMOOTH

_SAND = (236, 219, 170)
_GRAIN = (221, 201, 147)
_WALL = (92, 88, 96)
_JOINT = (58, 55, 62)
_GEM = (20, 184, 196)
_GEM_LIGHT = (170, 242, 244)
_FOOD = (206, 44, 52)
_LEAF = (60, 140, 60)
_BONE = (252, 252, 248)
_OUTLINE = (70, 64, 60)

Pen = ImageDraw.ImageDraw


def draw(codes: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """One frame.

    Args:
        codes: What lies in each cell, in the codes of `views`, [H, W].
        places: Row and column of each agent, [A, 2]; each number has a colour of its own.

    Returns:
        uint8 [H * 24, W * 24, 3], a new array.
    """
    tiles = _tiles()[codes]  # [H, W, TILE, TILE, 3]
    for number, (row, column) in enumerate(places.tolist()):
        tiles[row, column] = _agent(number)
    height, width = codes.shape
    return tiles.swapaxes(1, 2).reshape(height * TILE, width * TILE, 3)


@cache
def _tiles() -> NDArray[np.uint8]:
    """A tile for each code, [codes, TILE, TILE, 3]; read only."""
    painters: dict[int, Callable[[Pen], None]] = {
        EMPTY: lambda pen: None,
        GEM: _paint_gem,
        FOOD: _paint_food,
        BONE: _paint_bone,
        WALL: _paint_wall,
        AGENT: lambda pen: None,  # drawn by number
    }
    return np.stack([_tile(painters[code]) for code in sorted(painters)])


@cache
def _agent(number: int) -> NDArray[np.uint8]:
    """The tile of one agent; read only."""
    hue = (0.78 + 0.618 * number) % 1.0  # steps of the golden ratio: neighbours in number are far apart in colour
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, 0.85))

    def paint(pen: Pen) -> None:
        pen.ellipse(_box(0.5, 0.5, 0.42), fill=(red, green, blue), outline=_OUTLINE, width=_SMOOTH)
        for x in (0.36, 0.64):
            pen.ellipse(_box(x, 0.42, 0.11), fill=(255, 255, 255))
            pen.ellipse(_box(x, 0.44, 0.05), fill=(0, 0, 0))

    return _tile(paint)


def _tile(paint: Callable[[Pen], None]) -> NDArray[np.uint8]:
    picture = Image.new("RGB", (_SIDE, _SIDE), _SAND)
    pen = ImageDraw.Draw(picture)
    for x, y in ((0.12, 0.2), (0.55, 0.1), (0.85, 0.4), (0.3, 0.6), (0.7, 0.75), (0.15, 0.88)):
        pen.ellipse(_box(x, y, 0.03), fill=_GRAIN)
    paint(pen)
    return np.array(picture.reduce(_SMOOTH), dtype=np.uint8)


def _paint_wall(pen: Pen) -> None:
    pen.rectangle((0, 0, _SIDE, _SIDE), fill=_WALL)
    for row in range(3):
        y = row * _SIDE // 3
        pen.line((0, y, _SIDE, y), fill=_JOINT, width=_SMOOTH)
        x = _SIDE // 4 if row % 2 else 3 * _SIDE // 4
        pen.line((x, y, x, y + _SIDE // 3), fill=_JOINT, width=_SMOOTH)


def _paint_gem(pen: Pen) -> None:
    pen.polygon(_points((0.5, 0.12), (0.88, 0.45), (0.5, 0.9), (0.12, 0.45)), fill=_GEM, outline=_OUTLINE)
    pen.polygon(_points((0.5, 0.2), (0.66, 0.45), (0.5, 0.78), (0.34, 0.45)), fill=_GEM_LIGHT)


def _paint_food(pen: Pen) -> None:
    pen.ellipse(_box(0.5, 0.58, 0.32), fill=_FOOD, outline=_OUTLINE, width=_SMOOTH)
    pen.polygon(_points((0.5, 0.28), (0.62, 0.08), (0.78, 0.14), (0.66, 0.28)), fill=_LEAF)


def _paint_bone(pen: Pen) -> None:
    knobs = ((0.2, 0.68), (0.32, 0.8), (0.68, 0.2), (0.8, 0.32))
    for grow, colour in ((0.03, _OUTLINE), (0.0, _BONE)):  # the outline first, under the whole shape
        for x, y in knobs:
            pen.ellipse(_box(x, y, 0.13 + grow), fill=colour)
        pen.line(_points((0.26, 0.74), (0.74, 0.26)), fill=colour, width=round((0.14 + 2 * grow) * _SIDE))


def _box(x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    """The box Pillow draws a circle into; shares of a tile."""
    left, top, right, bottom = (_SIDE * edge for edge in (x - radius, y - radius, x + radius, y + radius))
    return left, top, right, bottom


def _points(*points: tuple[float, float]) -> list[tuple[float, float]]:
    return [(_SIDE * x, _SIDE * y) for x, y in points]
