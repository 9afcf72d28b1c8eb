"""Numbers of the rollouts of one batch, by metric name: what was completed, filtered or not, and what was lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from headrace.llm.messages import Batch, Failure
from headrace.llm.orchestration.groups import Group
from headrace.llm.orchestration.rollout import Rollout


class Tally:
    """Sums over everything that ended since the last batch was shipped."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._told: Counter[str] = Counter()
        """Completed rollouts that say something under a name; a fact need not be one of each."""
        self._counts: Counter[str] = Counter()

    def completed(self, rollout: Rollout) -> None:
        """A rollout was judged."""
        judgement = rollout.judgement
        own = {f"train/{name}/mean": value for name, value in {**judgement.terms, **judgement.facts}.items()}
        own |= {
            "train/reward/mean": judgement.reward,
            "train/win_rate": float(judgement.solved),
            "train/turns/mean": float(rollout.turns),
            "train/tokens/mean": float(sum(rollout.trained)),
            "train/truncated/mean": float(rollout.cut is not None),
        }
        for name, value in own.items():
            self._sums[name] += value
            self._told[name] += 1
        if rollout.cut is not None:
            self._counts[f"batch/cut_{rollout.cut}"] += 1

    def failed(self, failure: Failure) -> None:
        """One was given up."""
        self._counts["batch/failed"] += 1
        self._counts[f"batch/failed_{failure.reason}"] += 1

    def retried(self) -> None:
        """An attempt at one failed, and it is tried again."""
        self._counts["batch/retried"] += 1

    def filtered(self, group: Group, reason: str) -> None:
        """A group is not trained on."""
        self._counts["batch/filtered"] += 1
        self._counts[f"batch/filtered_{reason}"] += 1
        if reason == "zero_advantage" and all(rollout.judgement.solved for rollout in group.rollouts):
            self._counts["batch/solved_by_all"] += 1

    def stale(self, group: Group) -> None:
        """A group became too old."""
        self._counts["batch/stale"] += 1
        self._counts["batch/stale_rollouts"] += group.size

    def metrics(self) -> dict[str, float]:
        """Means over the completed rollouts that have the value, and counts. ``batch/filtered`` and ``batch/stale`` count groups.

        ``batch/retried`` is there only where an attempt failed and was made again.
        """
        means = {name: total / self._told[name] for name, total in self._sums.items()}
        always = dict.fromkeys(("batch/failed", "batch/filtered", "batch/stale"), 0.0)
        return always | means | {name: float(count) for name, count in self._counts.items()}


def batch_metrics(batch: Batch, groups: Sequence[Group]) -> dict[str, float]:
    """Of what is shipped: how much it is, and how old."""
    lags = [
        batch.step - int(version)
        for sample in batch.samples
        for version in sample.versions[sample.trained]
    ]  # fmt: skip
    rewards = [sample.reward for sample in batch.samples]
    return {
        "batch/effective_groups": float(len(groups)),
        "batch/samples": float(len(batch.samples)),
        "batch/tokens": float(sum(len(sample.token_ids) for sample in batch.samples)),
        "batch/trained_tokens": float(len(lags)),
        "batch/reward/mean": sum(rewards) / len(rewards),
        "off_policy/mean": sum(lags) / len(lags),
        "off_policy/max": float(max(lags)),
    }
