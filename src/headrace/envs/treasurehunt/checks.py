"""What callers hand to the environments, checked where it comes in."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.treasurehunt.world import ACTIONS

_RENDER_MODES = (None, "rgb_array")
_FIX_ACTION = "Pass 0 (up), 1 (down), 2 (left) or 3 (right)."


def checked_render_mode(name: str, render_mode: str | None) -> str | None:
    """The render mode itself.

    Args:
        name: Of the environment's class, for the message.
        render_mode: What the constructor was given.

    Raises:
        ConfigError: It is neither None nor "rgb_array".
    """
    if render_mode in _RENDER_MODES:
        return render_mode
    raise ConfigError(
        f"{name} does not know render_mode {render_mode!r}",
        fix="Set render_mode to one of the allowed values.",
        allowed=", ".join(map(repr, _RENDER_MODES)),
    )


def check_options(name: str, options: dict[str, Any] | None) -> None:
    """Refuse options of ``reset``: there are none, so one that is given would be ignored.

    Raises:
        ConfigError: There are some.
    """
    if options:
        raise ConfigError(
            f"{name} has no reset options",
            fix="Leave options away; everything that can be set is a keyword of the constructor.",
            found=options,
        )


def checked_seed(name: str, seed: object) -> int | None:
    """A seed that ``reset`` was given, as an int.

    Raises:
        ConfigError: It is neither None nor an integer of at least 0.
    """
    if seed is None:
        return None
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0:
        return int(seed)
    raise ConfigError(
        f"{name} cannot be reset with this seed",
        fix="Pass None or an integer of at least 0.",
        found=repr(seed)[:200],
    )


def checked_action(name: str, action: SupportsIndex) -> int:
    """One agent's action, as an int.

    Raises:
        ConfigError: It is no integer from 0 to 3.
    """
    try:
        number = operator.index(action)
    except TypeError:  # whatever is no integer gets the same answer as an integer that is out of bounds
        number = -1
    if 0 <= number < ACTIONS:
        return number
    raise ConfigError(f"{name} does not know this action", fix=_FIX_ACTION, found=repr(action)[:200])


def checked_actions(name: str, actions: object, count: int) -> NDArray[np.integer]:
    """The actions of many agents, as an array of integers [count].

    Raises:
        ConfigError: They are not ``count`` integers from 0 to 3.
    """
    array = np.asarray(actions)
    if array.shape == (count,) and array.dtype.kind in "iu" and not np.any((array < 0) | (array >= ACTIONS)):
        return array
    raise ConfigError(
        f"{name} cannot do these actions",
        fix=_FIX_ACTION,
        expected=f"{count} integers",
        found=f"{array.dtype} array of shape {array.shape}",
    )
