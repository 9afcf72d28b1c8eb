"""The contract every environment must keep, checked where its values enter the library.

Nothing an environment returns is converted, clipped or dropped silently: what does not fit its declared space is
refused with environment, field, expected and found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.arrays import SURELY_HELD, first_too_large
from headrace.core.errors import NonFiniteValue, ObservationMismatch
from headrace.core.scalars import as_flag, as_number
from headrace.core.specs import Leaf, assemble, leaves

GOES_ON = (False, False)
"""Neither terminated nor truncated; one object, because it is made for nearly every step."""


@dataclass(frozen=True, slots=True)
class _LeafRule:
    """What the values of one leaf must be."""

    leaf: Leaf
    low: NDArray[Any] | None
    """Smallest allowed values; None where the dtype's own range is the limit, or the leaf is not of integers."""
    high: NDArray[Any] | None
    scalar: bool
    """Whether a plain Python int is as good as an array (Discrete)."""

    @property
    def wide(self) -> bool:
        """Whether there are numbers that are finite in it and infinite in float32, which is what networks see."""
        return self.leaf.dtype.kind == "f" and self.leaf.dtype.itemsize > 4

    @property
    def expected(self) -> str:
        kind = "integer" if self.scalar else f"{self.leaf.dtype} array of shape {self.leaf.shape}"
        if self.low is None or self.high is None:
            return kind
        return f"{kind}, values from {self.low.min()} to {self.high.max()}"


_SMALL_BYTES = 1024
"""Python's own `max` of so many bytes takes less time than two comparisons of numpy's."""


def _most_of(rule: _LeafRule) -> int | None:
    """The largest byte of small arrays of bytes that are from 0 to a number; None: it is no such leaf.

    A negative byte is one above 127.
    """
    if rule.low is None or rule.high is None or rule.leaf.dtype.itemsize > 1:
        return None
    size, most = int(np.prod(rule.leaf.shape)), int(rule.high.max())
    uniform = rule.low.any() == 0 and rule.high.min() == most <= 127
    return most if uniform and 0 < size <= _SMALL_BYTES else None


class ObservationCheck:
    """Verifies what ``reset()`` and ``step()`` returned against the declared space, on every step.

    Args:
        space: The observation space.
        environment: The environment's name, for messages.
        cast: Convert a wrong dtype, or a list of numbers, instead of refusing it. Shapes are never changed, and
            a conversion to integers must not change a value.
        on_cast: Called once, with one sentence, when the first value is converted.

    Raises:
        UnsupportedSpace: The space has a part that cannot be stored.
    """

    __slots__ = ("_cast", "_dtype", "_environment", "_fast", "_most", "_on_cast", "_rules", "_shape", "_space", "_wide")

    def __init__(
        self,
        space: spaces.Space[Any],
        environment: str,
        *,
        cast: bool = False,
        on_cast: Callable[[str], None] | None = None,
    ) -> None:
        self._space = space
        self._environment = environment
        self._cast = cast
        self._on_cast = on_cast
        self._rules = tuple(_rule(space, leaf) for leaf in leaves(space, "obs"))
        only = self._rules[0] if isinstance(space, spaces.Box) else None
        self._most = _most_of(only) if only else None
        self._wide = only is not None and only.wide
        self._fast = only is not None and not self._wide and (only.low is None or self._most is not None)
        self._dtype = only.leaf.dtype if only else None
        self._shape = only.leaf.shape if only else None

    def check(self, value: Any, lane: int, step: int) -> Any:
        """``value`` itself if it fits, or what it was converted to under ``cast``.

        Whether floats are finite is asked for whole chunks, by `first_non_finite`; whether float64 fits into float32 is
        asked here, for nobody may act on what would be infinite.

        Raises:
            ObservationMismatch: It does not fit; names environment, field, expected, found, lane and step.
            NonFiniteValue: A finite number in it is too large for float32.
        """
        # One array of one kind is by far the commonest case: three comparisons, no call.
        if (
            self._fast
            and type(value) is np.ndarray
            and value.dtype is self._dtype
            and value.shape == self._shape
            and (self._most is None or max(value.tobytes()) <= self._most)
        ):
            return value
        if self._wide and type(value) is np.ndarray and value.dtype is self._dtype and value.shape == self._shape:
            if not np.vdot(value, value) <= SURELY_HELD:  # as it nearly always is
                self._require_held(self._rules[0], value, lane, step)
            return value
        return self._check_leaves(value, lane, step)

    def transition(self, returned: Sequence[Any], lane: int, step: int) -> tuple[Any, float, tuple[bool, bool]]:
        """What ``step()`` returned, without info, in the form it is stored in: observation, reward, ends.

        The same as `check`, `reward` and twice `flag`, in one call where everything fits at first sight.

        Raises:
            ObservationMismatch: One of the values does not fit.
            NonFiniteValue: See `check`.
        """
        obs, reward, terminated, truncated = returned
        if (
            self._fast
            and type(obs) is np.ndarray
            and obs.dtype is self._dtype
            and obs.shape == self._shape
            and type(reward) is float
            and terminated is False
            and truncated is False
            and (self._most is None or max(obs.tobytes()) <= self._most)
        ):
            return obs, reward, GOES_ON
        obs, number = self.check(obs, lane, step), self.reward(reward, lane, step)
        return (
            obs,
            number,
            (self.flag("terminated", terminated, lane, step), self.flag("truncated", truncated, lane, step)),
        )

    def reward(self, value: Any, lane: int, step: int) -> float:
        """A reward as a float: a number, an array without dimensions, or one of shape (1,).

        Raises:
            ObservationMismatch: Anything else.
        """
        if type(value) is float:
            return value
        number = as_number(value)
        if number is None:
            raise self._mismatch("reward", "a number", _describe(value), lane, step)
        return number

    def flag(self, field: str, value: Any, lane: int, step: int) -> bool:
        """``terminated`` or ``truncated`` as a bool: a bool, 0 or 1, or an array of one such.

        Raises:
            ObservationMismatch: Anything else, None included.
        """
        flag = as_flag(value)
        if flag is None:
            raise self._mismatch(field, "a bool", _describe(value), lane, step)
        return flag

    def _check_leaves(self, value: Any, lane: int, step: int) -> Any:
        self._check_structure(self._space, value, "obs", lane, step)
        converted: dict[str, Any] = {}
        changed = False
        for rule in self._rules:
            part = rule.leaf.of(value)
            fitting = self._check_leaf(rule, part, lane, step)
            converted[rule.leaf.path] = fitting
            changed |= fitting is not part
        return assemble(self._space, converted, "obs") if changed else value

    def _check_structure(self, space: spaces.Space[Any], value: Any, path: str, lane: int, step: int) -> None:
        if isinstance(space, spaces.Dict):
            if not isinstance(value, Mapping):
                raise self._mismatch(path, "a dict", _describe(value), lane, step)
            if value.keys() != space.spaces.keys():
                raise self._mismatch(path, f"keys {list(space.spaces)}", f"keys {list(value)}", lane, step)
            for key, inner in space.spaces.items():
                self._check_structure(inner, value[key], f"{path}.{key}", lane, step)
        elif isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple | list):
                raise self._mismatch(path, "a tuple", _describe(value), lane, step)
            if len(value) != len(space.spaces):
                raise self._mismatch(path, f"{len(space.spaces)} parts", f"{len(value)} parts", lane, step)
            for place, inner in enumerate(space.spaces):
                self._check_structure(inner, value[place], f"{path}.{place}", lane, step)

    def _check_leaf(self, rule: _LeafRule, value: Any, lane: int, step: int) -> Any:
        if not _has_form(rule, value):
            value = self._convert(rule, value, lane, step)
        if rule.low is not None and rule.high is not None:
            low, high = value < rule.low, value > rule.high
            if np.any(low | high):
                outside = np.asarray(value)[np.asarray(low | high)].ravel()[0]
                raise self._mismatch(rule.leaf.path, rule.expected, f"value {outside}", lane, step)
        elif rule.wide:
            self._require_held(rule, value, lane, step)
        return value

    def _require_held(self, rule: _LeafRule, value: NDArray[Any], lane: int, step: int) -> None:
        """Refuse finite numbers that are infinite as soon as they are what a network sees, or what was declared."""
        dtype = np.float32 if rule.leaf.dtype.itemsize >= 4 else rule.leaf.dtype
        place = first_too_large(value, dtype)
        if place is None:
            return
        seen = "which is what networks see" if dtype is np.float32 else "as which it was declared"
        raise NonFiniteValue(
            f"{rule.leaf.path}: {value[place]:g} does not fit into {np.dtype(dtype)}, {seen}",
            environment=self._environment,
            field=rule.leaf.path,
            expected=f"numbers from -{np.finfo(dtype).max:g} to {np.finfo(dtype).max:g}",
            found=f"{value[place]:g} at index {place}",
            **({"lane": lane} if lane >= 0 else {}),
            step=step,
            fix="let the environment scale it, clip it or take its logarithm; nobody has acted on it",
        )

    def _convert(self, rule: _LeafRule, value: Any, lane: int, step: int) -> Any:
        found = _describe(value)
        mismatch = self._mismatch(rule.leaf.path, rule.expected, found, lane, step)
        if not self._cast:
            raise mismatch
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinity is found below, or by `first_non_finite`
                array = np.asarray(value)
                converted = array.astype(rule.leaf.dtype)
        except (TypeError, ValueError, RuntimeError):
            raise mismatch from None
        exact = rule.leaf.dtype.kind not in "iub" or np.array_equal(converted, array)
        if array.dtype.kind not in "fiub" or converted.shape != rule.leaf.shape or not exact:
            raise mismatch
        if rule.leaf.dtype.kind == "f":
            self._require_held(rule, array, lane, step)
        if self._on_cast is not None:
            kind = found if isinstance(value, np.ndarray) else type(value).__name__  # the same of every step and lane
            self._on_cast(
                f"{self._environment}: {rule.leaf.path} is converted on every step, from {kind} to {rule.expected}"
            )
            self._on_cast = None
        return converted

    def _mismatch(self, field: str, expected: str, found: str, lane: int, step: int) -> ObservationMismatch:
        fix = (
            "correct the environment's space or what it returns"
            if field in ("reward", "terminated", "truncated")
            else "correct the observation space or what the environment returns; "
            "env.cast_observations = true converts dtypes"
        )
        return ObservationMismatch(
            f"{field} does not fit what the environment declared"
            if field.startswith("obs")
            else f"{field} is unusable",
            environment=self._environment,
            field=field,
            expected=expected,
            found=found,
            **({"lane": lane} if lane >= 0 else {}),  # below 0: not a lane of the run, but an evaluation
            step=step,
            fix=fix,
        )


def first_non_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity in a chunk of values, [...] of any dtype; None if all are finite."""
    if array.dtype.kind not in "fc":
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(place) for place in np.unravel_index(int(finite.argmin()), array.shape))


def _rule(space: spaces.Space[Any], leaf: Leaf) -> _LeafRule:
    part: Any = space
    for key in leaf.keys:
        part = part.spaces[key]
    low, high = integer_range(part)
    if low is not None and high is not None and leaf.dtype.kind in "iu":
        natural = np.iinfo(leaf.dtype)
        if (low <= natural.min).all() and (high >= natural.max).all():
            low = high = None
    return _LeafRule(leaf, low, high, scalar=isinstance(part, spaces.Discrete))


def integer_range(part: Any) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Least and largest values of a space that is one array of integers, of its shape; None: it is of none."""
    if isinstance(part, spaces.Discrete):
        return np.asarray(part.start), np.asarray(part.start + part.n - 1)
    if isinstance(part, spaces.MultiDiscrete):
        return np.asarray(part.start), np.asarray(part.start + part.nvec - 1)
    if isinstance(part, spaces.MultiBinary):
        return np.zeros(part.shape, np.int8), np.ones(part.shape, np.int8)
    if part.dtype.kind in "iu":
        return part.low, part.high
    return None, None


def _has_form(rule: _LeafRule, value: Any) -> bool:
    if rule.scalar:
        if isinstance(value, int | np.integer):
            return not isinstance(value, bool)
        return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype == rule.leaf.dtype and value.shape == rule.leaf.shape


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"[:120]
