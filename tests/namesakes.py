"""An environment whose own infos have the names under which vector environments tell how an episode ended."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Namesake(gymnasium.Env[Any, Any]):
    """Counts its steps; at a reset it tells of an end that is not the last one.

    Args:
        length: Of episodes.
        resets_too: Whether what it says at a reset has these names; otherwise only what it says in steps.
    """

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, *, resets_too: bool = True) -> None:
        self._length, self._resets_too, self._t = length, resets_too, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        own = {"final_obs": np.full(2, -7, np.float32), "final_info": {"won": -7}} if self._resets_too else {}
        return np.zeros(2, np.float32), {"began": True, **own}

    def step(self, action: Any) -> Any:
        self._t += 1
        info = {"final_obs": {"score": self._t}, "final_info": {"won": self._t}}
        return np.full(2, self._t, np.float32), 1.0, False, self._t == self._length, info
