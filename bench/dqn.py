"""DQN to a target, ours beside Stable-Baselines3 and SBX: environment steps, seconds and updates a second.

Ours are the presets `cartpole-dqn` and `lunarlander-dqn`, asynchronously and in one process; the peers have the
hyperparameters of rl-zoo. `_learning.py` says how they take turns, `_dqn_sides.py` has the sides. Medians of at least
eight seeds.
"""

from __future__ import annotations

from pathlib import Path

from _dqn_sides import TASKS
from _learning import main

if __name__ == "__main__":
    main("DQN to a target, beside peers.", Path(__file__).absolute().with_name("_dqn_sides.py"), TASKS, 8, 1800.0)
