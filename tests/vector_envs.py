"""Small environments for tests of the vector environment: every kind of space, of info, of reward, and of fault."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

NODE = spaces.Box(-1, 1, (2,), np.float32)
SPACES: dict[str, Any] = {
    "box": spaces.Box(-10, 10, (3,), np.float32),
    "box0d": spaces.Box(-10, 10, (), np.float64),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "discrete": spaces.Discrete(7, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"b": spaces.Box(-1, 1, (2,), np.float64), "a": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float32),)))),
    "text": spaces.Text(5),
    "graph": spaces.Graph(NODE, spaces.Discrete(4)),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
    "one_of": spaces.OneOf((spaces.Discrete(3), NODE)),
    "mixed": spaces.Dict({"text": spaces.Text(4), "box": spaces.Box(-1, 1, (2,), np.float32)}),
}


class Sampler(gym.Env[Any, Any]):
    """Observations are samples of its space; episodes, rewards and infos are drawn from its own generator."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, kind: str = "box", *, infos: str = "none", reward: str = "float", action: str = "discrete"):
        self.observation_space = copy.deepcopy(SPACES[kind])
        self.action_space = copy.deepcopy(SPACES[action])
        self.infos, self.reward = infos, reward
        self.render_mode = "rgb_array"
        self.difficulty = 1
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        self.length = int(self.np_random.integers(1, 6))
        info: dict[str, Any] = {} if self.infos == "none" else {"start": self.length}
        if options:
            info["options"] = options.get("level")
        return self.observation_space.sample(), info

    def step(self, action: Any) -> Any:
        self.action = action
        self.t += 1
        value = float(self.np_random.normal())
        reward: Any = {
            "float": value,
            "int": self.t,
            "np": np.float32(value),
            "bool": self.t % 2 == 0,
            "array": np.array([value]),
            "array0d": np.array(value),
        }[self.reward]
        ends = self.t >= self.length
        terminated = ends and self.length % 2 == 0
        return self.observation_space.sample(), reward, terminated, ends and not terminated, self._info(value)

    def _info(self, value: float) -> dict[str, Any]:
        sparse = {"tag": "wall", "at": self.t} if self.t == 2 else {}
        return {
            "none": {},
            "echo": {"action": str(plain(self.action))},
            "flat": {"x": value, "n": self.t, "flag": self.t > 1, "f32": np.float32(value)},
            "sparse": sparse,
            "nested": {"outer": {"inner": value, "deep": {"n": self.t}}, **sparse},
            "array": {"position": np.array([value, self.t], np.float32)},
            "mixed": {"text": f"step {self.t}", "none": None, "list": [self.t], "x": np.int64(self.t), **sparse},
        }[self.infos]

    def render(self) -> Any:
        return np.full((2, 2, 3), self.t, np.uint8)

    def double(self, by: int = 2) -> int:
        return self.t * by


def plain(value: Any) -> Any:
    """A value without numpy in it."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class Sampling:
    """Picklable factory of a `Sampler`."""

    def __init__(self, kind: str = "box", **how: Any) -> None:
        self.kind, self.how = kind, how

    def __call__(self) -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(Sampler(self.kind, **self.how), 4)


class Lists(gym.Wrapper[Any, Any, Any, Any]):
    """Answers in lists, which Gymnasium takes as well as tuples."""

    def reset(self, **arguments: Any) -> Any:
        return list(super().reset(**arguments))

    def step(self, action: Any) -> Any:
        return list(super().step(action))


def in_lists() -> gym.Env[Any, Any]:
    return Lists(Sampling("box", infos="flat")())


class Faulty(gym.Env[Any, Any]):
    """Counts: observation [index, steps since reset, steps since it was built]; goes wrong at its step ``at``.

    Args:
        index: Of the environment.
        how: ``hang``, ``stubborn`` (swallows what interrupts it), ``exit``, ``kill``, ``raise``, ``nan``, ``inf_reward``,
            ``shape``, ``short`` (shape (1,)), ``kind`` (floats for whole numbers), ``flag``, ``none``, ``two``.
        at: Step since it was built, from 1; 0: never.
        where: ``step`` or ``reset``.
        once: File that is made at the first fault; no fault once it exists.
    """

    def __init__(self, index: int = 0, how: str = "raise", at: int = 0, where: str = "step", once: str | None = None):
        self.observation_space = spaces.Box(-1, 1e9, (3,), np.float32)
        self.action_space = spaces.Discrete(5)
        self.index, self.how, self.at, self.where, self.once = index, how, at, where, once
        self.total = self.t = self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.resets += 1
        if self.where == "reset" and self.resets == self.at and self._now():
            self._go_wrong()
        return self._seen(), {"seed": seed} if seed is not None else {}

    def step(self, action: Any) -> Any:
        self.total += 1
        self.t += 1
        returned = (self._seen(), float(action), False, self.t >= 10, {})
        if self.where == "step" and self.total == self.at and self._now():
            changed = self._go_wrong()
            return changed if changed is not None else returned
        return returned

    def _now(self) -> bool:
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _seen(self) -> Any:
        return np.array([self.index, self.t, self.total], np.float32)

    def _go_wrong(self) -> Any:
        seen = self._seen()
        match self.how:
            case "hang":
                _hang()
            case "stubborn":
                while True:
                    with contextlib.suppress(BaseException):
                        _hang()
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ValueError("burn map corrupt, tile 7")
        return {
            "nan": (np.full(3, np.nan, np.float32), 1.0, False, False, {}),
            "inf_reward": (seen, float("inf"), False, False, {}),
            "shape": (np.zeros(5, np.float32), 1.0, False, False, {}),
            "short": (np.zeros(1, np.float32), 1.0, False, False, {}),
            "kind": (seen.astype(str), 1.0, False, False, {}),
            "flag": (seen, 1.0, "no", False, {}),
            "none": (None, 1.0, False, False, {}),
            "two": (seen, {}),
        }.get(self.how)


def _hang() -> None:
    while True:
        time.monotonic()


class Failing:
    """Picklable factory of a `Faulty`."""

    def __init__(self, index: int = 0, **how: Any) -> None:
        self.index, self.how = index, how

    def __call__(self) -> gym.Env[Any, Any]:
        return Faulty(self.index, **self.how)


class Texts(gym.Env[Any, Any]):
    """Observes a text beside numbers, and returns ``wrong`` instead in its step ``at``; picklable, and its own factory."""

    observation_space = SPACES["mixed"]
    action_space = spaces.Discrete(2)

    def __init__(self, at: int = 0, wrong: Any = None) -> None:
        self.at, self.wrong, self.t = at, wrong, 0

    def __call__(self) -> gym.Env[Any, Any]:
        return Texts(self.at, self.wrong)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.wrong if self.t == self.at else self._seen(), 1.0, False, False, {}

    def _seen(self) -> Any:
        return {"text": "ab", "box": np.full(2, self.t, np.float32)}


class NeverClosing(Faulty):
    """Its ``close()`` does not return."""

    def close(self) -> None:
        _hang()


THE_ONE = Faulty()


def the_one() -> gym.Env[Any, Any]:
    """A factory that returns the same environment every time."""
    return gym.wrappers.TimeLimit(THE_ONE, 5)
