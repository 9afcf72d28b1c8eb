"""What rollouts of verifiers came to. It gives one that failed a reward of 0; here it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one rollout."""

    reward: float | None
    """None: it failed."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Outcome:
        """As the guest tells it: reward, metrics, error."""
        error, reward = told["error"], told["reward"]
        if error is None and reward is None:
            error = "it has no reward"
        return cls(None if error is not None else float(reward), dict(told["metrics"]), error)


@dataclass(frozen=True, slots=True)
class Tally:
    """Of many rollouts."""

    judged: int
    mean_reward: float | None
    """Of those that were judged; None: none was."""
    failed: Mapping[str, int]
    """How many, by error."""


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Rewards of what was judged, and how often what failed."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    failed = Counter(outcome.error or "" for outcome in outcomes if outcome.reward is None)
    return Tally(len(rewards), sum(rewards) / len(rewards) if rewards else None, dict(failed))
