"""Environments for tests of the vector environment: an observation tells whose it is, and faults happen on demand.

The module lies beside the tests, and is imported in child processes too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.testing import provoke
from run_envs import pause

INDEX, BUILD, EPISODE, T, ACTION = range(5)
"""Places in an observation of `Told`."""

WORDS = "burn map corrupt, tile 7"
FOR_EVER_S = 600.0


def _swallow() -> None:
    """Hang, whatever is raised inside."""
    while True:
        try:
            pause(FOR_EVER_S)
        except BaseException:  # noqa: BLE001 - this is the fault
            continue


def _raise() -> None:
    raise ValueError(WORDS)


CALLS: Mapping[str, Callable[[], object]] = {
    **provoke.ENDS,
    "raises": _raise,
    # For the process, but taken by this very thread: it does not get on before all are stopped.
    "sigstop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "swallow": _swallow,
}
"""What happens inside a call, before it does its work."""

HANGS = ("sleep", "loop", "gil", "swallow", "sigstop")
SOFT_HANGS = ("sleep", "loop")
"""Those that a signal to the worker ends."""
DEATHS = ("exit-0", "exit-3", "sigkill", "sigsegv")
RAISES = ("raises", "unpicklable", "sys-exit")

Returned = tuple[Any, Any, Any, Any, Any]


def _with_obs(change: Callable[[Any], Any]) -> Callable[[Returned], Any]:
    return lambda returned: (change(returned[0]), *returned[1:])


def _with(place: int, value: Any) -> Callable[[Returned], Any]:
    return lambda returned: (*returned[:place], value, *returned[place + 1 :])


def _one(obs: Any, value: float) -> Any:
    changed = obs.copy()
    changed[T] = value
    return changed


LIES: Mapping[str, Callable[[Returned], Any]] = {
    "nan-obs": _with_obs(lambda obs: _one(obs, np.nan)),
    "inf-obs": _with_obs(lambda obs: _one(obs, -np.inf)),
    "shape-1": _with_obs(lambda obs: obs[:1]),
    "shape-6": _with_obs(lambda obs: np.append(obs, 0.0)),
    "text-obs": _with_obs(lambda obs: obs.astype(str)),
    "complex-obs": _with_obs(lambda obs: obs.astype(complex)),
    "none-obs": _with_obs(lambda obs: None),
    "nan-reward": _with(1, float("nan")),
    "inf-reward": _with(1, float("inf")),
    "two-rewards": _with(1, np.zeros(2)),
    "none-reward": _with(1, None),
    "none-terminated": _with(2, None),
    "text-truncated": _with(3, "no"),
    "two-truncated": _with(3, 2),
    "none-info": _with(4, None),
    "none": lambda returned: None,
    "four": lambda returned: returned[:4],
    "six": lambda returned: (*returned, {}),
}
"""What a step returns that it must not."""

NOT_FINITE = ("nan-obs", "inf-obs", "nan-reward", "inf-reward")


@dataclass(frozen=True, slots=True)
class Trouble:
    """When something goes wrong, and what."""

    what: str
    """A key of `CALLS` or `LIES`."""
    at: int = 3
    """Which call of its kind, from 1 on, counted per environment object."""
    place: str = "step"
    """``construct``, ``reset``, ``step`` or ``close``."""
    marker: str | None = None
    """A file that is made when it happens; while it exists, nothing goes wrong any more. None: every time."""


class Told(gymnasium.Env[Any, Any]):
    """The observation is (index, build, episode, t, last action), the reward the action.

    Args:
        index: Which environment of the vector this is.
        limit: Steps per episode.
        trouble: What goes wrong, if anything.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, index: int = 0, limit: int = 7, trouble: Trouble | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 2.0**53, (5,), np.float64)
        self.action_space = spaces.Discrete(100_000)
        self._index, self._limit, self._trouble = index, limit, trouble
        self._calls = {"construct": 0, "reset": 0, "step": 0, "close": 0}
        self.build = int.from_bytes(os.urandom(4), "little")
        self.mark = 0
        self._episode = -1
        self._t = 0
        self._happen("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        what = self._happen("reset")
        self._episode += 1
        self._t = 0
        returned = self._observe(0), 0.0, False, False, {}
        obs = (LIES[what](returned) if what else returned)[0]
        return obs, {}

    def step(self, action: Any) -> Any:
        what = self._happen("step")
        self._t += 1
        returned = self._observe(int(action)), float(action), False, self._t >= self._limit, {}
        return LIES[what](returned) if what else returned

    def close(self) -> None:
        self._happen("close")

    def ping(self) -> tuple[int, int]:
        """Whose it is, and where."""
        return self._index, os.getpid()

    def render(self) -> Any:
        return np.full((1, 1, 3), self._index, np.uint8)

    def _observe(self, action: int) -> Any:
        return np.array([self._index, self.build, self._episode, self._t, action], np.float64)

    def _happen(self, place: str) -> str | None:
        """Do what goes wrong now; what to lie about, if that is it."""
        self._calls[place] += 1
        trouble = self._trouble
        if trouble is None or trouble.place != place or self._calls[place] != trouble.at:
            return None
        if trouble.marker is not None and not provoke.claim(trouble.marker):
            return None
        if trouble.what in LIES:
            return trouble.what
        CALLS[trouble.what]()
        return None


class Make:
    """A factory of one `Told`, picklable."""

    def __init__(self, index: int, trouble: Trouble | None = None, limit: int = 7) -> None:
        self._index, self._trouble, self._limit = index, trouble, limit

    def __call__(self) -> Told:
        return Told(self._index, self._limit, self._trouble)


def told(count: int, culprit: int | None = None, trouble: Trouble | None = None, limit: int = 7) -> list[Make]:
    """Factories of ``count`` environments, of which one is in trouble."""
    return [Make(index, trouble if index == culprit else None, limit) for index in range(count)]


class Meeting(Told):
    """In a worker with threads: its steps begin when all environments of its process are in theirs.

    For those that are built and reset together. Who is in trouble in this step has all others inside of theirs.
    """

    house: ClassVar[list[Meeting]] = []
    met: ClassVar[threading.Condition] = threading.Condition()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begun = 0
        self.house.append(self)

    def step(self, action: Any) -> Any:
        with self.met:
            self._begun += 1
            self.met.notify_all()
            assert self.met.wait_for(lambda: min(one._begun for one in self.house) >= self._begun, 20.0)
        if self._trouble is None and any(one._trouble and one._trouble.at == one._begun for one in self.house):
            threading.Event().wait(20.0)
        return super().step(action)


class Printing(Told):
    """Prints 256 KiB to each stream in every step, the simulator's way, below Python's objects."""

    BYTES = 256 * 1024

    def step(self, action: Any) -> Any:
        for stream in (1, 2):
            line = memoryview(bytes([ord("a") + self._index]) * (self.BYTES - 1) + b"\n")
            while line:
                line = line[os.write(stream, line) :]
        return super().step(action)


class Gated(Told):
    """Its second step says that it has begun, by a file, and lasts until somebody writes into a pipe.

    Args:
        gate: A named pipe; the file has its name with ``.inside`` behind it.
    """

    def __init__(self, gate: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gate = gate

    def step(self, action: Any) -> Any:
        returned = super().step(action)
        if self._calls["step"] == 2 and provoke.claim(f"{self._gate}.inside"):
            with Path(self._gate).open("rb") as gate:
                gate.read()
        return returned


class WithHelper(Told):
    """Starts a program of its own, which only ``close`` ends, as simulators do."""

    def __init__(self, pids: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        command = [sys.executable, "-c", "import select; select.select([], [], [], 600)"]
        self._helper = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        handle = os.open(pids, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(handle, f"{self._helper.pid}\n".encode())
        os.close(handle)

    def close(self) -> None:
        super().close()
        self._helper.kill()
        self._helper.wait(10.0)
