"""Configuration of on-policy runs: what would be ignored, or cannot be, is refused; and what stands for what is not said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.algorithms.configs import ActionsConfig, DQNConfig
from headrace.algorithms.on_policy_configs import PPOConfig
from headrace.core.config import CollectConfig, EnvConfig
from headrace.core.errors import ConfigError
from headrace.runtime.config import ExperimentConfig, dump_toml, load_config
from headrace.runtime.pacing import window_chunks

CARTPOLE = {"env.id": "CartPole-v1", "env.lanes": 4}
PPO = {**CARTPOLE, "algorithm.name": "ppo"}
ASYNC = {"run.schedule": "async"}


def refused(overrides: Mapping[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    return caught.value


@pytest.mark.parametrize("name", ["ppo", "vtrace"])
@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"replay.capacity": 30_000}, "[replay] would be ignored by {}: each step is trained on in one epoch set, and then leaves"),
        ({"replay.n_step": 3}, "[replay] would be ignored by {}: each step is trained on in one epoch set, and then leaves"),
        ({"learn.publish_every": 7}, "learn.publish_every would be ignored by {}: a policy is published after each epoch set"),
        (
            {"collect.window_chunks": 3},
            "collect.window_chunks would be ignored by {}: rollout.max_policy_lag says how far collectors may be ahead",
        ),
        ({"rollout.kept_rows": 9}, "rollout.kept_rows would be ignored by {}: only whole_episodes keeps rows back"),
        ({"collect.random_steps": 1}, "{} cannot learn from actions that its policy has not chosen"),
        ({"agents.count": 2, "agents.policies": "own", "env.group_size": 2}, "{} learns one policy"),
        (
            {"supervision.learner_death": "resume"},
            "a learner of {} that dies takes with it what it was training on, so none can take its place",
        ),
    ],
)  # fmt: skip
def test_what_an_on_policy_algorithm_cannot_or_would_not_do_is_refused(name, settings, what):
    assert refused({**PPO, "algorithm.name": name, **settings}).what == what.format(name)


@pytest.mark.parametrize("name", ["td3", "sac", "dqn", "iqn"])
@pytest.mark.parametrize("key", ["max_policy_lag", "kept_rows"])
def test_a_rollout_section_is_refused_where_there_are_none(name, key):
    assert str(refused({"env.id": "Pendulum-v1", "algorithm.name": name, f"rollout.{key}": 3, **ASYNC})) == (
        f"[CFG-001] [rollout] would be ignored: {name} learns from a replay\n"
        '  fix: remove the section, or choose an on-policy algorithm (algorithm.name = "ppo")'
    )


@pytest.mark.parametrize("schedule", ["inline", "lockstep"])
@pytest.mark.parametrize("given", [{"rollout.max_policy_lag": 1}, {"rollout.order": "arrival"}])
def test_nobody_is_ahead_where_collecting_and_learning_take_turns(schedule, given):
    (key,) = given
    error = refused({**PPO, "run.schedule": schedule, **given})
    assert error.what == f"{key} would be ignored: collecting and learning take turns in this schedule"
    assert load_config(None, {**PPO, **ASYNC, **given}).on_policy


@pytest.mark.parametrize("name", ["ppo", "vtrace"])
def test_without_being_told_nothing_is_done_at_random(name):
    assert load_config(None, {**PPO, "algorithm.name": name}).collect.random_steps == 0
    assert load_config(None, {**CARTPOLE, "algorithm.name": "dqn"}).collect.random_steps > 0
    whole = ExperimentConfig.model_validate({"env": {"id": "CartPole-v1"}, "algorithm": {"name": name}})
    assert whole.collect.random_steps == 0
    assert load_config(None, {**PPO, "collect.chunk_steps": 16}).collect.random_steps == 0


def test_without_being_told_nothing_is_done_at_random_that_may_be_forbidden():
    masked = {**CARTPOLE, "algorithm.name": "dqn", "algorithm.actions.mask_leaf": "obs.mask"}
    assert load_config(None, masked).collect.random_steps == 0
    assert load_config(load_config(None, masked), {"run.seed": 1}).collect.random_steps == 0
    whole = ExperimentConfig(
        env=EnvConfig(id="CartPole-v1"), algorithm=DQNConfig(actions=ActionsConfig(mask_leaf="obs.mask"))
    )
    assert whole.collect.random_steps == 0
    with pytest.raises(ConfigError, match="drawn from the whole action space"):
        load_config(None, {**masked, "collect.random_steps": 1})


def test_a_configuration_says_how_far_collectors_are_ahead():
    for order in ("chunk", "arrival"):
        config = load_config(None, {**PPO, **ASYNC, "rollout.max_policy_lag": 2, "rollout.order": order})
        assert config.chunks_ahead == window_chunks(2, ordered=order == "chunk") == (3 if order == "chunk" else 6)
    assert load_config(None, PPO).chunks_ahead == 1
    assert load_config(None, PPO).declared_ratio is None


def test_kept_rows_are_read_with_whole_episodes():
    config = load_config(None, {**PPO, "rollout.whole_episodes": True, "rollout.kept_rows": 9})
    assert config.rollout.kept_rows == 9


@pytest.mark.parametrize("source", ["cartpole-ppo", None])
def test_what_is_written_down_is_accepted_again(tmp_path, source):
    config = load_config(source, None if source else PPO)
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(config))
    assert load_config(path) == config
    assert load_config(path, {"run.steps": 7}, base=config).run.steps == 7


def test_a_section_that_is_an_object_has_the_defaults_of_a_table():
    config = ExperimentConfig(
        env=EnvConfig(id="CartPole-v1"), algorithm=PPOConfig(), collect=CollectConfig(chunk_steps=16)
    )
    assert (config.collect.random_steps, config.collect.chunk_steps) == (0, 16)
    with pytest.raises(ConfigError, match="actions that its policy has not chosen"):
        ExperimentConfig(
            env=EnvConfig(id="CartPole-v1"), algorithm=PPOConfig(), collect=CollectConfig(random_steps=10_000)
        )
