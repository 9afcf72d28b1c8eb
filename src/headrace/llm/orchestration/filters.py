"""Which completed groups are not worth a gradient. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.llm.config import FilterConfig

TOO_FEW = "too_few"
"""Reason of a group that lost so many rollouts to failures that nothing is left to compare."""

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
