"""An environment of a hundred steps that costs what the original of CAGE 2 does, and nothing but processor time.

It keeps busy in a loop of so many rounds; `rounds_per_s` says how many a core does in a second, and that number is handed
to every process, so that the work is the same wherever it is done.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 100
STEP_S, RESET_S, CREATE_S = 1.6e-3, 12e-3, 93e-3
"""What a step, a reset and a new environment cost, as measured for the specification."""
OBSERVATION, CHOICES = 52, 145
TRIAL_ROUNDS, TRIALS = 200_000, 9


def keep_busy(rounds: int) -> int:
    """Use up processor time."""
    state = 1
    for _ in range(rounds):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return state


def rounds_per_s() -> float:
    """Rounds in a CPU second of this core, at its best of several tries."""
    least_s = float("inf")
    for _ in range(TRIALS):
        began_s = time.process_time()
        keep_busy(TRIAL_ROUNDS)
        least_s = min(least_s, time.process_time() - began_s)
    return TRIAL_ROUNDS / least_s


class Original(gymnasium.Env[Any, Any]):
    """The environment.

    Args:
        rate: As `rounds_per_s`.
    """

    observation_space = spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float32)
    action_space = spaces.Discrete(CHOICES)

    def __init__(self, rate: float) -> None:
        self._rate, self._step = rate, 0
        keep_busy(round(rate * CREATE_S))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        keep_busy(round(self._rate * RESET_S))
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        keep_busy(round(self._rate * STEP_S))
        self._step += 1
        return self._observation(), float(action == self._step % CHOICES), False, self._step >= STEPS, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, OBSERVATION).astype(np.float32)


def make(rate: float) -> Original:
    """One of them; what a configuration names as its factory."""
    return Original(rate)
