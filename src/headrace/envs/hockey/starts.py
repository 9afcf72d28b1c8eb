"""How an episode begins: where player two and the puck are, and whether the puck is already flying."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.envs.hockey.field import CENTER_X, CENTER_Y, GOAL_HALF_HEIGHT, HEIGHT, WIDTH

NORMAL = "NORMAL"
TRAIN_SHOOTING = "TRAIN_SHOOTING"
TRAIN_DEFENSE = "TRAIN_DEFENSE"

STEP_LIMITS = {NORMAL: 250, TRAIN_SHOOTING: 80, TRAIN_DEFENSE: 80}
"""The modes, and after how many steps each one's episodes are cut."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one episode, in field units. Player one always starts at (2, 4)."""

    player_two: tuple[float, float]
    puck: tuple[float, float]
    shot_direction: tuple[float, float] | None = None


def draw_start(mode: str, starter: int, rng: np.random.Generator) -> Start:
    """Draw the start of an episode.

    Args:
        mode: ``NORMAL``, ``TRAIN_SHOOTING`` or ``TRAIN_DEFENSE``.
        starter: In whose half the puck lies in ``NORMAL``: 1 or 2. The other modes do not read it.
        rng: Where the numbers come from, in the original's order (player two, then the puck).
    """
    if mode == NORMAL:
        return Start((4.0 * WIDTH / 5.0, CENTER_Y), _resting_puck(-1.0 if starter == 1 else 1.0, rng))
    player_two = (
        4.0 * WIDTH / 5.0 + rng.uniform(-WIDTH / 3.0, WIDTH / 6.0),
        CENTER_Y + rng.uniform(-HEIGHT / 4.0, HEIGHT / 4.0),
    )
    if mode == TRAIN_SHOOTING:
        return Start(player_two, _resting_puck(-1.0, rng))
    puck = (
        CENTER_X + rng.uniform(0.0, WIDTH / 3.0),
        CENTER_Y + 0.8 * rng.uniform(-HEIGHT / 2.0, HEIGHT / 2.0),
    )
    target_y = CENTER_Y + 0.6 * rng.uniform(-GOAL_HALF_HEIGHT, GOAL_HALF_HEIGHT)
    distance = math.hypot(puck[0], puck[1] - target_y)
    return Start(player_two, puck, (-puck[0] / distance, (target_y - puck[1]) / distance))


def _resting_puck(side: float, rng: np.random.Generator) -> tuple[float, float]:
    x = CENTER_X + side * rng.uniform(HEIGHT / 8.0, HEIGHT / 4.0)
    return x, CENTER_Y + rng.uniform(-HEIGHT / 8.0, HEIGHT / 8.0)
