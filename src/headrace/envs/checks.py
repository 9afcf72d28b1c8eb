"""What callers hand to an environment, checked where it comes in; each error names the environment's class and says what to do."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError


def checked_render_mode(name: str, render_mode: str | None, allowed: Sequence[str] = ("rgb_array",)) -> str | None:
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


def copy_seeds(name: str, seed: int | Sequence[int | None] | None, copies: int, of: str) -> list[int | None]:
    """A seed for each copy: those of a list, or one number plus the copy's own.

    Args:
        name: Of the environment's class, for the message.
        seed: What ``reset`` was given.
        copies: How many there are.
        of: What they are copies of, for the message.

    Raises:
        ConfigError: A seed is no integer of at least 0, or there are too many or too few.
    """
    if isinstance(seed, Sequence):
        if len(seed) != copies:
            raise ConfigError(
                f"{name} takes one seed for each copy of {of}",
                fix="Pass one number for all, or a list with one for each copy.",
                found=f"{len(seed)} seeds",
                copies=copies,
            )
        return [checked_seed(name, one) for one in seed]
    first = checked_seed(name, seed)
    return [None if first is None else first + copy for copy in range(copies)]


class ActionCheck:
    """What ``step`` is given, one of so many actions.

    Args:
        count: How many there are, from 0.
        fix: What to do, for the message.
    """

    def __init__(self, count: int, fix: str) -> None:
        self._count = count
        self._fix = fix

    def one(self, name: str, action: SupportsIndex) -> int:
        """One action, as an int.

        Raises:
            ConfigError: It is no integer from 0 to the last action.
        """
        try:
            number = operator.index(action)
        except TypeError:  # whatever is no integer gets the same answer as an integer that is out of bounds
            number = -1
        if 0 <= number < self._count:
            return number
        raise ConfigError(f"{name} does not know this action", fix=self._fix, found=repr(action)[:200])

    def many(self, name: str, actions: object, count: int) -> NDArray[np.integer]:
        """Many actions, as an array of integers [count].

        Raises:
            ConfigError: They are not ``count`` integers from 0 to the last action.
        """
        array = np.asarray(actions)
        if array.shape == (count,) and array.dtype.kind in "iu" and not np.any((array < 0) | (array >= self._count)):
            return array
        raise ConfigError(
            f"{name} cannot do these actions",
            fix=self._fix,
            expected=f"{count} integers",
            found=f"{array.dtype} array of shape {array.shape}",
        )
