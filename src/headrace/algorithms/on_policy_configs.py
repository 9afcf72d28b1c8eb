"""Hyperparameters of what learns from rollouts of its own policy. No torch here."""

from __future__ import annotations

from typing import Literal, NoReturn, Self

from pydantic import Field, model_validator

from headrace.algorithms.configs import (
    ActionsConfig,
    NetworkConfig,
    Units,
    refuse_ignored,
    refuse_layers_beside_factory,
)
from headrace.core.config import Section
from headrace.core.errors import ConfigError

WIDEST = 128
"""Layers up to which compiled loops are faster than the matrix library: of wider ones the cache does not hold both factors."""


class PolicyNetworkConfig(Section):
    """A multilayer perceptron that begins orthogonal, or a network of the user's own."""

    hidden: list[Units] = Field(default=[64, 64], min_length=1)
    """Units of each hidden layer."""
    activation: Literal["relu", "tanh", "elu", "silu"] = "tanh"
    """Between the layers."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    factory: str | None = None
    """``module:function(inputs, outputs) -> torch.nn.Module`` instead of the perceptron; an actor's makes collectors act in
    torch. It returns raw outputs (scores of choices, or the means of continuous actions; one value for the critic), and
    initialises itself."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        refuse_layers_beside_factory(self, self.factory)
        return self

    def network(self) -> NetworkConfig:
        """As every other algorithm's."""
        if self.factory is not None:
            return NetworkConfig(factory=self.factory)
        return NetworkConfig(hidden=self.hidden, activation=self.activation, layer_norm=self.layer_norm)

    @property
    def has_loops(self) -> bool:
        """Whether `headrace.algorithms.compiled` can differentiate it."""
        plain = self.factory is None and not self.layer_norm and self.activation in {"tanh", "relu"}
        return plain and max(self.hidden) <= WIDEST


class ActorCriticConfig(Section):
    """A network that chooses and one that says what it is worth, apart in everything but their input."""

    actor: PolicyNetworkConfig = PolicyNetworkConfig()
    critic: PolicyNetworkConfig = PolicyNetworkConfig()
    log_std: float = 0.0
    """Of continuous actions: logarithm of the standard deviation at the beginning, in the units of the environment. It is
    learned, the same for every observation."""


class PolicyLossConfig(Section):
    """What is learned from a minibatch."""

    value_weight: float = Field(default=0.5, ge=0)
    """Of the value's mean squared error, beside the policy's loss."""
    value_clip: float | None = Field(default=None, gt=0)
    """Values that move further than this from what they were when the rollout was begun learn no more; not set: all do."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Of the policy's entropy, which is pulled up."""
    normalize_advantages: bool = True
    """Scale the advantages of each minibatch to mean 0 and deviation 1."""
    target_kl: float | None = Field(default=None, gt=0)
    """Updates from a rollout end after the first in whose minibatch the policy had gone further than this from the one that
    acted (mean of ``ratio - 1 - log ratio``); not set: every epoch is whole."""


class AdamConfig(Section):
    """The optimiser, one for both networks."""

    eps: float = Field(default=1e-5, gt=0)
    """Added to the root of the second moment."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """What is kept of the first moment in each step."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """What is kept of the second moment in each step."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Longer gradients, of both networks together, are shortened to this Euclidean norm; not set: none is."""


class ScheduleConfig(Section):
    """What becomes of learning rate and clipping over a run; they stay the same while one rollout is learned from."""

    final_lr: float | None = Field(default=None, ge=0)
    """Learning rate at the end of the schedule, and from there on; not set: it stays as it is."""
    final_clip: float | None = Field(default=None, ge=0)
    """``algorithm.clip`` at the end of the schedule, and from there on; not set: it stays as it is."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Environment steps, over all lanes, from the first to the final values, linear."""

    @model_validator(mode="after")
    def _schedule_is_whole(self) -> Self:
        if (self.final_lr is None and self.final_clip is None) != (self.decay_steps is None):
            raise ConfigError(
                "the schedule is not whole: part of it would be ignored",
                final_lr=self.final_lr,
                final_clip=self.final_clip,
                decay_steps=self.decay_steps,
                fix="set algorithm.schedule.decay_steps and one or both of final_lr and final_clip, or none of them",
            )
        return self


class NormalizeConfig(Section):
    """What is scaled by running statistics before it is learned from."""

    observations: bool = False
    """By running mean and standard deviation, clipped to 10; statistics of new rows count from the next policy on."""
    rewards: bool = False
    """By the running standard deviation of discounted returns; returns are told as they are."""
    reward_clip: float = Field(default=10.0, gt=0)
    """Largest size of a scaled reward."""

    @model_validator(mode="after")
    def _clip_is_used(self) -> Self:
        refuse_ignored(
            (
                "algorithm.normalize.reward_clip",
                not self.rewards and "reward_clip" in self.model_fields_set and self.reward_clip != 10.0,
                "rewards are not scaled",
                "set algorithm.normalize.rewards = true, or remove it",
            )
        )
        return self


class PPOConfig(Section):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

    name: Literal["ppo"] = "ppo"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Share of what comes later that is kept in an advantage (Schulman et al. 2016)."""
    advantage: Literal["gae", "return"] = "gae"
    """gae: generalised advantage estimation; what is cut off is worth what the critic says. return: what the rollout itself
    has earned to the end of each stretch, scaled over the rollout to mean 0 and deviation 1, less the value; for rollouts
    of whole episodes, because nothing is worth anything after their end, however they end."""
    epochs: int = Field(default=10, ge=1)
    """How often each transition of a rollout is learned from."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions per update; the last of an epoch may have fewer. More than a rollout has: it is learned from at once."""
    lr: float = Field(default=3e-4, gt=0)
    """Of Adam."""
    clip: float = Field(default=0.2, gt=0)
    """By how much the probability of an action may have changed, as a share, before nothing more is gained by it."""
    loss: PolicyLossConfig = PolicyLossConfig()
    optimiser: AdamConfig = AdamConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    network: ActorCriticConfig = ActorCriticConfig()
    actions: ActionsConfig = ActionsConfig()

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        _refuse_cells(self.actions)
        refuse_ignored(
            (
                "algorithm.gae_lambda",
                self.advantage == "return" and "gae_lambda" in self.model_fields_set and self.gae_lambda != 0.95,
                'algorithm.advantage "return" keeps all of what comes later',
                'remove it, or set algorithm.advantage = "gae"',
            )
        )
        return self


class CorrectionConfig(Section):
    """How V-trace makes up for the acting policy's being an older one."""

    rho_clip: float | None = Field(default=1.0, gt=0)
    """Largest importance weight of a step itself, which says what policy the values are of; not set: none is cut."""
    c_clip: float | None = Field(default=1.0, gt=0)
    """Largest importance weight of a step on the way to later ones, which says how far one looks; not set: none is cut."""
    trace_lambda: float = Field(default=1.0, ge=0, le=1)
    """Share of what comes later that is kept besides."""


class VTraceConfig(Section):
    """Actor-critic with V-trace (Espeholt et al. 2018, arXiv:1802.01561): IMPALA; with ``clip``, asynchronous PPO."""

    name: Literal["vtrace"] = "vtrace"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    correction: CorrectionConfig = CorrectionConfig()
    epochs: int = Field(default=1, ge=1)
    """How often each transition of a rollout is learned from; targets stay what they were when it was begun."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions per update; the last of an epoch may have fewer. More than a rollout has: it is learned from at once."""
    lr: float = Field(default=3e-4, gt=0)
    """Of Adam."""
    clip: float | None = Field(default=None, gt=0)
    """As PPO's, from the policy that acted; not set: the plain policy gradient."""
    loss: PolicyLossConfig = PolicyLossConfig()
    optimiser: AdamConfig = AdamConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    network: ActorCriticConfig = ActorCriticConfig()
    actions: ActionsConfig = ActionsConfig()

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        _refuse_cells(self.actions)
        refuse_ignored(
            (
                "algorithm.schedule.final_clip",
                self.clip is None and self.schedule.final_clip is not None,
                "nothing is clipped",
                "set algorithm.clip, or remove it",
            )
        )
        return self


def _refuse_cells(actions: ActionsConfig) -> None:
    if actions.cells is not None:
        raise ConfigError(
            "a policy that is learned from its own rollouts chooses no cells",
            cells=actions.cells,
            fix='remove algorithm.actions.cells, or set algorithm.name = "dqn"',
        )


PPO = PPOConfig
VTrace = VTraceConfig


def without_loops(config: PPOConfig | VTraceConfig) -> str | None:
    """What there are no compiled loops for (`headrace.algorithms.compiled`), as a key and its value; None: there are for all."""
    if config.actions.mask_leaf is not None:
        return f"algorithm.actions.mask_leaf = {config.actions.mask_leaf}"
    networks = {"actor": config.network.actor, "critic": config.network.critic}
    return next((f"algorithm.network.{name}" for name, of in networks.items() if not of.has_loops), None)


def refuse_loops(found: str) -> NoReturn:
    """Refuse ``learn.compiled``.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        "there are no compiled loops for what is to be learned",
        found=found,
        expected="PPO or V-trace on the CPU without a mask, and networks without factory and layer norm, with tanh or relu "
        f"and layers of at most {WIDEST} units",
        fix="set learn.compiled = false",
    )


ON_POLICY = frozenset({PPOConfig().name, VTraceConfig().name})
"""What ``algorithm.name`` is where nothing is learned from a replay."""
