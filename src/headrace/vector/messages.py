"""What the parent and its workers tell each other beside the slab: everything that is not the same size every time."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode

from headrace.core.errors import HeadraceError
from headrace.vector.faults import Problem
from headrace.vector.infos import Form
from headrace.vector.probes import Probe
from headrace.vector.slab import Field


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is started with."""

    num_envs: int
    """Of the whole vector environment."""
    factories: dict[int, bytes]
    """By environment, pickled one by one, so that one that cannot be read is named."""
    mode: AutoresetMode
    check_finite: bool
    cast: bool
    shared: bool
    """Whether observations lie in the slab."""
    threaded: bool
    """Whether every environment has a thread of its own."""
    probes: dict[str, Probe]
    build: bool
    """Whether it builds its environments at once, or each when it is first asked."""
    eager: bool
    """Whether it may wait awake: there is a core for every process."""
    core: int | None
    """To which it keeps; None: any will do."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """Environments with the same spaces."""

    ids: tuple[int, ...]
    observation: Any
    action: Any


@dataclass(frozen=True, slots=True)
class Built:
    """From a worker: its environments are there. Pickled by `pack`, for they may hold anything."""

    spaces: list[Spaces]
    metadata: dict[str, Any]
    render_mode: str | None


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """From a worker: one of its environments could not be built."""

    env: int
    problem: Problem | HeadraceError


@dataclass(frozen=True, slots=True)
class Attach:
    """To a worker: what it shares, and how it is laid out."""

    observation_space: bytes
    action_space: bytes
    fields: list[Field]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Details:
    """To a worker: what belongs to questions that follow. Every value is `sealed`."""

    resets: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Seed and options by environment."""
    actions: dict[int, Any] = field(default_factory=dict)
    """Where actions are objects."""


@dataclass(frozen=True, slots=True)
class Extras:
    """From a worker: what belongs to answers that follow. Infos, objects, problems and probes travel `sealed`."""

    ids: list[int]
    seqs: list[int]
    infos: dict[int, Any] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    """Per environment the parts of its observation that are no arrays."""
    problems: dict[int, Any] = field(default_factory=dict)
    rows: dict[int, list[Any]] = field(default_factory=dict)
    """Where observations do not lie in the slab: per environment one array per leaf."""
    probes: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewForm:
    """From a worker: infos that follow have this form, and lie in the slab."""

    number: int
    """By which `headrace.vector.slab.Slab.note` calls it, in this worker."""
    form: Form


@dataclass(frozen=True, slots=True)
class Call:
    """To a worker: do something with each of these environments."""

    number: int
    ids: list[int]
    name: str
    """Of a method or an attribute; empty: ``data`` holds a function to call with each environment."""
    data: bytes
    """By cloudpickle: arguments and keyword arguments; to set it, the values by environment."""
    sets: bool
    """Whether the attribute is to be set."""
    gone: dict[int, int | None]
    """Environments that have failed, with the seeds of new ones that may have to answer for them."""


@dataclass(frozen=True, slots=True)
class Returned:
    """From a worker: the outcome of a `Call`."""

    number: int
    values: dict[int, Any]
    """By environment, each `sealed`."""
    problem: tuple[int, Any] | None = None
    """Environment and what is wrong, of the first for which it did not work; a `Problem` or an error of ours."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """To a worker with threads: leave the one that is stuck in this environment alone, and do not take its answer."""

    env: int
    number: int
    """Of the call that is meant; if it is over by now, nothing is to be done."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """From a worker with threads: the thread of this environment was left alone."""

    env: int
    stuck_in: str | None
    """Its innermost frame, ``fire.py:88 in spread``."""


@dataclass(frozen=True, slots=True)
class Leave:
    """To a worker: close the environments and end."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What only whoever opens it need be able to read."""

    data: bytes


def pack(message: object) -> object:
    """The message, or what carries it if it cannot be pickled as it is.

    Raises:
        Exception: Whatever pickling raises; it cannot be sent at all.
    """
    try:
        pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - pickling runs code of others, which may raise anything; cloudpickle can do more
        return Packed(cloudpickle.dumps(message))
    return message


def unpack(message: object) -> Any:
    """What `pack` or `sealed` was given.

    Raises:
        Exception: Whatever unpickling raises.
    """
    return cloudpickle.loads(message.data) if isinstance(message, Packed) else message


_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_DEEPEST = 8
_LONGEST = 64
"""Of a collection that is looked through: for more, pickling is faster."""


def _is_plain(value: Any, depth: int = _DEEPEST) -> bool:
    """Whether any process can read it: Python's and numpy's own values, and no class of anybody else's."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is np.ndarray or (issubclass(kind, np.generic) and kind.__module__ == "numpy"):
        return not value.dtype.hasobject
    if kind not in (dict, list, tuple) or not depth or len(value) > _LONGEST:
        return False
    if kind is dict and not all(type(key) in _PLAIN for key in value):
        return False
    return all(_is_plain(one, depth - 1) for one in (value.values() if kind is dict else value))


def sealed(value: Any, *, by_name: bool = False) -> Any:
    """One value that is part of a message, so that whoever reads the message can read it whatever the value is.

    Args:
        value: Of one environment.
        by_name: Whether the other process has the classes of this one, so that naming them will do. What only the main
            script of this one knows, or a notebook, is not known to a worker under any name.

    Raises:
        Exception: Whatever pickling raises; it cannot be sent at all.
    """
    if _is_plain(value):
        return value
    if by_name:
        with contextlib.suppress(Exception):  # cloudpickle can do more
            return Packed(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    return Packed(cloudpickle.dumps(value))
