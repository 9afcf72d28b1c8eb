"""What problems are made of, so that one can be found in another split, whatever its id and its objects are."""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np

from headrace.envs.text.protocol import Problem


@dataclass(slots=True)
class Contents:
    """What the problems of a split are made of, by id."""

    keys: dict[str, Hashable] = field(default_factory=dict)
    """Equal for problems that are the same one."""
    opaque: dict[str, str] = field(default_factory=dict)
    """Of those that cannot be compared: the first fact that cannot."""


def contents_of(problems: Sequence[Problem]) -> Contents:
    """Openings and facts of these problems, as keys.

    Numbers, texts and None count as they are, and no truth value as a number; arrays and tensors by dtype, shape and bytes,
    mappings, lists, tuples and sets by their parts, and any other object by its pickle.
    """
    found = Contents()
    for problem in problems:
        name = "what holds its facts"
        facts = set()
        try:
            for name, value in problem.facts.items():
                facts.add((name, _key(value)))
        except Exception:  # noqa: BLE001 - user code: whatever a fact raises while it is looked at, it cannot be compared
            found.opaque[problem.id] = str(name)
            continue
        opening = tuple((message.role, message.content) for message in problem.opening)
        found.keys[problem.id] = (opening, frozenset(facts))
    return found


def _key(value: Any) -> Hashable:
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):  # "True" and "1" are two answers
        return ("truth", value)
    if isinstance(value, Number):
        return value if value == value else ("not a number",)  # NaN is not equal to itself
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _key_of_array(np.asarray(value))
    if type(value) is getattr(sys.modules.get("torch"), "Tensor", None):  # nobody has one who has not loaded it
        return _key_of_tensor(value)
    if isinstance(value, Mapping):
        return ("mapping", frozenset((_key(name), _key(part)) for name, part in value.items()))
    if isinstance(value, list | tuple):
        return ("sequence", *map(_key, value))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(map(_key, value)))
    return ("object", _digest(_pickle(value)))


def _key_of_array(array: np.ndarray[Any, Any]) -> Hashable:
    if array.dtype.hasobject:  # its bytes are addresses
        return ("objects", array.shape, _key(array.ravel().tolist()))
    return ("array", array.dtype, array.shape, _digest(array.tobytes()))


def _key_of_tensor(tensor: Any) -> Hashable:
    torch = sys.modules["torch"]
    # As bytes: numpy does not know all of its types. Of a part of a tensor the pickle holds the whole one.
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return ("tensor", str(tensor.dtype), tuple(tensor.shape), _digest(data))


def _pickle(value: Any) -> bytes:
    """Its pickle, if that says what it is made of, and not where it lies.

    Raises:
        TypeError: A copy has another one.
        Exception: Whatever the object raises.
    """
    first = _dumped(value)
    if _dumped(pickle.loads(first)) != first:
        raise TypeError("the pickle of a copy differs")
    return first


def _dumped(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=4)
    # Without references: else it would matter which of its parts are one object, and which are only equal.
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
