"""V-trace: an actor-critic that makes up for rollouts of an older policy (Espeholt et al. 2018, arXiv:1802.01561).

What it does with a rollout is in `headrace.algorithms.on_policy`; here is what sets it apart. How much likelier an action
is now than when it was drawn is worked out once, when the rollout is begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.algorithms.encoding import Float32, Float64
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.on_policy_configs import CorrectionConfig, VTraceConfig
from headrace.algorithms.policy_losses import clipped_surrogate, policy_gradient
from headrace.algorithms.returns import vtrace
from headrace.algorithms.rollouts import Steps


def importance_weights(log_ratio: Float64, config: CorrectionConfig) -> tuple[Float64, Float64]:
    """Rho and c of every step, c with lambda."""
    rho, c = (
        np.exp(log_ratio if most is None else np.minimum(log_ratio, np.log(most)))
        for most in (config.rho_clip, config.c_clip)
    )
    return rho, config.trace_lambda * c


class VTraceRule:
    """Fulfils `headrace.algorithms.on_policy.Rule`.

    Without ``clip``, advantages are those of the paper, times rho. Where they are standardised, that comes first: centred, a
    product with rho would pull at actions that earned no more than others. With ``clip`` the surrogate's ratio is the importance
    weight, and they are not weighted twice.

    Args:
        config: The algorithm's section.
    """

    corrects = True

    def __init__(self, config: VTraceConfig) -> None:
        self._config = config

    def targets(self, steps: Steps) -> tuple[Float64, ...]:
        """See `Rule.targets`."""
        config = self._config
        rho, c = importance_weights(steps.log_ratio, config.correction)
        advantage, target = vtrace(
            steps.reward, steps.value, steps.next_value, steps.terminated, steps.ended, (rho, c), config.gamma
        )
        if config.clip is not None:
            return advantage, target
        return (advantage, target, rho) if config.loss.normalize_advantages else (rho * advantage, target)

    def policy_loss(
        self, advantage: Float32, logprob: Float32, ratio: Float32, clip: float | None
    ) -> tuple[float, Float32]:
        """See `Rule.policy_loss`."""
        return policy_gradient(advantage, logprob) if clip is None else clipped_surrogate(advantage, ratio, clip)


def build_vtrace(
    config: VTraceConfig,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    seed: int,
    device: str = "cpu",
    *,
    compiled: bool = False,
) -> OnPolicy:
    """The learning half of V-trace; see `OnPolicy`."""
    return OnPolicy(config, VTraceRule(config), observation_space, action_space, seed, device, compiled=compiled)
