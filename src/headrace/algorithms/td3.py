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
from headrace.algorithms.encoding import ActionBox, ObservationEncoder, RunningMoments, normalize
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
from headrace.algorithms.networks import TwinCritic, build_network
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


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over the batch, summed over the critics; ``q`` [K, B], ``target`` [B]."""
    return (q - target).square().mean(dim=1).sum()


class TD3:
    """The learning half of TD3; fulfils `headrace.algorithms.base.Algorithm`.

    Args:
        config: The algorithm's section.
        observation_space: Of one environment.
        action_space: A Box of floating-point numbers with finite bounds.
        seed: The run's. Streams used: ``initialisation``, ``target-smoothing``.
        device: Where networks live and are trained.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: The device is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: TD3Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
    ) -> None:
        self.policy = PolicySpec("td3", observation_space, action_space, config)
        self.updates = 0
        self._config = config
        self._inputs = _Inputs(config, observation_space, action_space, existing_device(device))
        observations, actions = self._inputs.encoder.size, self._inputs.box.size

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._actor = build_network(config.actor, observations, actions, generator, tanh=True).to(device)
        self._critic = TwinCritic(config.critic, observations, actions, generator).to(device)
        self._target_actor = copy.deepcopy(self._actor)
        self._target_critic = copy.deepcopy(self._critic)

        self._actor_flat, self._critic_flat = FlatParameters(self._actor), FlatParameters(self._critic)
        self._target_actor_flat = FlatParameters(self._target_actor)
        self._target_critic_flat = FlatParameters(self._target_critic)
        self._actor_adam = FlatAdam(self._actor_flat, config.actor_lr)
        self._critic_adam = FlatAdam(self._critic_flat, config.critic_lr)

        # Drawn on the CPU on every device, so that the stream is the same one.
        self._smoothing = torch.Generator().manual_seed(seeding.integer(seed, "target-smoothing"))
        self._scale = np.array([scale_at(config.exploration, 0)], np.float64)
        self._means = Means()

    def update(self, batch: Transitions) -> None:
        """One critic step; in every ``policy_delay``-th update also one actor step, after which targets move once.

        Args:
            batch: B transitions; arrays may be strided and read-only, and are not kept.

        Raises:
            NonFiniteValue: A loss or its gradient is NaN or infinite. No weight, moment or target has changed.
        """
        obs, action, reward, discount, next_obs = self._inputs.tensors(batch)
        with_actor = (self.updates + 1) % self._config.policy_delay == 0
        if with_actor:
            self._critic_adam.keep()  # the actor's loss is known only after the critics have moved
        try:
            self._step_critic(obs, action, self._target(reward, discount, next_obs))
            if with_actor:
                self._step_actor(obs)
        except NotFiniteError as problem:
            raise self._non_finite(problem, batch) from None
        if with_actor:
            self._move_targets()
        self.updates += 1

    @torch.no_grad()
    def _target(self, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        config = self._config
        proposed: Tensor = self._target_actor(next_obs)
        normal = torch.randn(proposed.shape, generator=self._smoothing).to(proposed.device)
        next_action = smoothed_action(proposed, normal, config.policy_noise, config.noise_clip)
        return td_target(reward, discount, self._target_critic(next_obs, next_action))

    def _step_critic(self, obs: Tensor, action: Tensor, target: Tensor) -> None:
        q: Tensor = self._critic(obs, action)  # [K, B]
        loss = critic_loss(q, target)
        norm = self._critic_flat.backward(loss)
        measured = torch.stack([loss, q.mean(), target.mean()]).tolist()  # one transfer from an accelerator
        require_finite("critic", measured[0], norm)
        self._critic_adam.step()
        self._means.add("critic_loss", measured[0])
        self._means.add("q_mean", measured[1])
        self._means.add("target_q_mean", measured[2])
        self._means.add("critic_grad_norm", norm)

    def _step_actor(self, obs: Tensor) -> None:
        loss = -self._critic.first(obs, self._actor(obs)).mean()
        norm = self._actor_flat.backward(loss)  # of the actor alone: the critics' weights get no gradient
        require_finite("actor", float(loss.detach()), norm)
        self._actor_adam.step()
        self._means.add("actor_loss", float(loss.detach()))
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
        arrays: dict[str, NDArray[Any]] = {"actor": self._actor_flat.numpy(), "exploration_scale": self._scale}
        if self._inputs.moments is not None:
            arrays |= {"obs_mean": self._inputs.moments.mean32, "obs_std": self._inputs.moments.std32}
        return arrays

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none."""
        return {**self._means.take(), "train/exploration_scale": float(self._scale[0])}

    def ledger(self) -> dict[str, float]:
        """What optimisers and targets themselves have counted, beside what the configuration declares."""
        config, updates = self._config, self.updates
        late = updates // config.policy_delay
        done = counts({name: flat for name, flat in self._flats().items() if name.startswith("target")}, self._adams())
        declared = {
            "critic_steps": min(updates, FlatAdam.MOST_STEPS),
            "actor_steps": min(late, FlatAdam.MOST_STEPS),
            "target_critic_moves": late,
            "target_actor_moves": late,
            "critic_optimisers": 1,
            "actor_optimisers": 1,
            "critic_lr": config.critic_lr,
            "actor_lr": config.actor_lr,
        }
        return {"updates": updates, **done, **{f"{name}_declared": value for name, value in declared.items()}}

    def weights_sha256(self) -> str:
        """Hash of actor, critics, both targets, the optimisers' moments and the normaliser."""
        return sha256_of(self._learned())

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: learned arrays, counters, generator. Live where they can be; copy to keep."""
        return {
            **self._learned(),
            **counts_of(self._flats()),
            "counters": np.array([self.updates], np.int64),
            "generator": self._smoothing.get_state().numpy(),
            "exploration_scale": self._scale,
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        load_learned(arrays, self._flats(), self._adams())
        if self._inputs.moments is not None:
            for name, array in self._inputs.moments.arrays().items():
                array[...] = arrays[f"normaliser.{name}"]
            self._inputs.moments.refresh()
        self.updates = int(arrays["counters"][0])
        self._smoothing.set_state(torch.tensor(arrays["generator"]))
        self._scale[:] = arrays["exploration_scale"]

    def _flats(self) -> dict[str, FlatParameters]:
        return {
            "actor": self._actor_flat,
            "critic": self._critic_flat,
            "target_actor": self._target_actor_flat,
            "target_critic": self._target_critic_flat,
        }

    def _adams(self) -> dict[str, FlatAdam]:
        return {"actor": self._actor_adam, "critic": self._critic_adam}

    def _learned(self) -> dict[str, NDArray[Any]]:
        arrays = learned_arrays(self._flats(), self._adams())
        if self._inputs.moments is not None:
            arrays |= {f"normaliser.{name}": array for name, array in self._inputs.moments.arrays().items()}
        return arrays

    def _non_finite(self, problem: NotFiniteError, batch: Transitions) -> NonFiniteValue:
        if problem.network == "actor":
            self._critic_adam.undo()
        return problem.told(batch, self.updates + 1, f"{problem.network}_lr")


class _Inputs:
    """Batches on their way to torch: encoded, normalised, float32, in memory that is used again and again."""

    def __init__(
        self,
        config: TD3Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device,
    ) -> None:
        self.encoder = ObservationEncoder(observation_space)
        self.box = ActionBox(action_space)
        self.moments = RunningMoments(self.encoder.size) if config.normalize_observations else None
        self._device = device
        self._resize(config.batch_size)

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
