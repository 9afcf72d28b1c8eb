"""A learner put together from a configuration, the same way in a run and in its replay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.algorithms.base import Learning
from headrace.algorithms.configs import DQNConfig, IQNConfig
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.registry import build_algorithm
from headrace.core import seeding
from headrace.core.agents import Cast
from headrace.lanes.lane import LaneBlock
from headrace.lanes.prioritised import PrioritisedSampler
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import Replay
from headrace.lanes.rollouts import Rollouts
from headrace.lanes.samplers import Sampler, UniformSampler
from headrace.lanes.several import SeveralSamplers
from headrace.learners.base import BaseLearner, LearnerParts
from headrace.learners.intervals import round_steps
from headrace.learners.learner import Learner
from headrace.learners.oddities import Expected
from headrace.learners.on_policy import OnPolicyLearner
from headrace.learners.policies import LearnedPolicies
from headrace.learners.suspicion import Suspicion
from headrace.learners.witness import Witness
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces, group_lanes
from headrace.telemetry.board import Slot
from headrace.weights.snapshot import SnapshotLayout, Snapshots


def build_learner(
    config: ExperimentConfig,
    spaces: EnvSpaces,
    replay: Replay,
    publish_to: Callable[[SnapshotLayout], Snapshots],
    slot: Slot,
    witness: Witness,
    suspicion: Suspicion | None = None,
) -> tuple[BaseLearner, SnapshotLayout]:
    """A learner with fresh weights.

    Args:
        config: Of the run.
        spaces: Of one environment.
        replay: Its lanes.
        publish_to: Makes the place where policies are published, once it is known how large one is.
        slot: The learner's place on the board.
        witness: Told of what it does.
        suspicion: Who looks at the rows that arrive.

    Returns:
        The learner, and the layout of the policies it publishes.
    """
    import torch

    torch.set_num_threads(config.learn.threads)
    cast = spaces.cast(config)

    def parts(algorithm: Learning) -> LearnerParts:
        return LearnerParts(
            replay=replay,
            snapshots=publish_to(SnapshotLayout.of(algorithm.policy_arrays())),
            limiter=rate_limiter(config),
            groups=tuple(group_lanes(config, group) for group in range(config.env.groups)),
            slot=slot,
            suspicion=suspicion,
            witness=witness,
            agents=spaces.agents,
            policies=_policies(config, cast),
        )

    learner = _learner(config, spaces, replay, parts)
    return learner, SnapshotLayout.of(learner.algorithm.policy_arrays())


def _learner(
    config: ExperimentConfig, spaces: EnvSpaces, replay: Replay, parts: Callable[[Learning], LearnerParts]
) -> BaseLearner:
    """The learner that suits the algorithm."""
    section, policy, cast = config.algorithm, spaces.policy(config), spaces.cast(config)
    rest = policy.observation_space, policy.action_space, config.run.seed, config.learn, len(cast.policies)
    if isinstance(section, PPOConfig | VTraceConfig):
        newest = build_algorithm(section, *rest)
        return OnPolicyLearner(parts(newest), newest, _rollouts(config, replay))
    any_policy, sampler = build_algorithm(section, *rest), _sampler(config, cast, replay)
    return Learner(parts(any_policy), any_policy, sampler, config.algorithm.batch_size, config.algorithm.gamma)


def _rollouts(config: ExperimentConfig, replay: Replay) -> Rollouts:
    groups = tuple(group_lanes(config, group) for group in range(config.env.groups))
    return Rollouts(replay, groups, config.rollout.order, whole_episodes=config.rollout.whole_episodes)


def _policies(config: ExperimentConfig, cast: Cast) -> LearnedPolicies:
    if len(cast.policies) == 1:
        return LearnedPolicies()
    return LearnedPolicies(cast.policies, tuple(map(cast.policy_of_lane, range(config.env.lanes))))


def _sampler(config: ExperimentConfig, cast: Cast, replay: Replay) -> Sampler:
    """Who draws the batches."""
    generator = seeding.generator(config.run.seed, "sampling")
    lanes = [cast.lanes_of(policy, config.env.lanes) for policy in range(len(cast.policies))]
    samplers = [_sampler_of(config, replay, generator, own) for own in lanes]
    return samplers[0] if len(samplers) == 1 else SeveralSamplers(samplers)


def _sampler_of(
    config: ExperimentConfig, replay: Replay, generator: np.random.Generator, lanes: tuple[int, ...]
) -> Sampler:
    algorithm = config.algorithm
    if isinstance(algorithm, DQNConfig | IQNConfig) and algorithm.priority.enabled:
        return PrioritisedSampler(replay, generator, algorithm.priority, lanes)
    return UniformSampler(replay, generator, lanes)


def suspicion(config: ExperimentConfig, spaces: EnvSpaces, block: LaneBlock) -> Suspicion:
    """Who looks whether the environments make data up."""
    return Suspicion(
        block.geometry.dtype,
        config.env.lanes,
        spaces.observation,
        spaces.action,
        Expected(
            continuing=config.env.continuing,
            max_episode_steps=config.env.max_episode_steps,
            acting_from=0 if config.on_policy else max(config.collect.random_steps, config.replay.learning_starts),
            agents=config.agents.count,
        ),
        block.info_counts,
    )


def rate_limiter(config: ExperimentConfig) -> RateLimiter:
    """The declared replay ratio as a limiter."""
    replay = config.replay
    return RateLimiter(
        learning_starts=1 if config.on_policy else max(1, replay.learning_starts),
        ratio=config.declared_ratio,
        slack_steps=replay.slack_steps or 2 * round_steps(config),
        target_steps=config.run.steps,
        draw_steps=0 if config.on_policy else config.env.lanes * config.replay.n_step,
    )
