"""PPO, ours beside Stable-Baselines3, SBX and Sample Factory: to a target, or how far so many steps lead.

`cartpole` and `lunarlander` to a target: environment steps, seconds and updates a second. `halfcheetah`: the return after
300,000 steps, beside the seeds of Stable-Baselines3. Ours are the presets `cartpole-ppo`, `lunarlander-ppo` and
`halfcheetah-ppo`, asynchronously and in one process; everybody has the hyperparameters of rl-zoo. `_learning.py` says how
they take turns, `_ppo_sides.py` has the sides. Medians of at least five seeds.
"""

from __future__ import annotations

from pathlib import Path

from _learning import main
from _ppo_sides import TASKS

if __name__ == "__main__":
    main("PPO to a target, beside peers.", Path(__file__).absolute().with_name("_ppo_sides.py"), TASKS, 5, 3600.0)
