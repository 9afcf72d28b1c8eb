"""What PPO and V-trace lower, each with its derivative, written out; numpy alone.

Numpy, because what comes out of a network is a few numbers a row: an operation of torch costs several times as much on them.
Letters in shapes: B minibatch.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.algorithms.encoding import Float32, Float64

_ROUNDING = 1e-12
"""Share of a mean by which it can be off, as float64 sums of many are made."""
_NOTHING = np.float32(0.0)
_SMALLEST = float(np.finfo(np.float32).tiny)


def mean(values: Float32) -> float:
    """Of values [B]; the method ``mean`` takes longer than the sum."""
    return float(np.add.reduce(values)) / len(values)


def _between(values: Float32, low: float, high: float) -> Float32:
    """As `numpy.clip`, which takes longer."""
    found: Float32 = np.minimum(np.maximum(values, low), high)
    return found


def clipped_surrogate(advantage: Float32, ratio: Float32, clip: float) -> tuple[float, Float32]:
    """Nothing is gained by a ratio further than ``clip`` from 1 (equation 7 of arXiv:1707.06347).

    Args:
        advantage: [B].
        ratio: [B] probability of the action now, as a multiple of what it was when it was drawn.
        clip: As a share.

    Returns:
        The loss, and its derivative by the logarithms of the probabilities now, [B]: that of a ratio is the ratio.
    """
    gain = advantage * ratio
    most = advantage * _between(ratio, 1.0 - clip, 1.0 + clip)
    # A ratio that is infinite gains no number where the advantage is 0: `fmin` and `where` take what is one.
    pulls: Float32 = np.where(gain <= most, gain, _NOTHING)
    return -mean(np.fmin(gain, most)), pulls / np.float32(-len(gain))


def policy_gradient(advantage: Float32, logprob: Float32) -> tuple[float, Float32]:
    """What has the policy's gradient (section 4.2 of arXiv:1802.01561).

    Args:
        advantage: [B] times rho.
        logprob: [B] of the actions now.

    Returns:
        The loss, and its derivative by ``logprob``, [B].
    """
    return -mean(advantage * logprob), advantage / np.float32(-len(advantage))


def value_loss(value: Float32, target: Float32, before: Float32, clip: float | None) -> tuple[float, Float32]:
    """Mean squared error; with ``clip`` that of the value or of what it may be at most, whichever is worse.

    Args:
        value: [B].
        target: [B].
        before: [B] the value when the rollout was begun.
        clip: Largest distance from it; None: any.

    Returns:
        The loss, and its derivative by ``value``, [B].
    """
    error = value - target
    squares, slope = error * error, error * np.float32(2.0 / len(error))
    if clip is None:
        return mean(squares), slope
    moved = value - before
    cut = before + _between(moved, -clip, clip) - target
    cut *= cut
    return mean(np.maximum(squares, cut)), slope * ((np.abs(moved) <= clip) | (squares >= cut))


def standardised(advantage: Float32, weight: Float32 | None = None) -> Float32:
    """With mean 0 and deviation 1, [B]; one alone stays as it is, and where all are equal they are 0.

    Args:
        advantage: [B].
        weight: [B] what each is multiplied by afterwards. Then the mean is weighted by it, so that the products have mean 0;
            V-trace's values are those from which they have it anyway. The deviation is that of all alike: weights differ by
            orders of magnitude, and it would be that of a few. None: there is no such thing.
    """
    rows = len(advantage)
    if rows < 2:
        return advantage
    exact = advantage.astype(np.float64)
    middle = float(np.add.reduce(exact)) / rows if weight is None else _weighted_mean(exact, weight)
    centred = exact - middle
    deviation = math.sqrt(np.add.reduce(centred * centred) / (rows - 1))
    if deviation < _ROUNDING * abs(middle):  # equal ones differ from their weighted mean by what it was rounded
        return np.zeros_like(advantage)
    scaled: Float32 = (centred / (deviation + 1e-8)).astype(np.float32)
    return scaled


def _weighted_mean(values: Float64, weight: Float32) -> float:
    """Of values [B] with weights [B] of at least 0; 0 where those are all 0."""
    exact = weight.astype(np.float64)
    return float(np.add.reduce(values * exact)) / max(float(np.add.reduce(exact)), _SMALLEST)
