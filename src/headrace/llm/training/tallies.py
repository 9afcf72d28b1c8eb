"""What is counted over the passes of one step, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from headrace.algorithms.grpo import TokenLosses, Tokens, fully_held, mismatch_kl


@dataclass(slots=True)
class Tally:
    """Sums over trained tokens."""

    tokens: int = 0
    entropy: float = 0.0
    held: int = 0
    samples_held: int = 0
    ratio_max: float = 0.0
    kl: float | None = None
    """None: nobody asked."""
    compared: int = 0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def add(self, tokens: Tokens, found: TokenLosses, entropy: Tensor, kl: Tensor | None) -> None:
        """Count a pass."""
        self.tokens += len(tokens.logprob)
        self.entropy += float(entropy.detach().double().sum())
        self.held += int(found.held.sum())
        self.samples_held += fully_held(found.held, tokens)
        self.ratio_max = max(self.ratio_max, float(found.ratio.max()))
        if kl is not None:
            self.kl = (self.kl or 0.0) + float(kl.detach().double().sum())

    def compare(self, tokens: Tokens) -> None:
        """Count what sampler and trainer disagree about; before the first gradient step, which would add to it."""
        mismatch = mismatch_kl(tokens.behaviour, tokens.logprob)
        self.compared += len(mismatch)
        self.mismatch += float(mismatch.sum())
        self.mismatch_max = max(self.mismatch_max, float(mismatch.max()))

    def metrics(self, *, masks: bool, epochs: int) -> dict[str, float]:
        """Means, by metric name; what was not measured is left out.

        Args:
            masks: Whether tokens that were held were masked, not clipped.
            epochs: How often every sample was passed.
        """
        held = self.held / self.tokens
        found = (
            {"is_masked/mean": held, "is_masked/samples": self.samples_held / epochs}
            if masks
            else {"is_clipped/mean": held}
        )
        if self.kl is not None:
            found["initial_kl/mean"] = self.kl / self.tokens
        return {
            **found,
            "loss/mean": sum(self.losses) / len(self.losses),
            "optim/grad_norm": sum(self.norms) / len(self.norms),
            "entropy/mean": self.entropy / self.tokens,
            "mismatch_kl/mean": self.mismatch / self.compared,
            "mismatch_kl/max": self.mismatch_max,
            "importance_ratio/max": self.ratio_max,
        }
