"""Spaces as JSON text, so that a policy's file says by itself what it acts on.

A space comes back with the same keys in the same order, the same dtypes and the same bits in its bounds. Its random
generator is not kept, nor whether a bound of whole numbers was given as infinite.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import RunDirectoryError, UnsupportedSpace
from headrace.core.specs import leaves

Space = spaces.Space[Any]

_OBSERVATION, _ACTION = "observation_space", "action_space"


def space_facts(observation: Space, action: Space) -> dict[str, str]:
    """Both spaces of an environment, as facts of a policy's file; `spaces_of` reads them.

    Args:
        observation: Of one frame, not stacked.
        action: Of one environment.

    Raises:
        UnsupportedSpace: See `to_json`.
    """
    return {_OBSERVATION: to_json(observation, "obs"), _ACTION: to_json(action, "action")}


def spaces_of(facts: Mapping[str, str]) -> tuple[Space, Space]:
    """Observation and action space, from what `space_facts` made.

    Raises:
        RunDirectoryError: They are missing, or not what `space_facts` makes.
    """
    if _OBSERVATION not in facts or _ACTION not in facts:
        raise RunDirectoryError(
            "the policy's file does not say on what spaces it acts",
            expected=f"{_OBSERVATION} and {_ACTION}",
            found=", ".join(sorted(facts)) or "nothing",
            fix="an older Headrace wrote it; `headrace eval RUN`, which builds the environment, can play it",
        )
    return from_json(facts[_OBSERVATION]), from_json(facts[_ACTION])


def to_json(space: Space, name: str = "obs") -> str:
    """A space as text, on one line.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of such, nested at will.
        name: What to call it in a message.

    Raises:
        UnsupportedSpace: Any other space, or a Dict with a key that is neither text nor a whole number.
    """
    leaves(space, name)  # refuses, with its place, what `_plain` does not know
    return json.dumps(_plain(space), separators=(",", ":"))


def from_json(text: str) -> Space:
    """The space that `to_json` was given.

    Raises:
        RunDirectoryError: The text is not what `to_json` makes.
    """
    try:
        return _space(json.loads(text))
    except (ValueError, TypeError, LookupError, OverflowError, AssertionError) as error:
        raise RunDirectoryError(
            "a stored space cannot be read",
            found=text if len(text) <= 200 else f"{text[:200]} ...",
            problem=f"{type(error).__name__}: {error}",
            fix="copy the file again from the run it belongs to, or take another version of the policy",
        ) from None


def _plain(space: Space) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": [[_key(key), _plain(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [_plain(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Box):
        low, high = _bits(space.low), _bits(space.high)
        return {"kind": "Box", "dtype": space.dtype.str, "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "dtype": np.dtype(space.dtype).str, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"kind": "MultiDiscrete", "dtype": np.dtype(space.dtype).str, "nvec": nvec, "start": start}
    assert isinstance(space, spaces.MultiBinary)
    return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}


def _key(key: Any) -> str | int:
    if type(key) is str or type(key) is int:
        return key
    raise UnsupportedSpace(
        "the key of a Dict space cannot be written into a policy's file",
        expected="text or a whole number",
        found=f"{type(key).__name__}: {key!r}",
        fix="wrap the environment so that the keys of its Dict spaces are text",
    )


def _bits(bound: NDArray[Any]) -> str:
    """The bytes of a bound; of a single element where all are the same bit for bit."""
    raw = np.ascontiguousarray(bound).tobytes()
    one = raw[: bound.dtype.itemsize]
    return base64.b64encode(one if one * bound.size == raw else raw).decode()


def _space(plain: Any) -> Space:
    _expect(type(plain) is dict and plain.get("kind") in _KINDS, f"an object of kind {', '.join(_KINDS)}", plain)
    return _KINDS[plain.pop("kind")](**plain)  # a key too many or too few is a TypeError


def _dict(*, parts: Any) -> Space:
    _expect(type(parts) is list and all(type(part) is list and len(part) == 2 for part in parts), "pairs", parts)
    inner = OrderedDict((key, _space(plain)) for key, plain in parts)  # a plain dict would be sorted
    _expect(all(type(key) in (str, int) for key in inner) and len(inner) == len(parts), "different keys", parts)
    return spaces.Dict(inner)


def _tuple(*, parts: Any) -> Space:
    _expect(type(parts) is list, "a list", parts)
    return spaces.Tuple([_space(plain) for plain in parts])


def _box(*, dtype: Any, shape: Any, low: Any, high: Any) -> Space:
    kind, sizes = _dtype(dtype, "biuf"), tuple(_whole_numbers(shape).tolist())
    return spaces.Box(_bound(low, kind, sizes), _bound(high, kind, sizes), sizes, kind)


def _discrete(*, dtype: Any, n: Any, start: Any) -> Space:
    _expect(type(n) is int and type(start) is int, "whole numbers", (n, start))
    return spaces.Discrete(n, start=start, **_unless_usual(dtype))


def _multi_discrete(*, dtype: Any, nvec: Any, start: Any) -> Space:
    kind, counts, first = _dtype(dtype, "iu"), _whole_numbers(nvec), _whole_numbers(start)
    _expect(counts.shape == first.shape, "as many first values as counts", (nvec, start))
    return spaces.MultiDiscrete(counts, dtype=kind.type, start=first)


def _multi_binary(*, n: Any) -> Space:
    return spaces.MultiBinary(n if type(n) is int else _whole_numbers(n).tolist())


_KINDS: Mapping[str, Callable[..., Space]] = MappingProxyType(
    {
        "Box": _box,
        "Discrete": _discrete,
        "MultiDiscrete": _multi_discrete,
        "MultiBinary": _multi_binary,
        "Dict": _dict,
        "Tuple": _tuple,
    }
)


def _dtype(text: Any, kinds: str) -> np.dtype[Any]:
    dtype = np.dtype(text if type(text) is str else "O")
    _expect(dtype.kind in kinds and dtype.str == text, f"a dtype of kind {kinds}", text)
    return dtype


def _unless_usual(text: Any) -> dict[str, Any]:
    """The argument ``dtype`` of Discrete, which not every Gymnasium has."""
    dtype = _dtype(text, "iu")
    return {} if dtype == np.int64 else {"dtype": dtype.type}


def _whole_numbers(plain: Any) -> NDArray[np.int64]:
    """A list, or a list of lists of equal length, of whole numbers."""
    array = np.array(plain if plain != [] else np.zeros(0, np.int64))
    _expect(type(plain) is list and array.dtype == np.int64, "a list of whole numbers", plain)
    return array


def _bound(text: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    raw = base64.b64decode(text, validate=True)
    array = np.frombuffer(raw, dtype)
    if array.size == 1:
        return np.full(shape, array[0], dtype)
    return array.reshape(shape).copy()  # writable, as Gymnasium expects


def _expect(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ValueError(f"expected {expected}, found {found!r}"[:300])
