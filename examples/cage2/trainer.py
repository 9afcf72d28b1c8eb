"""Trains PPO with one workflow until it is obeyed, and measures frozen policies on episodes that are always the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headrace
from headrace.envs.cage2.baselines import greedy_restore
from headrace.envs.cage2.workflow import WorkflowVector, workflow_vector
from headrace.runtime.comparing import t_quantile
from headrace.runtime.progress import EvaluationPoint, Progress
from headrace.search import EarlyStopping, Look, Order, StopReason

EPISODE_STEPS = 100
Act = Callable[[NDArray[np.uint8]], Sequence[int] | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for every order: the game, how policies are measured, when training ends."""

    red: str = "b_line"
    alignment_lambda: float = 30.0
    count_foothold: bool = True
    """Whether User0, where red always is, counts as compromised."""
    threshold: float = 0.9
    """Compliance that is enough."""
    patience: int = 12
    """Evaluations without an improvement of compliance above 0.01 after which training ends."""
    min_episodes: int = 2_000
    max_episodes: int = 10_000
    every_episodes: int = 500
    """Between two evaluations."""
    evaluation_episodes: int = 50
    evaluation_seed: int = 1_000_000
    """Episode ``i`` of every evaluation of every policy has this seed plus ``i``."""
    inherits: bool = True
    """Whether a policy begins from that of the nearest order."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the run's configuration."""


@dataclass(frozen=True, slots=True)
class Task:
    """One order that is to be trained."""

    number: int
    order: Order
    rules: Rules
    run_dir: str
    seed: int
    max_episodes: int
    begin_from: str | None = None
    """Checkpoint whose networks it begins with; None: fresh ones."""
    inherited_order: Order | None = None
    inherited_episodes: int = 0
    """Which those networks had been trained for, by all that began from each other."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A policy on the fixed episodes."""

    return_mean: float
    """Of the game's own rewards, without alignment."""
    return_half: float
    """Half the 95 % confidence interval of that mean."""
    compliance: float
    """Mean of the episodes' shares; an episode without a fix counts 0.5."""
    fixes: float
    """Per episode."""
    without_fix: int
    """Episodes without one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task."""

    task: Task
    measured: Measured | None
    """Of the policy that counts; None: the run failed before there was one."""
    episodes: int
    """Trained for, up to the policy that counts."""
    played: int
    """All that was collected: what was on its way when training ended is learned from, and then left aside."""
    reason: StopReason | None
    checkpoint: str | None
    """Of the policy that counts."""
    looks: tuple[tuple[int, float, float], ...]
    """(episodes, compliance, mean return) of every evaluation up to it."""
    error: str | None = None

    @property
    def score(self) -> float | None:
        """What the search is told: the mean return, less what disobedience would have lost of the alignment reward.

        None: the run failed.
        """
        if self.measured is None or self.error is not None:
            return None
        rules = self.task.rules
        return self.measured.return_mean - rules.alignment_lambda * max(0.0, rules.threshold - self.measured.compliance)

    @property
    def charged(self) -> int:
        """Episodes that the budget is charged: up to the policy that counts, or all of a run that failed."""
        return self.episodes if self.error is None else max(self.episodes, self.played)

    @property
    def lineage_episodes(self) -> int:
        """Of this policy and of those it began from."""
        return self.task.inherited_episodes + self.episodes


def measure(act: Act, order: Order, rules: Rules) -> Measured:
    """Play the fixed episodes, all at once."""
    env = workflow_vector(
        rules.evaluation_episodes, order=order, red=rules.red, alignment_lambda=rules.alignment_lambda,
        count_foothold=rules.count_foothold, max_steps=EPISODE_STEPS,
    )  # fmt: skip
    assert isinstance(env, WorkflowVector)
    seen, _ = env.reset(seed=rules.evaluation_seed)
    while not env.env.over:
        seen = env.step(np.asarray(act(seen), np.int64))[0]
    returns, count = env.env.episode_returns, rules.evaluation_episodes
    return Measured(
        return_mean=float(returns.mean()),
        return_half=float(t_quantile(count - 1) * returns.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0,
        compliance=float(env.compliance.mean()),
        fixes=float(env.fixes.mean()),
        without_fix=int((env.fixes == 0).sum()),
    )


def measure_greedy(order: Order, rules: Rules) -> Measured:
    """Greedy restore on the same episodes."""
    return measure(greedy_restore, order, rules)


def train_order(task: Task) -> Outcome:
    """Train one order to its end; a run that fails is an outcome too."""
    watcher = _Watcher(task)
    run = headrace.train(
        "cage2-ppo",
        run_dir=task.run_dir,
        seed=task.seed,
        steps=task.max_episodes * EPISODE_STEPS,
        settings=_settings(task),
        on_progress=watcher.look,
    )
    played = int(run.summary["env_steps"] or 0) // EPISODE_STEPS
    error = None if run.completed else str(run.summary["error"] or run.summary["outcome"])
    return watcher.outcome(played, error)


def _settings(task: Task) -> dict[str, Any]:
    rules = task.rules
    found = {
        "env.id": "headrace/CAGE2Workflow-v0",
        "env.kwargs": {
            "order": list(task.order), "red": rules.red, "alignment_lambda": rules.alignment_lambda,
            "count_foothold": rules.count_foothold, "max_steps": EPISODE_STEPS,
        },
        "evaluation.every_steps": rules.every_episodes * EPISODE_STEPS,
        "evaluation.episodes": 1,  # each frozen policy is measured here; Headrace only has to tell that there is one
        "evaluation.random_baseline": False,
        "checkpoint.keep": 20,  # the one that counts is still there when a few more have come
        **rules.settings,
    }  # fmt: skip
    return found if task.begin_from is None else {**found, "learn.begin_from": task.begin_from}


class _Watcher:
    """Measures every frozen policy, and says when it is enough."""

    def __init__(self, task: Task) -> None:
        rules = task.rules
        self._task = task
        self._stopping = EarlyStopping(
            rules.threshold, rules.patience, task.max_episodes, min_episodes=min(rules.min_episodes, task.max_episodes)
        )
        self._seen, self._parent = 0, os.getppid()
        self._looks: list[tuple[int, float, float]] = []
        self._newest: tuple[int, int, Measured] | None = None
        """(version, episodes, measured) of the policy that counts."""

    def look(self, progress: Progress) -> bool:
        """Whether training may end. Called a few times a second; measures each policy that has been frozen since."""
        for point in progress.evaluations[self._seen :]:
            self._seen += 1
            if self._stopping.reason is None:  # else it was on its way when training ended
                self._measure(point)
        is_orphan = os.getppid() != self._parent  # whoever searched is gone, and nobody waits for this run
        return is_orphan or self._stopping.reason is not None

    def _measure(self, point: EvaluationPoint) -> None:
        assert point.version is not None
        assert point.env_steps is not None
        policy = headrace.load_policy(self._task.run_dir, point.version)
        measured = measure(lambda seen: [policy.act(one) for one in seen], self._task.order, self._task.rules)
        episodes = point.env_steps // EPISODE_STEPS
        self._newest = (point.version, episodes, measured)
        self._looks.append((episodes, measured.compliance, measured.return_mean))
        self._stopping.see(Look(episodes, measured.compliance))

    def outcome(self, played: int, error: str | None) -> Outcome:
        """What came of it all."""
        if self._newest is None:
            return Outcome(self._task, None, 0, played, None, None, (), error or "no policy was evaluated")
        version, episodes, measured = self._newest
        return Outcome(
            task=self._task,
            measured=measured,
            episodes=episodes,
            played=played,
            reason=self._stopping.reason,
            checkpoint=str(Path(self._task.run_dir) / "checkpoints" / str(version)),
            looks=tuple(self._looks),
            error=error,
        )
