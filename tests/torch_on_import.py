"""A module that changes torch when it is imported, as scripts written in float64 do; to be imported by no test."""

from __future__ import annotations

import gymnasium
import torch

torch.set_default_dtype(torch.float64)
gymnasium.register("Double-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=50)
