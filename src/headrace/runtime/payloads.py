"""What the supervisor hands each component, and how components build the shared parts from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from headrace.algorithms.base import Actor, PolicySpec
from headrace.algorithms.registry import build_actor
from headrace.collectors.collector import Collector, Group
from headrace.core import seeding
from headrace.core.specs import leaves
from headrace.envs.contract import build_environment, environment_name
from headrace.ipc.shm import SharedBlock
from headrace.lanes.derive import stacked_space
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry
from headrace.runtime.config import ExperimentConfig
from headrace.telemetry.board import Activity, Slot
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots

EnvFactory = Callable[..., gymnasium.Env[Any, Any]]


@dataclass(frozen=True, slots=True)
class Basics:
    """What every component of a run knows."""

    config: ExperimentConfig
    board: Path
    env_factory: EnvFactory | None = None
    """A callable given in Python instead of ``env.id`` and ``env.factory``."""


@dataclass(frozen=True, slots=True)
class EnvSpaces:
    """The spaces the environment declared when it was first built."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]

    def geometry(self, config: ExperimentConfig) -> Geometry:
        """Sizes of the lanes."""
        return Geometry(
            lanes=config.env.lanes,
            capacity=config.replay.capacity,
            observation=leaves(self.observation, "obs"),
            action=leaves(self.action, "action"),
            chunk_steps=config.collect.chunk_steps,
            window_chunks=config.collect.window_chunks,
            frame_stack=config.env.frame_stack,
            n_step=config.replay.n_step,
        )

    def policy(self, config: ExperimentConfig) -> PolicySpec:
        """What the acting half is built from."""
        observation = stacked_space(self.observation, config.env.frame_stack)
        return PolicySpec(config.algorithm.name, observation, self.action, config.algorithm)


@dataclass(frozen=True, slots=True)
class LearnerPayload:
    """For the learner; in the inline schedule it steps the environments too."""

    basics: Basics
    spaces: EnvSpaces
    checkpoints: Path
    incarnation: int = 0
    """Above 0 it takes the place of one that died, in lanes that hold experience."""


@dataclass(frozen=True, slots=True)
class CollectorPayload:
    """For a collector."""

    basics: Basics
    spaces: EnvSpaces
    layout: SnapshotLayout
    groups: tuple[int, ...]
    incarnation: int


@dataclass(frozen=True, slots=True)
class EvaluatorPayload:
    """For the evaluator."""

    basics: Basics
    spaces: EnvSpaces
    checkpoints: Path


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
    basics: Basics, policy: PolicySpec, group: int, block: LaneBlock, snapshots: Snapshots, slot: Slot, incarnation: int
) -> Collector:
    """One group's environments, actor and writers.

    Raises:
        EnvironmentFault: An environment could not be built.
    """
    config = basics.config
    lanes = group_lanes(config, group)
    envs = []
    for lane in lanes:
        slot.enter(Activity.ENV_CONSTRUCT, lane)
        # What a constructor draws from a global generator must not depend on who was built before it.
        seeding.seed_global_generators(config.run.seed, "construct-global", lane, incarnation)
        envs.append(build_environment(config.env, lane, factory=basics.env_factory, component=slot.id))
    actor: Actor = build_actor(policy)
    return Collector(
        Group(
            number=group,
            lanes=lanes,
            seed=config.run.seed,
            incarnation=incarnation,
            random_steps=-(-config.collect.random_steps // config.env.lanes),
            environment=environment_name(config.env, basics.env_factory),
            cast=config.env.cast_observations,
        ),
        envs,
        block,
        actor,
        SnapshotReader(snapshots),
        slot,
    )
