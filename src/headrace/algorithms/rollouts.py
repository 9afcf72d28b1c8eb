"""Rollouts on their way to torch: encoded, normalised, and split into minibatches.

Letters in shapes: R observations, T steps of N streams, S of them that are steps, B minibatch, O encoded observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.base import Arrays, Rollout
from headrace.algorithms.choices import Legal
from headrace.algorithms.encoding import Float32, Float64, ObservationEncoder
from headrace.algorithms.heads import CategoricalHead, head_of
from headrace.algorithms.learned import first_not_finite
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.policy_losses import standardised
from headrace.algorithms.sampling import action_mask
from headrace.algorithms.scaling import Observations, Rewards
from headrace.core.errors import NonFiniteValue


@dataclass(frozen=True, slots=True)
class Steps:
    """What targets are made of, scaled; all [T, N]. Where there is no step, everything is 0 and the stretch has ended."""

    reward: Float64
    value: Float64
    next_value: Float64
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    log_ratio: Float64
    """Logarithm of how much likelier each action is now than when it was drawn; 0 where nobody asked."""

    @classmethod
    def of(cls, rollout: Rollout, reward: Float64, values: Float64, log_ratio: Float64) -> Steps:
        """Of a rollout; ``values`` are of its observations, [R]."""
        valid = rollout.valid
        return cls(
            reward=reward,
            value=np.where(valid, values[np.where(valid, rollout.at, 0)], 0.0),
            next_value=np.where(valid, values[np.where(valid, rollout.then, 0)], 0.0),
            terminated=rollout.terminated & valid,
            ended=rollout.ended | ~valid,
            valid=valid,
            log_ratio=log_ratio,
        )


@dataclass(slots=True)
class Rows:
    """Steps without those that are none. Networks' inputs are tensors, on their device; all else is numpy's."""

    obs: Tensor  # [R, O]
    legal: Legal | None  # [R, n]  what can be chosen; None: everything
    at: NDArray[np.int64]  # [S]  place in obs
    action: NDArray[Any]  # int64 [S, k] or float32 [S, A]; see `headrace.algorithms.distributions.likelihood`
    numbers: Float32  # [4, S] or [5, S]  logprob, advantage, target, value, maybe the advantage's importance weight
    standardise: bool
    """Whether every batch's advantages are."""
    _whole: Batch | None = None

    def batch(self, index: NDArray[np.int64] | None) -> Batch:
        """Some of them; None: all."""
        if index is not None:
            return self._batch(self.at.take(index), self.action.take(index, 0), self.numbers.take(index, 1))
        if self._whole is None:  # the same one in every epoch
            self._whole = self._batch(self.at, self.action, self.numbers)
        return self._whole

    def _batch(self, at: NDArray[np.int64], action: NDArray[Any], numbers: Float32) -> Batch:
        obs = self.obs.index_select(0, torch.from_numpy(at).to(self.obs.device))
        logprob, advantage, target, value, *rho = numbers
        if self.standardise:
            advantage = standardised(advantage, *rho)
        for weight in rho:  # after that: weighted first, it would be centred with its weight
            advantage = advantage * weight
        legal = None if self.legal is None else self.legal.take(at, 0)
        return Batch(obs, legal, action, logprob, advantage, target, value)


@dataclass(frozen=True, slots=True)
class Batch:
    """A minibatch."""

    obs: Tensor  # [B, O]
    legal: Legal | None  # [B, n]
    action: NDArray[Any]  # [B, k] or [B, A]
    logprob: Float32  # [B]  when it was drawn
    advantage: Float32  # [B]  standardised, if that is declared, and then weighted, if it is
    target: Float32  # [B]  of the value
    value: Float32  # [B]  when the rollout was begun


RUNNING_RETURNS = "rewards.returns"
"""In `Inputs.arrays`: discounted returns of the episodes that are running, by lane."""


class Inputs:
    """What a rollout is made into.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: Of one environment.
        device: Where tensors are wanted.

    Raises:
        UnsupportedSpace: For spaces that do not suit.
    """

    def __init__(
        self,
        config: PPOConfig | VTraceConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device,
    ) -> None:
        self.encoder = ObservationEncoder(observation_space)
        self.head = head_of(action_space)
        self._mask = action_mask(config.actions, self.encoder, self.head)
        self.observations = Observations(self.encoder, enabled=config.normalize.observations)
        self.rewards = Rewards(config.normalize, config.gamma)
        self._device = device

    def seen(self, obs: Arrays) -> tuple[Tensor, Legal | None]:
        """Observations [R, O] as networks see them, and what can be chosen [R, n]."""
        count = len(next(iter(obs.values())))
        tensor = torch.empty((count, self.encoder.size))  # torch's own memory: 64-byte aligned
        rows = tensor.numpy()
        self.encoder.encode(obs, rows)
        legal = self._mask.legal(rows)
        self.observations.scale(rows)
        return tensor.to(self._device), legal

    def actions(self, rollout: Rollout) -> NDArray[Any]:
        """What was drawn in each of S steps."""
        if isinstance(self.head, CategoricalHead):
            return self.head.places(rollout.action["action"][rollout.valid])
        return np.ascontiguousarray(rollout.told["raw_action"][rollout.valid], np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Statistics by name, live."""
        return {
            **{f"normaliser.{name}": array for name, array in self.observations.arrays().items()},
            **{f"rewards.{name}": array for name, array in self.rewards.arrays().items()},
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        for name, array in self.observations.arrays().items():
            array[...] = arrays[f"normaliser.{name}"]
        self.observations.refresh()
        own = {name.removeprefix("rewards."): array for name, array in arrays.items() if name.startswith("rewards.")}
        self.rewards.load(own)


def _first_not_finite(rollout: Rollout) -> str | None:
    """Which number of a rollout is none, in words; None: all are. Rewards are scaled before they are float32."""
    reward = rollout.reward[rollout.valid]
    bad = np.flatnonzero(~np.isfinite(reward))
    if len(bad):
        return f"reward of row {bad[0]} is {reward[bad[0]]}"
    held: dict[str, NDArray[Any]] = dict(rollout.obs)
    held |= {name: array[rollout.valid] for name, array in {**rollout.action, **rollout.told}.items()}
    return first_not_finite({name: array for name, array in held.items() if array.dtype.kind == "f"})


def require_finite_rollout(rollout: Rollout, update: int) -> None:
    """Refuse to learn from what is no number.

    Args:
        rollout: About to be learned from.
        update: Number of the next one.

    Raises:
        NonFiniteValue: A number of a step or of an observation is NaN or infinite.
    """
    bad = _first_not_finite(rollout)
    if bad is not None:
        raise NonFiniteValue(
            "learner: a rollout holds what is no number; nothing was learned from it",
            update=update,
            found=bad,
            fix="mend the environment; if it is logprob or raw_action, lower algorithm.lr",
        )


@np.errstate(over="ignore")
def in_float32(numbers: Float64, rollout: Rollout, update: int) -> Float32:
    """What steps are learned from, [4, S] or [5, S] as `Rows.numbers`, as networks see it.

    Raises:
        NonFiniteValue: A reward or a value is so large that its advantage or target is no number any more.
    """
    found = numbers.astype(np.float32)
    bad = np.argwhere(~np.isfinite(found))
    if len(bad):
        rewards = rollout.reward[rollout.valid]
        kind = ("logprob", "advantage", "target", "value", "importance weight")[bad[0][0]]
        raise NonFiniteValue(
            "learner: a number that networks are to learn is not finite in float32; no weight was changed",
            update=update,
            found=f"{kind} of step {bad[0][1]} is {numbers[tuple(bad[0])]:g}; rewards from {rewards.min():g} to {rewards.max():g}",
            fix="scale the rewards down, or set algorithm.normalize.rewards = true; else lower algorithm.lr",
        )
    return found
