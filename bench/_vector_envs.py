"""The environments that every side of the vector benchmarks steps. Imports nothing of Headrace, nor of any peer."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE_STEPS = 1000
FAULTY = 1
"""Index of the environment that misbehaves in the fault table."""
FAULT_AT = 20
"""Its step, counted from 1 over all of its episodes."""

LATE_S = 3.0
"""What a late step takes; the fault table's deadline is shorter."""

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Plain(gymnasium.Env):
    """Four floats, two actions, a thousand steps; what a step costs is up to ``_work``."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        self._work()
        self._t += 1
        return self._observe(), 1.0, False, self._t >= EPISODE_STEPS, {}

    def _work(self) -> None:
        """Nothing."""

    def _observe(self) -> np.ndarray:
        return np.zeros(4, np.float32)


class BusyCpu(Plain):
    """Burns 1 ms of its thread's CPU time a step: being preempted is no work."""

    def _work(self) -> None:
        burn(1000.0)


class Straggler(Plain):
    """Waits 1 ms a step, and 50 ms with probability 2 %, as a simulator behind a socket does."""

    SHORT_S, LONG_S, LONG_SHARE = 0.001, 0.05, 0.02

    def __init__(self, index: int) -> None:
        super().__init__()
        drawn = np.random.default_rng(1000 + index).random(4096) < self.LONG_SHARE
        self._long = itertools.cycle(drawn.tolist())

    def _work(self) -> None:
        time.sleep(self.LONG_S if next(self._long) else self.SHORT_S)


class Frames(gymnasium.Env):
    """84x84x4 bytes an observation, ready-made, so that only moving them costs."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._frames = [generator.integers(0, 255, (84, 84, 4), np.uint8) for _ in range(8)]
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._frames[0], {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return self._frames[self._t & 7], 1.0, False, self._t >= EPISODE_STEPS, {}


class Faulty(gymnasium.Env):
    """Observes [index, steps of its life, 0, 0], the reward is these steps; `FAULTY` misbehaves at step `FAULT_AT`.

    Args:
        index: Of this environment among the four.
        fault: A key of `FAULTS`.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, index: int, fault: str) -> None:
        self._index, self._steps = index, 0
        self._fault = FAULTS[fault] if index == FAULTY else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        time.sleep(0.001)
        self._steps += 1
        obs = self._observe()
        if self._fault is not None and self._steps == FAULT_AT:
            obs = self._fault(obs)
        return obs, float(self._steps), False, self._steps % 50 == 0, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._index, self._steps, 0, 0], np.float32)


def _hang(obs: np.ndarray) -> np.ndarray:
    time.sleep(600.0)
    return obs


def _be_late(obs: np.ndarray) -> np.ndarray:
    time.sleep(LATE_S)
    return obs


def _raise(obs: np.ndarray) -> np.ndarray:
    raise RuntimeError("the fire simulation broke down")


def _exit(obs: np.ndarray) -> np.ndarray:
    os._exit(7)


def _signal(number: int) -> Callable[[np.ndarray], np.ndarray]:
    def send(obs: np.ndarray) -> np.ndarray:
        os.kill(os.getpid(), number)
        return obs

    return send


FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "env hangs": _hang,
    "env is late": _be_late,
    "SIGSTOP": _signal(signal.SIGSTOP),
    "SIGKILL": _signal(signal.SIGKILL),
    "os._exit": _exit,
    "raises": _raise,
    "NaN": lambda obs: np.full(4, np.nan, np.float32),
    "shape (1,) for (4,)": lambda obs: np.full(1, 2.0, np.float32),
    "shape (5,)": lambda obs: np.full(5, 2.0, np.float32),
    "parent killed": lambda obs: obs,
}
"""What the environment returns, or does instead, at its bad step. The last one's fault is done to the parent."""


def burn(us: float) -> None:
    """Use so many microseconds of this thread's CPU time."""
    end = time.thread_time_ns() + int(us * 1000)
    while time.thread_time_ns() < end:
        pass


class Maker:
    """Builds one environment; can be pickled.

    Args:
        name: A key of `BUILDERS`, or ``fault: `` and a key of `FAULTS`.
        index: Of the environment.
    """

    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index

    def __call__(self) -> gymnasium.Env:
        kind, _, fault = self.name.partition(": ")
        return Faulty(self.index, fault) if fault else BUILDERS[kind](self.index)


BUILDERS: dict[str, Callable[[int], gymnasium.Env]] = {
    "CartPole-v1": lambda index: gymnasium.make("CartPole-v1", disable_env_checker=True),
    "HalfCheetah-v5": lambda index: gymnasium.make("HalfCheetah-v5", disable_env_checker=True),
    "1 ms of CPU": lambda index: BusyCpu(),
    "straggler": Straggler,
    "84x84x4 uint8": lambda index: Frames(),
}


def makers(name: str, count: int) -> list[Maker]:
    """One for each environment."""
    return [Maker(name, index) for index in range(count)]
