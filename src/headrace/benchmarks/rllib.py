"""PPO of RLlib in one process, its local environment runner and learner, with the hyperparameters of rl-zoo.

It evaluates nothing by itself here: between two of its iterations the episodes are played that everybody plays. It has no
schedule of clipping, which stays where rl-zoo's begins. Environment runners in processes of their own, its default, take
longer where an iteration has a few hundred steps.
"""

from __future__ import annotations

import time
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from headrace.benchmarks.judging import Judge
from headrace.benchmarks.sides import RLLIB, Found, Opened, Request, version_of
from headrace.benchmarks.tasks import TASKS, Task, beginning, one_training


def open_side(request: Request) -> Opened:
    """See `sides`; a turn is one training, with ``seed`` and, to end earlier, ``steps``."""
    return Opened(version_of(RLLIB), one_training(TASKS[request["task"]], train))


def train(task: Task, seed: int) -> Found:
    """One training."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        ray.init(include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            return _train(task, seed)
        finally:
            ray.shutdown()


def _train(task: Task, seed: int) -> Found:
    algorithm = _configuration(task, seed).build_algo()
    zoo, steps, updates, due_at = task.zoo, 0, 0, task.every_steps

    @torch.no_grad()
    def act(obs: Any) -> int:
        seen = {"obs": torch.from_numpy(obs)[None]}
        return int(algorithm.get_module().forward_inference(seen)["action_dist_inputs"].argmax())

    judge, began_s = Judge(task, seed, gymnasium.make(task.env), act), time.perf_counter()
    while steps < task.most_steps and judge.reached_at is None:
        told = algorithm.train()
        steps = int(told["env_runners"]["num_env_steps_sampled_lifetime"])
        updates += zoo["n_epochs"] * zoo["n_envs"] * zoo["n_steps"] // zoo["batch_size"]
        if steps >= due_at:
            due_at = steps - steps % task.every_steps + task.every_steps
            judge.look(steps)
    learning_s = time.perf_counter() - began_s - judge.spent_s
    algorithm.stop()
    return {**judge.found(steps), "updates_per_s": updates / learning_s}


def _configuration(task: Task, seed: int) -> Any:
    zoo = task.zoo
    rate, clip = zoo.get("learning_rate", 3e-4), zoo.get("clip_range", 0.2)  # else those of Stable-Baselines3
    falls = isinstance(rate, str)
    return (
        PPOConfig()
        .environment(task.env)
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=zoo["n_envs"], rollout_fragment_length=zoo["n_steps"],
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=zoo["n_envs"] * zoo["n_steps"], minibatch_size=zoo["batch_size"],
            num_epochs=zoo["n_epochs"], gamma=zoo["gamma"], lambda_=zoo["gae_lambda"],
            lr=[[0, beginning(rate)], [task.most_steps, 0.0]] if falls else rate,
            clip_param=beginning(clip), vf_clip_param=1e6, vf_loss_coeff=0.5, entropy_coeff=zoo["ent_coef"],
            use_kl_loss=False, grad_clip=0.5, grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(seed=seed, log_level="ERROR")
    )  # fmt: skip
