"""The field's measures and the numbers several modules share. Lengths are field units, 60 pixels each."""

from __future__ import annotations

import math

SCALE = 60.0
"""Pixels of the drawn picture per field unit."""

WIDTH = 10.0
HEIGHT = 8.0
CENTER_X = WIDTH / 2.0
CENTER_Y = HEIGHT / 2.0
GOAL_HALF_HEIGHT = 75.0 / SCALE
PUCK_RADIUS = 13.0 / SCALE
REACH = 210.0 / SCALE
"""How far from the centre line a player may go."""

FPS = 50
MAX_ANGLE = math.pi / 3.0
MAX_PUCK_SPEED = 25.0
KEEP_STEPS = 15
"""Steps a caught puck stays with its player; the counter's value on the step of the catch."""
