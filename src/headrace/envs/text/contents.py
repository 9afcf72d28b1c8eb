"""What problems are made of, so that one can be found in another split, whatever its id and its objects are."""

from __future__ import annotations

import copyreg
import hashlib
import itertools
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from types import FunctionType
from typing import Any

import numpy as np

from headrace.envs.text.protocol import Problem

_DEEPEST = 10_000
"""Parts of parts that are looked at. An object may say of itself that it is made of another one each time."""


@dataclass(slots=True)
class Contents:
    """What the problems of a split are made of."""

    keys: list[Hashable | None] = field(default_factory=list)
    """One for each problem, in their order, equal for those that are the same one; None: it cannot be compared."""
    opaque: dict[str, str] = field(default_factory=dict)
    """Of those that cannot be compared, by id: the first fact that cannot."""


def contents_of(*splits: Sequence[Problem]) -> tuple[Contents, ...]:
    """Openings and facts of the problems of each split, as keys; those of one call can be compared with each other.

    Numbers, texts and None count as they are, and no truth value as a number; arrays and tensors by dtype, shape and bytes,
    mappings, lists, tuples and sets by their parts, functions and classes by where they are found, and any other object by
    the parts that `pickle` would make it of again. What many problems share is looked at once.
    """
    keys = _Keys()
    return tuple(_contents(problems, keys) for problems in splits)


def _contents(problems: Sequence[Problem], keys: _Keys) -> Contents:
    found = Contents()
    for problem in problems:
        name = "what holds its facts"
        facts = set()
        try:
            for name, value in problem.facts.items():
                facts.add((name, keys.of(value)))
        except Exception:  # noqa: BLE001 - user code: whatever a fact raises while it is looked at, it cannot be compared
            found.opaque[problem.id] = str(name)
            found.keys.append(None)
            continue
        opening = tuple((message.role, message.content) for message in problem.opening)
        found.keys.append((opening, frozenset(facts)))
    return found


_Join = Callable[[list[Hashable]], Hashable]


@dataclass(slots=True)
class _Opened:
    """An object whose parts are being looked at."""

    value: Any
    kind: Hashable = None
    rest: Iterator[Any] = field(default_factory=lambda: iter(()))
    join: _Join = tuple
    keys: list[Hashable] = field(default_factory=list)
    """Of the parts before the rest."""


class _Keys:
    """Keys of objects, equal for those that are made of equal parts.

    Each way of being made has a number, which stands for it in whatever holds such an object: else a key would be as large as
    the object with all that it shares written out.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # By id, which is one as long as the object is held. None: it cannot be compared.
        self._known: dict[int, tuple[Any, Hashable | None]] = {}
        self._trusted: set[type] = set()

    def of(self, value: Any) -> Hashable:
        """The key of this object, without recursion: how deep it lies does not decide whether it can be compared.

        Raises:
            TypeError: It holds itself, is too deep, or says of itself where it lies, and not what it is made of.
            Exception: Whatever it or a part of it raises.
        """
        key = self._at_once(value)
        opened: dict[int, _Opened] = {}
        try:
            if key is None:
                self._open(value, opened)
            while opened:
                last = next(reversed(opened.values()))
                for part in last.rest:
                    key = self._at_once(part)
                    if key is None:
                        self._open(part, opened)
                        break
                    last.keys.append(key)
                else:
                    key = self._closed(last)
                    opened.popitem()
                    if opened:
                        next(reversed(opened.values())).keys.append(key)
        except Exception:
            for each in opened.values():
                self._known[id(each.value)] = (each.value, None)
            raise
        return key

    def _at_once(self, value: Any) -> Hashable | None:
        """The key of what has no parts, or is known; None: its parts have to be looked at."""
        if value is None:
            return ("none",)
        if isinstance(value, str | bytes):
            return value
        if isinstance(value, bool):  # "True" and "1" are two answers
            return ("truth", value)
        if isinstance(value, Number):
            return value if value == value else ("not a number",)  # NaN is not equal to itself
        known = self._known.get(id(value))
        if known is None:
            return None
        if known[1] is None:
            raise TypeError("cannot be compared, as seen before")
        return known[1]

    def _open(self, value: Any, opened: dict[int, _Opened]) -> None:
        if id(value) in opened:
            raise TypeError("holds itself")
        if len(opened) == _DEEPEST:
            raise TypeError("too deep")
        opened[id(value)] = made = _Opened(value)
        made.kind, parts, made.join = _parts(value)
        made.rest = iter(parts)

    def _closed(self, made: _Opened) -> Hashable:
        """The key of an object all of whose parts are known."""
        joined = (made.kind, made.join(made.keys))
        key = ("made", self._numbers.setdefault(joined, len(self._numbers)))
        if made.kind == "object":
            self._trust(made.value, key)
        self._known[id(made.value)] = (made.value, key)
        return key

    def _trust(self, value: Any, key: Hashable) -> None:
        """Have a copy looked at as well, of the first object of a class: it may tell where it lies, as none can compare."""
        kind = type(value)
        if kind in self._trusted:
            return
        copied = pickle.loads(pickle.dumps(value, protocol=4))
        self._trusted.add(kind)
        try:
            same = self.of(copied) == key
        except Exception:
            self._trusted.remove(kind)
            raise
        if not same:
            self._trusted.remove(kind)
            raise TypeError("a copy is made of something else")


def _parts(value: Any) -> tuple[Hashable, Iterable[Any], _Join]:
    """What kind it is, its parts, and how their keys are joined."""
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _parts_of_array(np.asarray(value))
    if type(value) is getattr(sys.modules.get("torch"), "Tensor", None):  # nobody has one who has not loaded it
        return _of_tensor(value), (), tuple
    if isinstance(value, Mapping):
        return "mapping", list(itertools.chain.from_iterable(value.items())), _pairs
    if isinstance(value, list | tuple):
        return "sequence", value, tuple
    if isinstance(value, set | frozenset):
        return "set", value, frozenset
    reduce = copyreg.dispatch_table.get(type(value))
    if reduce is None and isinstance(value, type | FunctionType):
        return _found(value), (), tuple
    reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if isinstance(reduced, str):
        return _found(value), (), tuple
    rest: list[Any] = [*reduced, *[None] * (6 - len(reduced))]
    function, arguments, state, items, pairs, setter = rest
    return "object", (function, arguments, state, list(items or ()), dict(pairs or ()), setter), tuple


def _pairs(keys: list[Hashable]) -> Hashable:
    return frozenset(zip(keys[::2], keys[1::2], strict=True))


def _found(value: Any) -> Hashable:
    """A function, a class or an object that there is only one of: it has a name by which everybody finds this one.

    Raises:
        TypeError: It is not the one found there.
        Exception: Nothing is found there.
    """
    if pickle.loads(pickle.dumps(value, protocol=4)) is not value:
        raise TypeError("another one has its name")
    return ("found", id(value))


def _parts_of_array(array: np.ndarray[Any, Any]) -> tuple[Hashable, Iterable[Any], _Join]:
    if array.dtype.hasobject:  # its bytes are addresses
        return ("objects", array.shape), array.ravel().tolist(), tuple
    return ("array", array.dtype, array.shape, _digest(array.tobytes())), (), tuple


def _of_tensor(tensor: Any) -> Hashable:
    torch = sys.modules["torch"]
    # As bytes: numpy does not know all of its types. Of a part of a tensor the pickle holds the whole one.
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return ("tensor", str(tensor.dtype), tuple(tensor.shape), _digest(data))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
