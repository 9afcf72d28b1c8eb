"""Which completed groups are not worth a gradient. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from headrace.llm.config import FilterConfig

TOO_FEW = "too_few"
"""Reason of a group that lost so many rollouts to failures that nothing is left to compare."""

_STRETCH = 10  # batches' worth of groups over which their share is looked at
_MUCH = 0.9  # share of the rollouts completed in a stretch that is told
_AGAIN = 3  # groups of one problem of which nothing was completed, one after the other, that are told
_EQUAL = 1e-8  # rewards that differ by less differ by rounding


def filtered(rewards: Sequence[float], smallest_group: int, section: FilterConfig) -> str | None:
    """Why a group with these rewards is not trained on, as one word; None: it is.

    Args:
        rewards: Of the rollouts that were completed.
        smallest_group: Fewest that make a group.
        section: What else is filtered.
    """
    if len(rewards) < smallest_group:
        return TOO_FEW
    mean = sum(rewards) / len(rewards)
    if section.easy_above is not None and mean > section.easy_above:
        return "easy"
    if section.hard_below is not None and mean < section.hard_below:
        return "hard"
    if section.zero_advantage and max(rewards) - min(rewards) <= _EQUAL:
        return "zero_advantage"
    return None


class Losses:
    """Looks at how much of what is asked for is trained on. Says of each stretch of the run that is mostly waste when it begins.

    Args:
        groups_per_step: Groups of a batch.
    """

    def __init__(self, groups_per_step: int) -> None:
        self._stretch: deque[tuple[str | None, int]] = deque(maxlen=_STRETCH * groups_per_step)
        self._on = False
        self._nothing_of: Counter[str] = Counter()

    def look(self, problem: str, rollouts: int, reason: str | None) -> list[dict[str, Any]]:
        """A group is complete.

        Args:
            problem: Its id.
            rollouts: Of it, those that were completed.
            reason: Why it is not trained on; None: it is.

        Returns:
            Alarms, as they are reported.
        """
        self._stretch.append((reason, rollouts))
        return [*self._share(), *self._hopeless(problem, rollouts)]

    def _share(self) -> list[dict[str, Any]]:
        reasons: Counter[str] = Counter()
        for reason, rollouts in self._stretch:
            if reason is not None:
                reasons[reason] += rollouts
        completed = sum(rollouts for _, rollouts in self._stretch)
        before, self._on = (
            self._on,
            len(self._stretch) == self._stretch.maxlen and reasons.total() >= _MUCH * completed > 0,
        )
        if before or not self._on:
            return []
        share = reasons.total() / completed
        most, count = reasons.most_common(1)[0]
        text = (
            f"{100 * share:.0f} % of the last {completed:,} rollouts completed were filtered, "
            f"most of them ({count:,}) for {most}: little of what is generated is trained on"
        )
        return [{"kind": "mostly_filtered", "text": text, "value": share, "limit": _MUCH, "reason": most}]

    def _hopeless(self, problem: str, rollouts: int) -> list[dict[str, Any]]:
        if rollouts:
            self._nothing_of.pop(problem, None)
            return []
        self._nothing_of[problem] += 1
        if self._nothing_of[problem] != _AGAIN:
            return []
        text = (
            f"every rollout of problem {problem} failed, in each of its last {_AGAIN} groups; the last failure says why"
        )
        return [{"kind": "problem_fails", "text": text, "problem": problem}]
