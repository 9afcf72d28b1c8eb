"""Actions that are the tanh of normal variables, in torch: drawn with their densities, and differentiated by hand.

`headrace.algorithms.squashed` acts so in numpy. Letters in shapes: B batch, A action.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from headrace.algorithms.squashed import LOG_STD_RANGE

_LOG_TWO = math.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def squashed_sample(outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``tanh(u)``, ``u = mean + std * normal``, and the logarithms of their densities (appendix C of arXiv:1812.05905).

    ``log (1 - tanh(u)^2)`` is computed as ``2 (log 2 - u - softplus(-2 u))``, which stays exact where tanh(u) rounds to 1.

    Args:
        outputs: [B, 2 A] means, then logarithms of standard deviations, which are clamped.
        normal: [B, A] standard normal draws.

    Returns:
        [B, A] actions in [-1, 1] and [B] logarithms.
    """
    mean, log_std = outputs.chunk(2, dim=1)
    log_std = log_std.clamp(*LOG_STD_RANGE)
    raw = mean + log_std.exp() * normal
    log_normal = -(0.5 * normal.square() + log_std + _HALF_LOG_TWO_PI)
    log_slope = 2.0 * (_LOG_TWO - raw - functional.softplus(-2.0 * raw))
    return torch.tanh(raw), (log_normal - log_slope).sum(dim=1)


def squashed_slope(outputs: Tensor, normal: Tensor, action: Tensor, by_action: Tensor, by_log_prob: Tensor) -> Tensor:
    """Derivative [B, 2 A] of a loss by ``outputs``, where actions and densities are those of `squashed_sample`.

    Args:
        outputs: As there.
        normal: As there.
        action: [B, A] what it returned.
        by_action: [B, A] derivative of the loss by the actions.
        by_log_prob: [B] derivative by the logarithms of their densities.
    """
    log_std = outputs.chunk(2, dim=1)[1]
    kept = log_std.clamp(*LOG_STD_RANGE)
    by_log_prob = by_log_prob.unsqueeze(1)
    by_raw = by_action * (1.0 - action.square()) + by_log_prob * 2.0 * action
    by_log_std = by_raw * kept.exp() * normal - by_log_prob
    return torch.cat([by_raw, by_log_std * (log_std == kept)], dim=1)
