"""What callers hand to the environments, checked where it comes in."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.envs.cage2.network import ACTIONS
from headrace.envs.treasurehunt.checks import check_options, checked_seed

__all__ = ["check_options", "checked_action", "checked_actions", "checked_render_mode", "checked_seed", "copy_seeds"]

RENDER_MODES = ("ansi", "rgb_array")
_COUNT = len(ACTIONS)
_FIX_ACTION = f"Pass an integer from 0 to {_COUNT - 1}; headrace.envs.cage2.network.ACTIONS says what each means."


def checked_render_mode(name: str, render_mode: str | None, allowed: Sequence[str] = RENDER_MODES) -> str | None:
    """The render mode itself.

    Args:
        name: Of the environment's class, for the message.
        render_mode: What the constructor was given.
        allowed: Those there are, None apart.

    Raises:
        ConfigError: It is none of them.
    """
    if render_mode is None or render_mode in allowed:
        return render_mode
    raise ConfigError(
        f"{name} does not know render_mode {render_mode!r}",
        fix="Set render_mode to one of the allowed values.",
        allowed=", ".join(map(repr, (None, *allowed))),
    )


def checked_action(name: str, action: SupportsIndex) -> int:
    """One action, as an int.

    Raises:
        ConfigError: It is no integer from 0 to 144.
    """
    try:
        number = operator.index(action)
    except TypeError:  # whatever is no integer gets the same answer as an integer that is out of bounds
        number = -1
    if 0 <= number < _COUNT:
        return number
    raise ConfigError(f"{name} does not know this action", fix=_FIX_ACTION, found=repr(action)[:200])


def checked_actions(name: str, actions: object, count: int) -> NDArray[np.integer]:
    """The actions of all copies, as an array of integers [count].

    Raises:
        ConfigError: They are not ``count`` integers from 0 to 144.
    """
    array = np.asarray(actions)
    if array.shape == (count,) and array.dtype.kind in "iu" and not np.any((array < 0) | (array >= _COUNT)):
        return array
    raise ConfigError(
        f"{name} cannot do these actions",
        fix=_FIX_ACTION,
        expected=f"{count} integers",
        found=f"{array.dtype} array of shape {array.shape}",
    )


def copy_seeds(name: str, seed: int | Sequence[int | None] | None, copies: int) -> list[int | None]:
    """A seed for each copy: those of a list, or one number plus the copy's own.

    Raises:
        ConfigError: A seed is no integer of at least 0, or there are too many or too few.
    """
    if isinstance(seed, Sequence):
        if len(seed) != copies:
            raise ConfigError(
                f"{name} takes one seed for each copy of the network",
                fix="Pass one number for all, or a list with one for each copy.",
                found=f"{len(seed)} seeds",
                copies=copies,
            )
        return [checked_seed(name, one) for one in seed]
    first = checked_seed(name, seed)
    return [None if first is None else first + copy for copy in range(copies)]
