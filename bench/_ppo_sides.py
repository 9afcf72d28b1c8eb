"""One training of PPO in a process of its own: ours, Stable-Baselines3, SBX or Sample Factory.

    python _ppo_sides.py '{"side": "stable-baselines3", "task": "cartpole", "seed": 0}'

prints one JSON object; `_learning_sides.py` says how everybody is judged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from _learning_sides import Judge, Task, answer_request, greedy, version_of

ZOO_PEERS = ("stable-baselines3", "sbx")
SAMPLE_FACTORY = "sample-factory"

TASKS = {
    "cartpole": Task("CartPole-v1", "cartpole-ppo", 475.0, 2_560, 100_000, (*ZOO_PEERS, SAMPLE_FACTORY), {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
        "learning_rate": "lin_0.001", "clip_range": "lin_0.2"}),
    "lunarlander": Task("LunarLander-v3", "lunarlander-ppo", 200.0, 16_384, 1_000_000, ZOO_PEERS, {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
        "ent_coef": 0.01}, needs=("Box2D",), promised={"steps": 1.0, "wall_s": 1 / 0.6}),
    "halfcheetah": Task("HalfCheetah-v5", "halfcheetah-ppo", None, 0, 300_000, ZOO_PEERS, {
        "normalize": True, "n_envs": 1, "n_steps": 512, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-5,
        "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8,
        "vf_coef": 0.58096, "policy_kwargs": {"log_std_init": -2.0, "ortho_init": False, "activation_fn": "relu",
                                              "net_arch": {"pi": [256, 256], "vf": [256, 256]}}}, needs=("mujoco",)),
}  # fmt: skip
"""``lin_x``: from x to 0, linear over the steps of the task; ``normalize``: observations and rewards, as in rl-zoo."""


def zoo(task: Task, seed: int, library: str) -> dict[str, Any]:
    """A peer, with the hyperparameters of rl-zoo."""
    import gymnasium
    from stable_baselines3.common.callbacks import BaseCallback

    class Evaluation(BaseCallback):
        def _on_rollout_start(self) -> None:  # what was collected so far has been learned from
            if judge.is_due(self.num_timesteps):
                judge.look(self.num_timesteps)

        def _on_step(self) -> bool:
            return judge.reached_at is None

    model, updates_per_epoch = _model(task, seed, library)
    judge, began_s = Judge(task, gymnasium.make(task.env), greedy(model)), time.perf_counter()
    model.learn(task.most_steps, callback=Evaluation())
    learning_s = time.perf_counter() - began_s - judge.spent_s
    if judge.reached_at is None:
        judge.look(model.num_timesteps)
    return {
        "version": version_of(library), **judge.found(model.num_timesteps),
        "updates_per_s": model._n_updates * updates_per_epoch / learning_s,  # noqa: SLF001 - it counts epochs
    }  # fmt: skip


def _model(task: Task, seed: int, library: str) -> tuple[Any, int]:
    """The peer's model, and the updates of one of its epochs."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    given = dict(task.zoo)
    normalises, env = given.pop("normalize", False), make_vec_env(task.env, given.pop("n_envs"), seed=seed)
    for name in ("learning_rate", "clip_range"):
        if isinstance(given.get(name), str):
            given[name] = _linear(float(given[name].removeprefix("lin_")))
    updates_per_epoch = math.ceil(given["n_steps"] * env.num_envs / given["batch_size"])
    if normalises:
        env = VecNormalize(env, gamma=given["gamma"])
    kind, activations = _library(library)
    if "policy_kwargs" in given:
        networks = given["policy_kwargs"]
        given["policy_kwargs"] = {**networks, "activation_fn": activations[networks["activation_fn"]]}
    return kind("MlpPolicy", env, seed=seed, device="cpu", **given), updates_per_epoch


def _library(name: str) -> tuple[Any, dict[str, Any]]:
    """The peer's PPO, and its activations by name."""
    if name == "sbx":
        from flax import linen
        from sbx import PPO

        return PPO, {"relu": linen.relu}
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    return PPO, {"relu": torch.nn.ReLU}


def _linear(first: float) -> Callable[[float], float]:
    return lambda left: left * first


def sample_factory(task: Task, seed: int, _: str) -> dict[str, Any]:
    """APPO, with the same hyperparameters as far as it has them."""
    from _sample_factory_side import train

    return train(task, seed)


if __name__ == "__main__":
    answer_request(TASKS, {**dict.fromkeys(ZOO_PEERS, zoo), SAMPLE_FACTORY: sample_factory})
