"""One training of DQN until a target, in a process of its own: ours, Stable-Baselines3 or SBX.

    python _dqn_sides.py '{"side": "stable-baselines3", "task": "cartpole", "seed": 0}'

prints one JSON object. Everybody plays ten greedy episodes with seeds that stay the same through a training, after
every so many steps, and stops where their mean return reaches the target. Seconds count from the start of the process:
imports, compilation and evaluations are in them. Imports nothing of Headrace but in its own side.
"""

from __future__ import annotations

import time

BEGAN_S = time.perf_counter()

import importlib.metadata  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

EPISODES = 10
EVALUATION_SEED = 10_000


@dataclass(frozen=True)
class Task:
    """What is to be learned, with the hyperparameters of rl-zoo."""

    env: str
    preset: str
    target: float
    every_steps: int
    """Steps between two evaluations."""
    most_steps: int
    exploration_steps: int
    zoo: dict[str, Any]


TASKS = {
    "cartpole": Task("CartPole-v1", "cartpole-dqn", 475.0, 2_500, 60_000, 8_000, {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_final_eps": 0.04}),
    "lunarlander": Task("LunarLander-v3", "lunarlander-dqn", 200.0, 5_000, 150_000, 12_000, {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_final_eps": 0.1}),
}  # fmt: skip


def headrace(task: Task, seed: int, schedule: str) -> dict[str, Any]:
    """Ours: the preset, as it is."""
    from headrace import train

    with tempfile.TemporaryDirectory() as folder:
        settings = {"evaluation.random_baseline": False, "evaluation.every_steps": task.every_steps,
                    "evaluation.episodes": EPISODES, "evaluation.target": task.target}  # fmt: skip
        run = train(task.preset, schedule=schedule, seed=seed, steps=task.most_steps, run_dir=Path(folder) / "run",
                    settings=settings)  # fmt: skip
    told = run.summary
    if told["error"] is not None:
        raise RuntimeError(told["error"])
    reached = [point["env_steps"] for point in told["evaluations"] if point["mean_reward"] >= task.target]
    return {
        "version": importlib.metadata.version("headrace"), "reached": bool(reached),
        "steps": reached[0] if reached else told["env_steps"], "updates_per_s": told["throughput"]["updates_per_s"],
    }  # fmt: skip


def zoo(task: Task, seed: int, library: str) -> dict[str, Any]:
    """A peer, with the hyperparameters of rl-zoo."""
    import gymnasium
    from stable_baselines3.common.callbacks import BaseCallback

    if library == "sbx":
        from sbx import DQN
    else:
        import torch
        from stable_baselines3 import DQN

        torch.set_num_threads(1)

    class Evaluation(BaseCallback):
        reached, spent_s = False, 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps % task.every_steps:
                return True
            began_s = time.perf_counter()
            self.reached = evaluate(self.model, judge) >= task.target
            self.spent_s += time.perf_counter() - began_s
            return not self.reached

    env, judge = gymnasium.make(task.env), gymnasium.make(task.env)
    model = DQN("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs={"net_arch": [256, 256]},
                exploration_fraction=task.exploration_steps / task.most_steps, **task.zoo)  # fmt: skip
    callback, began_s = Evaluation(), time.perf_counter()
    model.learn(task.most_steps, callback=callback)
    learning_s = time.perf_counter() - began_s - callback.spent_s
    package = "sbx-rl" if library == "sbx" else library
    return {
        "version": importlib.metadata.version(package), "reached": callback.reached, "steps": model.num_timesteps,
        "updates_per_s": model._n_updates / learning_s,  # noqa: SLF001 - told nowhere else
    }  # fmt: skip


def evaluate(model: Any, env: Any) -> float:
    """Mean return of the greedy policy."""
    total = 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=EVALUATION_SEED + episode)
        over = False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total += float(reward)
            over = terminated or truncated
    return total / EPISODES


SIDES = {
    "async, 2 cores": (headrace, "async"), "inline": (headrace, "inline"),
    "stable-baselines3": (zoo, "stable-baselines3"), "sbx": (zoo, "sbx"),
}  # fmt: skip


def main() -> None:
    request = json.loads(sys.argv[1])
    side, which = SIDES[request["side"]]
    try:
        found = side(TASKS[request["task"]], request["seed"], which)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    print(json.dumps({**found, "wall_s": time.perf_counter() - BEGAN_S}))


if __name__ == "__main__":
    main()
