"""One training of Stable-Baselines3 or SBX in a process of its own; `judging` says how everybody is judged."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

from headrace.benchmarks.judging import Judge, greedy
from headrace.benchmarks.sides import SBX, Found, Opened, Request, version_of
from headrace.benchmarks.tasks import TASKS, Task, one_training

_DECIDED = {"td3": {}, "sac": {"ent_coef": "auto"}, "dqn": {}}
_HIDDEN = {"net_arch": [256, 256]}


def open_side(request: Request) -> Opened:
    """See `sides`; a turn is one training, with ``seed`` and, to end earlier, ``steps``."""
    task, library = TASKS[request["task"]], request["side"]
    for module in task.needs:
        importlib.import_module(module)
    importlib.import_module("sbx" if library == SBX else "stable_baselines3")

    return Opened(version_of(library), one_training(task, lambda shorter, seed: train(shorter, seed, library)))


def train(task: Task, seed: int, library: str) -> Found:
    """One training, with the hyperparameters of the task."""
    import gymnasium
    from stable_baselines3.common.callbacks import BaseCallback

    on_policy = task.algorithm == "ppo"

    class Evaluation(BaseCallback):
        def _on_rollout_start(self) -> None:
            if on_policy and judge.is_due(self.num_timesteps):  # what was collected so far has been learned from
                judge.look(self.num_timesteps)

        def _on_step(self) -> bool:
            if not on_policy and judge.is_due(self.num_timesteps):
                judge.look(self.num_timesteps)
            return judge.reached_at is None

    model, per_count = (_ppo if on_policy else _off_policy)(task, seed, library)
    judge, began_s = Judge(task, seed, gymnasium.make(task.env), greedy(model)), time.perf_counter()
    model.learn(task.most_steps, callback=Evaluation())
    learning_s = time.perf_counter() - began_s - judge.spent_s
    updates = model._n_updates * per_count  # noqa: SLF001 - told nowhere else
    return {**judge.found(model.num_timesteps), "updates_per_s": updates / learning_s}


def _off_policy(task: Task, seed: int, library: str) -> tuple[Any, int]:
    import gymnasium
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    env, given = gymnasium.make(task.env), {**task.zoo, **_DECIDED[task.algorithm]}
    if noise := given.pop("noise", 0.0):
        size = env.action_space.shape or ()
        given["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, noise))
    kind, _ = algorithm(library, task.algorithm)
    return kind("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=dict(_HIDDEN), **given), 1


def _ppo(task: Task, seed: int, library: str) -> tuple[Any, int]:
    """The peer's model, and the updates of one of its epochs, which are what it counts."""
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
    kind, activations = algorithm(library, "ppo")
    if "policy_kwargs" in given:
        networks = given["policy_kwargs"]
        given["policy_kwargs"] = {**networks, "activation_fn": activations[networks["activation_fn"]]}
    return kind("MlpPolicy", env, seed=seed, device="cpu", **given), updates_per_epoch


def algorithm(library: str, name: str, threads: int = 1) -> tuple[Any, dict[str, Any]]:
    """The peer's class, and its activations by name."""
    if library == SBX:
        import sbx
        from flax import linen

        return getattr(sbx, name.upper()), {"relu": linen.relu}
    import stable_baselines3
    import torch

    torch.set_num_threads(threads)
    return getattr(stable_baselines3, name.upper()), {"relu": torch.nn.ReLU}


def _linear(first: float) -> Callable[[float], float]:
    return lambda left: left * first
