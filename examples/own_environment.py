"""Train TD3 on an environment of your own: one function that builds it is all Headrace needs.

Run it with ``python examples/own_environment.py [STEPS]``.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import headrace


class Thermostat(gymnasium.Env[np.ndarray, np.ndarray]):
    """Keep a room at 20 degrees: the action is the heater's power, the reward is minus the distance."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at a random temperature, with a random temperature outside."""
        super().reset(seed=seed, options=options)
        self._inside, self._outside = self.np_random.uniform(5.0, 35.0), self.np_random.uniform(0.0, 30.0)
        self._minutes = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One minute."""
        self._inside += 2.0 * float(action[0]) + 0.1 * (self._outside - self._inside)
        self._minutes += 1
        return self._observe(), -abs(self._inside - 20.0) / 10.0, False, self._minutes >= 60, {}

    def _observe(self) -> np.ndarray:
        degrees = np.array([self._inside, self._outside], np.float32)
        return np.clip((degrees - 20.0) / 50.0, -1.0, 1.0)


def main(steps: int) -> None:
    """Train, and say how it went."""
    run = headrace.train(
        env=Thermostat,
        algorithm=headrace.TD3(batch_size=64, actor_lr=1e-3, critic_lr=1e-3),
        steps=steps,
        collectors=2,
        settings={
            "replay.learning_starts": 600,
            "collect.random_steps": 600,
            "evaluation.every_steps": 1000,
        },
    )
    print(run.path, run.summary["outcome"])
    for point in run.summary["evaluations"]:
        print(f"{point['env_steps']:>8,} steps: mean return {point['mean_reward']:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
