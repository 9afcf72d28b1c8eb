"""How trainings of all sides are judged alike. Peers' processes import it too.

Everybody plays ten greedy episodes after every so many steps, and stops where their mean return reaches the target; without one,
what counts is the return at the end. In a training of one seed all sides play the same episodes each time, those that a run of
ours is evaluated with: on Pendulum, ten episodes may be worth forty points more than ten others to one and the same policy.
Seconds count from the start of the process: imports and compilation are in them. A peer plays its episodes itself while its
training stands still, so they are in its seconds too, and how much that is is told as ``evaluation_s`` (Sample Factory's training
goes on meanwhile). A run of ours plays them in a process of its own beside its training, and waits only for the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.benchmarks.sides import Found
from headrace.benchmarks.tasks import EPISODES, Task
from headrace.core import seeding


class Judge:
    """Evaluates a peer's policy now and then, and keeps what came of it.

    Args:
        task: Whose target counts.
        seed: Of the training.
        env: Where episodes are played; nobody else uses it.
        act: The greedy policy, of one observation.
    """

    def __init__(self, task: Task, seed: int, env: Any, act: Callable[[Any], Any]) -> None:
        self._task, self._seed, self._env, self._act = task, seed, env, act
        self.reached_at: int | None = None
        """Steps after which the target was reached; None: not yet."""
        self.newest = float("nan")
        """Mean return of the last evaluation."""
        self.spent_s = 0.0
        """Seconds of all evaluations."""

    def is_due(self, steps: int) -> bool:
        """Whether a policy is to be evaluated after so many steps."""
        return self._task.every_steps > 0 and steps > 0 and steps % self._task.every_steps == 0

    def look(self, steps: int) -> None:
        """Evaluate the policy, which has learned from so many steps."""
        began_s = time.perf_counter()
        self.newest = sum(self._episode(number) for number in range(EPISODES)) / EPISODES
        if self._task.target is not None and self.newest >= self._task.target and self.reached_at is None:
            self.reached_at = steps
        self.spent_s += time.perf_counter() - began_s

    def _episode(self, number: int) -> float:
        obs, _ = self._env.reset(seed=seeding.integer(self._seed, "evaluation", number))
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = self._env.step(self._act(obs))
            total += float(reward)
            over = terminated or truncated
        return total

    def found(self, steps: int) -> Found:
        """What is told of a training of so many steps; the policy is evaluated if it never was."""
        if self.reached_at is None:
            self.look(steps)
        reached_at = self.reached_at
        return {
            "reached": reached_at is not None, "steps": reached_at or steps, "return": self.newest,
            "evaluation_s": self.spent_s,
        }  # fmt: skip


def greedy(model: Any) -> Callable[[Any], Any]:
    """The greedy policy of a model of Stable-Baselines3 or SBX; observations are normalised as in its training."""
    chooses = hasattr(model.action_space, "n")
    normaliser = model.get_vec_normalize_env()

    def act(obs: Any) -> Any:
        seen = obs if normaliser is None else normaliser.normalize_obs(obs)
        action, _ = model.predict(seen, deterministic=True)
        return int(action) if chooses else action

    return act
