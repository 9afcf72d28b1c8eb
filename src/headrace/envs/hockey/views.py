"""What a player sees of the state and what it is paid; player two's is the point mirror of player one's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.hockey.field import KEEP_STEPS, MAX_PUCK_SPEED, SCALE

PUCK_X, PUCK_VX, KEEP_OWN = 12, 14, 16
"""Where the puck's x, its velocity along x and the own keep counter lie in an observation."""

_WIN_REWARD = 10.0
_CLOSENESS_SCALE = -30.0 / (250.0 / SCALE / 2.0)

Float = TypeVar("Float", bound=np.floating)

_ORDER = [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 17, 16]
_SIGNS = [-1, -1, 1, -1, -1, 1, -1, -1, 1, -1, -1, 1, -1, -1, -1, -1, 1, 1]
_ORDERS = {size: np.array(_ORDER[:size]) for size in (16, 18)}
_SIGN_ARRAYS = {size: np.array(_SIGNS[:size], dtype=np.int8) for size in (16, 18)}


def mirror_observation(observation: NDArray[Float]) -> NDArray[Float]:
    """The same moment as the other player sees it. Mirroring twice gives the observation back.

    Args:
        observation: Shape [..., 18], or [..., 16] without keep mode.

    Returns:
        A new array of the same shape and dtype.

    Raises:
        ConfigError: If the last axis has another size.
    """
    size = observation.shape[-1] if observation.ndim else 0
    if size not in _ORDERS:
        raise ConfigError(
            "mirror_observation got something that is no hockey observation",
            fix="Pass observations of 18 numbers (16 without keep mode) along the last axis.",
            shape=observation.shape,
        )
    mirrored: NDArray[Float] = (observation[..., _ORDERS[size]] * _SIGN_ARRAYS[size]).astype(observation.dtype)
    return mirrored


def mirror_state(state: list[float]) -> list[float]:
    """`mirror_observation` for one list of Python floats, which is what the step's hot path holds."""
    x1, y1, a1, vx1, vy1, w1, x2, y2, a2, vx2, vy2, w2, px, py, pvx, pvy, *keep = state
    mirrored = [-x2, -y2, a2, -vx2, -vy2, w2, -x1, -y1, a1, -vx1, -vy1, w1, -px, -py, -pvx, -pvy]
    mirrored += keep[::-1]
    return mirrored


def information(state: Sequence[float], winner: int, limit_steps: int) -> dict[str, int | float]:
    """The ``info`` of the player whose view ``state`` is.

    Args:
        state: That player's view.
        winner: 1 if that player has won, -1 if the other has, else 0.
        limit_steps: The episode's step limit, which scales the proxies.
    """
    closeness = 0.0
    if state[PUCK_X] < 0.0 and state[PUCK_VX] <= 0.0:
        distance = math.hypot(state[0] - state[PUCK_X], state[1] - state[PUCK_X + 1])
        closeness = distance * _CLOSENESS_SCALE / limit_steps
    caught = len(state) > KEEP_OWN and state[KEEP_OWN] == KEEP_STEPS
    return {
        "winner": winner,
        "reward_closeness_to_puck": closeness,
        "reward_touch_puck": 1.0 if caught else 0.0,
        "reward_puck_direction": state[PUCK_VX] / (limit_steps * MAX_PUCK_SPEED),
    }


def reward(info: dict[str, int | float]) -> float:
    """The reward that goes with an ``info``: the end's +10, -10 or 0, plus closeness to the puck."""
    return _WIN_REWARD * info["winner"] + info["reward_closeness_to_puck"]
