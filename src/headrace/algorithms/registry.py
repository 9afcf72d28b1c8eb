"""Which algorithms there are, and how to build their halves from a configuration.

Importing this module imports no torch; neither does building the actor of a plain perceptron.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast, overload

from gymnasium import spaces

from headrace.algorithms.acting import BoxActor, Network, PerceptronForward
from headrace.algorithms.base import Actor, Algorithm, OnPolicyAlgorithm, PolicySpec
from headrace.algorithms.choices import Choices, Mask
from headrace.algorithms.choosing import DuelingForward, QActor, RandomActor
from headrace.algorithms.configs import DQNConfig, IQNConfig, NetworkConfig, SACConfig, TD3Config, refuse_ignored
from headrace.algorithms.encoding import ActionBox, ObservationEncoder, map_place
from headrace.algorithms.exploration import carried_floats as carried_by_noise
from headrace.algorithms.heads import CategoricalHead, head_of
from headrace.algorithms.many_actors import ManyActors
from headrace.algorithms.on_policy_configs import ActorCriticConfig, PPOConfig, VTraceConfig, refuse_loops
from headrace.algorithms.quantile_acting import QuantileForward
from headrace.algorithms.sampling import SamplingActor, UniformActor, action_mask
from headrace.algorithms.squashed import SquashedActor
from headrace.core import seeding
from headrace.core.config import LearnConfig, Section
from headrace.core.errors import ConfigError
from headrace.core.specs import Leaf

Space = spaces.Space[Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One algorithm."""

    name: str
    summary: str
    """One line for ``headrace list``."""
    check_spaces: Callable[[Section, Space, Space], None]
    build_actor: Callable[[PolicySpec], Actor]
    build_algorithm: Callable[..., Algorithm | OnPolicyAlgorithm]
    """Of section, both spaces, seed, device, where it ``rounds`` ``precision``, and where something is ``told`` ``compiled``."""
    carried_floats: Callable[[Section, Space], int]
    acts_in_torch: Callable[[Section], bool]
    build_random_actor: Callable[[PolicySpec], Actor | None]
    build_batched: Callable[[Section, Space, Space, int, str, int], Algorithm] | None = None
    """Several policies in one algorithm; None: each is an algorithm of its own."""
    rounds: bool = False
    """Whether products inside its networks may be of lower precision."""
    told: Callable[[Section, Space], tuple[Leaf, ...]] | None = None
    """What actors return beside actions; None: nothing, and it does not learn from rollouts."""


def algorithms() -> dict[str, str]:
    """Names, each with a description of one line, in alphabetical order."""
    return {entry.name: entry.summary for entry in sorted(_ENTRIES.values(), key=lambda entry: entry.name)}


def check_spaces(config: Section, observation_space: Space, action_space: Space) -> None:
    """Find out, before anything starts, whether the algorithm can use these spaces.

    Raises:
        UnsupportedSpace: It cannot; the message names the field, what was expected and what was found.
        ConfigError: ``config`` belongs to no algorithm, or says something that has no meaning for such actions.
    """
    _entry(config).check_spaces(config, observation_space, action_space)


def build_actor(policy: PolicySpec) -> Actor:
    """The acting half, of all policies that ``policy.policy_of`` names; it acts from its first `load` on.

    Raises:
        UnsupportedSpace: As `check_spaces`.
        ConfigError: A network factory does not do, or ``policy.config`` belongs to no algorithm.
    """
    build, policies = _entry(policy.config).build_actor, 1 + max(policy.policy_of, default=0)
    if policies == 1:
        return build(policy)
    return ManyActors(policy, [build(policy) for _ in range(policies)])


def build_random_actor(policy: PolicySpec) -> Actor | None:
    """Who acts at random, for comparison; None: the action space's own samples are actions, all alike.

    Raises:
        UnsupportedSpace: As `check_spaces`.
        ConfigError: ``policy.config`` belongs to no algorithm.
    """
    return _entry(policy.config).build_random_actor(policy)


def acts_in_torch(config: Section) -> bool:
    """Whether collectors need torch to act.

    Raises:
        ConfigError: ``config`` belongs to no algorithm.
    """
    return _entry(config).acts_in_torch(config)


def carried_floats(config: Section, action_space: Space) -> int:
    """Length of `LaneNoise.carry`: exploration state of one lane that crosses the end of a chunk.

    Raises:
        UnsupportedSpace: As `check_spaces`.
        ConfigError: ``config`` belongs to no algorithm.
    """
    return _entry(config).carried_floats(config, action_space)


def told_leaves(config: Section, action_space: Space) -> tuple[Leaf, ...]:
    """What an actor returns from `Actor.act` beside the action, to be stored with it and handed to `Rollout`.

    Returns:
        Of what learns from its own rollouts ``logprob`` float32 [], and of continuous actions ``raw_action`` float32 [A],
        the action before it was clipped; else nothing.

    Raises:
        UnsupportedSpace: As `check_spaces`.
        ConfigError: ``config`` belongs to no algorithm.
    """
    told = _entry(config).told
    return () if told is None else told(config, action_space)


def learns_on_policy(config: Section) -> bool:
    """Whether `build_algorithm` returns an `OnPolicyAlgorithm`.

    Raises:
        ConfigError: ``config`` belongs to no algorithm.
    """
    return _entry(config).told is not None


@overload
def build_algorithm(
    config: TD3Config | SACConfig | DQNConfig | IQNConfig,
    observation_space: Space,
    action_space: Space,
    seed: int,
    learn: LearnConfig | None = None,
    policies: int = 1,
) -> Algorithm: ...


@overload
def build_algorithm(
    config: PPOConfig | VTraceConfig,
    observation_space: Space,
    action_space: Space,
    seed: int,
    learn: LearnConfig | None = None,
    policies: int = 1,
) -> OnPolicyAlgorithm: ...


def build_algorithm(
    config: Section,
    observation_space: Space,
    action_space: Space,
    seed: int,
    learn: LearnConfig | None = None,
    policies: int = 1,
) -> Algorithm | OnPolicyAlgorithm:
    """The learning half, freshly initialised.

    Args:
        config: The algorithm's own section; its class says which algorithm it is.
        observation_space: Of one environment.
        action_space: Of one environment.
        seed: The run's seed; every draw comes from streams derived from it.
        learn: Device, precision (bfloat16 where the `Entry` allows it), loops (see `compiled_gradient`). None: as it comes.
        policies: How many are learned, alike and apart. The first begins as one that is alone.

    Raises:
        UnsupportedSpace: As `check_spaces`.
        ConfigError: A network factory does not do, device, precision or loops are not there, ``config`` belongs to no
            algorithm, or its algorithm learns one policy and no more.
    """
    entry = _entry(config)
    if policies > 1 and entry.told is not None:
        raise ConfigError(
            f"{entry.name} learns one policy",
            expected="one policy for all agents",
            found=policies,
            fix="let the agents share a policy, or choose an algorithm that learns several",
        )
    learn = learn or LearnConfig()
    build, device = _builder(entry, learn), learn.device
    if policies == 1:
        built: Algorithm | OnPolicyAlgorithm = build(config, observation_space, action_space, seed, device)
        return built
    if entry.build_batched is not None:
        return entry.build_batched(config, observation_space, action_space, seed, device, policies)
    from headrace.algorithms.several import Several

    seeds = [seed, *(seeding.integer(seed, "policy", policy) for policy in range(1, policies))]
    members = [build(config, observation_space, action_space, member, device) for member in seeds]
    return Several(cast("list[Algorithm]", members))


def _builder(entry: Entry, learn: LearnConfig) -> Callable[..., Any]:
    """Of one policy, in the precision and by the loops that are asked for."""
    if learn.compiled and entry.told is None:
        refuse_loops(f"algorithm.name = {entry.name}")
    further: dict[str, Any] = {"compiled": True} if learn.compiled else {}
    if learn.precision != "float32":
        if not entry.rounds:
            raise ConfigError(
                f"{entry.name} is not learned in {learn.precision}",
                expected="float32",
                fix='set learn.precision = "float32"',
            )
        further["precision"] = learn.precision
    return functools.partial(entry.build_algorithm, **further)


def _entry(config: Section) -> Entry:
    entry = _ENTRIES.get(type(config))
    if entry is None:
        raise ConfigError(
            "the configuration names no algorithm",
            expected=", ".join(algorithms()),
            found=type(config).__name__,
            fix="set algorithm.name to one of the expected names",
        )
    return entry


def _check_continuous(config: Section, observation_space: Space, action_space: Space) -> None:
    ObservationEncoder(observation_space)
    ActionBox(action_space)


def _td3_actor(policy: PolicySpec) -> Actor:
    config = cast("TD3Config", policy.config)
    inputs, outputs = ObservationEncoder(policy.observation_space).size, ActionBox(policy.action_space).size
    return BoxActor(policy, _acting_network(config.actor, inputs, outputs, policy.threads), config.exploration)


def _td3_carried_floats(config: Section, action_space: Space) -> int:
    exploration = cast("TD3Config", config).exploration
    if exploration.kind != "ornstein-uhlenbeck":
        return 0  # and nobody asks how large an action is
    return carried_by_noise(exploration, ActionBox(action_space).size)


def _acting_network(config: NetworkConfig, inputs: int, outputs: int, threads: int | None) -> Network:
    if config.factory is None:
        return PerceptronForward(config, inputs, outputs)
    import torch

    from headrace.algorithms.networks import ModuleForward, build_network

    return ModuleForward(build_network(config, inputs, outputs, torch.Generator()), threads)


def _td3(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, precision: str = "float32"
) -> Algorithm:
    from headrace.algorithms.td3 import TD3  # imports torch

    return TD3(cast("TD3Config", config), observation_space, action_space, seed, device, precision)


def _sac_actor(policy: PolicySpec) -> Actor:
    config = cast("SACConfig", policy.config)
    inputs, actions = ObservationEncoder(policy.observation_space).size, ActionBox(policy.action_space).size
    return SquashedActor(policy, _acting_network(config.actor, inputs, 2 * actions, policy.threads))


def _sac(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, precision: str = "float32"
) -> Algorithm:
    from headrace.algorithms.sac import SAC  # imports torch

    return SAC(cast("SACConfig", config), observation_space, action_space, seed, device, precision)


def _check_choices(config: Section, observation_space: Space, action_space: Space) -> None:
    dqn = cast("DQNConfig", config)
    encoder, choices = ObservationEncoder(observation_space), Choices(action_space, dqn.actions)
    Mask(dqn.actions, encoder, choices.size)
    if dqn.map.leaf is not None:
        map_place(dqn.map.leaf, encoder, choices.size)


def _dqn_acts_in_torch(config: Section) -> bool:
    dqn = cast("DQNConfig", config)
    return dqn.map.leaf is not None or dqn.network.factory is not None


def _dqn_actor(policy: PolicySpec) -> Actor:
    config = cast("DQNConfig", policy.config)
    encoder, actions = ObservationEncoder(policy.observation_space), Choices(policy.action_space, config.actions).size
    return QActor(policy, _q_network(config, encoder, actions, policy.threads))


def _q_network(config: DQNConfig, encoder: ObservationEncoder, actions: int, threads: int | None) -> Network:
    if not _dqn_acts_in_torch(config):
        network = PerceptronForward(config.network, encoder.size, actions + config.dueling)
        return DuelingForward(network) if config.dueling else network
    import torch

    from headrace.algorithms.networks import ModuleForward
    from headrace.algorithms.q_networks import build_q_network

    return ModuleForward(build_q_network(config, encoder, actions, torch.Generator()), threads)


def _random_choosing_actor(policy: PolicySpec) -> Actor | None:
    actions = cast("DQNConfig | IQNConfig", policy.config).actions
    return None if actions.cells is None and actions.mask_leaf is None else RandomActor(policy)


def _dqn(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, precision: str = "float32"
) -> Algorithm:
    from headrace.algorithms.dqn import DQN  # imports torch

    return DQN(cast("DQNConfig", config), observation_space, action_space, seed, device, precision)


def _check_discrete(config: Section, observation_space: Space, action_space: Space) -> None:
    actions = cast("IQNConfig", config).actions
    Mask(actions, ObservationEncoder(observation_space), Choices(action_space, actions).size)


def _iqn_actor(policy: PolicySpec) -> Actor:
    config = cast("IQNConfig", policy.config)
    inputs = ObservationEncoder(policy.observation_space).size
    return QActor(policy, QuantileForward(config, inputs, Choices(policy.action_space, config.actions).size))


def _iqn(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, policies: int = 1
) -> Algorithm:
    from headrace.algorithms.iqn import IQN  # imports torch

    return IQN(cast("IQNConfig", config), observation_space, action_space, seed, device, policies)


def _check_sampled(config: Section, observation_space: Space, action_space: Space) -> None:
    sampled, head = cast("PPOConfig | VTraceConfig", config), head_of(action_space)
    action_mask(sampled.actions, ObservationEncoder(observation_space), head)
    refuse_ignored(
        (
            "algorithm.network.log_std",
            isinstance(head, CategoricalHead) and sampled.network.log_std != ActorCriticConfig().log_std,
            "choices have no standard deviation",
            "remove it",
        )
    )


def _sampling_actor(policy: PolicySpec) -> Actor:
    actor = cast("PPOConfig | VTraceConfig", policy.config).network.actor.network()
    inputs, outputs = ObservationEncoder(policy.observation_space).size, head_of(policy.action_space).outputs
    return SamplingActor(policy, _acting_network(actor, inputs, outputs, policy.threads))


def _sampling_acts_in_torch(config: Section) -> bool:
    return cast("PPOConfig | VTraceConfig", config).network.actor.factory is not None


def _random_sampling_actor(policy: PolicySpec) -> Actor | None:
    masked = cast("PPOConfig | VTraceConfig", policy.config).actions.mask_leaf is not None
    return UniformActor(policy) if masked and isinstance(head_of(policy.action_space), CategoricalHead) else None


def _told_by_sampling(config: Section, action_space: Space) -> tuple[Leaf, ...]:
    return head_of(action_space).told


def _ppo(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, *, compiled: bool = False
) -> OnPolicyAlgorithm:
    from headrace.algorithms.ppo import build_ppo  # imports torch

    return build_ppo(cast("PPOConfig", config), observation_space, action_space, seed, device, compiled=compiled)


def _vtrace(
    config: Section, observation_space: Space, action_space: Space, seed: int, device: str, *, compiled: bool = False
) -> OnPolicyAlgorithm:
    from headrace.algorithms.vtrace import build_vtrace  # imports torch

    return build_vtrace(cast("VTraceConfig", config), observation_space, action_space, seed, device, compiled=compiled)


def _sampling(name: str, summary: str, build: Callable[..., OnPolicyAlgorithm]) -> Entry:
    """One that draws its actions, and learns from its own rollouts."""
    return Entry(
        name=name,
        summary=summary,
        check_spaces=_check_sampled,
        build_actor=_sampling_actor,
        build_algorithm=build,
        carried_floats=lambda _config, _space: 0,
        acts_in_torch=_sampling_acts_in_torch,
        build_random_actor=_random_sampling_actor,
        told=_told_by_sampling,
    )


_ENTRIES: Mapping[type[Section], Entry] = MappingProxyType(
    {
        TD3Config: Entry(
            name="td3",
            summary="twin delayed deterministic policy gradients, for continuous actions (Fujimoto et al. 2018)",
            check_spaces=_check_continuous,
            build_actor=_td3_actor,
            build_algorithm=_td3,
            carried_floats=_td3_carried_floats,
            acts_in_torch=lambda config: cast("TD3Config", config).actor.factory is not None,
            build_random_actor=lambda _: None,
            rounds=True,
        ),
        SACConfig: Entry(
            name="sac",
            summary="soft actor-critic with a learned temperature, for continuous actions (Haarnoja et al. 2018)",
            check_spaces=_check_continuous,
            build_actor=_sac_actor,
            build_algorithm=_sac,
            carried_floats=lambda _config, _space: 0,
            acts_in_torch=lambda config: cast("SACConfig", config).actor.factory is not None,
            build_random_actor=lambda _: None,
            rounds=True,
        ),
        DQNConfig: Entry(
            name="dqn",
            summary="deep Q-learning, for one of n actions or k cells of a map (Mnih et al. 2015)",
            check_spaces=_check_choices,
            build_actor=_dqn_actor,
            build_algorithm=_dqn,
            carried_floats=lambda _config, _space: 0,
            acts_in_torch=_dqn_acts_in_torch,
            build_random_actor=_random_choosing_actor,
            rounds=True,
        ),
        IQNConfig: Entry(
            name="iqn",
            summary="implicit quantile networks, for one of n actions (Dabney et al. 2018)",
            check_spaces=_check_discrete,
            build_actor=_iqn_actor,
            build_algorithm=_iqn,
            carried_floats=lambda _config, _space: 0,
            acts_in_torch=lambda _: False,
            build_random_actor=_random_choosing_actor,
            build_batched=_iqn,
        ),
        PPOConfig: _sampling(
            "ppo", "proximal policy optimisation, for choices and continuous actions (Schulman et al. 2017)", _ppo
        ),
        VTraceConfig: _sampling(
            "vtrace",
            "actor-critic that corrects for older policies: IMPALA and asynchronous PPO (Espeholt et al. 2018)",
            _vtrace,
        ),
    }
)
