"""Stable-Baselines3's PPO on environments that may hang, die or raise: another class than ``SubprocVecEnv``, no more.

Run it with ``python examples/sb3_ppo.py [STEPS]``.
"""

from __future__ import annotations

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from headrace.vector.sb3 import SB3VecEnv


def main(steps: int) -> None:
    """Train, and say how it went."""
    envs = make_vec_env("CartPole-v1", 8, seed=1, vec_env_cls=SB3VecEnv, vec_env_kwargs={"step_timeout_s": 10.0})
    print(envs.envs.plan)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=128, seed=1, device="cpu")
    model.learn(steps)
    finished = [episode["r"] for episode in model.ep_info_buffer]
    print(
        f"{model.num_timesteps} steps, the last {len(finished)} episodes returned {sum(finished) / len(finished):.1f}"
    )
    mean, deviation = evaluate_policy(model, envs, n_eval_episodes=8)
    print(f"evaluation of 8 episodes: {mean:.1f} +- {deviation:.1f}")
    envs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
