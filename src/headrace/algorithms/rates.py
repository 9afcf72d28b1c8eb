"""How fast is learned, over a run."""

from __future__ import annotations

from headrace.algorithms.configs import OptimiserConfig
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig


def rate_at(lr: float, config: OptimiserConfig, updates: int) -> float:
    """Learning rate of the step that follows so many updates: from ``lr`` linear to ``config.lr_final``, then constant."""
    if config.lr_final is None or config.lr_decay_updates is None:
        return lr
    return linear(lr, config.lr_final, updates / config.lr_decay_updates)


def linear(first: float, last: float, share: float) -> float:
    """From ``first`` to ``last``, where it stays from a ``share`` of 1 on."""
    return first + min(share, 1.0) * (last - first)


class Rates:
    """What a schedule over environment steps says.

    Args:
        config: The algorithm's section.
    """

    def __init__(self, config: PPOConfig | VTraceConfig) -> None:
        self._config = config

    def lr(self, env_steps: int) -> float:
        """The learning rate after so many."""
        return self._between(self._config.lr, self._config.schedule.final_lr, env_steps)

    def clip(self, env_steps: int) -> float | None:
        """By how much a probability may change before nothing more is gained by it; None: by anything."""
        first = self._config.clip
        return None if first is None else self._between(first, self._config.schedule.final_clip, env_steps)

    def _between(self, first: float, last: float | None, env_steps: int) -> float:
        steps = self._config.schedule.decay_steps
        return first if last is None or steps is None else linear(first, last, env_steps / steps)
