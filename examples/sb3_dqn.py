"""Stable-Baselines3's DQN on an environment that raises now and then, and what it is told of that.

To SB3 a cut episode looks like one that ran into its time limit; ``info["headrace"]`` tells them apart.

Run it with ``python examples/sb3_dqn.py [STEPS] [FAULTS_PER_STEP]``.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from headrace import FaultBudget
from headrace.vector.sb3 import SB3VecEnv

ENVS = 4


class Unreliable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A step raises with a small probability."""

    def __init__(self, env: gymnasium.Env[Any, Any], faults: float) -> None:
        super().__init__(env)
        self._faults, self._draws = faults, np.random.default_rng()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, or do not."""
        if self._draws.random() < self._faults:
            raise RuntimeError("the simulator lost its licence")
        return self.env.step(action)


def make(faults: float) -> gymnasium.Env[Any, Any]:
    """One environment, watched by SB3's monitor."""
    return Monitor(Unreliable(gymnasium.make("CartPole-v1"), faults))


class Books(BaseCallback):
    """Counts what the infos tell."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes, self.steps_of_episodes = 0, 0
        self.faults: Counter[str] = Counter()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes += 1
                self.steps_of_episodes += int(info["episode"]["l"])
            if "headrace" in info:
                self.faults[info["headrace"]["fault"]] += 1
        return True


def main(steps: int, faults: float) -> None:
    """Train, and say how it went."""
    budget = FaultBudget(per_env=100)  # these fail on purpose; ten in five minutes is what is borne otherwise
    envs = SB3VecEnv([partial(make, faults)] * ENVS, step_timeout_s=10.0, budget=budget)
    envs.seed(1)
    model = DQN(
        "MlpPolicy", envs, learning_starts=500, train_freq=(4, "step"), gradient_steps=4, target_update_interval=250,
        learning_rate=2e-3, exploration_fraction=0.3, seed=1, device="cpu",
    )  # fmt: skip
    books = Books()
    model.learn(steps, callback=books)
    envs.close()
    print(f"{model.num_timesteps} steps, {books.episodes} episodes of {books.steps_of_episodes} steps in all")
    print(f"{books.faults.total()} episodes cut: {dict(books.faults)}")


if __name__ == "__main__":
    main(
        steps=int(sys.argv[1]) if len(sys.argv) > 1 else 50_000,
        faults=float(sys.argv[2]) if len(sys.argv) > 2 else 0.0005,
    )
