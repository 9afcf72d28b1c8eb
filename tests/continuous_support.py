"""Spaces and batches for tests of learners of continuous actions."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import NetworkConfig

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-2, 2, (2,), np.float32)
SMALL = NetworkConfig(hidden=[16])
ROW = np.dtype(
    [("obs", np.float32, (3,)), ("action", np.float32, (2,)), ("reward", np.float64), ("next", np.float32, (3,))]
)


def batch(seed: int = 0, n: int = 8, discount: float = 0.99) -> Transitions:
    """Views into one block of records, as a replay gives them."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, ROW)
    for name, size in (("obs", 3), ("next", 3), ("action", 2)):
        rows[name] = rng.uniform(-2, 2, (n, size))
    rows["reward"] = rng.standard_normal(n)
    return Transitions(
        {"obs": rows["obs"]}, {"action": rows["action"]}, rows["reward"], np.full(n, discount), {"obs": rows["next"]}
    )
