"""Which plan is the fastest, and what limits it: measured costs go in, predictions and a recommendation come out. Pure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.core.errors import ConfigError
from headrace.lanes.rate_limiter import RateLimiter
from headrace.runtime.config import IN_TURN, ExperimentConfig, load_config
from headrace.runtime.rehearsal import Pace, Rollout, Shape, Span, Work, pace

SCHEDULES = ("inline", "lockstep", "async")
PARTS = ("environment", "policy", "rows", "learner")
"""Whose time a run can be limited by, beside waiting."""
SAME = 0.95
"""A plan of this part of the best one's speed is as good, if it is simpler."""
WAITS = 0.2
"""A step that waits for more than this part of its time leaves its core to others."""

_ENDLESS = 2**62
_DRAWN_STEPS = 2_000_000
_DRAWS = 96
_MOST_DRAWN = 4096
"""Steps of a chunk that are drawn one by one; the others spread as these do."""
_NUDGE = 0.05
"""How much longer and shorter a part is made to see what hangs on it; where two parts are as good as balanced, both count."""
_IDEAL_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What each piece of a run takes, with a core of its own."""

    step_s: tuple[float, ...]
    """Durations of one call of ``step()``, each equally likely."""
    step_cpu_s: float
    """Processor time of one, in the mean."""
    reset_s: float = 0.0
    """One ``reset()``."""
    reset_cpu_s: float = 0.0
    resets_per_step: float = 0.0
    act_s: float
    """One answer of the policy to the lanes of a group."""
    row_s: float = 0.0
    """To check what a step returned and write it down, per lane."""
    chunk_s: float = 0.0
    """To begin a chunk of a group and to hand it over."""
    commit_s: float = 0.0
    """For the learner to take one over."""
    update_s: float
    update_cpu_s: float
    publish_s: float = 0.0

    @property
    def mean_step_s(self) -> float:
        """One call of ``step()``, in the mean."""
        return sum(self.step_s) / len(self.step_s)

    @property
    def waits(self) -> float:
        """Part of a step in which nothing is computed."""
        return max(0.0, 1.0 - self.step_cpu_s / self.mean_step_s) if self.mean_step_s else 0.0

    def barrier(self, envs: int) -> float:
        """How many times as long as the mean step the slowest of so many takes, in the mean."""
        ordered = np.sort(np.asarray(self.step_s))
        upto = (np.arange(len(ordered) + 1) / len(ordered)) ** envs
        return float(np.sum(ordered * np.diff(upto)) / self.mean_step_s) if self.mean_step_s else 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule, and how many processes collect; 1 in ``inline``, where none does."""

    schedule: str
    collectors: int = 1

    def __str__(self) -> str:
        if self.schedule == "inline":
            return self.schedule
        return f"{self.schedule} with {self.collectors} collector{'s' if self.collectors > 1 else ''}"

    @property
    def flags(self) -> str:
        """What to give ``headrace train``."""
        return f"--schedule {self.schedule}" + (f" --collectors {self.collectors}" if self.schedule != "inline" else "")

    @property
    def changes(self) -> dict[str, object]:
        """The keys of the configuration that make it."""
        return {"run.schedule": self.schedule, "run.collectors": self.collectors}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan should come to."""

    plan: Plan
    pace: Pace
    limits: Mapping[str, float]
    """By part, and ``waiting``: which share of the time goes when that goes; in sum 1.

    ``waiting`` is what would go if every step took its mean time and nobody had to wait for a core. The rest is dealt out
    by how much the speed changes when a part takes a little longer or shorter: what overlaps with something longer weighs
    nothing.
    """
    for_cores: float
    """Of ``waiting``: for a core that another process has."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction beside what a real run came to."""

    prediction: Prediction
    """For the cores there were when everything was timed, as of all other plans."""
    measured: Pace | None = None
    why_not: str | None = None
    """Why it was run and not measured."""
    start_s: float | None = None
    """Until its first rows were there."""
    busy_cores: float | None = None
    """That other work had while it ran."""
    then: Prediction | None = None
    """For the cores there were when it ran."""

    @property
    def expected(self) -> Prediction:
        """What to compare with what was measured."""
        return self.then or self.prediction

    @property
    def plan(self) -> Plan:
        """Which."""
        return self.prediction.plan

    @property
    def speed(self) -> float:
        """Environment steps per second, as measured if it was."""
        return (self.measured or self.prediction.pace).steps_per_s

    @property
    def error(self) -> float | None:
        """How much faster than measured it was predicted, as a share."""
        if self.measured is None or not self.measured.steps_per_s:
            return None
        return self.expected.pace.steps_per_s / self.measured.steps_per_s - 1.0


def candidates(config: ExperimentConfig, costs: Costs, cores: int) -> list[Plan]:
    """Plans that the configuration allows, its own among them, the simplest first."""
    busy = 1.0 - costs.waits if costs.waits > WAITS else 1.0  # of a core, by each of them
    most = min(config.env.groups, math.ceil(cores / max(busy, 1e-3)))
    counts = sorted({*_spread(most), *([config.run.collectors] if config.run.schedule != "inline" else [])})
    found = [Plan("inline"), *(Plan(schedule, count) for schedule in SCHEDULES[1:] for count in counts)]
    return [plan for plan in found if configured(config, plan) is not None]


def configured(
    config: ExperimentConfig, plan: Plan, further: Mapping[str, object] | None = None
) -> ExperimentConfig | None:
    """The configuration under a plan; None if it does not allow it."""
    changes = {**plan.changes, **(further or {})}
    if plan.schedule != "async":
        changes |= IN_TURN
    try:
        return load_config(config, changes)
    except ConfigError:
        return None


def predict(config: ExperimentConfig, plan: Plan, costs: Costs, cores: float) -> Prediction:
    """What a plan should come to, and what limits it.

    Args:
        config: Of the run.
        plan: Who works when.
        costs: Measured.
        cores: That the run has.
    """
    shape = _shape(config, plan)
    makes = _Makes(config, plan, cores)
    real = pace(plan.schedule, shape, makes.work(costs, spread=True), cores)
    apart = pace(plan.schedule, shape, makes.work(costs, spread=True), math.inf)
    ideal_s = _ideal_s(plan, shape, makes, costs)
    step_s = 1.0 / real.steps_per_s
    waiting = max(0.0, 1.0 - ideal_s / step_s)
    gains = {part: _weight_s(plan, shape, makes, costs, part) for part in PARTS}
    whole = sum(gains.values()) or 1.0
    limits = {part: gain / whole * (1.0 - waiting) for part, gain in gains.items()} | {"waiting": waiting}
    for_cores = min(waiting, max(0.0, 1.0 - real.steps_per_s / apart.steps_per_s))
    return Prediction(plan, real, limits, for_cores)


def scaled(costs: Costs, part: str, by: float) -> Costs:
    """The same with one part so many times as long."""
    fields = {
        "environment": ("step_cpu_s", "reset_s", "reset_cpu_s"),
        "policy": ("act_s",),
        "rows": ("row_s", "chunk_s"),
        "learner": ("commit_s", "update_s", "update_cpu_s", "publish_s"),
    }[part]
    changed: dict[str, Any] = {name: getattr(costs, name) * by for name in fields}
    if part == "environment":
        changed["step_s"] = tuple(one * by for one in costs.step_s)
    return replace(costs, **changed)


def recommended(judged: Sequence[Judged]) -> Judged:
    """The fastest of those that were measured, or of all if none was; the simplest of those that are as good."""
    known = [one for one in judged if one.measured is not None] or list(judged)
    best = max(one.speed for one in known)
    good = [one for one in known if one.speed >= SAME * best]
    return min(good, key=lambda one: (SCHEDULES.index(one.plan.schedule), one.plan.collectors))


def worth_checking(config: ExperimentConfig, predictions: Sequence[Prediction], most: int) -> list[Plan]:
    """Plans to run for real: the simplest, the configured one, then the best by prediction; at most so many."""
    own = Plan(config.run.schedule, 1 if config.run.schedule == "inline" else config.run.collectors)
    known = [one.plan for one in predictions]
    of = {name: [one for one in predictions if one.plan.schedule == name] for name in reversed(SCHEDULES)}
    firsts = [_simplest(found).plan for found in of.values() if found]
    best = sorted(predictions, key=lambda one: -one.pace.steps_per_s)
    wanted = [Plan("inline"), own, *firsts, *(one.plan for one in best)]
    return [plan for plan in dict.fromkeys(wanted) if plan in known][:most]


def _simplest(predictions: Sequence[Prediction]) -> Prediction:
    """With the fewest collectors of those that are as good as the best."""
    best = max(one.pace.steps_per_s for one in predictions)
    good = [one for one in predictions if one.pace.steps_per_s >= SAME * best]
    return min(good, key=lambda one: one.plan.collectors)


def limiting(limits: Mapping[str, float]) -> str:
    """The largest of them."""
    return max(limits, key=lambda name: limits[name])


def to_json(costs: Costs) -> dict[str, Any]:
    """Costs as plain values."""
    return {**asdict(costs), "step_s": list(costs.step_s)}


def _spread(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, … and the last one."""
    for power in range(most.bit_length()):
        yield from (count for count in (2**power, 3 * 2**power // 2) if count < most)
    yield most


def _rollout(config: ExperimentConfig, plan: Plan) -> Rollout | None:
    """What is trained on at once, if it learns on-policy; as if every epoch set were whole."""
    algorithm = config.algorithm
    if not isinstance(algorithm, PPOConfig | VTraceConfig):
        return None
    minibatches = -(-config.env.lanes * config.collect.chunk_steps // algorithm.batch_size)
    return Rollout(algorithm.epochs * minibatches, config.rollout.max_policy_lag if plan.schedule == "async" else 0)


def _shape(config: ExperimentConfig, plan: Plan) -> Shape:
    replay, steps, ratio = config.replay, config.collect.chunk_steps, config.declared_ratio
    slack = (replay.slack_steps if plan.schedule == "async" else None) or 2 * config.env.lanes * steps
    return Shape(
        groups=config.env.groups,
        chunk_steps=steps * config.env.group_size,
        limiter=RateLimiter(learning_starts=1, ratio=ratio, slack_steps=slack, target_steps=_ENDLESS),
        collectors=plan.collectors,
        window_chunks=config.collect.window_chunks,
        publish_every=config.learn.publish_every,
        rollout=_rollout(config, plan),
    )


def _ideal_s(plan: Plan, shape: Shape, makes: _Makes, costs: Costs) -> float:
    """Of one environment step, if every step took its mean time, and nobody had to wait for a core."""
    found = pace(plan.schedule, shape, makes.work(costs, spread=False), math.inf, most=_IDEAL_ROUNDS)
    return 1.0 / found.steps_per_s


def _weight_s(plan: Plan, shape: Shape, makes: _Makes, costs: Costs, part: str) -> float:
    """What hangs on a part, in seconds of one environment step."""
    longer, shorter = (_ideal_s(plan, shape, makes, scaled(costs, part, 1.0 + by)) for by in (_NUDGE, -_NUDGE))
    return max(0.0, longer - shorter)


@dataclass(frozen=True, slots=True)
class _Makes:
    """What costs come to in the pieces of work that a plan is made of."""

    config: ExperimentConfig
    plan: Plan
    cores: float

    @property
    def copies(self) -> int:
        """Environments of a group."""
        return self.config.env.group_size // self.config.agents.count

    @property
    def own_groups(self) -> int:
        """Groups of the collector that has most."""
        return -(-self.config.env.groups // self.plan.collectors)

    @property
    def workers(self) -> int:
        """Of each collector."""
        asked = self.config.env.workers
        return min(math.ceil(self.cores), self.own_groups * self.copies) if asked == "auto" else asked

    def work(self, costs: Costs, *, spread: bool) -> Work:
        """The pieces.

        Args:
            costs: Measured.
            spread: Whether steps take now more, now less time, or always the mean.
        """
        steps, size = self.config.collect.chunk_steps, self.config.env.group_size
        calls = steps * self.copies
        here_s = steps * (costs.act_s + size * costs.row_s) + costs.chunk_s
        resets_s = calls * costs.resets_per_step * costs.reset_s
        env_cpu_s = calls * (costs.step_cpu_s + costs.resets_per_step * costs.reset_cpu_s)
        walls_s = self._walls(costs) if spread else np.asarray([self._mean_wall(costs)])
        if calls * costs.mean_step_s:
            walls_s = walls_s + resets_s * walls_s.mean() / (calls * costs.mean_step_s)
        cpus_s = here_s + walls_s * (env_cpu_s / walls_s.mean() if walls_s.any() else 0.0)
        if self.workers:
            groups, sent = self.own_groups, min(self.workers, self.own_groups * self.copies)
            # While workers step one group, the collector acts for another; neither can be busy more than all of the time.
            walls_s = np.maximum((here_s + walls_s) / groups, max(here_s, calls * costs.mean_step_s / sent))
        else:
            walls_s = here_s + walls_s
        draws = itertools.cycle(map(Span, walls_s.tolist(), cpus_s.tolist()))
        return Work(
            chunk=lambda _: next(draws),
            commit=Span(costs.commit_s, costs.commit_s),
            update=Span(costs.update_s, costs.update_cpu_s),
            publish=Span(costs.publish_s, costs.publish_s),
        )

    def _mean_wall(self, costs: Costs) -> float:
        """What a chunk's environment steps take if all take the same."""
        in_turn = math.ceil(self.copies / self.workers) if self.workers else self.copies
        return self.config.collect.chunk_steps * in_turn * costs.mean_step_s

    def _walls(self, costs: Costs) -> NDArray[np.float64]:
        """What a chunk's environment steps take, as drawn from the durations that were measured; [D]."""
        return _drawn_walls(costs.step_s, self.config.collect.chunk_steps, self.copies, self.workers)


@functools.lru_cache(maxsize=64)
def _drawn_walls(step_s: tuple[float, ...], chunk_steps: int, copies: int, workers: int) -> NDArray[np.float64]:
    rng, values = np.random.default_rng(0), np.asarray(step_s)
    steps = min(chunk_steps, max(1, _MOST_DRAWN // copies))
    draws = max(8, min(_DRAWS, _DRAWN_STEPS // (steps * copies)))
    took = rng.choice(values, (draws, steps, copies))
    if workers and copies > 1:
        turns = math.ceil(copies / workers)
        padded = np.zeros((draws, steps, turns * min(workers, copies)))
        padded[:, :, :copies] = took
        took = padded.reshape(draws, steps, turns, -1).sum(axis=2).max(axis=2)
    else:
        took = took.sum(axis=2)
    sums = took.sum(axis=1)
    if not workers and sums.any():  # known without drawing
        sums *= steps * copies * values.mean() / sums.mean()
    more = chunk_steps / steps
    return np.asarray(sums.mean() * more + (sums - sums.mean()) * math.sqrt(more))
