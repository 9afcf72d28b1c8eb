"""Intervals that a run will never reach, found before it starts. Pure: a configuration in, sentences out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.algorithms.configs import EpsilonConfig, ExplorationConfig, OptimiserConfig, TargetConfig
from headrace.algorithms.exploration import decay_of
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.core.config import (
    CheckpointConfig,
    CollectConfig,
    DeadlinesConfig,
    EnvConfig,
    EvaluationConfig,
    LearnConfig,
    RecordConfig,
    ReplayConfig,
    RunConfig,
    Section,
    SupervisionConfig,
)


class Sections(Protocol):
    """The configuration of a run, as far as it says what is to happen how often."""

    @property
    def run(self) -> RunConfig:
        """Section ``run``."""

    @property
    def env(self) -> EnvConfig:
        """Section ``env``."""

    @property
    def replay(self) -> ReplayConfig:
        """Section ``replay``."""

    @property
    def collect(self) -> CollectConfig:
        """Section ``collect``."""

    @property
    def learn(self) -> LearnConfig:
        """Section ``learn``."""

    @property
    def evaluation(self) -> EvaluationConfig:
        """Section ``evaluation``."""

    @property
    def deadlines(self) -> DeadlinesConfig:
        """Section ``deadlines``."""

    @property
    def supervision(self) -> SupervisionConfig:
        """Section ``supervision``."""

    @property
    def record(self) -> RecordConfig:
        """Section ``record``."""

    @property
    def checkpoint(self) -> CheckpointConfig:
        """Section ``checkpoint``."""

    @property
    def algorithm(self) -> Section:
        """Section ``algorithm``."""

    @property
    def declared_ratio(self) -> float | None:
        """Updates per environment step that are declared; None: none are."""

    @property
    def on_policy(self) -> bool:
        """Whether a policy is published after each epoch set."""

    @property
    def chunks_ahead(self) -> int:
        """Most chunks a group may be ahead of what the learner has acknowledged, or trained on."""


def never_hit(config: Sections) -> list[str]:
    """What the configuration declares and a run of its length will not do, a sentence each; empty if there is nothing.

    Only what is certain is said: where the number of updates is not known beforehand (``replay.free_running``), nothing
    is said about intervals in updates. A default that does no harm by it (something is made at the end anyway) is left
    out; it is told where the user has set it.
    """
    return [line for rule in _RULES for line in rule(config)]


def round_steps(config: Sections) -> int:
    """Environment steps of one chunk of every group."""
    return config.env.lanes * config.collect.chunk_steps


def exploration_of(config: Sections) -> ExplorationConfig | EpsilonConfig | None:
    """The algorithm's exploration; None if it declares none."""
    found = getattr(config.algorithm, "exploration", None)
    return found if isinstance(found, ExplorationConfig | EpsilonConfig) else None


def _given(section: Section, key: str) -> bool:
    """Whether the user has set a key; not to its default, as the ``config.toml`` of a run does that goes on."""
    field = type(section).model_fields[key]
    return key in section.model_fields_set and getattr(section, key) != field.get_default(call_default_factory=True)


def _at_once(config: Sections) -> int:
    """Environment steps that are taken over between two moments at which something may be done."""
    whole = config.run.schedule != "async" or config.on_policy  # a rollout is as much as a round
    return round_steps(config) if whole else config.env.group_size * config.collect.chunk_steps


def _steps(config: Sections) -> int:
    """Environment steps of a whole run, what is taken over last included."""
    one = _at_once(config)
    return -(-config.run.steps // one) * one


def _updates(config: Sections) -> int | None:
    """Updates of a whole run; None if that is not known."""
    replay = config.replay
    if config.declared_ratio is None or replay.ratio is None:
        return None
    return 1 + math.floor((_steps(config) - max(1, replay.learning_starts)) * replay.ratio)


def _evaluation(config: Sections) -> Iterator[str]:
    every, steps = config.evaluation.every_steps, _steps(config)
    if config.evaluation.episodes and every > steps and _given(config.evaluation, "every_steps"):
        yield (
            f"evaluation.every_steps {every:,} is never reached: the run has {steps:,} environment steps; "
            "only its last policy is evaluated"
        )


def _checkpoint(config: Sections) -> Iterator[str]:
    checkpoint, steps = config.checkpoint, _steps(config)
    if not checkpoint.enabled:
        return
    if checkpoint.every_steps > steps:
        yield (
            f"checkpoint.every_steps {checkpoint.every_steps:,} is never reached: the run has {steps:,} environment steps"
        )
    if checkpoint.every_s is not None and _given(checkpoint, "every_s"):
        yield from _too_long("checkpoint.every_s", checkpoint.every_s, config.run.run_duration_s)


def _saves(config: Sections) -> Iterator[str]:
    supervision = config.supervision
    if supervision.learner_death == "resume":
        yield from _too_long(
            "supervision.learner_save_every_s", supervision.learner_save_every_s, config.run.run_duration_s
        )


def _too_long(key: str, every_s: float, duration_s: float | None) -> Iterator[str]:
    if duration_s is not None and every_s > duration_s:
        yield f"{key} {every_s:g} is never reached: run.run_duration_s ends the run after {duration_s:g} s"


def _in_updates(config: Sections) -> Iterator[str]:
    """Intervals that are counted in updates."""
    updates = _updates(config)
    if updates is None:
        return
    has = f"is never reached: the run has {updates:,} updates"
    if config.run.schedule == "async" and config.learn.publish_every > updates:
        yield f"learn.publish_every {config.learn.publish_every:,} {has}; its collectors act with the first policy only"
    if config.record.enabled and config.record.hash_every > updates and _given(config.record, "hash_every"):
        yield f"record.hash_every {config.record.hash_every:,} {has}; only its last weights are hashed"
    delay = getattr(config.algorithm, "policy_delay", 1)
    if delay > updates:
        yield f"algorithm.policy_delay {delay:,} {has}; the actor is never updated"
    target = getattr(config.algorithm, "target", None)
    if isinstance(target, TargetConfig) and target.every_updates > updates:
        yield f"algorithm.target.every_updates {target.every_updates:,} {has}; the target network stays as it began"


def _rate(config: Sections) -> Iterator[str]:
    optimiser, updates = getattr(config.algorithm, "optimiser", None), _updates(config)
    if not isinstance(optimiser, OptimiserConfig) or updates is None:
        return
    final, decay = optimiser.lr_final, optimiser.lr_decay_updates
    if final is not None and decay is not None and decay > updates:
        yield (
            f"algorithm.optimiser.lr_final {final:g} is never reached: lr_decay_updates {decay:,} is longer than the "
            f"{updates:,} updates of the run"
        )


def _schedule(config: Sections) -> Iterator[str]:
    """What on-policy algorithms change over a run."""
    algorithm, steps = config.algorithm, _steps(config)
    if not isinstance(algorithm, PPOConfig | VTraceConfig) or (decay := algorithm.schedule.decay_steps) is None:
        return
    for key, start, final in (
        ("final_lr", algorithm.lr, algorithm.schedule.final_lr),
        ("final_clip", algorithm.clip, algorithm.schedule.final_clip),
    ):
        if start is not None and final is not None and final != start and decay > steps:
            yield (
                f"algorithm.schedule.{key} {final:g} is never reached: decay_steps {decay:,} is longer than the {steps:,} "
                f"environment steps of the run, which end at {start + steps / decay * (final - start):.3g}"
            )


def _too_fine(config: Sections) -> Iterator[str]:
    """Intervals in environment steps that are shorter than what is taken over at once."""
    at_once = _at_once(config)
    for key, every in (
        ("evaluation.every_steps", config.evaluation.every_steps),
        ("checkpoint.every_steps", config.checkpoint.every_steps),
    ):
        if 0 < every < at_once:
            yield f"{key} {every:,} is finer than the {at_once:,} environment steps that arrive at once: not every multiple can be met"


def _episodes(config: Sections) -> Iterator[str]:
    limit, each = config.env.max_episode_steps, _steps(config) // config.env.lanes
    if limit is not None and limit > each:
        yield f"env.max_episode_steps {limit:,} is never reached: each lane makes {each:,} steps"


def _exploration(config: Sections) -> Iterator[str]:
    exploration, steps = exploration_of(config), _steps(config)
    if exploration is None:
        return
    decay = decay_of(exploration)
    if decay.end is None or decay.end == decay.start:
        return
    if decay.begin + decay.steps > steps:
        after = f"begin_steps {decay.begin:,} and decay_steps" if decay.begin else "decay_steps"
        yield (
            f"algorithm.exploration.{decay.end_key} {decay.end:g} is never reached: {after} {decay.steps:,} "
            f"{'are' if decay.begin else 'is'} longer than the {steps:,} environment steps of the run, which end at "
            f"{decay.at(steps):.3g}"
        )
    starts, random = config.replay.learning_starts, config.collect.random_steps
    over = decay.begin + decay.steps
    if starts <= random and over <= random and any(_given(exploration, key) for key in type(exploration).model_fields):
        yield (
            f"algorithm.exploration is over at step {over:,}, before the policy acts for the first time, and it then acts at "
            f"{decay.end:g}: actions are random up to step {random:,} (collect.random_steps); lower that, or raise decay_steps"
        )
    if starts > random and decay.at(starts) != decay.start:
        yield (
            f"exploration stays at {decay.start:g} until step {starts:,}, where algorithm.exploration declares "
            f"{decay.at(starts):.3g}: actions are random up to step {random:,} (collect.random_steps), and "
            "no policy is published before the first update (replay.learning_starts)"
        )


_RULES: tuple[Callable[[Sections], Iterator[str]], ...] = (
    _in_updates,
    _rate,
    _schedule,
    _evaluation,
    _too_fine,
    _checkpoint,
    _saves,
    _episodes,
    _exploration,
)
