"""What learners of continuous actions share: batches on their way to torch, twin critics, and books of what is learned.

Letters in shapes: B batch, O observation, A action, K = 2 critics, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.base import Arrays, Transitions
from headrace.algorithms.configs import SACConfig, TD3Config
from headrace.algorithms.encoding import ActionBox, ObservationEncoder, RunningMoments, normalize
from headrace.algorithms.flat import FlatAdam, FlatParameters, counts
from headrace.algorithms.learned import Means, counts_of, learned_arrays, load_learned, require_finite, sha256_of
from headrace.algorithms.networks import TwinCritic
from headrace.algorithms.passes import Memory, pass_of


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over the batch, summed over the critics; ``q`` [K, B], ``target`` [B]."""
    return (q - target).square().mean(dim=1).sum()


def critic_slope(q: Tensor, target: Tensor) -> Tensor:
    """Derivative of `critic_loss` by ``q``, of the same shape; or of one critic, both as columns [B, 1]."""
    return (q - target) * (2.0 / len(target))


class TwinPass:
    """Both Q-functions of observation and action, differentiated by hand.

    Args:
        critic: Its parameters lie in a flat vector already, and stay there.
        memory: Shared by networks that take turns.
    """

    def __init__(self, critic: TwinCritic, memory: Memory) -> None:
        self._q = [pass_of(q, memory) for q in critic.q]

    def __call__(self, obs: Tensor, action: Tensor) -> Tensor:
        """Both values [K, B]."""
        pair = torch.cat([obs, action], dim=1)
        return torch.cat([q(pair) for q in self._q]).view(len(self._q), -1)

    def fit(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Add the gradient of `critic_loss` to the parameters' gradients; returns both values [K, B]."""
        pair, column = torch.cat([obs, action], dim=1), target.unsqueeze(1)
        values = []
        for q in self._q:  # one after the other, because its weights and what it made of the batch are in the cache
            value = q.traced(pair)
            q.back(critic_slope(value, column))
            values.append(value)
        return torch.cat(values).view(len(values), -1)

    def pull(self, obs: Tensor, action: Tensor, *, smaller: bool) -> tuple[Tensor, Tensor]:
        """What an actor is pulled by. Parameters get no gradient.

        Args:
            obs: [B, O].
            action: [B, A].
            smaller: Whether the smaller of both values counts, or always the first.

        Returns:
            That value [B], and its derivative by the action [B, A].
        """
        pair, first, second = torch.cat([obs, action], dim=1), *self._q
        value = first.traced(pair).squeeze(1)
        if not smaller:
            return value, self._by_action(0, torch.ones_like(value), action)
        other = second.traced(pair).squeeze(1)
        counts_first = (value <= other).to(value.dtype)
        slope = self._by_action(0, counts_first, action) + self._by_action(1, 1.0 - counts_first, action)
        return torch.minimum(value, other), slope

    def _by_action(self, which: int, by_value: Tensor, action: Tensor) -> Tensor:
        slope = self._q[which].back(by_value.unsqueeze(1), weights=False, inputs=action.shape[1])
        assert slope is not None, "it was asked for"
        return slope


class Critics(TwinPass):
    """Twin critics that are trained.

    Args:
        critic: See `TwinPass`.
        flat: Its parameters.
        adam: Its optimiser.
        memory: See `TwinPass`.
    """

    def __init__(self, critic: TwinCritic, flat: FlatParameters, adam: FlatAdam, memory: Memory) -> None:
        super().__init__(critic, memory)
        self._flat, self._adam = flat, adam

    def step(self, obs: Tensor, action: Tensor, target: Tensor, means: Means) -> None:
        """One step down `critic_loss`, measured in ``means``.

        Raises:
            NotFiniteError: The loss or its gradient is no number; nothing has changed.
        """
        self._flat.grad.zero_()
        q = self.fit(obs, action, target)
        norm = self._flat.norm()
        loss, q_mean, target_mean = _measured(torch.cat([q, target.unsqueeze(0)]).cpu().numpy())
        require_finite("critic", loss, norm)
        self._adam.step()
        means.add("critic_loss", loss)
        means.add("q_mean", q_mean)
        means.add("target_q_mean", target_mean)
        means.add("critic_grad_norm", norm)


@np.errstate(over="ignore", invalid="ignore")  # what is no number is refused as a whole
def _measured(values: NDArray[np.float32]) -> tuple[float, float, float]:
    """`critic_loss`, and the means of both critics' values and of the target, of all three in this order [K + 1, B].

    In numpy: an operation of torch costs several times as much on so few numbers.
    """
    q, target = values[:-1], values[-1]
    loss = np.add.reduce(np.square(q - target), axis=None) / len(target)
    return float(loss), float(np.add.reduce(q, axis=None)) / q.size, float(np.add.reduce(target)) / len(target)


class Inputs:
    """Batches on their way to torch: encoded, normalised, float32, in memory that is used again and again.

    Args:
        config: Says how many transitions a batch has, mostly, and whether observations are normalised.
        observation_space: Of one environment.
        action_space: A Box of floating-point numbers with finite bounds.
        device: Where tensors are wanted.

    Raises:
        UnsupportedSpace: For spaces that do not suit.
    """

    def __init__(
        self,
        config: TD3Config | SACConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device,
    ) -> None:
        self.encoder = ObservationEncoder(observation_space)
        self.box = ActionBox(action_space)
        self.moments = RunningMoments(self.encoder.size) if config.normalize_observations else None
        self._device = device
        self._resize(config.batch_size)

    @np.errstate(over="ignore")  # of a reward: the loss is refused, and names it
    def tensors(self, batch: Transitions) -> tuple[Tensor, ...]:
        """``obs`` [B, O], ``action`` [B, A], ``reward`` [B], ``discount`` [B], ``next_obs`` [B, O]; until the next call."""
        if len(batch.reward) != len(self._tensors[2]):
            self._resize(len(batch.reward))
        obs, action, reward, discount, next_obs = self._views
        self._encode(batch.obs, obs)
        self._encode(batch.next_obs, next_obs)
        self.box.normalize(batch.action["action"], action)
        reward[...] = batch.reward
        discount[...] = batch.discount
        return tuple(tensor.to(self._device) for tensor in self._tensors)

    def observe(self, obs: Arrays) -> None:
        """Add rows [B, ...] to the running moments, if observations are normalised; B may be 0."""
        count = len(next(iter(obs.values()), ()))
        if self.moments is None or not count:
            return
        rows = np.empty((count, self.encoder.size), np.float32)
        self.encoder.encode(obs, rows)
        self.moments.add(rows)

    def published(self) -> dict[str, NDArray[Any]]:
        """What whoever acts has to normalise by: ``obs_mean`` and ``obs_std``, float32 [O], live; nothing if nobody does."""
        return {} if self.moments is None else {"obs_mean": self.moments.mean32, "obs_std": self.moments.std32}

    def _encode(self, obs: Arrays, out: NDArray[np.float32]) -> None:
        self.encoder.encode(obs, out)
        if self.moments is not None:
            normalize(out, self.moments.mean32, self.moments.std32)

    def _resize(self, rows: int) -> None:
        # Torch's own memory, because it is 64-byte aligned: MKL repeats itself bit for bit only on such.
        observations, actions = self.encoder.size, self.box.size
        shapes = ((rows, observations), (rows, actions), (rows,), (rows,), (rows, observations))
        self._tensors = [torch.zeros(shape) for shape in shapes]
        self._views = [tensor.numpy() for tensor in self._tensors]


class Books:
    """Networks, their optimisers and the normaliser, by name: hashed, counted, saved and restored as one.

    Args:
        flats: Every network. Targets are those whose names begin with ``target_``.
        adams: Every optimiser, by the name of what it trains.
        moments: The normaliser; None: there is none.
    """

    def __init__(
        self, flats: Mapping[str, FlatParameters], adams: Mapping[str, FlatAdam], moments: RunningMoments | None
    ) -> None:
        self.flats, self.adams = flats, adams
        self._moments = moments

    def learned(self) -> dict[str, NDArray[Any]]:
        """Every array that was learned: weights, the optimisers' moments, the normaliser. Live where they can be."""
        arrays = learned_arrays(self.flats, self.adams)
        if self._moments is not None:
            arrays |= {f"normaliser.{name}": array for name, array in self._moments.arrays().items()}
        return arrays

    def sha256(self) -> str:
        """Hash of `learned`."""
        return sha256_of(self.learned())

    def state(self, updates: int, generator: torch.Generator) -> dict[str, NDArray[Any]]:
        """`learned`, what was counted, and where the learner's own generator is."""
        return {
            **self.learned(),
            **counts_of(self.flats),
            "counters": np.array([updates], np.int64),
            "generator": generator.get_state().numpy(),
        }

    def load_state(self, arrays: Arrays, generator: torch.Generator) -> int:
        """Overwrite everything with a `state` of the same configuration and spaces; returns its ``updates``."""
        load_learned(arrays, self.flats, self.adams)
        if self._moments is not None:
            for name, array in self._moments.arrays().items():
                array[...] = arrays[f"normaliser.{name}"]
            self._moments.refresh()
        generator.set_state(torch.tensor(arrays["generator"]))
        return int(arrays["counters"][0])

    def ledger(
        self, updates: int, steps: Mapping[str, int], moves: Mapping[str, int], rates: Mapping[str, float]
    ) -> dict[str, float]:
        """What optimisers and targets themselves have counted, beside what is declared.

        Args:
            updates: So far.
            steps: Optimiser steps that are declared for as many updates, by the name of what is trained.
            moves: The same of targets.
            rates: Learning rates that are declared, by the name of what is trained.
        """
        done = counts({name: flat for name, flat in self.flats.items() if name.startswith("target_")}, self.adams)
        declared: dict[str, float] = {f"{name}_moves": count for name, count in moves.items()}
        for name, count in steps.items():
            declared[f"{name}_steps"] = min(count, FlatAdam.MOST_STEPS)
            declared[f"{name}_optimisers"] = 1
            declared[f"{name}_lr"] = rates[name]
        return {"updates": updates, **done, **{f"{name}_declared": value for name, value in declared.items()}}
