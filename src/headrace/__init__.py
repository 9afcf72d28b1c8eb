"""Headrace: asynchronous reinforcement learning that does not hang, lose data, or learn something else."""

from __future__ import annotations

import headrace.cli.early  # first of all: Ctrl-C while the command loads the rest must not print a traceback

# isort: split
from typing import TYPE_CHECKING, Any

import headrace.envs.registration  # noqa: F401 - so that gymnasium.make knows headrace/Hockey-v0 from here on

if TYPE_CHECKING:
    from headrace.algorithms.configs import DQN, IQN, SAC, TD3
    from headrace.algorithms.on_policy_configs import PPO, VTrace
    from headrace.runtime.api import Run, train
    from headrace.runtime.moments import Replayed
    from headrace.runtime.policy import Policy, load_policy
    from headrace.runtime.replayer import Replayer, replay
    from headrace.vector.env import VectorEnv
    from headrace.vector.options import FaultBudget
    from headrace.vector.probes import Probe

__all__ = [
    "DQN",
    "IQN",
    "PPO",
    "SAC",
    "TD3",
    "FaultBudget",
    "Policy",
    "Probe",
    "Replayed",
    "Replayer",
    "Run",
    "VTrace",
    "VectorEnv",
    "load_policy",
    "replay",
    "train",
]
__version__ = "0.1.0"

_HOMES = {
    "DQN": "headrace.algorithms.configs",
    "IQN": "headrace.algorithms.configs",
    "SAC": "headrace.algorithms.configs",
    "TD3": "headrace.algorithms.configs",
    "PPO": "headrace.algorithms.on_policy_configs",
    "VTrace": "headrace.algorithms.on_policy_configs",
    "Policy": "headrace.runtime.policy",
    "Replayed": "headrace.runtime.moments",
    "Replayer": "headrace.runtime.replayer",
    "Run": "headrace.runtime.api",
    "VectorEnv": "headrace.vector.env",
    "FaultBudget": "headrace.vector.options",
    "Probe": "headrace.vector.probes",
    "load_policy": "headrace.runtime.policy",
    "replay": "headrace.runtime.replayer",
    "train": "headrace.runtime.api",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that a collector need not load what only a parent needs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from importlib import import_module

    from headrace.core.garbage import uncollected

    with uncollected():
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
