"""What the supervisor hands each component, and how components build the shared parts from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from headrace.algorithms.base import Actor, PolicySpec
from headrace.algorithms.registry import build_actor, carried_floats, told_leaves
from headrace.collectors.collector import Collector, PolicySource
from headrace.collectors.remote import RemoteEnvs
from headrace.collectors.stepping import Group
from headrace.core import seeding
from headrace.core.agents import Cast
from headrace.core.errors import EnvironmentFault
from headrace.core.spaces import space_facts, spaces_of
from headrace.core.specs import leaves
from headrace.envs.agents import ParallelCopy, Seat
from headrace.envs.building import build_copy, environment_name
from headrace.ipc.shm import SharedBlock
from headrace.lanes.derive import stacked_space
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.resume import ResumePoint
from headrace.telemetry.board import Activity, Slot
from headrace.weights.snapshot import SnapshotLayout, Snapshots

EnvFactory = Callable[..., gymnasium.Env[Any, Any]]
BuiltEnv = gymnasium.Env[Any, Any] | ParallelCopy


@dataclass(frozen=True, slots=True)
class Basics:
    """What every component of a run knows."""

    config: ExperimentConfig
    board: Path
    env_factory: EnvFactory | None = None
    """A callable given in Python instead of ``env.id`` and ``env.factory``."""
    around: Callable[[BuiltEnv, int], BuiltEnv] | None = None
    """What is put around every environment, given its lane; of the same kind as what it is given. It is pickled."""


@dataclass(frozen=True, slots=True)
class EnvSpaces:
    """The spaces the environment declared when it was first built."""

    observation: spaces.Space[Any]
    """Of each agent."""
    action: spaces.Space[Any]
    agents: tuple[str, ...] = ()
    """Names of the agents of one copy; empty where the environment has but one, without a name."""

    @classmethod
    def of(cls, basics: Basics) -> EnvSpaces:
        """Those an environment of the run declares; it is built for it, and closed.

        Raises:
            EnvironmentFault: It cannot be built.
        """
        with closing(build_run_environment(basics, 0, "replay")) as env:
            return cls.declared(env)

    @classmethod
    def declared(cls, env: gymnasium.Env[Any, Any] | ParallelCopy) -> EnvSpaces:
        """Those of an environment that is built."""
        agents = env.agents if isinstance(env, ParallelCopy) else ()
        return cls(env.observation_space, env.action_space, agents)

    @classmethod
    def told(cls, facts: Mapping[str, str]) -> EnvSpaces:
        """Those that `facts` tells of.

        Raises:
            RunDirectoryError: They are missing, or not what `facts` makes.
        """
        return cls(*spaces_of(facts), tuple(json.loads(facts.get("agents", "[]"))))

    def facts(self) -> dict[str, str]:
        """All of it as facts of a policy's file."""
        agents = {"agents": json.dumps(self.agents)} if self.agents else {}
        return space_facts(self.observation, self.action) | agents

    def cast(self, config: ExperimentConfig) -> Cast:
        """Which policy each agent acts by.

        Raises:
            ConfigError: See `Cast.of`.
        """
        return Cast.of(config.agents, self.agents)

    def geometry(self, config: ExperimentConfig) -> Geometry:
        """Sizes of the lanes."""
        capacity, window = _room(config)
        return Geometry(
            lanes=config.env.lanes,
            capacity=capacity,
            observation=leaves(self.observation, "obs"),
            action=leaves(self.action, "action"),
            chunk_steps=config.collect.chunk_steps,
            window_chunks=window,
            frame_stack=config.env.frame_stack,
            n_step=config.replay.n_step,
            carry_floats=carried_floats(config.algorithm, self.action),
            told=told_leaves(config.algorithm, self.action),
            consumed=config.on_policy,
        )

    def policy(self, config: ExperimentConfig) -> PolicySpec:
        """What the acting half is built from."""
        observation = stacked_space(self.observation, config.env.frame_stack)
        policy_of = self.cast(config).policy_of if self.agents else ()
        return PolicySpec(
            config.algorithm.name, observation, self.action, config.algorithm, policy_of, config.collect.threads
        )


def _room(config: ExperimentConfig) -> tuple[int, int]:
    """Rows that are kept, over all lanes, and chunks that a group may be ahead."""
    if not config.on_policy:
        return config.replay.capacity, config.chunks_ahead
    rollout, window = config.rollout, config.chunks_ahead
    kept = rollout.kept_rows if rollout.whole_episodes else 0
    # A chunk may hold twice chunk_steps rows, because an episode of a single step has a FINAL row too.
    return config.env.lanes * (2 * window * config.collect.chunk_steps + kept), window


@dataclass(frozen=True, slots=True)
class LearnerPayload:
    """For the learner; in the inline schedule it steps the environments too."""

    basics: Basics
    spaces: EnvSpaces
    checkpoints: Path
    record: Path
    incarnation: int = 0
    """Above 0 it takes the place of one that died, in lanes that hold experience."""
    resume: ResumePoint | None = None
    """Where the run goes on; None: it is new."""
    streams: list[int] | None = None
    """As this session's first learner told when it was ready, for one that takes its place."""
    record_lost: str | None = None
    """Why the record had ended before the learner died whose place it takes; None: it had not."""

    @property
    def succeeds(self) -> bool:
        """Whether it takes the place of one that had been ready; one that had not has left nothing."""
        return self.incarnation > 0 and self.streams is not None


@dataclass(frozen=True, slots=True)
class CollectorPayload:
    """For a collector."""

    basics: Basics
    spaces: EnvSpaces
    layout: SnapshotLayout
    groups: tuple[int, ...]
    incarnation: int
    """Of the process."""
    streams: tuple[int, ...]
    """Incarnation of each group's random streams that the session's first collectors have."""
    episodes: Path | None = None
    """File with the running episodes that the session's first collectors go on with; None: there are none."""

    def beginning(self, group: int) -> GroupBeginning:
        """How a group's collector begins in this process."""
        return GroupBeginning(
            self.streams[group] + self.incarnation, self.episodes is not None and not self.incarnation
        )


@dataclass(frozen=True, slots=True)
class EvaluatorPayload:
    """For the evaluator."""

    basics: Basics
    spaces: EnvSpaces
    checkpoints: Path


@dataclass(frozen=True, slots=True)
class GroupBeginning:
    """How a group's collector begins."""

    incarnation: int
    """Of the group's random streams."""
    resume: bool = False
    """Whether it goes on with the episodes that are running in the lanes."""
    remote: RemoteEnvs | None = None
    """Its environments, if workers step them; None: they are built here."""
    on_lost: Callable[[EnvironmentFault], None] | None = None
    """Told of those that are lost."""
    on_cast: Callable[[str], None] | None = None
    """Told, once, what is converted of their observations."""


def group_lanes(config: ExperimentConfig, group: int) -> tuple[int, ...]:
    """Lanes of a group."""
    size = config.env.group_size
    return tuple(range(group * size, (group + 1) * size))


def groups_of(config: ExperimentConfig, collector: int) -> tuple[int, ...]:
    """Groups that a collector owns; they are dealt out in turn."""
    return tuple(range(collector, config.env.groups, config.run.collectors))


def attach_lanes(spaces: EnvSpaces, config: ExperimentConfig, fd: int) -> LaneBlock:
    """The lanes behind a descriptor."""
    geometry = spaces.geometry(config)
    return LaneBlock(geometry, SharedBlock.attach(fd, geometry.nbytes).buf)


def attach_snapshots(layout: SnapshotLayout, fd: int) -> Snapshots:
    """The published policies behind a descriptor."""
    return Snapshots(layout, SharedBlock.attach(fd, layout.nbytes).buf)


def build_collector(
    basics: Basics, policy: PolicySpec, group: int, block: LaneBlock, reader: PolicySource, slot: Slot,
    begin: GroupBeginning,
) -> Collector:  # fmt: skip
    """One group's environments, actor and writers.

    Args:
        basics: Of the run.
        policy: What the acting half is built from.
        group: Which.
        block: The lanes.
        reader: Where policies come from.
        slot: The component's place on the board.
        begin: How its streams and episodes begin.

    Raises:
        EnvironmentFault: An environment could not be built.
    """
    config = basics.config
    lanes = group_lanes(config, group)

    def build(lane: int) -> gymnasium.Env[Any, Any]:
        slot.enter(Activity.ENV_CONSTRUCT, lane)
        return build_lane_environment(basics, lane, begin.incarnation, slot.id)

    if policy.policy_of:  # of many agents
        envs = _seats(basics, lanes, begin.incarnation, slot)
    else:
        envs = [build(lane) if begin.remote is None else begin.remote.env(lane) for lane in lanes]
    actor: Actor = build_actor(policy)
    collector = Collector(
        Group(
            number=group,
            lanes=lanes,
            seed=config.run.seed,
            incarnation=begin.incarnation,
            random_steps=-(-config.collect.random_steps // config.env.lanes),
            environment=environment_name(config.env, basics.env_factory),
            cast=config.env.cast_observations,
        ),
        envs,
        block,
        actor,
        reader,
        slot,
        resume=begin.resume,
    )
    collector.on_lost, collector.rebuild, collector.on_cast = begin.on_lost, build, begin.on_cast
    return collector


def _seats(basics: Basics, lanes: Sequence[int], incarnation: int, slot: Slot) -> list[gymnasium.Env[Any, Any]]:
    """The places of a group's agents, one per lane, copy by copy."""
    found: list[gymnasium.Env[Any, Any]] = []
    for lane in lanes[:: basics.config.agents.count]:
        slot.enter(Activity.ENV_CONSTRUCT, lane)
        copy = build_lane_copy(basics, lane, incarnation, slot.id)
        found += [Seat(copy, agent) for agent in range(len(copy.agents))]
    return found


def build_lane_environment(basics: Basics, lane: int, incarnation: int, component: str) -> gymnasium.Env[Any, Any]:
    """The environment of one lane, in the process that steps it.

    Args:
        basics: Of the run.
        lane: Which.
        incarnation: Of the random streams of its group.
        component: Who builds it, for error messages.

    Raises:
        EnvironmentFault: It could not be built.
    """
    built = _built(basics, lane, incarnation, component)
    assert isinstance(built, gymnasium.Env), "the probe has seen one of one agent"
    return built


def build_lane_copy(basics: Basics, lane: int, incarnation: int, component: str) -> ParallelCopy:
    """The copy of an environment of many agents whose first lane this is; otherwise as `build_lane_environment`."""
    built = _built(basics, lane, incarnation, component)
    assert isinstance(built, ParallelCopy), "the probe has seen one of many agents"
    return built


def _built(basics: Basics, lane: int, incarnation: int, component: str) -> gymnasium.Env[Any, Any] | ParallelCopy:
    # What a constructor draws from a global generator must not depend on who was built before it.
    seeding.seed_global_generators(basics.config.run.seed, "construct-global", lane, incarnation)
    return build_run_environment(basics, lane, component)


def build_run_environment(
    basics: Basics, lane: int, component: str, render_mode: str | None = None
) -> gymnasium.Env[Any, Any] | ParallelCopy:
    """One environment of a run, with as many agents as it has.

    Raises:
        EnvironmentFault: It could not be built.
        ConfigError: It has another number of agents.
        UnsupportedSpace: Its agents' spaces are not all the same.
    """
    config = basics.config
    env = build_copy(
        config.env, config.agents.count, lane, factory=basics.env_factory, render_mode=render_mode, component=component
    )
    return env if basics.around is None else basics.around(env, lane)
