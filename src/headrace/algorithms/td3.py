"""TD3: twin critics, target smoothing, delayed actor (Fujimoto et al. 2018, arXiv:1802.09477).

Read it from top to bottom: the formulas, then what one update does with them. Letters in shapes: B batch,
O observation, A action, K = 2 critics, P parameters. Inside, actions are in [-1, 1]; rewards, discounts
and observations arrive as stored.
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
from headrace.algorithms.configs import TD3Config
from headrace.algorithms.continuous import Books, Critics, Inputs, TwinPass
from headrace.algorithms.exploration import scale_at
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError, existing_device, existing_precision, require_finite
from headrace.algorithms.networks import TwinCritic, build_network
from headrace.algorithms.passes import Memory, pass_of
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue


def smoothed_action(action: Tensor, normal: Tensor, std: float, clip: float) -> Tensor:
    """The target policy's action with clipped noise, so that a sharp peak of Q is not exploited (section 5.3).

    Args:
        action: [B, A] in [-1, 1].
        normal: [B, A] standard normal draws.
        std: Standard deviation of the noise, in units of half the action range.
        clip: Its largest size, in the same unit.
    """
    noise = (normal * std).clamp(-clip, clip)
    return (action + noise).clamp(-1.0, 1.0)


def td_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """``r + discount * min_k Q'_k`` [B] (equation 10).

    Args:
        reward: [B] n-step return without the bootstrap.
        discount: [B] 0 where the task terminated; gamma to the n where it went on or was only cut off.
        next_q: [K, B] target critics' values of the successor.
    """
    return reward + discount * next_q.amin(dim=0)


class TD3:
    """The learning half of TD3; fulfils `headrace.algorithms.base.Algorithm`.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: A Box of floating-point numbers with finite bounds.
        seed: The run's. Streams used: ``initialisation``, ``target-smoothing``.
        device: Where networks live and are trained.
        precision: Of products inside networks, ``float32`` or ``bfloat16``; what else on accelerators: `passes.Autocast`.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: Device or precision is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: TD3Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.policy = PolicySpec("td3", observation_space, action_space, config)
        self.updates = 0
        self._config = config
        self._inputs = Inputs(config, observation_space, action_space, existing_device(device))
        observations, actions = self._inputs.encoder.size, self._inputs.box.size

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._actor = build_network(config.actor, observations, actions, generator, tanh=True).to(device)
        self._critic = TwinCritic(config.critic, observations, actions, generator).to(device)
        self._target_actor = copy.deepcopy(self._actor)
        self._target_critic = copy.deepcopy(self._critic)

        self._actor_flat, self._critic_flat = FlatParameters(self._actor), FlatParameters(self._critic)
        self._target_actor_flat = FlatParameters(self._target_actor)
        self._target_critic_flat = FlatParameters(self._target_critic)
        flats = {
            "actor": self._actor_flat,
            "critic": self._critic_flat,
            "target_actor": self._target_actor_flat,
            "target_critic": self._target_critic_flat,
        }
        self._rates = {"actor": config.actor_lr, "critic": config.critic_lr}
        self._adams = {name: FlatAdam(flats[name], lr) for name, lr in self._rates.items()}
        self._books = Books(flats, self._adams, self._inputs.moments)

        memory = Memory(existing_precision(precision, device))
        self._actor_pass, self._target_actor_pass = pass_of(self._actor, memory), pass_of(self._target_actor, memory)
        self._critics = Critics(self._critic, self._critic_flat, self._adams["critic"], memory)
        self._target_critics = TwinPass(self._target_critic, memory)

        # Drawn on the CPU on every device, so that the stream is the same one.
        self._smoothing = torch.Generator().manual_seed(seeding.integer(seed, "target-smoothing"))
        self._scale = np.array([scale_at(config.exploration, 0)], np.float64)
        self._means = Means()

    @torch.no_grad()
    def update(self, batch: Transitions) -> None:
        """One critic step; in every ``policy_delay``-th update also one actor step, after which targets move once.

        By the rule of SBX targets move once in every update.

        Args:
            batch: B transitions; arrays may be strided and read-only, and are not kept.

        Raises:
            NonFiniteValue: A loss or its gradient is NaN or infinite. No weight, moment or target has changed.
        """
        obs, action, reward, discount, next_obs = self._inputs.tensors(batch)
        with_actor = (self.updates + 1) % self._config.policy_delay == 0
        if with_actor:
            self._adams["critic"].keep()  # the actor's loss is known only after the critics have moved
        try:
            self._critics.step(obs, action, self._target(reward, discount, next_obs), self._means)
            if with_actor:
                self._step_actor(obs)
        except NotFiniteError as problem:
            raise self._non_finite(problem, batch) from None
        if with_actor or self._config.rule == "sbx":
            self._move_targets()
        self.updates += 1

    def _target(self, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        config = self._config
        proposed = self._target_actor_pass(next_obs)
        normal = torch.randn(proposed.shape, generator=self._smoothing).to(proposed.device)
        next_action = smoothed_action(proposed, normal, config.policy_noise, config.noise_clip)
        return td_target(reward, discount, self._target_critics(next_obs, next_action))

    def _step_actor(self, obs: Tensor) -> None:
        """One step down ``-mean_b Q_1`` (equation 9 with the critics fixed), or by the rule of SBX of their minimum."""
        self._actor_flat.grad.zero_()
        action = self._actor_pass.traced(obs)
        q, pull = self._critics.pull(obs, action, smaller=self._config.rule == "sbx")
        self._actor_pass.back(pull / -len(q))
        loss, norm = -float(q.mean()), self._actor_flat.norm()
        require_finite("actor", loss, norm)
        self._adams["actor"].step()
        self._means.add("actor_loss", loss)
        self._means.add("actor_grad_norm", norm)

    def _move_targets(self) -> None:
        """The only place where target weights move."""
        self._target_actor_flat.lerp_(self._actor_flat, self._config.tau)
        self._target_critic_flat.lerp_(self._critic_flat, self._config.tau)

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[np.intp] | None = None) -> None:
        """Take notice of newly committed observations [B, ...] and of the total of environment steps; it is one policy."""
        self._scale[0] = scale_at(self._config.exploration, env_steps)
        self._inputs.observe(obs)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs; live views, except the weights of a learner on an accelerator, which are a copy.

        Returns:
            ``actor`` float32 [P], ``exploration_scale`` float64 [1], and when normalising ``obs_mean`` and
            ``obs_std``, float32 [O].
        """
        return {"actor": self._actor_flat.numpy(), "exploration_scale": self._scale, **self._inputs.published()}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none."""
        return {**self._means.take(), "train/exploration_scale": float(self._scale[0])}

    def ledger(self) -> dict[str, float]:
        """What optimisers and targets themselves have counted, beside what the configuration declares."""
        late = self.updates // self._config.policy_delay
        moves = self.updates if self._config.rule == "sbx" else late
        steps = {"critic": self.updates, "actor": late}
        return self._books.ledger(self.updates, steps, {"target_critic": moves, "target_actor": moves}, self._rates)

    def weights_sha256(self) -> str:
        """Hash of actor, critics, both targets, the optimisers' moments and the normaliser."""
        return self._books.sha256()

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: learned arrays, counters, generator. Live where they can be; copy to keep."""
        return {**self._books.state(self.updates, self._smoothing), "exploration_scale": self._scale}

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        self.updates = self._books.load_state(arrays, self._smoothing)
        self._scale[:] = arrays["exploration_scale"]

    def _non_finite(self, problem: NotFiniteError, batch: Transitions) -> NonFiniteValue:
        if problem.network == "actor":
            self._adams["critic"].undo()
        return problem.told(batch, self.updates + 1, f"{problem.network}_lr")
