"""IQN: distributions of returns by their quantiles (Dabney et al. 2018, arXiv:1806.06923), for one of n actions.

Read it from top to bottom: the formulas, then what one update does with them. Several policies that know nothing of each
other are learned at once, each from its own transitions with its own weights. Letters in shapes: P policies, B transitions
of each, O observation, n actions, K quantiles of the online network, L of the target's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.base import Arrays, PolicySpec, Transitions
from headrace.algorithms.configs import IQNConfig
from headrace.algorithms.exploration import scale_at
from headrace.algorithms.flat import FlatAdam, FlatParameters, counts
from headrace.algorithms.learned import (
    Means,
    NotFiniteError,
    counts_of,
    existing_device,
    learned_arrays,
    load_learned,
    require_finite,
    sha256_of,
)
from headrace.algorithms.quantile_networks import Draws, Noise, QuantileNetworks
from headrace.algorithms.rates import rate_at
from headrace.algorithms.sampled import Sampled, SampledRows, split


def chosen_quantiles(values: Tensor, shares: Tensor) -> Tensor:
    """Quantile values [..., K] of the action that was chosen; ``values`` [..., K, n], ``shares`` [..., n]: 1 for it."""
    return (values * shares.unsqueeze(-2)).sum(dim=-1)


def best_quantiles(chooser: Tensor, judge: Tensor, legal: Tensor | None) -> Tensor:
    """Quantile values [..., L] of the best action that can be chosen next; 0 where none can be.

    Args:
        chooser: [..., n] values by which it is chosen.
        judge: [..., L, n] quantile values; for double Q-learning another network's (arXiv:1509.06461).
        legal: [..., n] what can be chosen; None: everything. No value of the rest is used.
    """
    if legal is not None:
        chooser = chooser.masked_fill(~legal, -torch.inf)
    best = chooser.argmax(dim=-1, keepdim=True).unsqueeze(-2)  # [..., 1, 1]
    worth = judge.gather(-1, best.expand(*judge.shape[:-1], 1)).squeeze(-1)
    return worth if legal is None else torch.where(legal.any(dim=-1, keepdim=True), worth, 0.0)


def td_targets(reward: Tensor, discount: Tensor, next_quantiles: Tensor) -> Tensor:
    """``r + discount * Z'`` [..., L].

    Args:
        reward: [...] n-step return without the bootstrap.
        discount: [...] 0 where the task terminated; gamma to the n where it went on or was only cut off.
        next_quantiles: [..., L] of the successor.
    """
    return reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_quantiles


def td_errors(values: Tensor, targets: Tensor) -> Tensor:
    """Of every quantile against every target, [..., K, L]; ``values`` [..., K], ``targets`` [..., L]."""
    return targets.unsqueeze(-2) - values.unsqueeze(-1)


def quantile_huber(errors: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """``|tau - 1(error < 0)| * huber(error) / kappa`` (equation 2), its mean over quantiles and targets [...].

    Args:
        errors: [..., K, L].
        taus: [..., K] fractions of the online quantiles.
        kappa: Size of an error from which on it counts linear.
    """
    size = errors.abs()
    squared = size.clamp(max=kappa)
    huber = squared * (size - squared / 2)  # error^2 / 2 up to kappa, from there kappa (|error| - kappa / 2)
    side = (taus.unsqueeze(-1) - (errors.detach() < 0).to(taus.dtype)).abs()
    return (side * huber).mean(dim=(-2, -1)) / kappa


class IQN:
    """The learning half of IQN; fulfils `headrace.algorithms.base.Algorithm`.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: Discrete.
        seed: The run's. Streams used: ``initialisation``, ``quantiles``, one of each for every policy.
        device: Where networks live and are trained.
        policies: P. A batch is then P times B transitions, policy by policy.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: The device is not there.
    """

    def __init__(
        self,
        config: IQNConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
        policies: int = 1,
    ) -> None:
        agents = tuple(range(policies)) if policies > 1 else ()
        self.policy = PolicySpec("iqn", observation_space, action_space, config, agents)
        self.updates = 0
        self._config, self._policies = config, policies
        place = existing_device(device)
        rows = policies * config.batch_size
        self._inputs = Sampled(observation_space, action_space, config.actions, config.target, rows, place)
        observations, actions = self._inputs.encoder.size, self._inputs.choices.size

        self._q = QuantileNetworks(config.network, observations, actions, seed, policies).to(place)
        self._target_q = copy.deepcopy(self._q)
        self._q_flat, self._target_q_flat = FlatParameters(self._q, policies), FlatParameters(self._target_q, policies)
        self._q_adam = FlatAdam(self._q_flat, config.lr)

        self._draws = Draws(seed, policies, self._q.noisy_layers, place)
        self._scale = np.array([scale_at(config.exploration, 0)], np.float64)
        self._means = Means()

    def update(self, batch: Transitions) -> NDArray[np.float32]:
        """One step of all policies' networks; after every ``target.every_updates``-th their targets move once.

        Args:
            batch: P times B transitions, policy by policy; arrays may be strided and read-only, and are not kept.

        Returns:
            Mean size of each transition's TD errors, over quantiles and targets, before the step, [P * B].

        Raises:
            NonFiniteValue: The loss or its gradient is NaN or infinite. No weight, moment or target has changed, of any
                policy.
        """
        rows = self._inputs.tensors(batch).by_policy(self._policies)
        seen: list[_Seen] = []
        norms = self._q_flat.accumulate(self._losses(rows, seen))
        found = _Seen(*(torch.cat(one, dim=1) for one in zip(*seen, strict=True)))
        try:
            self._step(found, norms)
        except NotFiniteError as problem:
            raise problem.told(batch, self.updates + 1, "lr") from None
        self.updates += 1
        self._set_rate()
        if self.updates % self._config.target.every_updates == 0:
            self._move_target()
        return found.error.flatten().cpu().numpy()

    def _losses(self, rows: SampledRows, seen: list[_Seen]) -> Iterator[Tensor]:
        """What each part of a batch adds to the loss, summed over policies: each has weights of its own."""
        drawn, noise = self._draw(rows.reward.shape[1])
        count = self._config.optimiser.accumulate
        for part, taus in zip(rows.parts(count, dim=1), split(drawn, count, dim=1), strict=True):
            random = _Random(*taus, *noise)
            targets = td_targets(part.reward, part.discount, self._next_quantiles(part, random))
            values = chosen_quantiles(self._q(part.obs, random.taus, random.noise), part.shares)
            errors = td_errors(values, targets)
            each = part.weight * quantile_huber(errors, random.taus, self._config.quantiles.kappa)  # [P, b]
            seen.append(_Seen(each.detach(), errors.detach().abs().mean(dim=(2, 3)), values.detach(), targets))
            yield each.sum() / rows.reward.shape[1]

    def _draw(self, rows: int) -> tuple[tuple[Tensor | None, ...], tuple[Noise, ...]]:
        """Everything that is random in one update."""
        draws, quantiles, double = self._draws, self._config.quantiles, self._config.target.double
        taus = draws.taus(rows, quantiles.online), draws.taus(rows, quantiles.next)
        choosing = draws.taus(rows, quantiles.next) if double else None
        noise = draws.noise(), draws.noise(), draws.noise() if double else {}
        return (*taus, choosing), noise

    @torch.no_grad()
    def _next_quantiles(self, rows: SampledRows, random: _Random) -> Tensor:
        judge: Tensor = self._target_q(rows.next_obs, random.next_taus, random.next_noise)  # [P, b, L, n]
        if random.choosing_taus is None:
            chooser = judge.mean(dim=2)
        else:
            chooser = self._q.mean(rows.next_obs, random.choosing_taus, random.choosing_noise)
        return best_quantiles(chooser, judge, rows.next_legal)

    def _step(self, found: _Seen, norms: list[float]) -> None:
        means = (found.loss.mean(dim=1), found.value.mean(dim=(1, 2)), found.target.mean(dim=(1, 2)))
        measured = torch.stack(means).tolist()  # one transfer from an accelerator
        for policy, norm in enumerate(norms):
            name = "Q-network" if self._policies == 1 else f"Q-network of policy {policy}"
            require_finite(name, measured[0][policy], norm)
        self._q_flat.shorten(norms, self._config.max_grad_norm)
        self._q_adam.step()
        for name, values in zip(("q_loss", "q_mean", "target_q_mean", "q_grad_norm"), (*measured, norms), strict=True):
            self._means.add(name, sum(values) / len(values))
            if self._policies > 1:
                for policy, value in enumerate(values):
                    self._means.add(f"{policy}/{name}", value)

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
            ``q`` float32 [parameters], of several policies [P, parameters], and ``exploration_scale`` float64 [1], which is
            epsilon.
        """
        q = self._q_flat.numpy()
        return {"q": q if self._policies > 1 else q[0], "exploration_scale": self._scale}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name, over all policies and as ``train/<policy>/...``."""
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
        """Hash of the networks, their targets and the optimiser's moments."""
        return sha256_of(learned_arrays(self._flats(), self._adams()))

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: learned arrays, counters, generators. Live where they can be; copy to keep."""
        return {
            **learned_arrays(self._flats(), self._adams()),
            **counts_of(self._flats()),
            "counters": np.array([self.updates], np.int64),
            "generators": self._draws.state().numpy(),
            "exploration_scale": self._scale,
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration, spaces and number of policies."""
        load_learned(arrays, self._flats(), self._adams())
        self.updates = int(arrays["counters"][0])
        self._set_rate()
        self._draws.load_state(torch.tensor(arrays["generators"]))
        self._scale[:] = arrays["exploration_scale"]

    def _flats(self) -> dict[str, FlatParameters]:
        return {"q": self._q_flat, "target_q": self._target_q_flat}

    def _adams(self) -> dict[str, FlatAdam]:
        return {"q": self._q_adam}


class _Seen(NamedTuple):
    """What one part of a batch came to."""

    loss: Tensor  # [P, b]
    error: Tensor  # [P, b]
    value: Tensor  # [P, b, K]
    target: Tensor  # [P, b, L]


class _Random(NamedTuple):
    """What is random in one part of a batch; its fractions are its own, the noise is the whole batch's."""

    taus: Tensor  # [P, b, K]
    next_taus: Tensor  # [P, b, L]
    choosing_taus: Tensor | None  # [P, b, L]  None: the target network chooses, by the quantiles it judges with
    noise: Noise
    next_noise: Noise
    choosing_noise: Noise
