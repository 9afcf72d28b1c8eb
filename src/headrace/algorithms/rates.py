"""How fast is learned, over a run."""

from __future__ import annotations

from headrace.algorithms.configs import OptimiserConfig


def rate_at(lr: float, config: OptimiserConfig, updates: int) -> float:
    """Learning rate of the step that follows so many updates: from ``lr`` linear to ``config.lr_final``, then constant."""
    if config.lr_final is None or config.lr_decay_updates is None:
        return lr
    return linear(lr, config.lr_final, updates / config.lr_decay_updates)


def linear(first: float, last: float, share: float) -> float:
    """From ``first`` to ``last``, where it stays from a ``share`` of 1 on."""
    return first + min(share, 1.0) * (last - first)
