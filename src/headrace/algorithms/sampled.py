"""Batches of choices on their way to torch: encoded, float32, in memory that is used again and again.

Letters in shapes: B transitions, O encoded observation, n actions or cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from headrace.algorithms.base import Transitions
from headrace.algorithms.choices import Choices, Mask
from headrace.algorithms.configs import ActionsConfig, TargetConfig
from headrace.algorithms.encoding import ObservationEncoder


class SampledRows(NamedTuple):
    """Transitions as tensors."""

    obs: Tensor  # [B, O]
    shares: Tensor  # [B, n]  of what was chosen; see `Choices.shares`
    reward: Tensor  # [B]  scaled
    discount: Tensor  # [B]
    weight: Tensor  # [B]
    next_obs: Tensor  # [B, O]
    next_legal: Tensor | None  # [B, n]  what can be chosen next; None: everything

    def parts(self, count: int, dim: int = 0) -> Iterator[SampledRows]:
        """The rows along ``dim`` in ``count`` parts, in their order; see `split`."""
        return iter((self,)) if count == 1 else map(SampledRows._make, split(self, count, dim))

    def by_policy(self, policies: int) -> SampledRows:
        """The same rows as [policies, B / policies, ...]."""
        return SampledRows._make(None if t is None else t.unflatten(0, (policies, -1)) for t in self)


def split(tensors: Iterable[Tensor | None], count: int, dim: int) -> Iterator[tuple[Any, ...]]:
    """Views of all ``tensors`` along ``dim`` in ``count`` parts that differ by one row at most, fewer where rows are fewer."""
    tensors = list(tensors)
    rows = next(t.shape[dim] for t in tensors if t is not None)
    count = max(1, min(count, rows))
    pieces = [[None] * count if t is None else t.tensor_split(count, dim) for t in tensors]
    return zip(*pieces, strict=True)


class Sampled:
    """Makes tensors of stored transitions.

    Args:
        observation_space: Of one environment.
        action_space: Of one environment.
        actions: What is chosen, and what cannot be.
        target: Says what rewards are multiplied by.
        rows: B as it will be, mostly.
        device: Where tensors are wanted.

    Raises:
        UnsupportedSpace: For spaces that do not suit.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        actions: ActionsConfig,
        target: TargetConfig,
        rows: int,
        device: torch.device,
    ) -> None:
        self.encoder = ObservationEncoder(observation_space)
        self.choices = Choices(action_space, actions)
        self._mask = Mask(actions, self.encoder, self.choices.size)
        self._reward_scale = target.reward_scale
        self._device = device
        self._resize(rows)

    @np.errstate(over="ignore")  # of a reward: the loss is refused, and names it
    def tensors(self, batch: Transitions) -> SampledRows:
        """Its B transitions; until the next call."""
        if len(batch.reward) != len(self._tensors[2]):
            self._resize(len(batch.reward))
        obs, shares, reward, discount, weight, next_obs = self._views
        self.encoder.encode(batch.obs, obs)
        self.encoder.encode(batch.next_obs, next_obs)
        self.choices.shares(batch.action["action"], shares)
        np.multiply(batch.reward, self._reward_scale, out=reward, casting="same_kind")
        discount[...] = batch.discount
        weight[...] = 1.0 if batch.weight is None else batch.weight
        legal = self._mask.legal(next_obs)
        return SampledRows._make(
            None if tensor is None else tensor.to(self._device)
            for tensor in (*self._tensors, None if legal is None else torch.from_numpy(legal))
        )

    def _resize(self, rows: int) -> None:
        # Torch's own memory, because it is 64-byte aligned: MKL repeats itself bit for bit only on such.
        observations, actions = self.encoder.size, self.choices.size
        shapes = ((rows, observations), (rows, actions), (rows,), (rows,), (rows,), (rows, observations))
        self._tensors = [torch.zeros(shape) for shape in shapes]
        self._views = [tensor.numpy() for tensor in self._tensors]
