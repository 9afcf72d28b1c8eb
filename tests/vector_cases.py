"""Environments of `tests/process/test_cases_vector.py`: small, each with one right answer that others got wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from run_envs import pause

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Count(gymnasium.Env[Any, Any]):
    """The observation is t, the steps since the reset; the reward of a step is the t it leads to. Truncates at a limit.

    Args:
        limit: Steps per episode.
        own: One array is changed in place and returned again and again.
        nested: It is a dict.
    """

    def __init__(self, limit: int = 3, *, own: bool = False, nested: bool = False) -> None:
        box = spaces.Box(0, 1e6, (1,), np.float32)
        self.observation_space = spaces.Dict(x=box) if nested else box
        self.action_space = spaces.Discrete(2)
        self._limit, self._own, self._nested = limit, own, nested
        self._array = np.zeros(1, np.float32)
        self._dict = {"x": self._array}
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return self._observe(), float(self._t), False, self._t >= self._limit, {}

    def _observe(self) -> Any:
        if not self._own:
            self._array = np.zeros(1, np.float32)
            self._dict = {"x": self._array}
        self._array[0] = self._t
        return self._dict if self._nested else self._array


class SparseInfo(gymnasium.Env[Any, Any]):
    """Only environment 2 has something to say, and only at t = 4."""

    def __init__(self, index: int) -> None:
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._index = index
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return np.array([self._index, 0], np.float32), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        info = {"crash_x": 41.5, "tag": "wall"} if (self._index, self._t) == (2, 4) else {}
        return np.array([self._index, self._t], np.float32), 0.0, self._t >= 10, False, info


class Draws(gymnasium.Env[Any, Any]):
    """The observation is what the environment's own generator drew at the reset."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 2**31, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self._t = 0
        self._drawn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t, self._drawn = 0, int(self.np_random.integers(2**31))
        return np.array([self._drawn], np.float64), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return np.array([self._drawn], np.float64), 0.0, self._t >= 3, False, {}


class Structured(gymnasium.Env[Any, Any]):
    """Observations of several parts, whose values tell environment and part."""

    def __init__(self, index: int, kind: str) -> None:
        self.action_space = spaces.Discrete(2)
        self._index, self._kind = index, kind
        self._t = 0
        self.observation_space: spaces.Space[Any] = {
            "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4))),
            "dict": spaces.Dict(
                a=spaces.Discrete(100), b=spaces.Dict(c=spaces.Box(-1e4, 1e4, (2,), np.float32)),
                d=spaces.Tuple((spaces.Discrete(5),)),
            ),
            "discrete": spaces.Discrete(500),
        }[kind]  # fmt: skip

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self.truth(), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return self.truth(), float(self._t), False, self._t >= 6, {}

    def truth(self) -> Any:
        i, t = self._index, self._t
        if self._kind == "tuple":
            return i % 3, (i + t) % 4
        if self._kind == "dict":
            return {"a": np.int64(i), "b": {"c": np.array([10 * i + t, -t], np.float32)}, "d": (t % 5,)}
        return 100 * i + t


class Image(gymnasium.Env[Any, Any]):
    """An image that is neither square nor symmetric: 40 h + 5 w + c + t."""

    def __init__(self, order: str = "hwc") -> None:
        shape = (5, 7, 3) if order == "hwc" else (3, 5, 7)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self._order = order
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self._frame(), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return self._frame(), 1.0, self._t >= 9, False, {}

    def _frame(self) -> Any:
        h, w, c = np.ogrid[:5, :7, :3]
        frame = (40 * h + 5 * w + c + self._t).astype(np.uint8)
        return frame if self._order == "hwc" else np.ascontiguousarray(frame.transpose(2, 0, 1))


class Masked(gymnasium.Env[Any, Any]):
    """Which of five actions are legal depends on environment and t; an illegal one raises."""

    def __init__(self, index: int) -> None:
        self.action_space = spaces.Discrete(5)
        self.observation_space = spaces.Dict(
            place=spaces.Box(0, 1e6, (2,), np.float32), action_mask=spaces.Box(0, 1, (5,), np.int8)
        )
        self._index = index
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return self._observe()

    def step(self, action: Any) -> Step:
        if not self._mask()[int(action)]:
            raise ValueError(f"illegal action {int(action)} in environment {self._index} at t={self._t}")
        self._t += 1
        obs, info = self._observe()
        return obs, 1.0, False, self._t >= 7, info

    def _mask(self) -> Any:
        return np.array([(k + self._index + self._t) % 5 < 2 for k in range(5)], np.int8)

    def _observe(self) -> Reset:
        mask = self._mask()
        return {"place": np.array([self._index, self._t], np.float32), "action_mask": mask}, {
            "action_mask": mask.copy()
        }


class Rewards(gymnasium.Env[Any, Any]):
    """Returns a chosen object as its reward; episodes of three steps."""

    def __init__(self, rewards: list[Any]) -> None:
        self.observation_space = spaces.Box(0, 1e6, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._rewards = rewards
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        reward = self._rewards[self._t % len(self._rewards)]
        self._t += 1
        return np.array([self._t], np.float32), reward, self._t >= 3, False, {}


class Curriculum(gymnasium.Env[Any, Any]):
    """The observation is an attribute, which the trainer raises."""

    def __init__(self) -> None:
        self.difficulty = 0
        self.observation_space = spaces.Box(0, 1e6, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return np.array([self.difficulty], np.float32), {}

    def step(self, action: Any) -> Step:
        return np.array([self.difficulty], np.float32), 0.0, False, False, {}


class Nothing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does nothing, and hides nothing."""


def curriculum() -> gymnasium.Env[Any, Any]:
    return Nothing(gymnasium.wrappers.TimeLimit(Curriculum(), 100))


class Precise(gymnasium.Env[Any, Any]):
    """The space says float32, the observations are float64."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return np.array([0.1, 0.2], np.float64), {}

    def step(self, action: Any) -> Step:
        return np.array([0.3, 0.4], np.float64), 0.0, False, False, {}


class Colour(spaces.Space[str]):
    """A space that Gymnasium knows nothing of."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "red"

    def contains(self, x: object) -> bool:
        return x in ("red", "green")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colour)

    def __hash__(self) -> int:
        return 7


class Painted(gymnasium.Env[Any, Any]):
    """Observes a colour."""

    def __init__(self) -> None:
        self.observation_space = Colour()
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return "red", {}

    def step(self, action: Any) -> Step:
        return "green" if action else "red", 0.0, False, False, {}


class SlowReset(gymnasium.Env[Any, Any]):
    """A reset takes long, and waits for a file with the number of the environment, so that a test holds it."""

    def __init__(self, index: int, folder: str) -> None:
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._index, self._folder = index, Path(folder)
        self._t = self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        self._episode += 1
        if self._episode > 1:
            while not (self._folder / f"{self._index}").exists():
                pause(0.01)
        return np.array([self._index, 0], np.float32), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return np.array([self._index, self._t], np.float32), 1.0, False, self._t >= 5, {}


class SlowStep(SlowReset):
    """A step with the action 1 waits for the file."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        gymnasium.Env.reset(self, seed=seed)
        self._t = 0
        return np.array([self._index, 0], np.float32), {}

    def step(self, action: Any) -> Step:
        while action and not (self._folder / f"{self._index}").exists():
            pause(0.01)
        return super().step(action)


class Inherits(Count):
    """Tells what of its parent's state it was born with."""

    def inherited(self) -> dict[str, Any]:
        return {"threads": threading.active_count(), "pid": os.getpid(), "parent": os.getppid(), "born": BORN_IN}

    def torch_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}


BORN_IN = os.getpid()
"""The process that imported this module first; a fork of the test's process would tell the test's own."""
LOCK = threading.Lock()


class Locking(Count):
    """Its constructor takes a lock of the module."""

    def __init__(self) -> None:
        if not LOCK.acquire(timeout=10.0):
            raise RuntimeError("the lock was held when this process was born")
        LOCK.release()
        super().__init__()


class Big(gymnasium.Env[Any, Any]):
    """An observation of so many bytes, all of them t."""

    def __init__(self, nbytes: int) -> None:
        self.observation_space = spaces.Box(0, 255, (nbytes,), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._nbytes = nbytes
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(self._nbytes, np.uint8), {}

    def step(self, action: Any) -> Step:
        self._t += 1
        return np.full(self._nbytes, self._t, np.uint8), 0.0, False, False, {}
