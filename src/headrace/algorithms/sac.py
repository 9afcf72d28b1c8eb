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
from torch.nn import functional

from headrace.algorithms.base import Arrays, PolicySpec, Transitions
from headrace.algorithms.configs import SACConfig
from headrace.algorithms.continuous import Books, Inputs, critic_loss
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError, existing_device, require_finite
from headrace.algorithms.networks import TwinCritic, build_network
from headrace.algorithms.squashed import LOG_STD_RANGE
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue

_LOG_TWO = math.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def squashed_sample(outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``tanh(u)``, ``u = mean + std * normal``, and the logarithms of their densities (appendix C).

    ``log (1 - tanh(u)^2)`` is computed as ``2 (log 2 - u - softplus(-2 u))``, which stays exact where tanh(u) rounds to 1.

    Args:
        outputs: [B, 2 A] means, then logarithms of standard deviations, which are clamped.
        normal: [B, A] standard normal draws.

    Returns:
        [B, A] actions in [-1, 1] and [B] logarithms.
    """
    mean, log_std = outputs.chunk(2, dim=1)
    log_std = log_std.clamp(*LOG_STD_RANGE)
    raw = mean + log_std.exp() * normal
    log_normal = -(0.5 * normal.square() + log_std + _HALF_LOG_TWO_PI)
    log_slope = 2.0 * (_LOG_TWO - raw - functional.softplus(-2.0 * raw))
    return torch.tanh(raw), (log_normal - log_slope).sum(dim=1)


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
    """``mean_b (alpha * log pi - min_k Q_k)`` (equation 9); ``q`` [K, B], ``log_prob`` [B], ``temperature`` [] alpha."""
    return (temperature * log_prob - q.amin(dim=0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """``-mean_b log alpha * (log pi + target)``: alpha rises while the policy's entropy is below the target.

    Equation 18 has alpha where this has its logarithm, as the authors' code and Stable-Baselines3 do: its steps do not
    shrink with alpha. ``log_temperature`` [], ``log_prob`` [B].
    """
    return -(log_temperature * (log_prob + target_entropy)).mean()


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

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: The device is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: SACConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
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

        # Drawn on the CPU on every device, so that the stream is the same one.
        self._draws = torch.Generator().manual_seed(seeding.integer(seed, "policy-draws"))
        self._means = Means()

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
            self._step_critic(obs, action, self._target(reward, discount, next_obs))
            self._step_actor(obs)
        except NotFiniteError as problem:
            raise self._non_finite(problem, batch) from None
        self._move_target()
        self.updates += 1

    def _sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions of the policy as it is, [B, A], and the logarithms of their densities, [B]."""
        outputs: Tensor = self._actor(obs)
        normal = torch.randn((len(obs), self._inputs.box.size), generator=self._draws).to(outputs.device)
        return squashed_sample(outputs, normal)

    @torch.no_grad()
    def _target(self, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        next_action, next_log_prob = self._sample(next_obs)
        next_q = self._target_critic(next_obs, next_action)
        return soft_target(reward, discount, next_q, next_log_prob, self._temperature())

    def _step_critic(self, obs: Tensor, action: Tensor, target: Tensor) -> None:
        q: Tensor = self._critic(obs, action)  # [K, B]
        loss = critic_loss(q, target)
        norm = self._critic_flat.backward(loss)
        measured = torch.stack([loss, q.mean(), target.mean()]).tolist()  # one transfer from an accelerator
        require_finite("critic", measured[0], norm)
        self._adams["critic"].step()
        for name, number in zip(("critic_loss", "q_mean", "target_q_mean"), measured, strict=True):
            self._means.add(name, number)
        self._means.add("critic_grad_norm", norm)

    def _step_actor(self, obs: Tensor) -> None:
        action, log_prob = self._sample(obs)
        loss = actor_loss(self._critic(obs, action), log_prob, self._temperature().detach())
        norm = self._actor_flat.backward(loss)  # of the actor alone: the critics' weights get no gradient
        measured = torch.stack([loss, -log_prob.mean()]).tolist()
        require_finite("actor", measured[0], norm)
        if "temperature" in self._adams:
            self._step_temperature(log_prob.detach())  # which may refuse, so it comes before the actor has moved
        self._adams["actor"].step()
        self._means.add("actor_loss", measured[0])
        self._means.add("entropy", measured[1])
        self._means.add("actor_grad_norm", norm)

    def _step_temperature(self, log_prob: Tensor) -> None:
        loss = temperature_loss(self._temperature.log, log_prob, self._target_entropy)
        norm = self._temperature_flat.backward(loss)
        require_finite("temperature", float(loss.detach()), norm)
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
        return {**self._means.take(), "train/temperature": float(self._temperature().detach())}

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
            return problem.told(batch, self.updates + 1, "critic_lr")
        self._adams["critic"].undo()
        return problem.told(batch, self.updates + 1, {"temperature": "temperature.lr"}.get(problem.network, "actor_lr"))
