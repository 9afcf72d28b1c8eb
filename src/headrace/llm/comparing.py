"""Which way to run a language-model configuration is fastest here, from short runs of each: decisions alone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.llm.config import RLConfig
from headrace.llm.payloads import TRAINER, TWIN
from headrace.telemetry.board import Activity

SAME = 0.95
"""A way of this part of the best one's speed is as good, if it is simpler."""
PARTS = ("inference", "trainer", "environment", "handover")
"""Who can be at work. handover: weights are published, loaded and proved, batches shipped."""
TOGETHER, WAITING = "together", "waiting"
"""More than one of them is at work; none is: messages are under way, or everybody waits for a core."""
TIMES = (
    "time/generate", "time/forward_backward", "time/wait_for_batch", "time/wait_for_policy", "time/broadcast_weights",
    "time/update_weights",
)  # fmt: skip
"""Of the metrics of a step, those that say where its time went."""

_AT_WORK = {
    Activity.GENERATE: "inference",
    Activity.UPDATE: "trainer",
    Activity.SAMPLE: "trainer",
    Activity.ENV_CONSTRUCT: "environment",
    Activity.ENV_RESET: "environment",
    Activity.ENV_STEP: "environment",
    Activity.PUBLISH: "handover",
    Activity.LOAD_WEIGHTS: "handover",
    Activity.SCORE: "handover",
    Activity.COMMIT: "handover",
}
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a configuration."""

    schedule: str
    lag: int

    def __str__(self) -> str:
        return "inline" if self.schedule == "inline" else f"async, lag {self.lag}"

    @property
    def flags(self) -> str:
        """On the command line of ``headrace rl``, behind every other ``--set``: a table there states the whole section."""
        return f"--schedule {self.schedule} --set orchestrator.max_policy_lag={self.lag}"

    @property
    def changes(self) -> dict[str, object]:
        """The keys of the configuration that make it."""
        return {"run.schedule": self.schedule, "orchestrator.max_policy_lag": self.lag}


@dataclass(frozen=True, slots=True)
class Tried:
    """What a short run of a way came to."""

    way: Way
    steps_s: tuple[float, ...] = ()
    """From one step of the trainer to the next; empty: it was not measured."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Mean of each of `TIMES` that it has, per step."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Part of the time in which each of `PARTS` alone was at work, more than one of them, or none."""
    lag_mean: float = 0.0
    """Versions by which tokens were older than the policy that was trained on them."""
    why_not: str | None = None
    """Why it was not measured."""
    busy_cores: float = 0.0
    """That other work had meanwhile."""

    @property
    def measured(self) -> bool:
        """Whether there is a speed."""
        return bool(self.steps_s)

    @property
    def step_s(self) -> float:
        """Of a step, the median."""
        return statistics.median(self.steps_s)

    @property
    def steps_per_s(self) -> float:
        """Of the trainer."""
        return 1.0 / self.step_s

    @property
    def middle_s(self) -> tuple[float, float]:
        """Between which the middle half of the steps lies."""
        if len(self.steps_s) < _FEWEST:
            return self.step_s, self.step_s
        low, _, high = statistics.quantiles(self.steps_s, n=4, method="inclusive")
        return low, high

    @property
    def limit(self) -> str:
        """Which of `PARTS`, or waiting, the run would be without for longest: while it alone is at work, nothing else goes on."""
        alone = {name: share for name, share in self.shares.items() if name != TOGETHER}
        return max(alone, key=lambda name: alone[name], default=WAITING)


def ways(config: RLConfig) -> list[Way]:
    """The ways that are compared, simplest first: the single process, three at lag 0, three at the declared lag."""
    lag = config.orchestrator.max_policy_lag
    found = [Way("inline", 0), Way("async", 0)]
    return [*found, Way("async", lag)] if lag else found


def why_not(config: RLConfig, way: Way) -> str | None:
    """Why a way cannot be tried; None: it can."""
    if way.schedule == "inline" and config.inference.backend != "headrace":
        return f"one process runs our own engine, and inference.backend is {config.inference.backend}"
    return None


def at_work(views: Iterable[tuple[str, Activity, int]], first: int, last: int) -> str | None:
    """Who is at work at a moment: one of `PARTS`, together or waiting.

    Args:
        views: Of each component that is alive its id, its activity, and how many updates it has made.
        first: Updates of the trainer from which on it counts.
        last: Updates from which on it counts no more.

    Returns:
        None: the moment does not count.
    """
    seen = list(views)
    if not any(name in {TRAINER, TWIN} and first <= updates < last for name, _, updates in seen):
        return None
    busy = {_AT_WORK[activity] for _, activity, _ in seen if activity in _AT_WORK}
    if len(busy) > 1:
        return TOGETHER
    return busy.pop() if busy else WAITING


def steps_of(lines: Sequence[Mapping[str, Any]], first: int, last: int) -> tuple[tuple[float, ...], dict[str, float]]:
    """Lengths of steps, and the means of their times.

    Args:
        lines: Of ``metrics.jsonl``.
        first: Step after which counting begins.
        last: Step with which it ends.

    Returns:
        Seconds between the reports of the trainer, one for each step in between; and `TIMES`, per step.
    """
    made = {int(line["step"]): float(line["wall_s"]) for line in lines if "time/step" in line}
    steps_s = tuple(
        made[step] - made[step - 1] for step in range(first + 1, last + 1) if step in made and step - 1 in made
    )
    sums = dict.fromkeys(TIMES, 0.0)
    for line in lines:
        if first < int(line["step"]) <= last:
            for name in TIMES:
                sums[name] += float(line.get(name) or 0.0)
    return steps_s, {name: total / len(steps_s) for name, total in sums.items() if total} if steps_s else {}


def recommended(tried: Sequence[Tried]) -> Tried | None:
    """The simplest of those that are as fast as the fastest; None: none was measured."""
    known = [one for one in tried if one.measured]
    if not known:
        return None
    best = max(one.steps_per_s for one in known)
    return next(one for one in known if one.steps_per_s >= SAME * best)


def at_lag_0(tried: Sequence[Tried]) -> Tried | None:
    """The same among those that learn the same, bit for bit; None unless there are two to be compared."""
    same = [one for one in tried if not one.way.lag and one.measured]
    return recommended(same) if len(same) > 1 else None


def hard_to_tell(one: Tried, other: Tried) -> bool:
    """Whether the middle halves of their steps overlap, so that a longer run might say the opposite."""
    (low, high), (other_low, other_high) = one.middle_s, other.middle_s
    return low <= other_high and other_low <= high
