"""Whether what was believed came true: predicted means and deviations beside what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.search.orders import Order

WITHIN: Final = 1.959964
"""Deviations to either side of the mean between which 95 of 100 observations are expected."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was expected of a choice when it was made, and what came."""

    number: int
    order: Order
    mean: float
    std: float
    """Of an observation."""
    score: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """All forecasts of a search."""

    forecasts: tuple[Forecast, ...]

    @property
    def inside(self) -> int:
        """Results that lie in the interval in which 95 of 100 were expected."""
        return sum(abs(one.score - one.mean) <= WITHIN * one.std for one in self.forecasts)

    @property
    def coverage(self) -> float | None:
        """Their share; None without a forecast."""
        return self.inside / len(self.forecasts) if self.forecasts else None

    @property
    def mean_error(self) -> float | None:
        """Mean distance of a result from what was expected, in units of the score; None without a forecast."""
        return float(np.mean([abs(one.score - one.mean) for one in self.forecasts])) if self.forecasts else None

    def sentence(self) -> str:
        """In words."""
        if not self.forecasts:
            return "the Gaussian process has made no choice whose result is known"
        return (
            f"{self.inside} of {len(self.forecasts)} results lie in the interval in which the Gaussian process expected 95 of 100; "
            f"mean error {self.mean_error:.1f}"
        )
