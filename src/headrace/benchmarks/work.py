"""The work of `learners`, the same for all sides. Peers' processes import it too."""

from __future__ import annotations

from typing import Any

BATCH, HIDDEN, OBSERVATIONS, ACTIONS = 256, (256, 256), 18, 4
REPLAY_ROWS = 20_000
READY = 16
"""Batches that are made beforehand and used over and over."""

Batch = dict[str, Any]
"""``obs`` and ``next_obs`` [B, O], ``action`` [B, A] or [B], ``reward`` and ``discount`` [B]; arrays."""


def ready_batches(algorithm: str, gamma: float = 0.99) -> list[Batch]:
    """Transitions drawn at random, one in a hundred of them terminal; float32, and int64 where an action is chosen."""
    import numpy as np

    generator, batches = np.random.default_rng(0), []
    for _ in range(READY):
        drawn = generator.uniform(-1.0, 1.0, (BATCH, ACTIONS)).astype(np.float32)
        batches.append(
            {
                "obs": generator.standard_normal((BATCH, OBSERVATIONS), np.float32),
                "action": generator.integers(ACTIONS, size=BATCH) if algorithm == "dqn" else drawn,
                "reward": generator.standard_normal(BATCH, np.float32),
                "discount": np.where(generator.random(BATCH) < 0.01, 0.0, gamma).astype(np.float32),
                "next_obs": generator.standard_normal((BATCH, OBSERVATIONS), np.float32),
            }
        )
    return batches
