"""DQN: Q-learning with a target network (Mnih et al. 2015), for one of n actions or k of n cells.

Read it from top to bottom: the formulas, then what one update does with them. Letters in shapes: B batch,
O observation, n actions or cells, P parameters. An action is a row of shares: 1 for the action that was chosen, 1/k for
each of k cells, so that its value is the mean of what was chosen. Rewards, discounts and observations arrive as stored.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.base import Arrays, PolicySpec, Transitions
from headrace.algorithms.configs import DQNConfig
from headrace.algorithms.exploration import scale_at
from headrace.algorithms.flat import FlatAdam, FlatParameters, counts
from headrace.algorithms.learned import (
    Means,
    NotFiniteError,
    counts_of,
    existing_device,
    existing_precision,
    learned_arrays,
    load_learned,
    require_finite,
    sha256_of,
)
from headrace.algorithms.passes import Memory
from headrace.algorithms.q_networks import build_q_network, q_pass_of
from headrace.algorithms.rates import rate_at
from headrace.algorithms.sampled import Sampled, SampledRows
from headrace.core import seeding


def action_value(q: Tensor, shares: Tensor) -> Tensor:
    """Worth [B] of what was chosen: the mean of its Q-values; ``q`` and ``shares`` [B, n]."""
    return (q * shares).sum(dim=1)


def best_value(chooser: Tensor, judge: Tensor, legal: Tensor | None, k: int) -> Tensor:
    """Worth [B] of the best that can be chosen next: the mean of k cells; 0 where nothing can be.

    Args:
        chooser: [B, n] values by which they are chosen.
        judge: [B, n] values they are worth; for double Q-learning another network's (arXiv:1509.06461).
        legal: [B, n] what can be chosen; None: everything. No value of the rest is used.
        k: How many are chosen, fewer where fewer can be.
    """
    if legal is not None:
        chooser = chooser.masked_fill(~legal, -torch.inf)
    places = chooser.topk(k, dim=1).indices if k > 1 else chooser.argmax(dim=1, keepdim=True)  # [B, k]
    worth = judge.gather(1, places)
    if legal is None:
        return worth.mean(dim=1) if k > 1 else worth.squeeze(1)
    can = legal.gather(1, places)
    return torch.where(can, worth, 0.0).sum(dim=1) / can.sum(dim=1).clamp(min=1)


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """``r + discount * V'`` [B].

    Args:
        reward: [B] n-step return without the bootstrap.
        discount: [B] 0 where the task terminated; gamma to the n where it went on or was only cut off.
        next_value: [B] worth of the successor.
    """
    return reward + discount * next_value


def td_loss(error: Tensor, weight: Tensor, kind: str) -> Tensor:
    """Weighted mean over the batch of half the squared error, or of Huber's; ``error`` and ``weight`` [B]."""
    if kind == "mse":
        return (weight * error.square()).mean() / 2
    near = error.clamp(-1.0, 1.0)
    return (weight * near * (error - near / 2)).mean()  # error^2 / 2 up to 1, from there |error| - 1/2


def td_slope(error: Tensor, weight: Tensor, kind: str, count: int) -> Tensor:
    """Derivative [b] of `td_loss` of ``count`` transitions by the values of b of them, with their errors and weights [b]."""
    return weight * (error if kind == "mse" else error.clamp(-1.0, 1.0)) / -count


class DQN:
    """The learning half of DQN; fulfils `headrace.algorithms.base.Algorithm`.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: Discrete, or MultiBinary where ``config`` says how many cells are chosen.
        seed: The run's. Stream used: ``initialisation``.
        device: Where networks live and are trained.
        precision: Of products inside networks, ``float32`` or ``bfloat16``; what else on accelerators: `passes.Autocast`.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: Device or precision is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: DQNConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.policy = PolicySpec("dqn", observation_space, action_space, config)
        self.updates = 0
        self._config = config
        self._inputs = Sampled(
            observation_space, action_space, config.actions, config.target, config.batch_size, existing_device(device)
        )
        choices = self._inputs.choices
        self._next_cells = 1 if config.target.bootstrap == "best" else choices.k

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._q = build_q_network(config, self._inputs.encoder, choices.size, generator).to(device)
        self._target_q = copy.deepcopy(self._q)
        self._q_flat, self._target_q_flat = FlatParameters(self._q), FlatParameters(self._target_q)
        memory = Memory(existing_precision(precision, device))
        self._q_pass, self._target_q_pass = q_pass_of(self._q, memory), q_pass_of(self._target_q, memory)
        self._q_adam = FlatAdam(self._q_flat, config.lr)

        self._scale = np.array([scale_at(config.exploration, 0)], np.float64)
        self._means = Means()

    def update(self, batch: Transitions) -> NDArray[np.float32]:
        """One step of the Q-network; after every ``target.every_updates``-th the target network moves once.

        Args:
            batch: B transitions; arrays may be strided and read-only, and are not kept.

        Returns:
            See `Algorithm.update`.

        Raises:
            NonFiniteValue: The loss or its gradient is NaN or infinite. No weight, moment or target has changed.
        """
        rows = self._inputs.tensors(batch)
        self._q_flat.grad.zero_()
        parts = rows.parts(self._config.optimiser.accumulate)
        seen = [self._differentiated(part, len(rows.reward)) for part in parts]
        value, target, error = seen[0] if len(seen) == 1 else map(torch.cat, zip(*seen, strict=True))
        try:
            self._step(td_loss(error, rows.weight, self._config.loss), value, target)
        except NotFiniteError as problem:
            raise problem.told(batch, self.updates + 1, "lr") from None
        self.updates += 1
        self._set_rate()
        if self.updates % self._config.target.every_updates == 0:
            self._move_target()
        return error.abs().cpu().numpy()

    def _differentiated(self, part: SampledRows, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Add the gradient of a part of ``count`` transitions; returns their values, targets and errors [b]."""
        target = td_target(part.reward, part.discount, self._next_value(part))
        value = action_value(self._q_pass.traced(part.obs), part.shares)
        error = target - value
        slope = td_slope(error, part.weight, self._config.loss, count)
        self._q_pass.back(slope.unsqueeze(1) * part.shares)
        return value, target, error

    def _next_value(self, rows: SampledRows) -> Tensor:
        judge = self._target_q_pass(rows.next_obs)
        chooser = self._q_pass(rows.next_obs) if self._config.target.double else judge
        return best_value(chooser, judge, rows.next_legal, self._next_cells)

    def _step(self, loss: Tensor, value: Tensor, target: Tensor) -> None:
        measured = torch.stack([loss, value.mean(), target.mean()]).tolist()  # one transfer from an accelerator
        norm = self._q_flat.norm()
        require_finite("Q-network", measured[0], norm)
        self._q_flat.shorten([norm], self._config.max_grad_norm)
        self._q_adam.step()
        for name, number in zip(("q_loss", "q_mean", "target_q_mean"), measured, strict=True):
            self._means.add(name, number)
        self._means.add("q_grad_norm", norm)

    def _set_rate(self) -> None:
        # Where nothing is declared to move the rate, the ledger shall see what else has.
        if self._config.optimiser.lr_final is not None:
            self._q_adam.lr = self._rate()

    def _rate(self) -> float:
        return rate_at(self._config.lr, self._config.optimiser, self.updates)

    def _move_target(self) -> None:
        """The only place where target weights move."""
        self._target_q_flat.lerp_(self._q_flat, self._config.target.tau)

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[np.intp] | None = None) -> None:
        """Take notice of the total of environment steps."""
        self._scale[0] = scale_at(self._config.exploration, env_steps)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs; live views, except the weights of a learner on an accelerator, which are a copy.

        Returns:
            ``q`` float32 [P], and ``exploration_scale`` float64 [1], which is epsilon.
        """
        return {"q": self._q_flat.numpy(), "exploration_scale": self._scale}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none."""
        return {**self._means.take(), "train/epsilon": float(self._scale[0])}

    def ledger(self) -> dict[str, float]:
        """What optimiser and target themselves have counted, beside what the configuration declares."""
        done = counts({"target_q": self._target_q_flat}, self._adams())
        declared = {
            "q_steps": min(self.updates, FlatAdam.MOST_STEPS),
            "target_q_moves": self.updates // self._config.target.every_updates,
            "q_optimisers": 1,
            "q_lr": self._rate(),
        }
        return {"updates": self.updates, **done, **{f"{name}_declared": value for name, value in declared.items()}}

    def weights_sha256(self) -> str:
        """Hash of the network, its target and the optimiser's moments."""
        return sha256_of(learned_arrays(self._flats(), self._adams()))

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: learned arrays and counters. Live where they can be; copy to keep."""
        return {
            **learned_arrays(self._flats(), self._adams()),
            **counts_of(self._flats()),
            "counters": np.array([self.updates], np.int64),
            "exploration_scale": self._scale,
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        load_learned(arrays, self._flats(), self._adams())
        self.updates = int(arrays["counters"][0])
        self._set_rate()
        self._scale[:] = arrays["exploration_scale"]

    def _flats(self) -> dict[str, FlatParameters]:
        return {"q": self._q_flat, "target_q": self._target_q_flat}

    def _adams(self) -> dict[str, FlatAdam]:
        return {"q": self._q_adam}
