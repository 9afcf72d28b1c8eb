"""Our own sides: updates of ready batches, and trainings by presets."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from headrace.algorithms.base import Algorithm, Transitions
from headrace.benchmarks.sides import Found, Opened, Request, in_windows, version_of
from headrace.benchmarks.tasks import EPISODES, TASKS, Ours, Task
from headrace.benchmarks.work import ACTIONS, BATCH, HIDDEN, OBSERVATIONS, Batch, ready_batches
from headrace.runtime.config import ExperimentConfig, load_config

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "td3": {"algorithm.actor.hidden": list(HIDDEN), "algorithm.critic.hidden": list(HIDDEN)},
    "sac": {"algorithm.actor.hidden": list(HIDDEN), "algorithm.critic.hidden": list(HIDDEN)},
    "dqn": {"algorithm.network.hidden": list(HIDDEN), "algorithm.target.double": False},
}
"""What makes ours the same as everybody's, beside the batch size."""
_QUIET = {"evaluation.random_baseline": False}
_ENDLESS = 10**9


def updating(work: str, precision: str) -> ExperimentConfig:
    """The configuration of a learner of `learners`.

    Raises:
        ConfigError: This version has no such algorithm, or no such precision here.
    """
    halved = {} if precision == "float32" else {"learn.precision": precision}
    if work == "ppo":
        return load_config("cartpole-ppo", halved)
    given = {"env.id": "Pendulum-v1", "algorithm.name": work, "algorithm.batch_size": BATCH, **SETTINGS[work]}
    return load_config(None, {**given, **halved})


def training(task: Task, ours: Ours) -> ExperimentConfig:
    """The configuration of a training of `end_to_end`.

    Raises:
        ConfigError: This version has no such preset, or lacks one of the settings.
    """
    return load_config(task.preset, {**_QUIET, "run.schedule": ours.schedule, **ours.settings})


def open_side(request: Request) -> Opened:
    """See `sides`; ``work`` and ``precision`` of `learners`, or ``task`` and ``named`` of `end_to_end`."""
    version = version_of("headrace")
    if "task" in request:
        task = TASKS[request["task"]]
        return Opened(version, lambda question: _train(task, task.ours[request["named"]], question))
    if request["work"] == "ppo":
        return Opened(version, _steps(request))
    return Opened(version, in_windows(_updates(request)))


def _updates(request: Request) -> Callable[[], int]:
    import torch

    torch.set_num_threads(request["threads"])
    algorithm = _algorithm(updating(request["work"], request["precision"]), discrete=request["work"] == "dqn")
    batches = itertools.cycle([_transitions(batch) for batch in ready_batches(request["work"])])

    def work() -> int:
        algorithm.update(next(batches))
        return 1

    work()
    return work


def _algorithm(config: ExperimentConfig, *, discrete: bool) -> Algorithm:
    from headrace.algorithms.registry import build_algorithm

    action = spaces.Discrete(ACTIONS) if discrete else spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
    observation = spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
    built: Any = build_algorithm(config.algorithm, observation, action, 0, config.learn)
    return cast("Algorithm", built)


def _transitions(batch: Batch) -> Transitions:
    return Transitions(
        {"obs": batch["obs"]}, {"action": batch["action"]}, batch["reward"].astype(np.float64),
        batch["discount"].astype(np.float64), {"obs": batch["next_obs"]},
    )  # fmt: skip


def _steps(request: Request) -> Callable[[Mapping[str, Any]], Found]:
    """A turn is a run of the preset for so long, in one process after the other; it records, as every run does."""

    def turn(question: Mapping[str, Any]) -> Found:
        further = {"evaluation.every_steps": 0, "evaluation.episodes": 0, "evaluation.target": None,
                   "run.run_duration_s": question["seconds"], "learn.threads": request["threads"]}  # fmt: skip
        config = updating("ppo", request["precision"])
        further |= {"run.schedule": "inline", **request.get("settings", {})}
        told = _run(config, {"run.steps": _ENDLESS, **_QUIET, **further})
        return {"rate": told["throughput"]["env_steps_per_s"], "cpu_rate": None}

    return turn


def _train(task: Task, ours: Ours, question: Mapping[str, Any]) -> Found:
    steps = question.get("steps") or task.most_steps
    given: dict[str, object] = {"run.steps": steps, "run.seed": question["seed"], "evaluation.episodes": EPISODES}
    given |= {"evaluation.every_steps": task.every_steps, "evaluation.target": task.target}
    told = _run(training(task, ours), given)
    points = sorted(told["evaluations"], key=lambda point: point["env_steps"])
    reached = [p["env_steps"] for p in points if task.target is not None and p["mean_reward"] >= task.target]
    return {
        "reached": bool(reached), "steps": reached[0] if reached else told["env_steps"],
        "return": points[-1]["mean_reward"], "updates_per_s": told["throughput"]["updates_per_s"],
    }  # fmt: skip


def _run(config: ExperimentConfig, settings: Mapping[str, object]) -> Mapping[str, Any]:
    """Its summary.

    Raises:
        RuntimeError: It failed.
    """
    from headrace.runtime.api import train

    with tempfile.TemporaryDirectory() as folder:
        summary = train(config, run_dir=Path(folder) / "run", settings=settings).summary
    if summary["error"] is not None:
        raise RuntimeError(str(summary["error"]).splitlines()[0])
    return summary
