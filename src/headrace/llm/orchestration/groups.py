"""Groups: rollouts of one problem, which are compared with each other, and the samples that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import DataLossError
from headrace.envs.text.protocol import Problem
from headrace.llm.messages import Failure, Sample
from headrace.llm.orchestration.rollout import Rollout, RolloutSpec

Advantages = Callable[[Sequence[float]], Sequence[float]]
"""From the rewards of a group to the advantages of its rollouts."""


@dataclass(slots=True)
class Group:
    """One group, from its beginning to its batch."""

    number: int
    """From 0, in the order in which groups are begun."""
    problem: Problem
    size: int
    outcomes: dict[int, Rollout | Failure] = field(default_factory=dict)
    """Of the samples that have ended."""
    oldest: int | None = None
    """Version of its oldest token so far."""
    told: bool = False
    """Whether the curriculum was told of it, also before a resume that begins it anew."""

    def specs(self, temperature: float) -> list[RolloutSpec]:
        """Its rollouts."""
        return [
            RolloutSpec(
                group=self.number,
                sample=sample,
                problem=self.problem,
                keys=(self.number, sample),
                temperature=temperature,
            )
            for sample in range(self.size)
        ]

    def saw(self, versions: Sequence[int]) -> None:
        """Tokens of these versions were chosen."""
        for version in versions:
            self.oldest = version if self.oldest is None else min(self.oldest, version)

    def ended(self, sample: int, outcome: Rollout | Failure) -> None:
        """A rollout is over.

        Raises:
            DataLossError: It was over already.
        """
        if sample in self.outcomes or not 0 <= sample < self.size:
            raise DataLossError(
                f"rollout g{self.number}.{sample} ended twice, or was never begun",
                ended=sorted(self.outcomes),
                fix="file a bug: the orchestrator lost track of a rollout",
            )
        self.outcomes[sample] = outcome

    @property
    def complete(self) -> bool:
        """Whether all have ended."""
        return len(self.outcomes) == self.size

    @property
    def rollouts(self) -> list[Rollout]:
        """Those that were completed, in the order of their samples."""
        return [outcome for _, outcome in sorted(self.outcomes.items()) if isinstance(outcome, Rollout)]

    @property
    def rewards(self) -> list[float]:
        """Of those."""
        return [rollout.judgement.reward for rollout in self.rollouts]


def samples_of(group: Group, advantages: Advantages) -> list[Sample]:
    """What the trainer gets of a group."""
    rollouts = group.rollouts
    of_each = advantages(group.rewards)
    return [_sample(group, rollout, float(of)) for rollout, of in zip(rollouts, of_each, strict=True)]


def _sample(group: Group, rollout: Rollout, advantage: float) -> Sample:
    return Sample(
        rollout=rollout.spec.id,
        group=group.number,
        problem=group.problem.id,
        token_ids=np.asarray(rollout.token_ids, np.int32),
        trained=np.asarray(rollout.trained, np.bool_),
        logprobs=np.asarray(rollout.logprobs, np.float32),
        versions=np.asarray(rollout.versions, np.int32),
        reward=rollout.judgement.reward,
        advantage=advantage,
    )
