"""What PPO and V-trace have in common: a rollout, targets, epochs of minibatches, one optimiser for actor and critic.

Read it from top to bottom: the formulas, then what one update does with them. What sets the two apart is a `Rule`.
Letters in shapes: B minibatch, T steps of N streams, S of them that are steps, O observation, P parameters.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headrace.algorithms.actor_critic import ActorCritic
from headrace.algorithms.base import Arrays, PolicySpec, Rollout
from headrace.algorithms.distributions import Distribution
from headrace.algorithms.encoding import Float64
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
from headrace.algorithms.minibatches import Minibatches
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.rates import linear
from headrace.algorithms.rollouts import RUNNING_RETURNS, Batch, Inputs, Rows, Steps, first_not_finite
from headrace.core import seeding
from headrace.core.errors import ConfigError, NonFiniteValue

_AT_ONCE = 8192
"""Observations that go through a network at once where nothing is learned."""


def clipped_surrogate(advantage: Tensor, ratio: Tensor, clip: float) -> Tensor:
    """Loss of the policy, []; nothing is gained by a ratio further than ``clip`` from 1 (equation 7 of arXiv:1707.06347).

    Args:
        advantage: [B].
        ratio: [B] probability of the action now, as a multiple of what it was when it was drawn.
        clip: As a share.
    """
    return -torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()


def value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float | None) -> Tensor:
    """Mean squared error, []; with ``clip`` that of the value or of what it may be at most, whichever is worse.

    Args:
        value: [B].
        target: [B].
        before: [B] the value when the rollout was begun.
        clip: Largest distance from it; None: any.
    """
    if clip is None:
        return functional.mse_loss(value, target)
    error = (value - target).square()
    near = before + (value - before).clamp(-clip, clip)
    return torch.maximum(error, (near - target).square()).mean()


def standardised(advantage: Tensor) -> Tensor:
    """With mean 0 and deviation 1, [B]; one alone stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class Rule(Protocol):
    """What is learned from a rollout."""

    corrects: bool
    """Whether `targets` needs to know how likely actions are now."""

    def targets(self, steps: Steps) -> tuple[Float64, Float64]:
        """Advantages and what values are pulled to, both [T, N]."""
        ...

    def policy_loss(self, advantage: Tensor, logprob: Tensor, ratio: Tensor, clip: float | None) -> Tensor:
        """[] of a minibatch; ``advantage``, ``logprob`` (now) and ``ratio`` (to when it was drawn) [B]."""
        ...


class OnPolicy:
    """Fulfils `headrace.algorithms.base.OnPolicyAlgorithm`.

    Args:
        config: The algorithm's section.
        rule: What is learned.
        observation_space: Of one environment.
        action_space: Of choices, or a Box of floating-point numbers.
        seed: The run's. Streams used: ``initialisation``, ``minibatches``.
        device: Where networks live and are trained.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: The device is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: PPOConfig | VTraceConfig,
        rule: Rule,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
    ) -> None:
        self.policy = PolicySpec(config.name, observation_space, action_space, config)
        self.updates = 0
        self._config, self._rule = config, rule
        where = existing_device(device)
        self._inputs = Inputs(config, observation_space, action_space, where)
        self._distribution = Distribution(self._inputs.head, where)

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._network = ActorCritic(config.network, self._inputs.encoder.size, self._inputs.head, generator).to(device)
        self._flat = FlatParameters(self._network)
        adam = config.optimiser
        self._adam = FlatAdam(self._flat, config.lr, (adam.beta1, adam.beta2), adam.eps)
        self._actor_scalars = self._network.actor_scalars()

        self._minibatches = Minibatches(config.epochs, config.batch_size, seeding.integer(seed, "minibatches"), where)
        self._rows: Rows | None = None
        self._env_steps = self._rates_at = 0
        self._clip = config.clip
        self._means = Means()

    @torch.no_grad()
    def begin_with(self, arrays: Arrays) -> None:
        """See `OnPolicyAlgorithm.begin_with`."""
        own = {"network": self._flat.numpy(), **self._inputs.arrays()}
        returns = {
            name: np.zeros_like(array) for name, array in own.items() if name == RUNNING_RETURNS
        }  # no episode yet
        _require_alike({**arrays, **returns}, own)
        self._flat.value.copy_(torch.tensor(arrays["network"]))
        self._inputs.load({**{name: arrays[name] for name in own}, **returns})

    def begin(self, rollout: Rollout) -> None:
        """See `OnPolicyAlgorithm.begin`."""
        assert not self.pending, "an epoch set is open"
        _require_finite(rollout, self.updates + 1)
        self._rates_at = self._env_steps
        self._set_rates()
        steps = int(np.count_nonzero(rollout.valid))
        if steps:
            self._rows = self._rows_of(rollout)
        self._minibatches.open(steps)
        self._close_if_done()

    @property
    def pending(self) -> bool:
        """See `OnPolicyAlgorithm.pending`."""
        return self._minibatches.pending

    def update(self) -> None:
        """See `OnPolicyAlgorithm.update`."""
        assert self._rows is not None, "no epoch set is open"
        batch = self._rows.batch(self._minibatches.next())
        loss, seen = self._loss(batch)
        norm = self._flat.backward(loss)
        try:
            require_finite("actor or critic", float(seen["loss"]), norm)
        except NotFiniteError as problem:
            raise problem.described("every value is finite", self.updates + 1, "lr") from None
        self._flat.shorten([norm], self._config.optimiser.max_grad_norm)
        self._adam.step()
        self.updates += 1
        self._minibatches.done()
        measured = _measured(seen, self._clip)
        self._measure({**measured, "grad_norm": norm})
        most = self._config.loss.target_kl
        if most is not None and measured["approx_kl"] > most:
            self._minibatches.give_up()
        self._close_if_done()

    def _rows_of(self, rollout: Rollout) -> Rows:
        """What is to be learned, with the networks as they are."""
        valid = rollout.valid
        obs, legal = self._inputs.seen(rollout.obs)
        at = torch.from_numpy(rollout.at[valid].astype(np.int64)).to(obs.device)
        action = self._inputs.actions(rollout)
        logprob = np.asarray(rollout.told["logprob"][valid], np.float32)
        values = self._values(obs)
        log_ratio = np.zeros(valid.shape)
        if self._rule.corrects:
            log_ratio[valid] = self._logprobs(obs, legal, at, action) - logprob
        ended = rollout.ended | ~valid
        steps = Steps(
            reward=self._inputs.rewards.scaled(rollout),
            value=np.where(valid, values[np.where(valid, rollout.at, 0)], 0.0),
            next_value=np.where(valid, values[np.where(valid, rollout.then, 0)], 0.0),
            terminated=rollout.terminated & valid,
            ended=ended,
            valid=valid,
            log_ratio=log_ratio,
        )
        advantage, target = self._rule.targets(steps)
        if self._rule.corrects:
            self._means.add("importance_weight", float(np.exp(log_ratio[valid]).mean()))
        self._measure(_fit(target[valid], steps.value[valid]))
        numbers = np.stack([logprob, advantage[valid], target[valid], steps.value[valid]], axis=1).astype(np.float32)
        return Rows(obs, legal, at, action, torch.from_numpy(numbers).to(obs.device))

    @torch.no_grad()
    def _values(self, obs: Tensor) -> Float64:
        return torch.cat([self._network.value(part) for part in obs.split(_AT_ONCE)]).double().cpu().numpy()

    @torch.no_grad()
    def _logprobs(self, obs: Tensor, legal: Tensor | None, at: Tensor, action: Tensor) -> Float64:
        found = []
        for places, drawn in zip(at.split(_AT_ONCE), action.split(_AT_ONCE), strict=True):
            allowed = None if legal is None else legal[places]
            outputs = self._network.actor(obs[places])
            found.append(self._distribution.of(outputs, self._network.log_std, drawn, allowed)[0])
        return torch.cat(found).double().cpu().numpy()

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What is to be lowered, and what else is measured of it: [] each, but ``log_ratio`` [B]."""
        config, network = self._config.loss, self._network
        counts = config.entropy_weight > 0.0
        logprob, entropies = self._distribution.of(
            network.actor(batch.obs), network.log_std, batch.action, batch.legal, entropy=counts
        )
        log_ratio = logprob - batch.logprob
        advantage = standardised(batch.advantage) if config.normalize_advantages else batch.advantage
        policy = self._rule.policy_loss(advantage, logprob, log_ratio.exp(), self._clip)
        value = value_loss(network.value(batch.obs), batch.target, batch.value, config.value_clip)
        entropy = entropies.mean()
        loss = policy + config.value_weight * value
        if counts:
            loss = loss - config.entropy_weight * entropy
        seen = {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy, "log_ratio": log_ratio}
        return loss, {name: tensor.detach() for name, tensor in seen.items()}

    def _close_if_done(self) -> None:
        """Of an epoch set that is done: what has been observed meanwhile counts from now on."""
        if not self.pending:
            self._rows = None
            self._inputs.observations.renew()

    def _measure(self, measured: dict[str, float]) -> None:
        for name, number in measured.items():
            self._means.add(name, number)

    def _set_rates(self) -> None:
        config, schedule = self._config, self._config.schedule
        if config.clip is not None:
            self._clip = _scheduled(config.clip, schedule.final_clip, schedule.decay_steps, self._rates_at)
        # Where nothing is declared to move the rate, the ledger shall see what else has.
        if schedule.final_lr is not None:
            self._adam.lr = _rate(config, self._rates_at)

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[np.intp] | None = None) -> None:
        """Take notice of newly committed observations [B, ...] and of the total of environment steps; it is one policy."""
        self._env_steps = env_steps
        self._inputs.observations.observe(obs)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """What acting needs; live views, except the weights of a learner on an accelerator, which are a copy.

        Returns:
            ``policy`` float32 [P] of the actor, of continuous actions ``log_std`` float32 [A], and when normalising
            ``obs_mean`` and ``obs_std``, float32 [O]. The critic is not needed.
        """
        weights, end = self._flat.numpy(), self._actor_scalars
        arrays: dict[str, NDArray[Any]] = {"policy": weights[:end]}
        if self._network.log_std is not None:
            arrays["log_std"] = weights[end : end + len(self._network.log_std)]
        return {**arrays, **self._inputs.observations.published()}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none."""
        rates = {"train/learning_rate": self._adam.lr}
        if self._clip is not None:
            rates["train/clip_range"] = self._clip
        return {**self._means.take(), **rates}

    def ledger(self) -> dict[str, float]:
        """What the optimiser has counted and how many transitions were learned from, beside what is declared."""
        declared = {
            "network_steps": min(self.updates, FlatAdam.MOST_STEPS),
            "network_optimisers": 1,
            "network_lr": _rate(self._config, self._rates_at),
        }
        return {
            "updates": self.updates,
            **counts({}, {"network": self._adam}),
            **self._minibatches.ledger(),
            **{f"{name}_declared": value for name, value in declared.items()},
        }

    def weights_sha256(self) -> str:
        """Hash of both networks, the optimiser's moments and the normalisers."""
        return sha256_of(self._learned())

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here; no epoch set may be open. Live where they can be; copy to keep."""
        return {
            **self._learned(),
            **counts_of({"network": self._flat}),
            "counters": np.array([self.updates, self._env_steps, self._rates_at], np.int64),
            **{f"minibatches.{name}": array for name, array in self._minibatches.arrays().items()},
        }

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        load_learned(arrays, {"network": self._flat}, {"network": self._adam})
        self._inputs.load(arrays)
        self.updates, self._env_steps, self._rates_at = map(int, arrays["counters"])
        self._minibatches.load({name: arrays[f"minibatches.{name}"] for name in ("generator", "transitions")})
        self._rows = None
        self._set_rates()

    def _learned(self) -> dict[str, NDArray[Any]]:
        return {**learned_arrays({"network": self._flat}, {"network": self._adam}), **self._inputs.arrays()}


def _rate(config: PPOConfig | VTraceConfig, env_steps: int) -> float:
    return _scheduled(config.lr, config.schedule.final_lr, config.schedule.decay_steps, env_steps)


def _scheduled(first: float, last: float | None, steps: int | None, done: int) -> float:
    return first if last is None or steps is None else linear(first, last, done / steps)


def _measured(seen: dict[str, Tensor], clip: float | None) -> dict[str, float]:
    """In numbers; what follows from ratios is worked out here, where it costs less."""
    *names, last = seen
    numbers = torch.cat([torch.stack([seen[name] for name in names]), seen[last]]).cpu().numpy()  # one transfer
    log_ratio = numbers[len(names) :]
    ratio = np.exp(log_ratio)
    measured = dict(zip(names, numbers[: len(names)].tolist(), strict=True))
    measured["approx_kl"] = float((ratio - 1.0 - log_ratio).mean())
    if clip is not None:
        measured["clip_fraction"] = float((np.abs(ratio - 1.0) > clip).mean())
    return measured


def _fit(target: Float64, value: Float64) -> dict[str, float]:
    """Share of the targets' variance that values explain; nothing where there is none."""
    spread = float(np.var(target))
    return {"explained_variance": 1.0 - float(np.var(target - value)) / spread} if spread > 0.0 else {}


def _require_alike(arrays: Arrays, own: Arrays) -> None:
    """Refuse networks and statistics that are not those of this configuration."""
    found, expected = ({name: one.shape for name, one in of.items() if _is_learned(name)} for of in (arrays, own))
    if found != expected:
        raise ConfigError(
            "the run that learn.begin_from names has other networks or statistics than this one",
            found=", ".join(f"{name} {shape}" for name, shape in sorted(found.items())),
            expected=", ".join(f"{name} {shape}" for name, shape in sorted(expected.items())),
            fix="choose a run of the same spaces, algorithm.network and algorithm.normalize",
        )


def _is_learned(name: str) -> bool:
    return name == "network" or name.startswith(("normaliser.", "rewards."))


def _require_finite(rollout: Rollout, update: int) -> None:
    bad = first_not_finite(rollout)
    if bad is not None:
        raise NonFiniteValue(
            "learner: a rollout holds what is no number; nothing was learned from it",
            update=update,
            found=bad,
            fix="mend the environment; if it is logprob or raw_action, lower algorithm.lr",
        )
