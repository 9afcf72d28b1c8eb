"""How far rollouts may run ahead of the trainer: how many groups may be begun, and which became too old. Pure.

The batch of step ``s`` is trained on by policy ``s``; a token of version ``v`` in it has lag ``s - v``. Admission lets no more
groups be begun than will be trained on in time if none overtakes another; the sweep before each batch removes those that
were overtaken, so that the bound holds whatever happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What does not change during a run."""

    max_lag: int
    per_step: int
    """Groups of a batch."""
    in_flight: int
    """Most groups begun and not complete."""
    steps: int
    """Batches of the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the pipeline stands."""

    version: int
    """Of the policy that is served."""
    shipped: int
    """Batches; also the step that the next one is for."""
    pending: int
    """Groups that are complete and kept for a batch."""
    in_flight: int
    """Groups begun and not complete."""


def admissible(limits: Limits, now: Standing) -> int:
    """How many groups may be begun now: none that would be trained on too late, and none that nobody will train on."""
    begun = now.shipped * limits.per_step + now.pending + now.in_flight
    in_time = (now.version + limits.max_lag + 1) * limits.per_step - begun
    wanted = limits.steps * limits.per_step - begun
    return max(0, min(limits.in_flight - now.in_flight, in_time, wanted))


def too_old(oldest: Mapping[int, int], step: int, max_lag: int) -> list[int]:
    """Groups that the batch of ``step``, and so any later one, must not hold.

    Args:
        oldest: Version of the oldest token of each group.
        step: Of the next batch.
        max_lag: Versions that a token may be behind.
    """
    return [group for group, version in oldest.items() if step - version > max_lag]


def lags(step: int, versions: Iterable[int]) -> list[int]:
    """By how much each of these tokens is behind the policy that the batch of ``step`` is trained on."""
    return [step - version for version in versions]
