"""What a step is worth, in two versions."""

from __future__ import annotations

from dataclasses import dataclass

_REDUCTIONS = ((0.7, 0.3), (0.5, 0.2), (0.3, 0.1))
"""(share of burned cells saved, bonus of a step that is above it); the first that applies counts."""

_FINAL_REDUCTIONS = ((0.8, 1.0), (0.6, 0.5), (0.4, 0.2))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Mean burned cells before and after a step, and what had been cut by then."""

    initial: float
    """Before the first cut of the episode."""
    previous: float
    """Before this step."""
    best: float
    """The fewest of the episode before this step."""
    burned: float
    """After this step."""
    coverage: float
    """Share of the map that is cut."""
    cells: int
    """Cells of the map."""
    finished: bool
    """The budget is used up."""

    @property
    def reduction(self) -> float:
        """Share of the initially burned cells that is saved; negative if more burn.

        ``initial`` is at least 1: every fire is lit in a cell that burns.
        """
        return (self.initial - self.burned) / self.initial


def reward(outcome: Outcome, version: int) -> float:
    """Of one step; see docs/reference/fuelbreak.md for both versions."""
    return _saved(outcome) if version == 1 else _shaped(outcome)


def _saved(outcome: Outcome) -> float:
    """Version 1. Over an episode it adds up to what was saved in all."""
    return -(outcome.burned - outcome.previous) / outcome.cells


def _shaped(outcome: Outcome) -> float:
    """Version 2."""
    value = 0.4 * (outcome.previous - outcome.burned) / outcome.cells
    value += 0.5 * (outcome.initial - outcome.burned) / outcome.cells
    value += 0.2 * max(0.0, outcome.best - outcome.burned) / outcome.cells
    reduction = outcome.reduction
    value += _bonus(reduction, _REDUCTIONS)
    if outcome.coverage > 0:
        efficiency = reduction / outcome.coverage
        value += 0.1 if efficiency > 10 else -0.05 if efficiency < 2 else 0.0
    if outcome.finished:
        value += 2.0 * reduction + _bonus(reduction, _FINAL_REDUCTIONS)
    return value


def _bonus(reduction: float, steps: tuple[tuple[float, float], ...]) -> float:
    return next((bonus for above, bonus in steps if reduction > above), 0.0)
