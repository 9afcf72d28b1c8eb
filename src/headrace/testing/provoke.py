"""An environment that misbehaves once, at a place that was chosen.

For crash tables in tests, and for ``headrace faults``: it goes around the user's own environment and passes
everything through until its `Plan` is due. Which lane it serves it knows from the seed of its first reset, so that
nothing of the run has to be changed for it.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.core import seeding
from headrace.core.specs import Leaf, assemble, leaves
from headrace.envs.contract import integer_range

WORDS = "provoked by headrace: burn map corrupt, tile 7"
"""What a provoked exception says."""

PRINTED_BYTES = 256 * 1024
LEAKED_BYTES = 256 * 1024
FOR_EVER_S = 600.0
NOT_A_LANE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes wrong, and where."""

    what: str
    """A key of `ENDS`, `VALUES` or `GOING_ON`."""
    place: str = "step"
    """``import``, ``construct``, ``reset``, ``step`` or ``close``."""
    at: int = 1
    """Which one, from 1 on: of the environment's resets or steps, or of all times that anyone builds it."""
    lane: int = 1
    """In which lane; `NOT_A_LANE`: where no lane is served, as in an evaluation. Ignored for import and construct."""
    lanes: int = 2
    """Of the run."""
    seed: int = 0
    """Of the run."""
    component: str = ""
    """Who has to be importing or constructing, e.g. ``collector-1``; empty: anybody. Linux only."""
    marker: str
    """A file that is made when it happens, and tells where; while it exists, nothing goes wrong any more."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """As arguments that fit into a configuration file."""
        return {name: getattr(self, name) for name in self.__slots__}


class RefusesToTravel(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


# What ends or holds a process.


def _raise() -> NoReturn:
    raise ValueError(WORDS)


def _raise_unpicklable() -> NoReturn:
    raise RefusesToTravel(WORDS)


def _crash() -> None:
    ctypes.string_at(0)


def _loop() -> NoReturn:
    while True:
        pass


def _sleep() -> None:
    select.select([], [], [], FOR_EVER_S)


def _hold_the_interpreter() -> None:
    collections.deque(itertools.repeat(None), maxlen=0)  # C code that never looks up


ENDS: Mapping[str, Callable[[], object]] = {
    "raises": _raise,
    "unpicklable": _raise_unpicklable,
    "exit-0": lambda: os._exit(0),
    "exit-3": lambda: os._exit(3),
    "sys-exit": sys.exit,
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": _crash,
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": _loop,
    "sleep": _sleep,
    "gil": _hold_the_interpreter,
}
"""What happens instead of the call."""

STALLS = ("sigstop", "loop", "sleep", "gil")
"""Those of `ENDS` after which the process is still there."""


# What an environment returns that it must not.


def _set_first(value: Any, number: float) -> Any:
    changed = np.array(value)
    changed.reshape(-1)[:1] = number
    return changed


def _beyond(space: spaces.Space[Any], leaf: Leaf, value: Any) -> Any:
    """With the first number for which there is room beyond its own limit in the dtype."""
    part: Any = space
    for key in leaf.keys:
        part = part.spaces[key]
    (low, high), natural = integer_range(part), np.iinfo(leaf.dtype)
    for limits, last, beyond in ((high, natural.max, 1), (low, natural.min, -1)):
        places = np.flatnonzero(np.asarray(limits) != last)
        if places.size:
            changed = np.array(value)
            changed.flat[places[0]] = int(np.asarray(limits).flat[places[0]]) + beyond
            return changed[()]
    return None


def _other_dtype(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value).astype(np.float32 if leaf.dtype != np.float32 else np.float64)


@dataclass(frozen=True, slots=True)
class _Change:
    """How one value is spoiled."""

    kinds: str
    """Kinds of dtype it can be done to."""
    change: Callable[[spaces.Space[Any], Leaf, Any], Any]
    """The spoiled value; None if this leaf cannot be spoiled so."""


VALUES: Mapping[str, _Change] = {
    "wrong-shape": _Change("fiub", lambda _space, _leaf, value: np.asarray(value)[None, None]),
    "wrong-dtype": _Change("fiub", lambda _space, leaf, value: _other_dtype(leaf, value)),
    "out-of-range": _Change("iu", _beyond),
    "nan-observation": _Change("f", lambda _space, _leaf, value: _set_first(value, np.nan)),
    "infinite-observation": _Change("f", lambda _space, _leaf, value: _set_first(value, -np.inf)),
}
"""Spoiled observations. The first leaf of the space for which it can be done is taken."""

REWARDS: Mapping[str, float] = {"nan-reward": float("nan"), "infinite-reward": float("inf")}

GOING_ON = ("prints", "leaks")
"""What begins at the chosen place and then goes on in every step."""


class Provoked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The wrapper.

    Args:
        env: The user's environment.
        plan: What shall go wrong.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], plan: Plan) -> None:
        super().__init__(env)
        self._plan = plan
        self._serves: int | None = None
        self._counts = {"reset": 0, "step": 0, "close": 0}
        self._at_it = False
        self._leaked: list[bytearray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment, unless the plan is due."""
        if self._serves is None:
            self._serves = self._lane_of(seed)
        due = self._due("reset")
        if due:
            self._happen()
        obs, info = self.env.reset(seed=seed, options=options)
        return (self._spoil(obs) if due else obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment, unless the plan is due."""
        due = self._due("step")
        if due or self._at_it:
            self._happen()
        obs, reward, terminated, truncated, info = self.env.step(action)
        if due:
            obs, reward = self._spoil(obs), REWARDS.get(self._plan.what, reward)
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """As the environment, unless the plan is due."""
        if self._due("close"):
            self._happen()
        super().close()

    def _lane_of(self, seed: int | None) -> int:
        """The lane whose first episode has this seed."""
        run_seed, lanes = self._plan.seed, range(self._plan.lanes)
        mine = (lane for lane in lanes if seeding.integer(run_seed, "environment", lane, 0) == seed)
        return next(mine, NOT_A_LANE)

    def _due(self, place: str) -> bool:
        self._counts[place] += 1
        plan = self._plan
        if plan.place != place or self._counts[place] != plan.at or self._serves != plan.lane:
            return False
        if plan.what in VALUES and self._leaf() is None:
            return False
        return claim(plan.marker)

    def _happen(self) -> None:
        what = self._plan.what
        if what in ENDS:
            ENDS[what]()
        elif what == "prints":
            self._at_it = True
            os.write(1, b"o" * (PRINTED_BYTES - 1) + b"\n")
        elif what == "leaks":
            self._at_it = True
            self._leaked.append(bytearray(os.urandom(1)) * LEAKED_BYTES)

    def _leaf(self) -> Leaf | None:
        change = VALUES[self._plan.what]
        example = self.observation_space.sample()
        for leaf in leaves(self.observation_space, "obs"):
            if (
                leaf.dtype.kind in change.kinds
                and change.change(self.observation_space, leaf, leaf.of(example)) is not None
            ):
                return leaf
        note(self._plan.marker, "impossible")
        return None

    def _spoil(self, obs: Any) -> Any:
        leaf = self._leaf() if self._plan.what in VALUES else None
        if leaf is None:
            return obs
        parts = {one.path: one.of(obs) for one in leaves(self.observation_space, "obs")}
        parts[leaf.path] = VALUES[self._plan.what].change(self.observation_space, leaf, parts[leaf.path])
        return assemble(self.observation_space, parts, "obs")


def misbehave_while_building(plan: Plan, place: str) -> None:
    """To be called where a factory imports or constructs; the plan's ``at`` counts calls in all processes."""
    if plan.place != place or plan.component not in ("", component()):
        return
    if note(plan.marker, "built") == plan.at and plan.what in ENDS and claim(plan.marker):
        ENDS[plan.what]()


def component() -> str:
    """Which component of a run this process is: its output goes to a log of that name."""
    return Path("/proc/self/fd/1").readlink().stem


def claim(marker: str) -> bool:
    """Whether this is the first to ask. The file tells who it was: the process's id."""
    try:
        handle = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(handle, f"{os.getpid()}\n".encode())
    os.close(handle)
    return True


def note(marker: str, word: str) -> int:
    """Count a word beside the marker; how often it was noted so far, by any process."""
    handle = os.open(f"{marker}.{word}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(handle, b".")
        return os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)


class Factory:
    """Builds the environment of an inner factory, with a plan around it. Picklable where the inner one is.

    Args:
        make: Builds the user's environment.
        plan: What shall go wrong.
        name: ``module:function``, by which messages call the environment; None: this class's own.
    """

    def __init__(self, make: Callable[..., gymnasium.Env[Any, Any]], plan: Plan, name: str | None = None) -> None:
        self._make, self._plan = make, plan
        if name is not None:
            self.__module__, _, self.__qualname__ = name.partition(":")

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Build it."""
        for place in ("import", "construct"):
            misbehave_while_building(self._plan, place)
        return Provoked(self._make(**kwargs), self._plan)
