"""SAC: a stochastic policy that is paid for its entropy (Haarnoja et al. 2018, arXiv:1812.05905).

Read it from top to bottom: the formulas, then what one update does with them. Letters in shapes: B batch,
O observation, A action, K = 2 critics, P parameters. Inside, actions are in [-1, 1], and densities are of those;
rewards, discounts and observations arrive as stored.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.algorithms.base import Arrays, PolicySpec, Transitions
from headrace.algorithms.configs import SACConfig
from headrace.algorithms.continuous import Books, Critics, Inputs, TwinPass
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError, existing_device, existing_precision, require_finite
from headrace.algorithms.networks import TwinCritic, build_network
from headrace.algorithms.passes import Memory, pass_of
from headrace.algorithms.tanh_normal import squashed_sample, squashed_slope
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor, temperature: Tensor) -> Tensor:
    """``r + discount * (min_k Q'_k - alpha * log pi')`` [B] (equations 3 and 5).

    Args:
        reward: [B] n-step return without the bootstrap.
        discount: [B] 0 where the task terminated; gamma to the n where it went on or was only cut off.
        next_q: [K, B] target critics' values of the successor and an action drawn there.
        next_log_prob: [B] logarithm of that action's density.
        temperature: [] alpha.
    """
    return reward + discount * (next_q.amin(dim=0) - temperature * next_log_prob)


def actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """``mean_b (alpha * log pi - Q)`` (equation 9); ``q`` [B] min_k Q_k, ``log_prob`` [B], ``temperature`` [] alpha."""
    return (temperature * log_prob - q).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """``-mean_b log alpha * (log pi + target)``: alpha rises while the policy's entropy is below the target.

    Equation 18 has alpha where this has its logarithm, as the authors' code and Stable-Baselines3 do: its steps do not
    shrink with alpha. ``log_temperature`` [], ``log_prob`` [B].
    """
    return -(log_temperature * (log_prob + target_entropy)).mean()


def temperature_slope(log_prob: Tensor, target_entropy: float) -> Tensor:
    """Derivative of `temperature_loss` by ``log_temperature``, []."""
    return -(log_prob + target_entropy).mean()


class Temperature(nn.Module):
    """Alpha, by its logarithm."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)))

    def forward(self) -> Tensor:
        """Alpha, []."""
        return self.log.exp()


class SAC:
    """The learning half of SAC; fulfils `headrace.algorithms.base.Algorithm`.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: A Box of floating-point numbers with finite bounds.
        seed: The run's. Streams used: ``initialisation``, ``policy-draws``.
        device: Where networks live and are trained.
        precision: Of products inside networks, ``float32`` or ``bfloat16``; what else on accelerators: `passes.Autocast`.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: Device or precision is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: SACConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.policy = PolicySpec("sac", observation_space, action_space, config)
        self.updates = 0
        self._config = config
        self._inputs = Inputs(config, observation_space, action_space, existing_device(device))
        observations, actions = self._inputs.encoder.size, self._inputs.box.size
        declared = config.temperature.target_entropy
        self._target_entropy = -float(actions) if declared is None else declared

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._actor = build_network(config.actor, observations, 2 * actions, generator).to(device)
        self._critic = TwinCritic(config.critic, observations, actions, generator).to(device)
        self._target_critic = copy.deepcopy(self._critic)
        self._temperature = Temperature(config.temperature.value).to(device)

        self._actor_flat, self._critic_flat = FlatParameters(self._actor), FlatParameters(self._critic)
        self._target_critic_flat = FlatParameters(self._target_critic)
        self._temperature_flat = FlatParameters(self._temperature)
        flats = {"actor": self._actor_flat, "critic": self._critic_flat, "target_critic": self._target_critic_flat}
        flats["temperature"] = self._temperature_flat
        self._rates = {"actor": config.actor_lr, "critic": config.critic_lr}
        if config.temperature.kind == "auto":
            self._rates["temperature"] = config.temperature.lr
        self._adams = {name: FlatAdam(flats[name], lr) for name, lr in self._rates.items()}
        self._books = Books(flats, self._adams, self._inputs.moments)

        memory = Memory(existing_precision(precision, device))
        self._actor_pass = pass_of(self._actor, memory)
        self._critics = Critics(self._critic, self._critic_flat, self._adams["critic"], memory)
        self._target_critics = TwinPass(self._target_critic, memory)

        # Drawn on the CPU on every device, so that the stream is the same one.
        self._draws = torch.Generator().manual_seed(seeding.integer(seed, "policy-draws"))
        self._means = Means()

    @torch.no_grad()
    def update(self, batch: Transitions) -> None:
        """One step of the critics, then of the actor and of the temperature, after which the target moves once.

        Args:
            batch: B transitions; arrays may be strided and read-only, and are not kept.

        Raises:
            NonFiniteValue: A loss or its gradient is NaN or infinite. No weight, moment or target has changed.
        """
        obs, action, reward, discount, next_obs = self._inputs.tensors(batch)
        self._adams["critic"].keep()  # the actor's loss is known only after the critics have moved
        try:
            self._critics.step(obs, action, self._target(reward, discount, next_obs), self._means)
            self._step_actor(obs)
        except NotFiniteError as problem:
            raise self._non_finite(problem, batch) from None
        self._move_target()
        self.updates += 1

    def _alpha(self) -> Tensor:
        return self._temperature().detach()  # type: ignore[no-any-return]

    def _normal(self, obs: Tensor) -> Tensor:
        """Draws [B, A] for as many actions."""
        return torch.randn((len(obs), self._inputs.box.size), generator=self._draws).to(obs.device)

    def _target(self, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        next_action, next_log_prob = squashed_sample(self._actor_pass(next_obs), self._normal(next_obs))
        next_q = self._target_critics(next_obs, next_action)
        return soft_target(reward, discount, next_q, next_log_prob, self._alpha())

    def _step_actor(self, obs: Tensor) -> None:
        self._actor_flat.grad.zero_()
        outputs, normal, alpha = self._actor_pass.traced(obs), self._normal(obs), self._alpha()
        action, log_prob = squashed_sample(outputs, normal)
        q, pull = self._critics.pull(obs, action, smaller=True)
        loss = actor_loss(q, log_prob, alpha)
        by_log_prob = (alpha / len(q)).expand_as(log_prob)
        self._actor_pass.back(squashed_slope(outputs, normal, action, -pull / len(q), by_log_prob))
        norm = self._actor_flat.norm()
        measured = torch.stack([loss, -log_prob.mean()]).tolist()
        require_finite("actor", measured[0], norm)
        if "temperature" in self._adams:
            self._step_temperature(log_prob)  # which may refuse, so it comes before the actor has moved
        self._adams["actor"].step()
        self._means.add("actor_loss", measured[0])
        self._means.add("entropy", measured[1])
        self._means.add("actor_grad_norm", norm)

    def _step_temperature(self, log_prob: Tensor) -> None:
        self._temperature_flat.grad.fill_(temperature_slope(log_prob, self._target_entropy))
        loss = temperature_loss(self._temperature.log.detach(), log_prob, self._target_entropy)
        require_finite("temperature", float(loss), self._temperature_flat.norm())
        self._adams["temperature"].step()

    def _move_target(self) -> None:
        """The only place where target weights move."""
        self._target_critic_flat.lerp_(self._critic_flat, self._config.tau)

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[Any] | None = None) -> None:
        """Take notice of newly committed observations [B, ...]; it is one policy."""
        self._inputs.observe(obs)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs; live views, except the weights of a learner on an accelerator, which are a copy.

        Returns:
            ``actor`` float32 [P], and when normalising ``obs_mean`` and ``obs_std``, float32 [O].
        """
        return {"actor": self._actor_flat.numpy(), **self._inputs.published()}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none. Alpha as it is now."""
        return {**self._means.take(), "train/temperature": float(self._alpha())}

    def ledger(self) -> dict[str, float]:
        """What optimisers and target themselves have counted, beside what the configuration declares."""
        steps = dict.fromkeys(self._adams, self.updates)
        return self._books.ledger(self.updates, steps, {"target_critic": self.updates}, self._rates)

    def weights_sha256(self) -> str:
        """Hash of actor, critics, their target, temperature, the optimisers' moments and the normaliser."""
        return self._books.sha256()

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: learned arrays, counters, generator. Live where they can be; copy to keep."""
        return self._books.state(self.updates, self._draws)

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        self.updates = self._books.load_state(arrays, self._draws)

    def _non_finite(self, problem: NotFiniteError, batch: Transitions) -> NonFiniteValue:
        if problem.network == "critic":
            key = "critic_lr" if self._alpha().isfinite() else "temperature.lr"
            return problem.told(batch, self.updates + 1, key)
        self._adams["critic"].undo()
        return problem.told(batch, self.updates + 1, {"temperature": "temperature.lr"}.get(problem.network, "actor_lr"))
