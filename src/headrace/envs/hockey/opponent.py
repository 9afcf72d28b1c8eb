"""The rule-based opponent: a PD controller that gets behind the puck and pushes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.envs.hockey.field import MAX_ANGLE, REACH

_BRAKE_S = 0.1
_DAMPING = 0.5


class BasicOpponent:
    """Plays one side from that side's own view of the game.

    Args:
        weak: True for gain 0.5, False for gain 10.
        keep_mode: Whether the observation has keep counters and the action a shoot entry.
        rng: Where the racket's swinging comes from; None takes fresh entropy from the system.
    """

    def __init__(self, weak: bool = True, keep_mode: bool = True, rng: np.random.Generator | None = None) -> None:
        self.weak = weak
        self.keep_mode = keep_mode
        self._rng = np.random.default_rng() if rng is None else rng
        self._gain = 0.5 if weak else 10.0
        self._phase = 0.0
        self.reset()

    def reset(self) -> None:
        """Draw the racket's phase anew, for a new episode."""
        self._phase = self._rng.random() * math.pi

    def act(self, obs: Sequence[float] | NDArray[np.floating]) -> list[float]:
        """Choose an action.

        Args:
            obs: This player's own view: 18 numbers, 16 without keep mode.

        Returns:
            [force x, force y, torque] in [-1, 1], and shoot (0 or 1) in keep mode.
        """
        view: Sequence[float] = obs.tolist() if isinstance(obs, np.ndarray) else obs
        x, y, angle, vx, vy, spin = view[:6]
        target_x, target_y = _target(view)
        self._phase += self._rng.random() * 0.2
        target_angle = MAX_ANGLE * math.sin(self._phase)
        gain = self._gain
        action = [
            _control(target_x - x, vx, gain, _BRAKE_S),
            _control(target_y - y, vy, gain / 5.0, _BRAKE_S),
            _control(target_angle - angle, spin, gain / 2.0, _BRAKE_S * 10.0),
        ]
        if self.keep_mode:
            action.append(1.0 if 0.0 < view[16] < 7.0 else 0.0)
        return action


def _target(view: Sequence[float]) -> tuple[float, float]:
    """Where the racket wants to be."""
    puck_x, puck_y, puck_vx, puck_vy = view[12:16]
    if puck_vx >= 0.5:
        return -REACH, 0.0
    x, y = view[0], view[1]
    if x < puck_x and abs(y - puck_y) < 0.5:
        distance = math.hypot(x - puck_x, y - puck_y)
        return puck_x + 0.2, puck_y + puck_vy * distance * 0.1
    return -REACH, puck_y


def _control(error: float, velocity: float, gain: float, brake_s: float) -> float:
    """PD control that damps only when the target would be reached within ``brake_s`` seconds."""
    value = error * gain
    if abs(error) < brake_s * abs(velocity + 0.01):
        value -= velocity * _DAMPING
    return min(max(value, -1.0), 1.0)
