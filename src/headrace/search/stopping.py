"""When enough was seen of one order. Numbers in, a reason out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import ConfigError


class StopReason(StrEnum):
    """Why training with an order ends."""

    COMPLIANT = "compliant"
    NO_IMPROVEMENT = "no improvement"
    MAX_EPISODES = "max episodes"


@dataclass(frozen=True, slots=True)
class Look:
    """One evaluation of a policy while it is trained."""

    episodes: int
    """It was trained for."""
    compliance: float
    """Share of its fixes that comply, 0 to 1."""


class EarlyStopping:
    """Follows the evaluations of one order.

    Args:
        threshold: Compliance that is enough.
        patience: Evaluations in a row without an improvement by more than ``least_gain`` after which none is hoped for.
        max_episodes: After so many it ends in any case.
        min_episodes: Before that it does not end, but by ``max_episodes``.
        least_gain: What counts as an improvement of compliance over the best so far.

    Raises:
        ConfigError: It could never end, or would never begin.
    """

    def __init__(
        self, threshold: float, patience: int, max_episodes: int, *, min_episodes: int = 0, least_gain: float = 0.01
    ) -> None:
        if not (0.0 <= threshold <= 1.0 and patience >= 1 and 0 <= min_episodes <= max_episodes and least_gain >= 0.0):
            raise ConfigError(
                "this is no rule to stop by",
                threshold=threshold,
                patience=patience,
                episodes=f"from {min_episodes} to {max_episodes}",
                least_gain=least_gain,
                fix="threshold is a share from 0 to 1, patience 1 or more, min_episodes not above max_episodes",
            )
        self._threshold, self._patience, self._least_gain = threshold, patience, least_gain
        self._min, self._max = min_episodes, max_episodes
        self._best: float | None = None
        self._since = 0
        """Evaluations since the last improvement."""
        self.reason: StopReason | None = None
        """Why it has ended; the first reason stays."""

    def see(self, look: Look) -> StopReason | None:
        """Take notice of an evaluation; why training ends with it, None: it goes on."""
        if self.reason is not None:
            return self.reason
        if self._best is None or look.compliance > self._best + self._least_gain:
            self._best, self._since = look.compliance, 0
        else:
            self._since += 1
        self.reason = self._judge(look)
        return self.reason

    def _judge(self, look: Look) -> StopReason | None:
        if look.episodes >= self._min:
            if look.compliance >= self._threshold:
                return StopReason.COMPLIANT
            if self._since >= self._patience:
                return StopReason.NO_IMPROVEMENT
        return StopReason.MAX_EPISODES if look.episodes >= self._max else None
