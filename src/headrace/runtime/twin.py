"""The same training under several schedules: which runs there are, what they come to, and what that says. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.errors import ConfigError
from headrace.runtime.comparing import Comparison, Curve, Finding, compare
from headrace.runtime.config import IN_TURN, ExperimentConfig, load_config
from headrace.telemetry.board import Activity
from headrace.telemetry.timeuse import Spent

SCHEDULES = ("inline", "lockstep", "async")
REFERENCE = "inline"

_COLLECTING = frozenset(
    activity.label
    for activity in (
        Activity.ENV_CONSTRUCT, Activity.ENV_RESET, Activity.ENV_STEP, Activity.ENV_CLOSE, Activity.POLICY,
        Activity.LOAD_WEIGHTS, Activity.WAIT_ENV,
    )
)  # fmt: skip
"""What ``inline`` does in one process and other schedules leave to collectors; all else is the learner's."""


_UNDISTURBED = 0.8
"""Processor time per second of learning, below which something else had the core."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run that belongs to a twin report."""

    schedule: str
    seed: int
    config: ExperimentConfig

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.schedule}-{self.seed}"


@dataclass(frozen=True, slots=True)
class TwinRun:
    """A run that was completed."""

    schedule: str
    seed: int
    summary: Mapping[str, Any]
    """As ``summary.json``."""
    spent: tuple[Spent, ...] = ()
    """Sampled while it trained."""

    @property
    def curve(self) -> Curve:
        """Its evaluations."""
        return Curve.of(self.summary)

    @property
    def steps_per_s(self) -> float | None:
        """Environment steps per second while it trained."""
        return (self.summary.get("throughput") or {}).get("env_steps_per_s")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whether the weights of two runs that must be equal are."""

    seed: int
    reference: str
    """SHA-256 of the learned arrays of ``inline``."""
    other: str
    """Of ``schedule``."""
    schedule: str = "lockstep"

    @property
    def equal(self) -> bool:
        """Bit for bit."""
        return self.reference == self.other


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast ``async`` is beside ``inline``."""

    ratio: float
    """Environment steps per second, the mean of both over all seeds; above 1: faster."""
    learning: float | None
    """Share of the time of ``inline`` that is not stepping environments or acting; None if it was not sampled."""
    possible: float | None
    """What overlapping alone could bring at best, by that share; None if it was not sampled."""
    disturbed: float | None = None
    """Share of a core that ``inline`` got, where that is less than it needed: other work held the cores."""


@dataclass(frozen=True, slots=True)
class Twins:
    """All runs of a report, and what they say."""

    steps: int
    runs: tuple[TwinRun, ...]
    share: float
    """Of the gain over random play, up to which a difference counts as none."""
    collectors: int
    cores: int
    exact: tuple[str, ...] = ("lockstep",)
    """Schedules that have to come to the weights of ``inline``; see `exact_schedules`."""

    def of(self, schedule: str) -> list[TwinRun]:
        """Runs of one schedule, in the order of their seeds."""
        return sorted((run for run in self.runs if run.schedule == schedule), key=lambda run: run.seed)

    @property
    def identities(self) -> list[Identity]:
        """Of every seed that was run under ``inline`` and under a schedule that has to equal it."""
        inline = {run.seed: run for run in self.of(REFERENCE)}
        return [
            Identity(run.seed, inline[run.seed].summary["weights_sha256"], run.summary["weights_sha256"], schedule)
            for schedule in self.exact
            for run in self.of(schedule)
            if run.seed in inline
        ]

    @property
    def proved(self) -> bool:
        """Whether equal weights say all there is to say of what ``async`` learned."""
        found = [one.equal for one in self.identities if one.schedule == "async"]
        return bool(found) and all(found)

    @property
    def learning(self) -> Comparison | None:
        """Whether ``async`` learns what ``inline`` learns; None if it was not run."""
        if not self.of("async"):
            return None
        inline, other = ([run.curve for run in self.of(schedule)] for schedule in (REFERENCE, "async"))
        found = compare(inline, other, self.steps, self.share)
        return replace(found, finding=Finding.SAME) if self.proved else found

    @property
    def speed(self) -> Speed | None:
        """Of ``async``; None if it was not run, or a run does not say how fast it was."""
        inline, other = mean_speed(self.of(REFERENCE)), mean_speed(self.of("async"))
        if inline is None or other is None or not inline:
            return None
        learning = learning_share(self.of(REFERENCE))
        _, cpu = time_of(self.of(REFERENCE), "learner")
        # Stepping environments may be waiting for something; learning computes.
        held_up = cpu is not None and learning is not None and cpu < _UNDISTURBED * learning
        possible = possible_speedup(learning, self.collectors, self.cores)
        return Speed(other / inline, learning, possible, cpu if held_up else None)


def exact_schedules(config: ExperimentConfig) -> tuple[str, ...]:
    """Schedules under which a configuration has to come to the weights of ``inline``, bit for bit."""
    rollout = config.rollout
    strictly = config.on_policy and rollout.max_policy_lag == 0 and rollout.order == "chunk"
    return ("lockstep", "async") if strictly else ("lockstep",)


def plan_twins(
    config: ExperimentConfig, schedules: Sequence[str], seeds: int, lockstep_seeds: int
) -> tuple[PlannedRun, ...]:
    """The runs of a report, in the order in which to run them: seed by seed, so that a slow hour is everybody's.

    All end after ``run.steps``; what would end one of them earlier than another is taken out.

    Args:
        config: What to train; its seed is the first one.
        schedules: Of `SCHEDULES`.
        seeds: How many.
        lockstep_seeds: How many of them under ``lockstep``.

    Raises:
        ConfigError: There is nothing to compare, or runs that end by the clock or learn by the clock.
    """
    _refuse(config, schedules)
    if lockstep_seeds > seeds:
        raise ConfigError(
            f"there are no {lockstep_seeds} seeds to run under lockstep",
            seeds=seeds,
            fix="raise --seeds or lower --lockstep-seeds",
        )
    first = config.run.seed
    kept = [schedule for schedule in SCHEDULES if schedule in schedules]
    return tuple(
        PlannedRun(schedule, seed, _twin(config, schedule, seed))
        for seed in range(first, first + seeds)
        for schedule in kept
        if schedule != "lockstep" or seed < first + lockstep_seeds
    )


def mean_speed(runs: Sequence[TwinRun]) -> float | None:
    """Environment steps per second, over all of these runs; None if there are none, or one does not say."""
    speeds = [run.steps_per_s for run in runs]
    known = [speed for speed in speeds if speed is not None]
    return sum(known) / len(known) if known and len(known) == len(speeds) else None


def time_of(runs: Sequence[TwinRun], kind: str) -> tuple[dict[str, float], float | None]:
    """What all components of a kind did in these runs.

    Returns:
        Share of the samples in each activity, the largest first; and the processor time of one of them as a share of one
        core, the mean, or None.
    """
    found = [spent for run in runs for spent in run.spent if spent.kind == kind]
    counts: Counter[str] = Counter()
    for spent in found:
        counts.update(spent.samples)
    shares = {name: count / counts.total() for name, count in counts.most_common()}
    cpu = [spent.cpu_share for spent in found if spent.cpu_share is not None]
    return shares, sum(cpu) / len(cpu) if cpu else None


def learning_share(runs: Sequence[TwinRun]) -> float | None:
    """Share of the samples of ``inline`` in which its one process did neither step environments nor act."""
    shares, _ = time_of(runs, "learner")
    return sum(part for name, part in shares.items() if name not in _COLLECTING) if shares else None


def possible_speedup(learning: float | None, collectors: int, cores: int) -> float | None:
    """What overlapping and so many collectors can bring at best, if each part costs what it costs in one process.

    Args:
        learning: From `learning_share`.
        collectors: That share the rest.
        cores: Of the machine, or those this process may use.
    """
    if learning is None:
        return None
    return 1.0 / max(learning, (1.0 - learning) / collectors, 1.0 / cores)


def evaluation_marks(config: ExperimentConfig) -> list[int]:
    """Environment steps at which runs of this configuration are evaluated."""
    every, steps = config.evaluation.every_steps, config.run.steps
    marks = list(range(every, steps + 1, every)) if every else []
    return marks if marks and marks[-1] == steps else [*marks, steps]


def band_at(curves: Sequence[Curve], mark: int, reach: float) -> tuple[float, float, float] | None:
    """Mean, lowest and highest return of some runs at a step; None unless each of them has one."""
    values = [value for curve in curves if (value := curve.at(mark, reach)) is not None]
    if not values or len(values) < len(curves):
        return None
    return sum(values) / len(values), min(values), max(values)


def bands(curves: Sequence[Curve], marks: Sequence[int]) -> Iterator[tuple[int, float, float, float]]:
    """(steps, mean, lowest, highest) at each mark where all curves have a value."""
    spacing = marks[1] - marks[0] if len(marks) > 1 else marks[0]
    for mark in marks:
        band = band_at(curves, mark, spacing / 2)
        if band is not None:
            yield mark, *band


def first_other_evaluation(one: Curve, two: Curve) -> int | None:
    """Environment steps of the first evaluation in which two curves differ; None if all that both have are equal."""
    for (at, value), (other_at, other_value) in zip(one.points, two.points, strict=False):
        if at != other_at or not (value == other_value or (value != value and other_value != other_value)):
            return at
    return None


def _refuse(config: ExperimentConfig, schedules: Sequence[str]) -> None:
    unknown = [schedule for schedule in schedules if schedule not in SCHEDULES]
    if unknown or REFERENCE not in schedules or len(set(schedules)) < 2:
        raise ConfigError(
            f"there is nothing to compare in the schedules {', '.join(schedules) or 'named'}",
            **({"unknown": ", ".join(unknown)} if unknown else {}),
            known=", ".join(SCHEDULES),
            fix="name inline, which the others are compared with, and lockstep, async or both",
        )
    if config.run.run_duration_s is not None:
        raise ConfigError(
            "the twins would end after different numbers of steps: the clock ends them",
            run_duration_s=f"{config.run.run_duration_s:g}",
            fix="give --steps N, and no run.run_duration_s beside it",
        )
    if config.replay.free_running:
        raise ConfigError(
            "the twins would learn different amounts: nothing ties updates to environment steps",
            free_running=True,
            fix="add --set replay.free_running=false, and a replay.ratio",
        )


def _twin(config: ExperimentConfig, schedule: str, seed: int) -> ExperimentConfig:
    changes: dict[str, object] = {"run.schedule": schedule, "run.seed": seed, "evaluation.target": None}
    if schedule != "async":
        changes |= IN_TURN
    return load_config(config, changes)
