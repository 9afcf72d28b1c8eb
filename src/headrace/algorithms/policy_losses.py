"""What PPO and V-trace lower, each with its derivative, written out.

Letters in shapes: B minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(advantage: Tensor, ratio: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Nothing is gained by a ratio further than ``clip`` from 1 (equation 7 of arXiv:1707.06347).

    Args:
        advantage: [B].
        ratio: [B] probability of the action now, as a multiple of what it was when it was drawn.
        clip: As a share.

    Returns:
        The loss, [], and its derivative by the logarithms of the probabilities now, [B]: of a ratio it is the ratio.
    """
    gain = advantage * ratio
    most = advantage * ratio.clamp(1.0 - clip, 1.0 + clip)
    rows = len(gain)
    return torch.minimum(gain, most).sum() / -rows, gain * (gain <= most) / -rows


def policy_gradient(advantage: Tensor, logprob: Tensor) -> tuple[Tensor, Tensor]:
    """What has the policy's gradient (section 4.2 of arXiv:1802.01561).

    Args:
        advantage: [B] times rho.
        logprob: [B] of the actions now.

    Returns:
        The loss, [], and its derivative by ``logprob``, [B].
    """
    rows = len(advantage)
    return advantage.dot(logprob) / -rows, advantage / -rows


def value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Mean squared error; with ``clip`` that of the value or of what it may be at most, whichever is worse.

    Args:
        value: [B].
        target: [B].
        before: [B] the value when the rollout was begun.
        clip: Largest distance from it; None: any.

    Returns:
        The loss, [], and its derivative by ``value``, [B].
    """
    error = value - target
    slope = error * (2.0 / len(error))
    if clip is None:
        return error.dot(error) / len(error), slope
    moved = value - before
    own, cut = error.square(), (before + moved.clamp(-clip, clip) - target).square()
    return torch.maximum(own, cut).mean(), slope * ((moved.abs() <= clip) | (own >= cut))


def standardised(advantage: Tensor) -> Tensor:
    """With mean 0 and deviation 1, [B]; one alone stays as it is."""
    if len(advantage) < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)
