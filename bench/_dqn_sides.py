"""One training of DQN until a target, in a process of its own: ours, Stable-Baselines3 or SBX.

    python _dqn_sides.py '{"side": "stable-baselines3", "task": "cartpole", "seed": 0}'

prints one JSON object; `_learning_sides.py` says how everybody is judged.
"""

from __future__ import annotations

import time
from typing import Any

from _learning_sides import Judge, Task, answer_request, greedy, version_of

ZOO_PEERS = ("stable-baselines3", "sbx")
CARTPOLE_STEPS, LUNARLANDER_STEPS = 60_000, 150_000

TASKS = {
    "cartpole": Task("CartPole-v1", "cartpole-dqn", 475.0, 2_500, CARTPOLE_STEPS, ZOO_PEERS, {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_final_eps": 0.04,
        "exploration_fraction": 8_000 / CARTPOLE_STEPS}),
    "lunarlander": Task("LunarLander-v3", "lunarlander-dqn", 200.0, 5_000, LUNARLANDER_STEPS, ZOO_PEERS, {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_final_eps": 0.1,
        "exploration_fraction": 12_000 / LUNARLANDER_STEPS}, needs=("Box2D",)),
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
        def _on_step(self) -> bool:
            if judge.is_due(self.num_timesteps):
                judge.look(self.num_timesteps)
            return judge.reached_at is None

    model = DQN("MlpPolicy", gymnasium.make(task.env), seed=seed, device="cpu",
                policy_kwargs={"net_arch": [256, 256]}, **task.zoo)  # fmt: skip
    judge, began_s = Judge(task, gymnasium.make(task.env), greedy(model)), time.perf_counter()
    model.learn(task.most_steps, callback=Evaluation())
    learning_s = time.perf_counter() - began_s - judge.spent_s
    return {
        "version": version_of(library), **judge.found(model.num_timesteps),
        "updates_per_s": model._n_updates / learning_s,  # noqa: SLF001 - told nowhere else
    }  # fmt: skip


if __name__ == "__main__":
    answer_request(TASKS, dict.fromkeys(ZOO_PEERS, zoo))
