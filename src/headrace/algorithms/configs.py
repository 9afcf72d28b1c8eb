"""Hyperparameters of every algorithm. No torch here: the supervisor reads them too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headrace.core.config import Section
from headrace.core.errors import ConfigError

_Ignored = tuple[str, bool, str, str]
"""A key, whether it would be ignored, why, and what to do."""


def refuse_ignored(*cases: _Ignored) -> None:
    """Raise a `ConfigError` for the first key that would be ignored."""
    for key, is_ignored, why, fix in cases:
        if is_ignored:
            raise ConfigError(f"{key} would be ignored: {why}", fix=fix)


Units = Annotated[int, Field(ge=1)]
"""Of one layer."""
LAYERS = ("hidden", "activation", "layer_norm")
"""Keys of a perceptron, which a network of the user's own does not read."""


def refuse_layers_beside_factory(network: Section, factory: str | None) -> None:
    """Raise a `ConfigError` if a network of the user's own is given layers that it would not read."""
    refuse_ignored(
        *(
            (
                key,
                factory is not None and getattr(network, key) != type(network).model_fields[key].default,
                f"the network is the one that {factory} returns",
                "remove it, or factory",
            )
            for key in LAYERS
        )
    )


class NetworkConfig(Section):
    """A multilayer perceptron, or a network of the user's own."""

    hidden: list[Units] = Field(default=[256, 256], min_length=1)
    """Units of each hidden layer."""
    activation: Literal["relu", "tanh", "elu", "silu"] = "relu"
    """Between the layers."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    factory: str | None = None
    """``module:function(inputs, outputs) -> torch.nn.Module`` instead of the perceptron; collectors then act in torch.
    It returns raw outputs (TD3 and SAC squash the actor's themselves; SAC asks for two per number of an action, DQN for one
    more where it is dueling) and uses neither batch statistics nor dropout."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        refuse_layers_beside_factory(self, self.factory)
        return self


UNREAD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gaussian": ("theta",),
        "ornstein-uhlenbeck": (),
        "none": ("scale", "final_scale", "decay_steps", "theta"),
    }
)
"""Keys of ``algorithm.exploration`` that its kinds do not read."""


class ExplorationConfig(Section):
    """Noise added to actions, in units of half the action range."""

    kind: Literal["gaussian", "ornstein-uhlenbeck", "none"] = "gaussian"
    """Ornstein-Uhlenbeck starts at zero in every episode."""
    scale: float = Field(default=0.1, ge=0)
    """Standard deviation at the start of the schedule; for Ornstein-Uhlenbeck, of one step's increment."""
    final_scale: float | None = Field(default=None, ge=0)
    """Standard deviation at its end; not set: constant."""
    decay_steps: int = Field(default=1, ge=1)
    """Environment steps, over all lanes, from ``scale`` to ``final_scale``, linear."""
    theta: float = Field(default=0.15, gt=0)
    """Ornstein-Uhlenbeck: pull to zero per step."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        refuse_ignored(
            *(
                (
                    f"algorithm.exploration.{key}",
                    getattr(self, key) != type(self).model_fields[key].default,
                    f'exploration of kind "{self.kind}" does not read it',
                    "remove it, or set algorithm.exploration.kind to another one",
                )
                for key in UNREAD[self.kind]
            )
        )
        return self


class TD3Config(Section):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477)."""

    name: Literal["td3"] = "td3"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the online weights mixed into the target weights whenever they move."""
    batch_size: int = Field(default=256, ge=1)
    """Transitions per update."""
    actor_lr: float = Field(default=3e-4, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    policy_noise: float = Field(default=0.2, ge=0)
    """Standard deviation of the target smoothing noise, in units of half the action range."""
    noise_clip: float = Field(default=0.5, ge=0)
    """Largest target smoothing noise, in the same unit."""
    policy_delay: int = Field(default=2, ge=1)
    """Critic updates per actor update."""
    rule: Literal["paper", "sbx"] = "paper"
    """paper: targets move with the actor, and it is pulled to what the first critic values. sbx, as the library of that name:
    targets move in every update, and the smaller of both critics counts. It learns short tasks in fewer steps, and is no
    TD3 as published: compare like with like."""
    normalize_observations: bool = False
    """Scale observations by running mean and standard deviation, taken from the rows as they are committed."""
    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()
    exploration: ExplorationConfig = ExplorationConfig()


class TemperatureConfig(Section):
    """What entropy is worth, in units of reward: the temperature alpha."""

    kind: Literal["auto", "fixed"] = "auto"
    """auto: learned, so that the policy keeps an entropy of ``target_entropy``. fixed: ``value`` throughout."""
    value: float = Field(default=1.0, gt=0)
    """At the start."""
    lr: float = Field(default=3e-4, gt=0)
    """Of Adam, which moves its logarithm."""
    target_entropy: float | None = None
    """Entropy in nats of an action in [-1, 1]^A; not set: -A, one for each of its numbers."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        fixed = self.kind == "fixed"
        why, fix = "a fixed temperature is not learned", 'remove it, or set algorithm.temperature.kind = "auto"'
        refuse_ignored(
            ("algorithm.temperature.lr", fixed and self.lr != TemperatureConfig().lr, why, fix),
            ("algorithm.temperature.target_entropy", fixed and self.target_entropy is not None, why, fix),
        )
        return self


class SACConfig(Section):
    """Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""

    name: Literal["sac"] = "sac"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics' weights mixed into their targets' in each update."""
    batch_size: int = Field(default=256, ge=1)
    """Transitions per update."""
    actor_lr: float = Field(default=3e-4, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    temperature: TemperatureConfig = TemperatureConfig()
    normalize_observations: bool = False
    """Scale observations by running mean and standard deviation, taken from the rows as they are committed."""
    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()


class EpsilonConfig(Section):
    """Share of actions that are random instead of the best: epsilon-greedy."""

    epsilon: float = Field(default=1.0, ge=0, le=1)
    """Share at the start of the schedule."""
    final_epsilon: float = Field(default=0.05, ge=0, le=1)
    """Share at its end, and from there on."""
    begin_steps: int = Field(default=0, ge=0)
    """Environment steps, over all lanes, before the schedule begins; until then ``epsilon``."""
    decay_steps: int = Field(default=10_000, ge=1)
    """Environment steps, over all lanes, from ``epsilon`` to ``final_epsilon``."""
    decay: Literal["linear", "exponential"] = "linear"
    """linear: less by the same amount in every step. exponential: by the same factor, so neither share may be 0."""

    @model_validator(mode="after")
    def _would_divide_by_zero(self) -> Self:
        if self.decay == "exponential" and not (self.epsilon and self.final_epsilon):
            raise ConfigError(
                "an exponential decay never reaches 0, nor does it leave it",
                epsilon=self.epsilon,
                final_epsilon=self.final_epsilon,
                fix='give both a value above 0, or set decay = "linear"',
            )
        return self


class ActionsConfig(Section):
    """What is chosen: one action of a Discrete space, or some cells of a MultiBinary one; and what cannot be."""

    cells: int | None = Field(default=None, ge=1)
    """Cells chosen at once, fewer where fewer can be; not set: the action space is Discrete."""
    mask_leaf: str | None = None
    """Part of the observation that says what can be chosen, e.g. ``obs.action_mask``; not set: everything can. It holds
    one number per action, or is a map [C, H, W] (then ``mask_channel`` is set)."""
    mask_channel: int | None = Field(default=None, ge=0)
    """Of a map: the channel with one number per cell."""
    mask_value: float = 0.0
    """Number that stands where something cannot be chosen."""

    @model_validator(mode="after")
    def _mask_is_read(self) -> Self:
        if self.mask_leaf is None and (self.mask_channel is not None or self.mask_value != 0.0):
            raise ConfigError(
                "nothing says where the mask of actions is",
                mask_channel=self.mask_channel,
                mask_value=self.mask_value,
                fix='set mask_leaf, e.g. to "obs", or remove the others',
            )
        return self


class TargetConfig(Section):
    """What Q-values are pulled to."""

    double: bool = True
    """The online network chooses the next action, the target network says what it is worth (van Hasselt et al. 2016)."""
    bootstrap: Literal["k_best", "best"] = "k_best"
    """Worth of the next observation where several cells are chosen. k_best: mean of as many cells as an action has.
    best: the best cell alone."""
    reward_scale: float = Field(default=1.0, gt=0)
    """What rewards are multiplied by before they are learned from, where they are far from 1; returns are told as they are."""
    every_updates: int = Field(default=500, ge=1)
    """Updates between two moves of the target network."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Share of the online weights mixed into the target's at each move; 1: it is a copy."""


class MapConfig(Section):
    """A fully convolutional network, one value per cell; instead of the perceptron."""

    leaf: str | None = None
    """Part of the observation that is the map, [C, H, W] with as many cells as there are actions, e.g. ``obs``; not
    set: a perceptron sees the whole observation. Collectors act in torch where it is set."""
    channels: list[Units] = Field(default=[32, 64, 64], min_length=1)
    """Channels after each 3x3 convolution; with ``residual`` after the first one, and after each block."""
    residual: bool = False
    """Blocks of two convolutions with a way around them, instead of single convolutions."""
    group_norm: bool = True
    """Normalise after each convolution, over groups of channels of the one map. Batch norm would make an action depend on
    the observations of other lanes, or on statistics that are no weights: what was published could not be acted again."""


class PriorityConfig(Section):
    """Prioritised sampling in proportion to TD errors (Schaul et al. 2016, arXiv:1511.05952)."""

    enabled: bool = False
    """Otherwise every transition is as likely as any other."""
    alpha: float = Field(default=0.6, ge=0, le=4)
    """Exponent of the priorities; 0 is uniform. With more than 4 they would not all be finite numbers above 0."""
    beta: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the correction at the first update; 1 corrects in full."""
    beta_updates: int = Field(default=100_000, ge=1)
    """Updates in which it rises to 1, linear."""
    floor: float = Field(default=1e-6, ge=1e-30, le=1e6)
    """Added to every TD error, so that no transition is left out for ever."""


class OptimiserConfig(Section):
    """What becomes of the learning rate over a run, and how a large batch is learned from in little memory."""

    lr_final: float | None = Field(default=None, gt=0)
    """Learning rate at the end of its schedule, and from there on; not set: it stays as it is."""
    lr_decay_updates: int | None = Field(default=None, ge=1)
    """Updates from ``algorithm.lr`` to ``lr_final``, linear."""
    accumulate: int = Field(default=1, ge=1)
    """Parts in which the ``batch_size`` transitions of an update go through the network, one after the other. Their gradients
    are added up to that of the whole batch, and one step is made: what is learned is the same within rounding."""

    @model_validator(mode="after")
    def _schedule_is_whole(self) -> Self:
        if (self.lr_final is None) != (self.lr_decay_updates is None):
            raise ConfigError(
                "the schedule of the learning rate is not whole: one of its two keys would be ignored",
                lr_final=self.lr_final,
                lr_decay_updates=self.lr_decay_updates,
                fix="set both algorithm.optimiser.lr_final and lr_decay_updates, or neither",
            )
        return self


class DQNConfig(Section):
    """Deep Q-learning (Mnih et al. 2015), double, dueling and prioritised as wanted."""

    name: Literal["dqn"] = "dqn"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions per update."""
    lr: float = Field(default=3e-4, gt=0)
    """Of Adam."""
    loss: Literal["huber", "mse"] = "huber"
    """Of a TD error. huber: squared up to 1, then linear. mse: squared; both halved."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Longer gradients are shortened to this Euclidean norm; not set: none is."""
    dueling: bool = False
    """A value of the observation and advantages of the actions, instead of Q-values (Wang et al. 2016)."""
    target: TargetConfig = TargetConfig()
    network: NetworkConfig = NetworkConfig()
    map: MapConfig = MapConfig()
    actions: ActionsConfig = ActionsConfig()
    exploration: EpsilonConfig = EpsilonConfig()
    priority: PriorityConfig = PriorityConfig()
    optimiser: OptimiserConfig = OptimiserConfig()

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        refuse_ignored(
            _unused_priority(self.priority),
            _unequal_parts(self.batch_size, self.optimiser),
            (
                "algorithm.network",
                self.map.leaf is not None and self.network != NetworkConfig(),
                "the map's network is another one",
                "remove it, or algorithm.map.leaf",
            ),
            (
                "algorithm.map",
                self.map.leaf is None and self.map != MapConfig(),
                "nothing says which part of the observation is the map",
                'set algorithm.map.leaf, e.g. to "obs", or remove the others',
            ),
            (
                "algorithm.target.bootstrap",
                self.actions.cells is None and self.target.bootstrap != "k_best",
                "an action is not made of cells",
                "remove it, or set algorithm.actions.cells",
            ),
        )
        return self


class QuantileNetworkConfig(Section):
    """The network of IQN: observation and quantile fraction are embedded, multiplied, and taken to values of actions."""

    embedding: int = Field(default=250, ge=1)
    """Units of either embedding: of the observation and of the quantile fraction."""
    cosines: int = Field(default=64, ge=1)
    """Cosines that a quantile fraction is spread into."""
    hidden: int = Field(default=250, ge=1)
    """Units of the layer after their product."""
    noisy: bool = False
    """Weights of that layer and of what follows are drawn anew in every update, with a spread that is learned (Fortunato et
    al. 2018). Collectors act without noise: ``exploration`` says how they explore."""
    dueling: bool = True
    """A value of the observation and advantages of the actions, for each quantile (Wang et al. 2016)."""


class QuantilesConfig(Section):
    """How many quantiles stand for a distribution of returns, and how their errors count."""

    online: int = Field(default=12, ge=1)
    """Quantiles of the action that was chosen, which are pulled to the targets."""
    next: int = Field(default=12, ge=1)
    """Quantiles of the next observation: of the targets, and, double, of what the next action is chosen by."""
    acting: int = Field(default=12, ge=1)
    """Quantiles whose mean is an action's value where it is acted."""
    kappa: float = Field(default=1.0, gt=0)
    """Size of an error from which on it counts linear instead of squared."""


class IQNConfig(Section):
    """Implicit quantile networks (Dabney et al. 2018), double, dueling, noisy and prioritised as wanted."""

    name: Literal["iqn"] = "iqn"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions per update, of each policy."""
    lr: float = Field(default=2.5e-4, gt=0)
    """Of Adam."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Longer gradients of a policy are shortened to this Euclidean norm; not set: none is."""
    network: QuantileNetworkConfig = QuantileNetworkConfig()
    quantiles: QuantilesConfig = QuantilesConfig()
    target: TargetConfig = TargetConfig()
    actions: ActionsConfig = ActionsConfig()
    exploration: EpsilonConfig = EpsilonConfig()
    priority: PriorityConfig = PriorityConfig()
    optimiser: OptimiserConfig = OptimiserConfig()

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if self.actions.cells is not None:
            raise ConfigError(
                "IQN chooses one action at a time, not cells",
                cells=self.actions.cells,
                fix='remove algorithm.actions.cells, or set algorithm.name = "dqn"',
            )
        refuse_ignored(
            _unused_priority(self.priority),
            _unequal_parts(self.batch_size, self.optimiser),
            (
                "algorithm.target.bootstrap",
                self.target.bootstrap != "k_best",
                "an action is not made of cells",
                "remove it",
            ),
        )
        return self


def _unused_priority(priority: PriorityConfig) -> _Ignored:
    return (
        "algorithm.priority",
        not priority.enabled and priority != PriorityConfig(),
        "prioritised sampling is not enabled",
        "set algorithm.priority.enabled = true, or remove the others",
    )


def _unequal_parts(batch_size: int, optimiser: OptimiserConfig) -> _Ignored:
    return (
        f"algorithm.optimiser.accumulate {optimiser.accumulate}",
        batch_size % optimiser.accumulate != 0,
        f"algorithm.batch_size {batch_size} is no multiple of it",
        "make algorithm.batch_size a multiple of accumulate",
    )


TD3 = TD3Config
SAC = SACConfig
DQN = DQNConfig
IQN = IQNConfig
