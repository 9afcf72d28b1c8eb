"""Small environments whose right answers are known exactly, for tests and for first steps.

None is registered; name one by its factory, ``headrace.envs.toy:counter``.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Step = tuple[FloatArray, float, bool, bool, dict[str, Any]]


class Counter(gymnasium.Env[FloatArray, FloatArray]):
    """The observation is t, the number of steps since the reset; the reward of a step is the t it led to.

    Args:
        limit: Steps per episode; its return is ``limit * (limit + 1) / 2``.
        terminates: The last step terminates the episode instead of truncating it.
        episode_offset: Added to the observation once per episode that went before; with 100 the observation
            is 100 * episode + t and tells where any stored frame came from.
    """

    def __init__(self, limit: int = 10, *, terminates: bool = False, episode_offset: int = 0) -> None:
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._limit = limit
        self._terminates = terminates
        self._offset = episode_offset
        self._episode = -1
        self._t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Begin the next episode at t = 0."""
        super().reset(seed=seed)
        self._episode += 1
        self._t = 0
        return self._observation(), {}

    def step(self, action: FloatArray) -> Step:
        """Count one; the action changes nothing."""
        self._t += 1
        over = self._t >= self._limit
        return self._observation(), float(self._t), over and self._terminates, over and not self._terminates, {}

    def _observation(self) -> FloatArray:
        return np.array([self._episode * self._offset + self._t], np.float32)


class Target(gymnasium.Env[FloatArray, FloatArray]):
    """Point at a number: each step shows a new target in [-1, 1], and the reward is 1 - (action - target)².

    The best return is ``limit``, reached by answering with the observation; uniformly random actions get
    ``limit / 3`` on average; the action 0 gets ``limit * 2 / 3``.

    Args:
        limit: Steps per episode; the last one truncates it.
    """

    def __init__(self, limit: int = 10) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._limit = limit
        self._t = 0
        self._target = np.zeros(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Show the first target; the same seed shows the same targets."""
        super().reset(seed=seed)
        self._t = 0
        return self._next_target(), {}

    def step(self, action: FloatArray) -> Step:
        """Reward the answer and show the next target."""
        miss = float(action[0]) - float(self._target[0])
        self._t += 1
        return self._next_target(), 1.0 - miss * miss, False, self._t >= self._limit, {}

    def _next_target(self) -> FloatArray:
        self._target = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._target.copy()


class Cue(gymnasium.Env[FloatArray, np.int64]):
    """Remember what was shown: a cue of -1 or 1 at the reset, then zeros, and in the last step the action that belongs to it.

    The reward of that step is 1 for the right action (0 for the cue -1, 1 for 1) and -1 for the other; all others are 0.
    The best return is 1; whoever does not remember gets 0 on average. ``delay + 1`` frames are enough to remember.

    Args:
        delay: Steps between the cue and the one that counts; the episode has one more, and terminates with it.
    """

    def __init__(self, delay: int = 3) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._delay = delay
        self._t = 0
        self._cue = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Show the cue."""
        super().reset(seed=seed)
        self._t = 0
        self._cue = int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1], np.float32), {}

    def step(self, action: np.int64) -> Step:
        """Show nothing, and in the end reward what was remembered."""
        self._t += 1
        over = self._t > self._delay
        reward = (1.0 if action == self._cue else -1.0) if over else 0.0
        return np.zeros(1, np.float32), reward, over, False, {}


SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(3, start=-1),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(5),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1, 1, (2,), np.float64))),
    "dict": spaces.Dict(
        camera=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        inside=spaces.Dict(speed=spaces.Box(-1, 1, (), np.float32), gear=spaces.Discrete(3, start=-1)),
        pair=spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(2))),
    ),
}
"""Observation spaces of `Sampler`, by name: one of each kind that can be stored."""

SpaceName = Literal["box", "image", "discrete", "multidiscrete", "multibinary", "tuple", "dict"]


class Sampler(gymnasium.Env[Any, FloatArray]):
    """Random members of a space as observations; the reward is the step's number, so that rows can be told apart.

    Args:
        space: Name in `SPACES`.
        limit: Steps per episode; the last one terminates it.
    """

    def __init__(self, space: SpaceName = "dict", limit: int = 5) -> None:
        # Copied: a space carries its own generator, and two environments must not share one.
        self.observation_space = copy.deepcopy(SPACES[space])
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._limit = limit
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin again; the same seed gives the same observations."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action: FloatArray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Another member of the space; the action changes nothing."""
        self._t += 1
        return self.observation_space.sample(), float(self._t), self._t >= self._limit, False, {}


def counter(limit: int = 10, *, terminates: bool = False) -> Counter:
    """An episode that counts its steps; see `Counter`."""
    return Counter(limit, terminates=terminates)


def stack_probe(limit: int = 10) -> Counter:
    """Observations 100 * episode + t: shows at once when a frame crossed the end of an episode."""
    return Counter(limit, episode_offset=100)


def target(limit: int = 10) -> Target:
    """A continuous task that is learned in seconds, with a known optimum; see `Target`."""
    return Target(limit)


def cue(delay: int = 3) -> Cue:
    """A task of memory that stacked frames solve exactly; see `Cue`."""
    return Cue(delay)


def sampler(space: SpaceName = "dict", limit: int = 5) -> Sampler:
    """Random observations of any kind of space; see `Sampler`."""
    return Sampler(space, limit)
