"""Whether the sections of a configuration agree with each other, and nothing that was set would be ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.algorithms.configs import DQNConfig, ExplorationConfig, IQNConfig, SACConfig, TD3Config
from headrace.algorithms.exploration import decay_of
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig, refuse_loops, without_loops
from headrace.core.config import CollectConfig, LearnConfig, ReplayConfig, RolloutConfig
from headrace.core.errors import ConfigError
from headrace.learners.intervals import round_steps

if TYPE_CHECKING:
    from headrace.runtime.config import ExperimentConfig

_ROUNDED = (TD3Config, SACConfig, DQNConfig)
"""Whose products inside networks may be of lower precision."""


def require_agreement(config: ExperimentConfig) -> None:
    """Refuse a configuration whose sections contradict each other.

    Raises:
        ConfigError: Two of them cannot be meant, or one would be ignored.
    """
    for check in _CHECKS:
        check(config)


def _check_environment(config: ExperimentConfig) -> None:
    env = config.env
    if env.id is None and env.factory is None:
        raise ConfigError(
            "no environment is named",
            fix='set env.id = "Pendulum-v1" (any Gymnasium id) or env.factory = "module:function"',
        )
    if env.id is not None and env.factory is not None:
        raise ConfigError(
            "two environments are named, and only one can be built",
            env_id=env.id,
            env_factory=env.factory,
            fix="remove env.id or env.factory",
        )


def _check_schedule(config: ExperimentConfig) -> None:
    run, replay = config.run, config.replay
    if run.schedule != "inline" and run.collectors > config.env.groups:
        raise ConfigError(
            "some collectors would have nothing to do: there are more of them than groups of lanes",
            collectors=run.collectors,
            groups=f"{config.env.groups} ({config.env.lanes} lanes in groups of {config.env.group_size})",
            fix=f"set run.collectors to {config.env.groups}{' or less' if config.env.groups > 1 else ''}, raise env.lanes, or "
            "lower env.group_size",
        )
    if run.schedule == "async":
        return
    rollout = config.rollout
    for key, given in (
        ("replay.free_running", replay.free_running),
        ("replay.slack_steps", replay.slack_steps is not None),
        ("rollout.max_policy_lag", rollout.max_policy_lag > 0),
        ("rollout.order", rollout.order != "chunk"),
    ):
        if given:
            raise ConfigError(
                f"{key} would be ignored: collecting and learning take turns in this schedule",
                schedule=run.schedule,
                fix=f'remove {key}, or set run.schedule = "async"',
            )


def _check_workers(config: ExperimentConfig) -> None:
    env, run = config.env, config.run
    if not env.workers and env.on_fault == "raise":
        raise ConfigError(
            "env.on_fault would be ignored: environments that their collector steps itself always end it",
            workers=env.workers,
            fix="remove env.on_fault, or set env.workers",
        )
    least = env.groups if run.schedule == "inline" else env.groups // run.collectors
    if env.workers != "auto" and env.workers > least * env.group_size:
        raise ConfigError(
            "some workers would have nothing to do: a collector has more of them than environments",
            workers=env.workers,
            environments=least * env.group_size,
            fix=f"set env.workers to {least * env.group_size} or less: each collector has so many of its own",
        )


def _check_agents(config: ExperimentConfig) -> None:
    env, agents = config.env, config.agents
    if agents.count == 1 and agents.policies == "own":
        raise ConfigError(
            "agents.policies would be ignored: there is one agent", fix="set agents.count, or remove agents.policies"
        )
    for key, lanes in (("lanes", env.lanes), ("group_size", env.group_size)):
        if lanes % agents.count:
            raise ConfigError(
                f"env.{key} is no multiple of agents.count: each agent of each copy has a lane, and a copy's lanes act together",
                **{key: lanes},
                agents_count=agents.count,
                fix=f"set env.{key} to {-(-lanes // agents.count) * agents.count}",
            )
    if agents.count > 1 and env.workers:
        raise ConfigError(
            "environments of many agents are stepped by their collector itself",
            agents_count=agents.count,
            workers=env.workers,
            fix="remove env.workers; more collectors (run.collectors) step more copies at once",
        )


def _check_on_policy(config: ExperimentConfig) -> None:
    name = config.algorithm.name
    if config.on_policy:
        _check_nothing_ignored(config, name)
        _check_on_policy_can(config, name)
        return
    if config.learn.begin_from is not None:
        raise ConfigError(
            f"learn.begin_from would be ignored: {name} begins with fresh networks",
            begin_from=config.learn.begin_from,
            fix='remove it, or choose an on-policy algorithm (algorithm.name = "ppo")',
        )
    if config.rollout != RolloutConfig():
        raise ConfigError(
            f"[rollout] would be ignored: {name} learns from a replay",
            fix='remove the section, or choose an on-policy algorithm (algorithm.name = "ppo")',
        )


def _check_nothing_ignored(config: ExperimentConfig, name: str) -> None:
    collect, rollout = CollectConfig(), RolloutConfig()
    given: tuple[tuple[str, bool, str], ...] = (
        ("[replay]", config.replay != ReplayConfig(), "each step is trained on in one epoch set, and then leaves"),
        ("learn.publish_every", config.learn.publish_every != LearnConfig().publish_every,
         "a policy is published after each epoch set"),
        ("collect.window_chunks", config.collect.window_chunks != collect.window_chunks,
         "rollout.max_policy_lag says how far collectors may be ahead"),
        ("rollout.kept_rows", not config.rollout.whole_episodes and config.rollout.kept_rows != rollout.kept_rows,
         "only whole_episodes keeps rows back"),
    )  # fmt: skip
    for key, is_ignored, why in given:
        if is_ignored:
            raise ConfigError(f"{key} would be ignored by {name}: {why}", fix="remove it")


def _check_on_policy_can(config: ExperimentConfig, name: str) -> None:
    if config.collect.random_steps:
        raise ConfigError(
            f"{name} cannot learn from actions that its policy has not chosen",
            random_steps=config.collect.random_steps,
            fix="set collect.random_steps = 0",
        )
    if config.agents.policies != "shared":
        raise ConfigError(
            f"{name} learns one policy",
            agents_policies=config.agents.policies,
            fix="remove agents.policies: all agents share it",
        )
    if config.supervision.learner_death == "resume":
        raise ConfigError(
            f"a learner of {name} that dies takes with it what it was training on, so none can take its place",
            fix="remove supervision.learner_death; the run can be gone on with from a checkpoint (--resume)",
        )


def _check_ratio(config: ExperimentConfig) -> None:
    replay = config.replay
    if replay.ratio is None:
        raise ConfigError(
            "replay.ratio has no value, so nothing says how many updates follow an environment step",
            fix="give it a number; to let both sides run freely set replay.free_running = true",
        )
    if replay.slack_steps is None:
        return
    if replay.free_running:
        raise ConfigError(
            "replay.slack_steps would be ignored: free-running collectors wait for nobody",
            slack_steps=replay.slack_steps,
            fix="remove replay.slack_steps or replay.free_running",
        )
    chunk = config.collect.chunk_steps * config.env.group_size
    if replay.slack_steps < chunk:
        raise ConfigError(
            "no chunk would ever be collected: one alone is further ahead of the learner than allowed",
            slack_steps=replay.slack_steps,
            steps_in_a_chunk=f"{chunk} (chunk_steps x group_size)",
            fix=f"set replay.slack_steps to {chunk} or more, or lower collect.chunk_steps",
        )


def _check_replay(config: ExperimentConfig) -> None:
    if config.on_policy:
        return
    if config.replay.learning_starts > config.replay.capacity:
        raise ConfigError(
            "the learner would wait for ever: it starts after more steps than the replay can hold",
            learning_starts=config.replay.learning_starts,
            capacity=config.replay.capacity,
            fix="lower replay.learning_starts or raise replay.capacity",
        )
    rows = config.replay.capacity // config.env.lanes
    # A chunk may hold twice chunk_steps rows, because an episode of a single step has a FINAL row too. The
    # shortest thing to sample is one n-step transition with its stack of frames behind it.
    chunk, window = 2 * config.collect.chunk_steps, config.env.frame_stack + config.replay.n_step
    if rows < chunk + window:
        raise ConfigError(
            "the replay is too small: a chunk would push out rows before the learner could sample them",
            capacity=config.replay.capacity,
            rows_per_lane=f"{rows} (capacity / {config.env.lanes} lanes)",
            needed_per_lane=f"{chunk + window} (2 x chunk_steps + frame_stack + n_step)",
            fix=f"raise replay.capacity to {(chunk + window) * config.env.lanes} or more, or lower collect.chunk_steps",
        )


def _check_length(config: ExperimentConfig) -> None:
    steps = config.run.steps
    if not config.on_policy and config.replay.learning_starts >= steps:
        raise ConfigError(
            "the run would end before its first update",
            steps=steps,
            learning_starts=config.replay.learning_starts,
            fix="raise run.steps or lower replay.learning_starts",
        )
    each = -(-steps // round_steps(config)) * config.collect.chunk_steps
    if not config.on_policy and each < config.replay.n_step:
        raise ConfigError(
            "the run would end before its first update: no lane makes as many steps as one transition takes",
            steps=steps,
            steps_of_each_lane=each,
            n_step=config.replay.n_step,
            fix="raise run.steps, or lower replay.n_step or env.lanes",
        )
    if config.collect.random_steps >= steps:
        raise ConfigError(
            "the policy would never act: every step of the run is a random one",
            steps=steps,
            random_steps=config.collect.random_steps,
            fix="raise run.steps or lower collect.random_steps",
        )


def _check_exploration(config: ExperimentConfig) -> None:
    exploration = getattr(config.algorithm, "exploration", None)
    if exploration is None:
        return
    if decay_of(exploration).end is None and exploration.decay_steps > 1:
        raise ConfigError(
            "algorithm.exploration.decay_steps would be ignored: there is no scale to decay to",
            decay_steps=exploration.decay_steps,
            fix="set algorithm.exploration.final_scale, or remove decay_steps",
        )
    endless = isinstance(exploration, ExplorationConfig) and "decay_steps" not in exploration.model_fields_set
    if endless and exploration.final_scale is not None:
        raise ConfigError(
            "algorithm.exploration.scale would be left after one step: nothing says when final_scale is reached",
            final_scale=exploration.final_scale,
            fix="set algorithm.exploration.decay_steps, or remove final_scale",
        )


def _check_evaluation(config: ExperimentConfig) -> None:
    if config.evaluation.target is not None and not config.evaluation.episodes:
        raise ConfigError(
            "evaluation.target would be ignored: there are no evaluations",
            target=config.evaluation.target,
            episodes=0,
            fix="set evaluation.episodes, or remove evaluation.target",
        )
    if not config.evaluation.episode_limit and config.env.max_episode_steps is None:
        raise ConfigError(
            "evaluation.episode_limit would be ignored: there is no limit that evaluations could do without",
            max_episode_steps=None,
            fix="set env.max_episode_steps, or remove evaluation.episode_limit",
        )


def _check_random_steps(config: ExperimentConfig) -> None:
    actions = config.algorithm.actions if isinstance(config.algorithm, DQNConfig | IQNConfig) else None
    if config.collect.random_steps and actions is not None and (actions.cells or actions.mask_leaf):
        raise ConfigError(
            "the first actions would be drawn from the whole action space: any number of cells, and what cannot be chosen",
            random_steps=config.collect.random_steps,
            fix="set collect.random_steps = 0; algorithm.exploration.epsilon = 1 acts at random among what can be chosen, and "
            "algorithm.exploration.begin_steps says how long",
        )


def _check_checkpoint(config: ExperimentConfig) -> None:
    record, checkpoint = config.record, config.checkpoint
    if checkpoint.enabled and not (record.enabled and record.rows != "none"):
        raise ConfigError(
            "checkpoints would hold no experience: the rows they refer to are in the record, which is not kept",
            record_enabled=record.enabled,
            record_rows=record.rows,
            fix='set checkpoint.enabled = false, or record.enabled = true and record.rows = "resident"',
        )


def _check_precision(config: ExperimentConfig) -> None:
    if config.learn.precision != "float32" and not isinstance(config.algorithm, _ROUNDED):
        raise ConfigError(
            f"{config.algorithm.name} is not learned in {config.learn.precision}",
            expected='learn.precision = "float32"',
            algorithms=", ".join(sorted(kind().name for kind in _ROUNDED)),
            fix="remove learn.precision, or choose one of those algorithms",
        )


def _check_compiled(config: ExperimentConfig) -> None:
    algorithm, learn = config.algorithm, config.learn
    if not learn.compiled:
        return
    if not isinstance(algorithm, PPOConfig | VTraceConfig):
        refuse_loops(f"algorithm.name = {algorithm.name}")
    found = without_loops(algorithm) if learn.device == "cpu" else f"learn.device = {learn.device}"
    if found is not None:
        refuse_loops(found)


_CHECKS: tuple[Callable[[ExperimentConfig], None], ...] = (
    _check_environment,
    _check_schedule,
    _check_workers,
    _check_agents,
    _check_on_policy,
    _check_ratio,
    _check_replay,
    _check_random_steps,
    _check_length,
    _check_exploration,
    _check_evaluation,
    _check_checkpoint,
    _check_precision,
    _check_compiled,
)
