"""APPO of Sample Factory in two rollout workers, with the hyperparameters of rl-zoo as far as it has them.

It has no evaluation. Here its runner's process plays the episodes everybody plays, with the weights that its learner shares
with its inference worker, while training goes on. It has no schedule of clipping, which stays where rl-zoo's begins, and no
stretch of an environment may be longer than a minibatch.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import torch
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from signal_slot.signal_slot import EventLoopObject, signal

from headrace.benchmarks.judging import Judge
from headrace.benchmarks.sides import SAMPLE_FACTORY, Found, Opened, Request, version_of
from headrace.benchmarks.tasks import TASKS, Task, beginning, one_training

WORKERS = 2


def open_side(request: Request) -> Opened:
    """See `sides`; a turn is one training, with ``seed`` and, to end earlier, ``steps``."""
    return Opened(version_of(SAMPLE_FACTORY), one_training(TASKS[request["task"]], train))


class Evaluation(AlgoObserver, EventLoopObject):
    """Looks at the policy after training iterations, and ends the training when the target is reached.

    Args:
        task: What is learned.
        runner: Who trains; it lives in its event loop.
    """

    def __init__(self, task: Task, runner: Any) -> None:
        EventLoopObject.__init__(self, runner.event_loop, "evaluation")
        self._task, self._cfg = task, runner.cfg
        self._policy: Any = None
        self._weights: Any = None
        self._versions: Any = None
        self._lock: Any = None
        self._due_at: float = task.every_steps
        self.steps = 0
        """Environment steps that were learned from."""
        self.judge = Judge(task, runner.cfg.seed, gymnasium.make(task.env), self._act)
        self.began_s = 0.0
        self.ended_s = 0.0

    @signal
    def due(self) -> None:
        """A policy is to be evaluated; sent to itself, so that what the learner has told before is known by then."""

    @property
    def updates(self) -> int:
        """Minibatches that were learned from."""
        return int(self._versions[0])

    def on_connect_components(self, runner: Any) -> None:
        """Ask for the weights, which the learner tells once and then changes in place."""
        learner = runner.learners[0]
        self._versions, self._lock = learner.param_server.policy_versions, learner.param_server.policy_lock
        self._policy = create_actor_critic(runner.cfg, runner.env_info.obs_space, runner.env_info.action_space)
        self._policy.eval()
        learner.model_initialized.connect(self.receive_weights)
        self.due.connect(self.look)

    def receive_weights(self, told: tuple[int, Any, Any, int]) -> None:
        """They are there: training begins."""
        _, self._weights, _, _ = told
        self.began_s = time.perf_counter()

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """A batch has been learned from."""
        self.steps = training_iteration_since_resume * self._cfg.batch_size * self._cfg.num_batches_per_epoch
        if self.steps >= self._due_at and self._weights is not None:
            self._due_at = math.inf
            self.due.emit()

    def look(self) -> None:
        """Evaluate the newest policy, unless training has been ended: its runner must be there to see everybody leave."""
        if not self.ended_s:
            self._evaluate()

    def last_look(self) -> None:
        """Evaluate what training has ended with, if that is still to be done."""
        if self.judge.reached_at is None:
            self._evaluate()

    def _evaluate(self) -> None:
        with self._lock:
            self._policy.load_state_dict(self._weights)
        self.judge.look(self.steps)
        self._due_at = self.steps - self.steps % self._task.every_steps + self._task.every_steps
        if self.judge.reached_at is not None:
            self._cfg.train_for_env_steps = -1

    def on_stop(self, runner: Any) -> None:
        """Training is over."""
        self.ended_s = time.perf_counter()

    @torch.no_grad()
    def _act(self, obs: Any) -> int:
        seen = prepare_and_normalize_obs(self._policy, {"obs": torch.from_numpy(obs)[None]})
        self._policy(seen, torch.zeros(1, get_rnn_size(self._cfg)))
        return int(argmax_actions(self._policy.action_distribution()))


def train(task: Task, seed: int) -> Found:
    """One training."""
    torch.set_num_threads(1)
    register_env(task.env, _make)
    with TemporaryDirectory() as folder:
        _, runner = make_runner(_configuration(task, seed, Path(folder)))
        evaluation = Evaluation(task, runner)
        runner.register_observer(evaluation)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"Sample Factory ended with status {status}")
    beside_s = evaluation.judge.spent_s
    evaluation.last_look()
    found = evaluation.judge.found(evaluation.steps)
    return {
        **found,
        "evaluation_s": found["evaluation_s"] - beside_s,  # what came before kept no training from going on
        "updates_per_s": evaluation.updates / (evaluation.ended_s - evaluation.began_s),
    }  # fmt: skip


def _make(name: str, *_: Any, render_mode: str | None = None) -> Any:
    return gymnasium.make(name, render_mode=render_mode)


def _configuration(task: Task, seed: int, folder: Path) -> Any:
    zoo = task.zoo
    rate, clip = zoo.get("learning_rate", 3e-4), zoo.get("clip_range", 0.2)  # else those of Stable-Baselines3
    batches = zoo["n_envs"] * zoo["n_steps"] // zoo["batch_size"]
    given = {
        "algo": "APPO", "env": task.env, "experiment": "bench", "train_dir": folder, "seed": seed, "device": "cpu",
        "num_workers": WORKERS, "num_envs_per_worker": zoo["n_envs"] // WORKERS, "worker_num_splits": 2,
        "rollout": min(zoo["n_steps"], zoo["batch_size"]), "batch_size": zoo["batch_size"], "num_batches_per_epoch": batches,
        "num_epochs": zoo["n_epochs"], "gamma": zoo["gamma"], "gae_lambda": zoo["gae_lambda"],
        "learning_rate": beginning(rate), "adam_eps": 1e-5, "ppo_clip_ratio": beginning(clip),
        "ppo_clip_value": 1e6, "exploration_loss_coeff": zoo["ent_coef"], "value_loss_coeff": 0.5,
        "max_grad_norm": 0.5, "value_bootstrap": True, "normalize_input": False, "normalize_returns": False, "use_rnn": False,
        "encoder_mlp_layers": (64, 64), "nonlinearity": "tanh", "actor_critic_share_weights": False,
        "train_for_env_steps": task.most_steps, "save_every_sec": 100_000, "save_best_every_sec": 100_000,
        # It drops what is so many minibatches old, 1,000 where nothing is said, which may be less than one rollout has.
        "max_policy_lag": max(1000, 3 * batches * zoo["n_epochs"]),
    }  # fmt: skip
    arguments = []
    for name, value in given.items():
        arguments += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    parser, _ = parse_sf_args(arguments)
    config = parse_full_cfg(parser, arguments)
    if isinstance(rate, str):
        config.lr_schedule = "linear_decay"  # it has one, and its command line does not let one choose it
    return config
