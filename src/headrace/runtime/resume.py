"""Where a run goes on, as its supervisor tells the components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint that a run goes on from, and what had come after it."""

    folder: Path
    """Of the checkpoint."""
    version: int
    """Of its policy."""
    env_steps: int
    updates: int
    facts: Mapping[str, Any]
    """Of its manifest."""
    lost_env_steps: int = 0
    """Environment steps that the run had made beyond it."""
    lost_updates: int = 0
    """Updates that the run had made beyond it."""
    problems: tuple[str, ...] = ()
    """A sentence for each newer checkpoint that cannot be used, and for whatever else has to be known."""
    session: int = 1
    """1 for the first resume of a run."""
    wall_s: float = 0.0
    """Seconds the run had lasted then."""

    def __str__(self) -> str:
        what, lost = f"goes on at {self.env_steps:,} steps and {self.updates:,} updates", "nothing is lost"
        if self.lost_env_steps or self.lost_updates:
            lost = f"{self.lost_env_steps:,} environment steps and {self.lost_updates:,} updates after that checkpoint are lost"
        return "; ".join((what, lost, *self.problems))
