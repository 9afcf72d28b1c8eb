"""How long calls of environments may last."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.vector.stepping import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds each phase of an environment may last."""

    step_s: float
    reset_s: float
    construct_s: float
    close_s: float
    grace_s: float = 1.0
    """How long an environment may take to stop once it is interrupted."""
    dump_s: float = 0.5
    """How long its process may take to write down where it is."""

    def of(self, phase: int) -> float:
        """The limit of a `Phase`."""
        return {Phase.RESET: self.reset_s, Phase.CALL: self.reset_s, Phase.CONSTRUCT: self.construct_s}.get(
            Phase(phase), self.close_s if phase == Phase.CLOSE else self.step_s
        )

    @property
    def look_s(self) -> float:
        """How often to look."""
        return min(0.25, max(0.01, min(self.step_s, self.reset_s, self.construct_s, self.grace_s) / 8))
