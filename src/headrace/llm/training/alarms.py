"""What must not go unreported: a policy that hardly explores, a trainer that disagrees with its sampler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.llm.config import RLSupervisionConfig

_SOLVED = 0.95
"""Win rate from which on a policy may be as certain as it likes."""


@dataclass(slots=True)
class Alarms:
    """Which alarms are on. Each is told when it begins, and again only after it was over."""

    limits: RLSupervisionConfig
    _on: set[str] = field(default_factory=set)

    def look(self, step: int, metrics: Mapping[str, float], win_rate: float | None) -> list[dict[str, Any]]:
        """Facts of every alarm that begins with this step.

        Args:
            step: That was made.
            metrics: Of it.
            win_rate: Of the training rollouts, if the environment knows one.
        """
        found = []
        entropy, mismatch = metrics["entropy/mean"], metrics["mismatch_kl/mean"]
        solved = win_rate is not None and win_rate >= _SOLVED
        if self._begins("entropy", raised=entropy < self.limits.entropy_alarm and not solved):
            won = "" if win_rate is None else f" and {100 * win_rate:.0f} % of the rollouts were won"
            text = (
                f"the policy hardly explores any more: its entropy is {entropy:.3g} nats per token in step {step}{won}"
            )
            found.append(_alarm("entropy", text, step, entropy, self.limits.entropy_alarm))
        if self._begins("mismatch", raised=mismatch > self.limits.mismatch_alarm):
            text = f"sampler and trainer disagree: the mismatch KL is {mismatch:.3g} nats per token in step {step}"
            found.append(_alarm("mismatch", text, step, mismatch, self.limits.mismatch_alarm))
        return found

    def _begins(self, kind: str, *, raised: bool) -> bool:
        begins = raised and kind not in self._on
        self._on = self._on | {kind} if raised else self._on - {kind}
        return begins


def _alarm(kind: str, text: str, step: int, value: float, limit: float) -> dict[str, Any]:
    return {"kind": kind, "text": text, "step": step, "value": value, "limit": limit}
