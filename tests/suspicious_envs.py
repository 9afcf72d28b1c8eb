"""Environments that make data up the way the five systems did, each on top of one that does not.

Named by ``suspicious_envs:Honest`` and the like; the module lies beside the tests and is imported in child processes.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Honest(gymnasium.Env[Any, Any]):
    """A point that is pushed about in three dimensions with a little noise; nothing in it ever repeats.

    Args:
        limit: Steps after which an episode is truncated.
    """

    lanes = 0
    """How many were built in this process: their place among the lanes."""

    def __init__(self, limit: int = 50) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.limit, self.t = limit, 0
        self.place = Honest.lanes
        Honest.lanes += 1
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.rng = self.generator(seed)
        self.t = 0
        self.at, self.speed = self.rng.normal(size=3), self.rng.normal(size=3)
        return self.seen(), {}

    def generator(self, seed: int | None) -> np.random.Generator:
        return np.random.default_rng(seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        self.speed = 0.9 * self.speed + 0.3 * np.asarray(action) + self.rng.normal(size=3) * 0.05
        self.at = self.at + 0.1 * self.speed
        return self.seen(), -float(np.linalg.norm(self.at)), False, self.t >= self.limit, {}

    def seen(self) -> Any:
        return np.concatenate([self.at, self.speed]).astype(np.float32)


class SharedSight(Honest):
    """Honest: two lanes each are agents of one environment, and see all of it."""

    def generator(self, seed: int | None) -> np.random.Generator:
        self.episode = getattr(self, "episode", 0) + 1
        return np.random.default_rng([self.place // 2, self.episode])

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step(np.zeros(3))  # what both did, and the same for both


class FewBeginnings(Honest):
    """Honest: every episode begins in one of 160 ways, as on recorded landscapes, drawn by the seed that is given."""

    def generator(self, seed: int | None) -> np.random.Generator:
        return np.random.default_rng(int(np.random.default_rng(seed).integers(160)))


class Clocked(Honest):
    """Honest: it tells how late it is, and one of three colours; lanes in step meet by chance, and none meets itself."""

    def __init__(self, limit: int = 100_000) -> None:
        super().__init__(limit)

    def seen(self) -> Any:
        return np.array([self.t, self.rng.integers(3), 0, 0, 0, 0], np.float32)


class TimeoutIsZero(Honest):
    """Fire-break system: a step that takes too long is answered with zeros and a small penalty."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        if self.rng.random() < 0.03:
            return np.zeros_like(obs), -0.05, *rest
        return obs, reward, *rest


class NoisyZeros(Honest):
    """Fire-break system: a failed step is zeros with noise, "to make it less obvious"."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        if self.rng.random() < 0.04:
            return self.rng.normal(0.0, 0.01, 6).astype(np.float32), -0.1, *rest
        return obs, reward, *rest


class DeadLanes(Honest):
    """Fire-break system: where building fails, a stand-in returns zeros for ever."""

    def seen(self) -> Any:
        return super().seen() if self.place % 3 != 1 else np.zeros(6, np.float32)


class CatchAll(Honest):
    """Fire-break system: every exception becomes reward -1, the end of the episode, and ``info["error"]``."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        return obs, -1.0, True, False, {**info, "error": "invalid index to scalar variable"}


class OwnSeed(Honest):
    """Hockey and workflow systems: the seed that is given is ignored, and every copy has the same one."""

    def generator(self, seed: int | None) -> np.random.Generator:
        if not hasattr(self, "own"):
            self.own = np.random.default_rng(42)
        return self.own


class Recording(OwnSeed):
    """A recording that is played whatever is done, the same in every copy."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step(np.zeros(3))


class Replayed(Honest):
    """One episode per copy, again and again, whatever is done."""

    def generator(self, seed: int | None) -> np.random.Generator:
        return np.random.default_rng(self.place)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return super().step(np.zeros(3))


class NotShared(Honest):
    """Treasure-hunt system: shared memory that nobody shares is all zeros; no episode ever ends."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        super().step(action)
        return self.seen(), 0.0, False, False, {}

    def seen(self) -> Any:
        return np.zeros(6, np.float32)


class NeverEnds(Honest):
    """Treasure-hunt and workflow systems: ``done`` is never set."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class TimeIsTheEnd(Honest):
    """Hockey system: the end of the time is reported as the end of the task; some episodes end by themselves."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, _, late, info = super().step(action)
        return obs, reward, late or self.rng.random() < 0.01, False, info


class NoReward(Honest):
    """Workflow system: the reward was not wired up."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


class Placeholder(Honest):
    """Workflow system: the first observation is used where there is no other."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return (np.full(6, 0.25, np.float32) if self.rng.random() < 0.02 else obs), *rest


class Dummy(Honest):
    """Says of itself that it stands in, in one lane."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, ended, late, _ = super().step(action)
        return obs, reward, ended, late, {"dummy": self.place % 3 == 1, "error": None, "failed": ""}


class Beyond(Honest):
    """Declares bounds that it does not keep."""

    def __init__(self, limit: int = 50) -> None:
        super().__init__(limit)
        self.observation_space = spaces.Box(-2.0, 2.0, (6,), np.float32)


class Clipped(Beyond):
    """Most of what it shows is cut off at its bounds."""

    def seen(self) -> Any:
        return np.clip(super().seen() * 100, -2.0, 2.0)


class Camera(Honest):
    """A camera that shows nothing, beside a vector that is well."""

    def __init__(self, limit: int = 50) -> None:
        super().__init__(limit)
        eye = spaces.Box(0, 255, (16, 16), np.uint8)
        self.observation_space = spaces.Dict({"camera": eye, "state": spaces.Box(-np.inf, np.inf, (6,), np.float32)})

    def seen(self) -> Any:
        return {"camera": np.zeros((16, 16), np.uint8), "state": super().seen()}


class OneField(Honest):
    """The last field says nothing, as a declared constant would."""

    def seen(self) -> Any:
        obs = super().seen()
        obs[5] = 9.0
        return obs


class FewRewards(Honest):
    """1 in one of three hundred steps, 0 otherwise."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, float(self.rng.random() < 1 / 300), *rest
