"""Whether one schedule learns what another does: scores of runs in, an interval and a finding out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

LATE = 1 / 3
"""Share of a run's steps, at its end, whose evaluations make its score."""

_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314,
    2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z = 1.959964
_MOST_SEEDS = 1000


class Finding(StrEnum):
    """What a comparison comes to."""

    SAME = "same"
    """The whole interval of the difference is within the margin."""
    LESS = "less"
    MORE = "more"
    NOTHING_LEARNED = "nothing-learned"
    """The schedule that is compared with is not shown to beat random play itself."""
    UNDECIDED = "undecided"
    NOT_COMPARED = "not-compared"
    """A run has no score."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The evaluations of one run."""

    schedule: str
    seed: int
    points: tuple[tuple[int, float], ...]
    """(environment steps, mean return), oldest first; a return may be NaN."""
    random: float | None = None
    """Mean return of uniformly random actions in the same episodes."""

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Self:
        """From a run's ``summary.json``, in which null stands for NaN."""
        points = tuple(
            (int(point["env_steps"]), _number(point["mean_reward"])) for point in summary.get("evaluations") or ()
        )
        baseline = summary.get("random_baseline")
        random = _number(baseline["mean_reward"]) if baseline else math.nan
        return cls(summary["schedule"], int(summary["seed"]), points, random if math.isfinite(random) else None)

    def score(self, steps: int) -> float | None:
        """Mean of the evaluations in the last third of so many steps, or the newest one where there is none.

        None where there is no evaluation at all, or one of these is not finite.
        """
        late = [value for at, value in self.points if at > (1 - LATE) * steps] or [
            value for _, value in self.points[-1:]
        ]
        mean = sum(late) / len(late) if late else math.nan
        return mean if math.isfinite(mean) else None

    def at(self, step: int, reach: float) -> float | None:
        """The return at a step, on the line between its neighbours.

        Args:
            step: Environment steps.
            reach: How far beyond the first and the last evaluation they still stand for it.

        Returns:
            None where there is no evaluation near, or a neighbour is not finite.
        """
        before = [point for point in self.points if point[0] <= step]
        after = [point for point in self.points if point[0] >= step]
        if not before or not after:
            nearest = (after[:1] or before[-1:] or [(step, math.nan)])[0]
            value = nearest[1] if abs(nearest[0] - step) <= reach else math.nan
        else:
            (left, low), (right, high) = before[-1], after[0]
            value = low if left == right else low + (high - low) * (step - left) / (right - left)
        return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its 95 % interval (Student's t)."""

    mean: float
    low: float | None
    """None for a single seed, which says nothing about the others; likewise `high`."""
    high: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value or more."""
        count, mean = len(values), sum(values) / len(values)
        if count < 2:
            return cls(mean, None, None, count)
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        half = t_quantile(count - 1) * spread / math.sqrt(count)
        return cls(mean, mean - half, mean + half, count)

    def within(self, margin: float) -> bool:
        """Whether the whole interval is at most so far from 0."""
        return self.low is not None and self.high is not None and -margin <= self.low and self.high <= margin

    @property
    def sign(self) -> int:
        """-1 or 1 where the whole interval is on one side of 0; 0 where it is not, or there is none."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0.0) - int(self.high < 0.0)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "seeds": self.count}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one schedule compares with another, over the same seeds."""

    finding: Finding
    difference: Estimate | None = None
    """Other minus reference, seed by seed; None where a run has no score."""
    gain: Estimate | None = None
    """By how much the reference beats random play; None where that was not measured."""
    margin: float | None = None
    """Differences up to this one count as the same; None without a gain."""
    missing: tuple[str, ...] = ()
    """Runs without a score, in words."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "finding": self.finding.value,
            "difference": self.difference.to_json() if self.difference else None,
            "gain_over_random": self.gain.to_json() if self.gain else None,
            "margin": self.margin,
            "missing": list(self.missing),
        }


def t_quantile(freedom: int) -> float:
    """Half-width of the 95 % interval of Student's t distribution, for so many degrees of freedom (1 or more).

    *Source*: up to 30 the usual table; above, Abramowitz and Stegun 26.7.5, which is right to four digits there.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, freedom
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


def compare(reference: Sequence[Curve], other: Sequence[Curve], steps: int, share: float) -> Comparison:
    """Whether the other schedule learns what the reference does.

    Args:
        reference: Its runs.
        other: The other's, of the same seeds in the same order.
        steps: Environment steps of every run.
        share: Of what the reference gains over random play; a difference up to that counts as none.
    """
    pairs = list(zip(reference, other, strict=True))
    scores = [(left.score(steps), right.score(steps)) for left, right in pairs]
    missing = tuple(
        f"{curve.schedule} with seed {curve.seed}"
        for pair, found in zip(pairs, scores, strict=True)
        for curve, score in zip(pair, found, strict=True)
        if score is None
    )
    whole = [(left, right) for left, right in scores if left is not None and right is not None]
    if missing or not whole:
        return Comparison(Finding.NOT_COMPARED, missing=missing)
    difference = Estimate.of([right - left for left, right in whole])
    gains = [left - curve.random for (left, _), curve in zip(whole, reference, strict=True) if curve.random is not None]
    gain = Estimate.of(gains) if len(gains) == len(whole) else None
    margin = share * gain.mean if gain is not None and gain.mean > 0.0 else None
    return Comparison(_finding(difference, gain, margin), difference, gain, margin)


def seeds_needed(difference: Estimate, margin: float) -> int | None:
    """About how many seeds it takes until the interval is within the margin, if differences go on as they are.

    None where no number of seeds would do, more than a thousand would be needed, or a single one is all that is known.
    """
    if difference.low is None or difference.high is None:
        return None
    spread = (difference.high - difference.mean) * math.sqrt(difference.count) / t_quantile(difference.count - 1)
    for count in range(2, _MOST_SEEDS + 1):
        if abs(difference.mean) + t_quantile(count - 1) * spread / math.sqrt(count) <= margin:
            return count
    return None


def _finding(difference: Estimate, gain: Estimate | None, margin: float | None) -> Finding:
    if margin is not None and difference.within(margin):
        return Finding.SAME
    if difference.sign:
        return Finding.MORE if difference.sign > 0 else Finding.LESS
    if gain is not None and gain.low is not None and gain.sign <= 0:
        return Finding.NOTHING_LEARNED
    return Finding.UNDECIDED


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
