"""PPO: a clipped surrogate, advantages by GAE (Schulman et al. 2017, arXiv:1707.06347).

What it does with a rollout is in `headrace.algorithms.on_policy`; here is what sets it apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.algorithms.encoding import Float32, Float64
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.on_policy_configs import PPOConfig
from headrace.algorithms.policy_losses import clipped_surrogate
from headrace.algorithms.returns import gae
from headrace.algorithms.rollouts import Steps


class PPORule:
    """Fulfils `headrace.algorithms.on_policy.Rule`.

    Args:
        config: The algorithm's section.
    """

    corrects = False

    def __init__(self, config: PPOConfig) -> None:
        self._config = config

    def targets(self, steps: Steps) -> tuple[Float64, ...]:
        """See `Rule.targets`."""
        config = self._config
        if config.advantage == "return":
            returns = scaled_returns(steps, config.gamma)
            return returns - steps.value, returns
        return gae(
            steps.reward, steps.value, steps.next_value, steps.terminated, steps.ended, config.gamma, config.gae_lambda
        )

    def policy_loss(
        self, advantage: Float32, logprob: Float32, ratio: Float32, clip: float | None
    ) -> tuple[float, Float32]:
        """See `Rule.policy_loss`."""
        assert clip is not None, "PPO always clips"
        return clipped_surrogate(advantage, ratio, clip)


def scaled_returns(steps: Steps, gamma: float) -> Float64:
    """What each step earned to the end of its stretch, discounted, with mean 0 and deviation 1 over all steps; [T, N]."""
    nothing = np.zeros_like(steps.reward)
    _, returns = gae(steps.reward, nothing, nothing, steps.terminated, steps.ended, gamma, 1.0)
    own = returns[steps.valid]
    return np.where(steps.valid, (returns - own.mean()) / (own.std() + 1e-8), 0.0)


def build_ppo(
    config: PPOConfig,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    seed: int,
    device: str = "cpu",
    *,
    compiled: bool = False,
) -> OnPolicy:
    """The learning half of PPO; see `OnPolicy`."""
    return OnPolicy(config, PPORule(config), observation_space, action_space, seed, device, compiled=compiled)
