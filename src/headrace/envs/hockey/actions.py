"""From what the caller passed to step() to the numbers the rink works with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, NonFiniteValue

Action = NDArray[np.generic] | Sequence[float] | int | np.integer

_DISCRETE = (
    (0.0, 0.0, 0.0, 0.0),
    (-1.0, 0.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 0.0),
    (0.0, -1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, -1.0, 0.0),
    (0.0, 0.0, 1.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
)


def continuous(action: Action, size: int) -> list[float]:
    """An action vector as Python floats, clipped to [-1, 1].

    Raises:
        ConfigError: If it is not ``size`` numbers in one axis.
        NonFiniteValue: If one of them is NaN or infinite.
    """
    if not isinstance(action, np.ndarray):
        action = _as_array(action, size)
    if action.shape != (size,) or action.dtype.kind not in "fiub":
        raise _wrong_action(f"{action.dtype} array of shape {action.shape}", f"{size} numbers, shape ({size},)")
    values: list[float] = action.tolist()
    if not math.isfinite(sum(values)):
        raise NonFiniteValue(
            "HockeyEnv was given an action that is not finite",
            fix="Look for NaN in the policy's output; its parameters or its input have probably diverged.",
            action=values,
        )
    return [1.0 if value > 1.0 else -1.0 if value < -1.0 else value for value in values]


def discrete(action: Action, size: int) -> Sequence[float]:
    """The action vector that a member of the discrete set stands for.

    Raises:
        ConfigError: If ``action`` is no integer in [0, size).
    """
    if isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu":
        action = int(action)
    if isinstance(action, bool) or not isinstance(action, int | np.integer) or not 0 <= action < size:
        raise _wrong_action(repr(action), f"an integer from 0 to {size - 1}")
    return _DISCRETE[action]


def _as_array(action: Sequence[float] | int | np.integer, size: int) -> NDArray[np.generic]:
    try:
        return np.asarray(action)
    except ValueError as error:
        raise _wrong_action(repr(action), f"{size} numbers, shape ({size},)") from error


def _wrong_action(found: str, expected: str) -> ConfigError:
    return ConfigError(
        "HockeyEnv was given an action that is not in its action space",
        fix="Build the policy for env.action_space, and pass step() one action of it.",
        found=found,
        expected=expected,
    )
