"""How fast is learned, over the steps of a run."""

from __future__ import annotations

import math

from headrace.algorithms.rates import linear
from headrace.llm.config import TrainerConfig


def rate_at(config: TrainerConfig, step: int, steps: int) -> float:
    """Learning rate of a step.

    Args:
        config: Says how it rises and falls.
        step: From 0.
        steps: Of the whole run, over which it falls unless ``decay_steps`` is set; the last one of them, and what follows, has
            ``final_lr_fraction`` of the rate, unless that is constant.
    """
    steps = config.decay_steps or steps
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)
    final = config.lr * config.final_lr_fraction
    match config.decay:
        case "constant":
            return config.lr
        case "linear":
            return linear(config.lr, final, share)
        case "cosine":
            return final + (config.lr - final) * (1.0 + math.cos(math.pi * min(share, 1.0))) / 2.0
