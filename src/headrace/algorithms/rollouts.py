"""Rollouts on their way to torch: encoded, normalised, and split into minibatches; and the statistics they are scaled by.

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
from headrace.algorithms.encoding import Float32, Float64, ObservationEncoder, RunningMoments, aligned, normalize
from headrace.algorithms.heads import CategoricalHead, head_of
from headrace.algorithms.on_policy_configs import NormalizeConfig, PPOConfig, VTraceConfig
from headrace.algorithms.sampling import action_mask

_LEAST_LANES = 64


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


@dataclass(frozen=True, slots=True)
class Rows:
    """Steps as tensors, without those that are none."""

    obs: Tensor  # [R, O]
    legal: Tensor | None  # [R, n]  what can be chosen; None: everything
    at: Tensor  # [S]  place in obs
    action: Tensor  # [S, k] or [S, A]; see `headrace.algorithms.distributions.Distribution`
    numbers: Tensor  # [S, 4]  logprob, advantage, target, value

    def batch(self, index: Tensor | None) -> Batch:
        """Some of them; None: all."""
        at, action, numbers = self.at, self.action, self.numbers
        if index is not None:
            at, action, numbers = (t.index_select(0, index) for t in (at, action, numbers))
        legal = None if self.legal is None else self.legal.index_select(0, at)
        return Batch(self.obs.index_select(0, at), legal, action, *numbers.unbind(1))


@dataclass(frozen=True, slots=True)
class Batch:
    """A minibatch."""

    obs: Tensor  # [B, O]
    legal: Tensor | None  # [B, n]
    action: Tensor  # [B, k] or [B, A]
    logprob: Tensor  # [B]  when it was drawn
    advantage: Tensor  # [B]
    target: Tensor  # [B]  of the value
    value: Tensor  # [B]  when the rollout was begun


class Observations:
    """Encodes and normalises what is observed. New statistics are put to use by `renew`, not by `observe`.

    Args:
        encoder: Of the observations.
        enabled: Whether they are normalised.
    """

    def __init__(self, encoder: ObservationEncoder, *, enabled: bool) -> None:
        self._encoder = encoder
        self._moments = RunningMoments(encoder.size) if enabled else None
        self._mean, self._std = aligned((encoder.size,)), aligned((encoder.size,))
        self.renew()

    def observe(self, obs: Arrays) -> None:
        """Add rows [B, ...] to the statistics; B may be 0."""
        count = len(next(iter(obs.values()), ()))
        if self._moments is not None and count:
            rows = np.empty((count, self._encoder.size), np.float32)
            self._encoder.encode(obs, rows)
            self._moments.add(rows)

    def renew(self) -> None:
        """Normalise by all that has been observed from now on."""
        if self._moments is not None:
            self._mean[:], self._std[:] = self._moments.mean32, self._moments.std32

    def scale(self, rows: Float32) -> None:
        """Normalise rows [R, O] in place, if they are to be."""
        if self._moments is not None:
            normalize(rows, self._mean, self._std)

    def published(self) -> dict[str, NDArray[Any]]:
        """``obs_mean`` and ``obs_std`` float32 [O] in use, live; nothing if observations are not normalised."""
        return {} if self._moments is None else {"obs_mean": self._mean, "obs_std": self._std}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The live state; after writing to it, call `refresh`."""
        if self._moments is None:
            return {}
        return {**self.published(), **{f"collected_{name}": array for name, array in self._moments.arrays().items()}}

    def refresh(self) -> None:
        """Follow what was written to `arrays`."""
        if self._moments is not None:
            self._moments.refresh()


class Rewards:
    """Scales rewards by the running standard deviation of discounted returns.

    Args:
        config: Whether, and the largest.
        gamma: Discount per step.
    """

    def __init__(self, config: NormalizeConfig, gamma: float) -> None:
        self._limit = config.reward_clip
        self._gamma = gamma
        self._moments = RunningMoments(1) if config.rewards else None
        self._running = np.zeros(_LEAST_LANES)
        """[lanes, or more] discounted return of each lane's episode so far."""

    def scaled(self, rollout: Rollout) -> Float64:
        """Rewards [T, N]; those of this rollout count already, and where there is no step it is 0."""
        reward = np.where(rollout.valid, rollout.reward, 0.0)
        if self._moments is None or not reward.size:
            return reward
        # Lane by lane, so that the order of streams decides nothing.
        order = np.argsort(rollout.lanes, kind="stable")
        returns = self._returns(reward[:, order], rollout, order)
        self._moments.add(returns.T[rollout.valid[:, order].T][:, None])
        return np.clip(reward / float(self._moments.std32[0]), -self._limit, self._limit)

    def _returns(self, reward: Float64, rollout: Rollout, order: NDArray[np.intp]) -> Float64:
        valid, over, lanes = rollout.valid[:, order], rollout.episode_ended[:, order], rollout.lanes[order]
        begins = rollout.t[:, order] == 0
        self._grow(int(lanes.max()) + 1)
        returns = np.zeros(reward.shape)
        for stream, lane in enumerate(lanes):
            so_far = self._running[lane]
            for step in np.flatnonzero(valid[:, stream]):
                if begins[step, stream]:  # the one before may have been cut after the rollout before
                    so_far = 0.0
                so_far = so_far * self._gamma + reward[step, stream]
                returns[step, stream] = so_far
                if over[step, stream]:
                    so_far = 0.0
            self._running[lane] = so_far
        return returns

    def _grow(self, lanes: int) -> None:
        if lanes > len(self._running):
            more = 2 ** (lanes - 1).bit_length() - len(self._running)
            self._running = np.concatenate([self._running, np.zeros(more)])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The live state."""
        if self._moments is None:
            return {}
        return {"returns": self._running, **{f"returns_{name}": a for name, a in self._moments.arrays().items()}}

    def load(self, arrays: Arrays) -> None:
        """Go on from `arrays`; there may have been more lanes."""
        if self._moments is not None:
            self._running = np.array(arrays["returns"])
            for name, array in self._moments.arrays().items():
                array[...] = arrays[f"returns_{name}"]
            self._moments.refresh()


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

    def seen(self, obs: Arrays) -> tuple[Tensor, Tensor | None]:
        """Observations [R, O] as networks see them, and what can be chosen [R, n]."""
        count = len(next(iter(obs.values())))
        tensor = torch.empty((count, self.encoder.size))  # torch's own memory: 64-byte aligned
        rows = tensor.numpy()
        self.encoder.encode(obs, rows)
        legal = self._mask.legal(rows)
        self.observations.scale(rows)
        return tensor.to(self._device), None if legal is None else torch.from_numpy(legal).to(self._device)

    def actions(self, rollout: Rollout) -> Tensor:
        """What was drawn in each of S steps."""
        if isinstance(self.head, CategoricalHead):
            drawn: NDArray[Any] = self.head.places(rollout.action["action"][rollout.valid])
        else:
            drawn = np.ascontiguousarray(rollout.told["raw_action"][rollout.valid], np.float32)
        return torch.from_numpy(drawn).to(self._device)

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


def first_not_finite(rollout: Rollout) -> str | None:
    """Which number of a rollout is none, in words; None: all are."""
    held: dict[str, NDArray[Any]] = {"reward": rollout.reward[rollout.valid], **rollout.obs}
    held |= {name: array[rollout.valid] for name, array in {**rollout.action, **rollout.told}.items()}
    for name, array in held.items():
        if array.dtype.kind != "f":
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            return f"{name} of row {bad[0][0]} is {array[tuple(bad[0])]}"
    return None
