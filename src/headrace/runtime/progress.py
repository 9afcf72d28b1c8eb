"""What a run tells about itself while it runs, as plain values for whoever draws them.

A value without a source is None, never 0: "no episode has ended yet" and "the mean return is 0" differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ComponentProgress:
    """One process of the run, as its slot on the board says."""

    id: str
    """``collector-0``, ``learner``, …"""
    state: str
    """starting, ready, …; the board's word."""
    activity: str | None = None
    """What it is doing: ``env.step``, ``wait.credit``, ``update``, …"""
    since_s: float | None = None
    """Seconds it has been doing that."""
    waits_on: str | None = None
    """The component it waits for, if it waits."""
    rate: float | None = None
    """Its own work per second: environment steps of a collector, updates of the learner."""


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One evaluation of a frozen policy, or of uniformly random actions."""

    mean_reward: float
    """Mean return of a complete episode."""
    episodes: int
    env_steps: int | None = None
    """Environment steps of the run when the policy was published; None for random actions."""
    version: int | None = None
    """The policy version; None for random actions."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of the mean return (Student's t); None for a single episode."""
    agents: dict[str, float] | None = None
    """Mean return of each agent, where there are many; the mean return is that of all together."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From the facts of an event or of a summary, in which null stands for NaN."""
        mean, interval = facts.get("mean_reward"), facts.get("interval")
        return cls(
            mean_reward=float("nan") if mean is None else mean,
            episodes=facts.get("episodes", 0),
            env_steps=facts.get("env_steps"),
            version=facts.get("version"),
            interval=(interval[0], interval[1]) if interval else None,
            agents=facts.get("agents"),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The run at one moment."""

    wall_s: float
    """Seconds since the run began."""
    env_steps: int
    """Environment steps committed, over all lanes."""
    env_steps_target: int | None = None
    updates: int | None = None
    """Gradient steps."""
    env_steps_per_s: float | None = None
    """Over the last seconds, not since the start."""
    updates_per_s: float | None = None
    replay_ratio: float | None = None
    """Updates per environment step since learning started."""
    policy_lag: float | None = None
    """Mean number of versions by which the acting policy was older than the newest one."""
    episodes: int | None = None
    """Episodes finished."""
    mean_return: float | None = None
    """Of the last hundred finished episodes."""
    mean_length: float | None = None
    """Steps of the same episodes."""
    components: tuple[ComponentProgress, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    random_baseline: EvaluationPoint | None = None
    message: str | None = None
    """The newest thing worth a sentence: a restart, a fault, an evaluation."""


OnProgress = Callable[[Progress], bool | None]
"""Looks on; True: it has seen enough, and the run is to end in order, as completed."""
