"""What PPO and V-trace have in common: a rollout, targets, epochs of minibatches, one optimiser for actor and critic.

Read it from top to bottom. What is lowered is in `headrace.algorithms.policy_losses`; what sets the two apart is a `Rule`.
Letters in shapes: B minibatch, T steps of N streams, S of them that are steps, O observation, P parameters.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from headrace.algorithms.actor_critic import ActorCritic
from headrace.algorithms.base import Arrays, PolicySpec, Rollout
from headrace.algorithms.compiled_gradient import compiled_gradient
from headrace.algorithms.distributions import likelihood
from headrace.algorithms.encoding import Float32, Float64
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError, existing_device, require_finite
from headrace.algorithms.minibatches import Minibatches
from headrace.algorithms.on_policy_books import Books
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.passes import Memory, pass_of
from headrace.algorithms.policy_losses import mean, value_loss
from headrace.algorithms.rates import Rates
from headrace.algorithms.returns import fit
from headrace.algorithms.rollouts import Batch, Inputs, Rows, Steps, in_float32, require_finite_rollout
from headrace.core import seeding


class Rule(Protocol):
    """What is learned from a rollout."""

    corrects: bool
    """Whether `targets` needs to know how likely actions are now."""

    def targets(self, steps: Steps) -> tuple[Float64, ...]:
        """Advantages, what values are pulled to, and maybe what standardised advantages are multiplied by; all [T, N]."""
        ...

    def policy_loss(
        self, advantage: Float32, logprob: Float32, ratio: Float32, clip: float | None
    ) -> tuple[float, Float32]:
        """Of a minibatch, and its derivative by ``logprob`` (now); that, ``advantage`` and ``ratio`` (to when drawn) [B]."""
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
        compiled: Whether small networks are differentiated by compiled loops; see `compiled_gradient`.

    Raises:
        UnsupportedSpace: For spaces it cannot use.
        ConfigError: The device or numba is not there, or a network factory does not do.
    """

    def __init__(
        self,
        config: PPOConfig | VTraceConfig,
        rule: Rule,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        seed: int,
        device: str = "cpu",
        *,
        compiled: bool = False,
    ) -> None:
        self.policy = PolicySpec(config.name, observation_space, action_space, config)
        self.updates = 0
        self._config, self._rule = config, rule
        where = existing_device(device)
        self._inputs = Inputs(config, observation_space, action_space, where)

        generator = torch.Generator().manual_seed(seeding.integer(seed, "initialisation"))
        self._network = ActorCritic(config.network, self._inputs.encoder.size, self._inputs.head, generator).to(device)
        self._flat = FlatParameters(self._network)
        memory, actor, critic = Memory(), self._network.actor, self._network.critic
        self._actor, self._critic = pass_of(actor, memory), pass_of(critic, memory)
        self._compiled = compiled_gradient(config, self._network, self._inputs.head, self._flat) if compiled else None
        adam, made = config.optimiser, FlatAdam if self._compiled is None else self._compiled.adam
        self._adam = made(self._flat, config.lr, (adam.beta1, adam.beta2), adam.eps)
        self._rates = Rates(config)

        self._minibatches = Minibatches(config.epochs, config.batch_size, seeding.integer(seed, "minibatches"))
        self._books = Books(self._flat, self._adam, self._inputs, self._minibatches)
        self._rows: Rows | None = None
        self._env_steps = self._rates_at = 0
        self._clip, self._means = config.clip, Means()

    def begin_with(self, arrays: Arrays) -> None:
        """See `OnPolicyAlgorithm.begin_with`."""
        self._books.begin_with(arrays)

    def begin(self, rollout: Rollout) -> None:
        """See `OnPolicyAlgorithm.begin`."""
        assert not self.pending, "an epoch set is open"
        require_finite_rollout(rollout, self.updates + 1)
        self._rates_at = self._env_steps - rollout.waiting
        self._set_rates()
        steps = int(np.count_nonzero(rollout.valid))
        self._rows = self._rows_of(rollout) if steps else None
        self._minibatches.open(steps)
        self._close_if_done()

    @property
    def pending(self) -> bool:
        """See `OnPolicyAlgorithm.pending`."""
        return self._minibatches.pending

    @np.errstate(over="ignore", invalid="ignore")  # what is no number is refused as a whole
    def update(self) -> None:
        """See `OnPolicyAlgorithm.update`."""
        assert self._rows is not None, "no epoch set is open"
        batch = self._rows.batch(self._minibatches.next())
        self._flat.grad.zero_()
        if self._compiled is None:
            measured = {**self._policy_gradient(batch), "value_loss": self._value_gradient(batch)}
        else:
            measured = self._compiled.add(batch, self._clip)
        config, norm = self._config.loss, (self._compiled or self._flat).clip(self._config.optimiser.max_grad_norm)
        loss = measured["policy_loss"] + config.value_weight * measured["value_loss"]
        if config.entropy_weight > 0.0:
            loss -= config.entropy_weight * measured["entropy"]
        try:
            require_finite("actor or critic", loss, norm)
        except NotFiniteError as problem:
            raise problem.described("every value is finite", self.updates + 1, "lr") from None
        self._adam.step()
        self.updates += 1
        self._minibatches.done()
        self._measure({**measured, "loss": loss, "grad_norm": norm})
        if config.target_kl is not None and measured["approx_kl"] > config.target_kl:
            self._minibatches.give_up()
        self._close_if_done()

    def _policy_gradient(self, batch: Batch) -> dict[str, float]:
        """Add what the actor has to learn to its gradients; returns what is measured."""
        config, clip = self._config.loss, self._clip
        outputs = self._actor.traced(batch.obs).cpu().numpy()
        found = likelihood(self._inputs.head, outputs, self._network.spread_now(), batch.action, batch.legal)
        log_ratio = found.logprob - batch.logprob
        ratio = np.exp(log_ratio)
        loss, by_logprob = self._rule.policy_loss(batch.advantage, found.logprob, ratio, clip)
        by_outputs, by_log_std = found.back(by_logprob, -config.entropy_weight / len(ratio))
        self._actor.back(self._tensor(by_outputs))
        if by_log_std is not None:
            self._network.add_to_spread(self._tensor(by_log_std))
        further = ratio - np.float32(1.0)
        measured = {"policy_loss": loss, "entropy": mean(found.entropy), "approx_kl": mean(further - log_ratio)}
        if clip is not None:
            measured["clip_fraction"] = np.count_nonzero(np.abs(further) > clip) / len(ratio)
        return measured

    def _value_gradient(self, batch: Batch) -> float:
        """As `_policy_gradient`, of the critic; returns its loss."""
        config = self._config.loss
        values = self._critic.traced(batch.obs).cpu().numpy()
        loss, by_value = value_loss(values[:, 0], batch.target, batch.value, config.value_clip)
        self._critic.back(self._tensor(by_value[:, None] * np.float32(config.value_weight)))
        return loss

    def _tensor(self, array: Float32) -> Tensor:
        """A copy on the networks' device, in torch's own memory: the matrix library repeats itself only in such."""
        return torch.from_numpy(array).to(self._flat.value.device, copy=True)

    def _rows_of(self, rollout: Rollout) -> Rows:
        """What is to be learned, with the networks as they are."""
        valid = rollout.valid
        obs, legal = self._inputs.seen(rollout.obs)
        at = rollout.at[valid].astype(np.int64)
        action = self._inputs.actions(rollout)
        logprob = np.asarray(rollout.told["logprob"][valid], np.float32)
        network = self._compiled or self._network
        values = network.values(obs)
        log_ratio = np.zeros(valid.shape)
        if self._rule.corrects:
            allowed = None if legal is None else legal.take(at, 0)
            outputs = network.outputs(obs).take(at, 0)
            now = likelihood(self._inputs.head, outputs, self._network.spread_now(), action, allowed)
            log_ratio[valid] = now.logprob.astype(np.float64) - logprob
        steps = Steps.of(rollout, self._inputs.rewards.scaled(rollout), values, log_ratio)
        advantage, target, *rho = self._rule.targets(steps)
        if self._rule.corrects:
            self._means.add("importance_weight", float(np.exp(log_ratio[valid]).mean()))
        self._measure(fit(target[valid], steps.value[valid]))
        numbers = np.stack([logprob, *(array[valid] for array in (advantage, target, steps.value, *rho))])
        numbers = in_float32(numbers, rollout, self.updates + 1)
        return Rows(obs, legal, at, action, numbers, self._config.loss.normalize_advantages)

    def _close_if_done(self) -> None:
        """Of an epoch set that is done: what has been observed meanwhile counts from now on."""
        if not self.pending:
            self._rows = None
            self._inputs.observations.renew()

    def _measure(self, measured: dict[str, float]) -> None:
        for name, number in measured.items():
            self._means.add(name, number)

    def _set_rates(self) -> None:
        self._clip = self._rates.clip(self._rates_at)
        # Where nothing is declared to move the rate, the ledger shall see what else has.
        if self._config.schedule.final_lr is not None:
            self._adam.lr = self._rates.lr(self._rates_at)

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
        weights, end = self._flat.numpy(), self._network.actor_scalars()
        arrays: dict[str, NDArray[Any]] = {"policy": weights[:end]}
        if self._network.log_std is not None:
            arrays["log_std"] = weights[end : end + len(self._network.log_std)]
        return {**arrays, **self._inputs.observations.published()}

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call, by TensorBoard name; absent if there was none."""
        clip = {} if self._clip is None else {"train/clip_range": self._clip}
        return {**self._means.take(), "train/learning_rate": self._adam.lr, **clip}

    def ledger(self) -> dict[str, float]:
        """What the optimiser has counted and how many transitions were learned from, beside what is declared."""
        return self._books.ledger(self.updates, self._rates.lr(self._rates_at))

    def weights_sha256(self) -> str:
        """Hash of both networks, the optimiser's moments and the normalisers."""
        return self._books.sha256()

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here; no epoch set may be open. Live where they can be; copy to keep."""
        return self._books.state((self.updates, self._env_steps, self._rates_at))

    def load_state(self, arrays: Arrays) -> None:
        """Go on from `state`, as saved by an algorithm of the same configuration and spaces."""
        self.updates, self._env_steps, self._rates_at = self._books.load_state(arrays)
        self._rows = None
        self._set_rates()
