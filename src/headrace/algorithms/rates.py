"""How fast is learned, over a run."""

from __future__ import annotations

from headrace.algorithms.configs import OptimiserConfig


def rate_at(lr: float, config: OptimiserConfig, updates: int) -> float:
    """Learning rate of the step that follows so many updates: from ``lr`` linear to ``config.lr_final``, then constant."""
    if config.lr_final is None or config.lr_decay_updates is None:
        return lr
    return lr + min(updates / config.lr_decay_updates, 1.0) * (config.lr_final - lr)
