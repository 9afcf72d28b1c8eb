"""Estimates of how much better an action was than expected, over stretches of steps that were taken one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def gae(
    rewards: NDArray[np.floating[Any]],
    values: NDArray[np.floating[Any]],
    next_values: NDArray[np.floating[Any]],
    terminated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    gamma: float,
    lam: float,
) -> tuple[Float64, Float64]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    Two things end at a step, and they are told apart: what is still to be earned, which is nothing where the task
    terminated, and the stretch that advantages are summed over, which ends with every episode, however it does. The last
    step bootstraps like one that was truncated, unless it terminated.

    Args:
        rewards: [T, ...] of T steps in order; along further axes lanes, which do not mix.
        values: [T, ...] worth of what was observed before each step.
        next_values: [T, ...] worth of what each step led to: where an episode ended, of its own last observation and never
            of the one the next episode begins with. Of no use where the task terminated, and then not looked at.
        terminated: [T, ...] whether the task terminated with the step.
        ended: [T, ...] whether the episode ended with the step: terminated, truncated, cut or lost. A step that terminated
            ends it also where this does not say so.
        gamma: Discount per step.
        lam: Share of what comes later that is kept; 0 looks one step ahead, 1 to the end of the stretch.

    Returns:
        Advantages, and the returns they stand for (advantages + values), both [T, ...].
    """
    before, after = np.asarray(values, np.float64), np.asarray(next_values, np.float64)
    errors: Float64 = np.asarray(rewards, np.float64) + gamma * np.where(terminated, 0.0, after) - before
    goes_on = np.where(terminated | ended, 0.0, gamma * lam)
    advantages = np.zeros(errors.shape)
    later = np.zeros(errors.shape[1:])
    for step in range(len(errors) - 1, -1, -1):
        later = errors[step] + goes_on[step] * later
        advantages[step] = later
    return advantages, advantages + before


def fit(target: Float64, value: Float64) -> dict[str, float]:
    """Share of the targets' variance that values explain, both [S], by name; nothing where there is none."""
    spread = float(np.var(target))
    return {"explained_variance": 1.0 - float(np.var(target - value)) / spread} if spread > 0.0 else {}


def vtrace(
    rewards: NDArray[np.floating[Any]],
    values: NDArray[np.floating[Any]],
    next_values: NDArray[np.floating[Any]],
    terminated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    weights: tuple[Float64, Float64],
    gamma: float,
) -> tuple[Float64, Float64]:
    """V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1 with remarks 1 and 2).

    Args:
        rewards: [T, ...] as for `gae`, as are ``values``, ``next_values``, ``terminated`` and ``ended``.
        values: [T, ...].
        next_values: [T, ...].
        terminated: [T, ...].
        ended: [T, ...].
        weights: rho and c, [T, ...] each: the importance weight of every step, cut and with lambda.
        gamma: Discount per step.

    Returns:
        What a step earned beyond the value of where it was taken, ``r + gamma v' - V``, in which v' is the corrected value
        of the next step (not yet times rho); and the corrected values v of every step. Both [T, ...].
    """
    rho, c = weights
    before = np.asarray(values, np.float64)
    after = np.where(terminated, 0.0, np.asarray(next_values, np.float64))
    earned = np.asarray(rewards, np.float64)
    goes_on = ~(terminated | ended)
    errors: Float64 = rho * (earned + gamma * after - before)
    corrections, following = np.zeros(errors.shape), np.zeros(errors.shape)  # v - V of each step, and of the next one
    later = np.zeros(errors.shape[1:])
    for step in range(len(errors) - 1, -1, -1):
        following[step] = np.where(goes_on[step], later, 0.0)
        later = errors[step] + gamma * c[step] * following[step]
        corrections[step] = later
    return earned + gamma * (after + following) - before, before + corrections
