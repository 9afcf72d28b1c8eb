"""Configuration: what is refused, in which words, and that a file survives a round trip."""

from __future__ import annotations

import functools
import math
import re
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

from headrace.algorithms.configs import TD3, DQNConfig, ExplorationConfig, NetworkConfig
from headrace.core import toml
from headrace.core.config import DeadlinesConfig, EnvConfig, RunConfig, Section, factory_name
from headrace.core.errors import ConfigError
from headrace.llm.loading import Source, load_rl_config
from headrace.runtime.config import ExperimentConfig, config_sha256, dump_toml, load_config


class Level(int, Enum):
    A = 1


NETWORK_16 = DQNConfig(network=NetworkConfig(hidden=[16]))


def refused(overrides):
    with pytest.raises(ConfigError) as caught:
        load_config("pendulum-td3", overrides)
    return caught.value


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_unknown_key_names_the_nearest_one():
    error = refused({"replay.capasity": "3"})
    assert str(error) == (
        "[CFG-001] unknown key replay.capasity\n"
        "  nearest: replay.capacity\n"
        "  configuration: pendulum-td3\n"
        "  fix: write replay.capacity, or remove it"
    )


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("run.capacity", "replay.capacity"),  # right name, wrong section
        ("replai.capacity", "replay"),
        ("algorithm.actor.hiden", "algorithm.actor.hidden"),
        ("batch_size", "algorithm.batch_size"),
    ],
)
def test_nearest_key_is_found_across_sections(key, nearest):
    assert refused({key: 3}).facts["nearest"] == nearest


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lr", "algorithm.lr"),  # not that of another algorithm's temperature
        ("actions.mask_leaf", "algorithm.actions"),  # as pages about an algorithm write it
        ("algorithm.epoch", "algorithm.epochs"),
        ("algorithm.network.hidden", "algorithm.network.actor.hidden"),
    ],
)
def test_nearest_key_is_one_of_the_algorithm_that_is_named(key, nearest):
    with pytest.raises(ConfigError) as caught:
        load_config("cartpole-ppo", {key: 3})
    assert caught.value.facts["nearest"] == nearest


@pytest.mark.parametrize(
    ("preset", "key", "ours"),
    [
        ("cartpole-dqn", "algorithm.learning_rate", "algorithm.lr"),
        ("pendulum-sac", "algorithm.learning_rate", "algorithm.actor_lr"),
        ("cartpole-dqn", "algorithm.buffer_size", "replay.capacity"),
        ("cartpole-dqn", "algorithm.target_update_interval", "algorithm.target.every_updates"),
        ("treasurehunt-iqn-small", "algorithm.target_update_freq", "algorithm.target.every_updates"),
        ("cartpole-dqn", "algorithm.exploration_fraction", "algorithm.exploration.decay_steps"),
        ("cartpole-dqn", "train_freq", "replay.ratio"),
        ("cartpole-dqn", "algorithm.per", "algorithm.priority.enabled"),
        ("cartpole-ppo", "algorithm.ent_coef", "algorithm.loss.entropy_weight"),
        ("cartpole-ppo", "algorithm.net_arch", "algorithm.network.actor.hidden"),
        ("cartpole-ppo", "n_envs", "env.lanes"),
    ],
)
def test_a_key_as_other_libraries_call_it_leads_to_ours(preset, key, ours):
    with pytest.raises(ConfigError) as caught:
        load_config(preset, {key: 3})
    assert (caught.value.facts["nearest"], caught.value.fix) == (ours, f"write {ours}, or remove it")


def test_a_key_as_another_library_calls_it_comes_with_what_ours_counts():
    with pytest.raises(ConfigError) as caught:
        load_config("cartpole-dqn", {"algorithm.exploration_fraction": 0.1})
    meaning = "Environment steps, over all lanes, from ``epsilon`` to ``final_epsilon``."
    assert caught.value.facts["meaning"] == meaning
    assert "meaning" not in refused({"replay.capasity": 3}).facts


def test_a_key_of_another_algorithm_says_that_none_was_named():
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"env.id": "CartPole-v1", "algorithm.dueling": True})
    assert str(caught.value) == (
        "[CFG-001] unknown key algorithm.dueling\n"
        "  algorithm: td3, the default: algorithm.name is not set\n"
        "  known to: dqn\n"
        '  fix: set algorithm.name = "dqn", or remove algorithm.dueling'
    )


def test_a_section_of_another_algorithm_is_not_taken_for_a_misspelt_key():
    with pytest.raises(ConfigError) as caught:
        load_config("cartpole-ppo", {"algorithm.exploration": {"epsilon": 0.5}})
    assert caught.value.facts["known_to"] == "td3, dqn, iqn"
    assert caught.value.fix == "remove it: ppo does not read it"
    assert "nearest" not in caught.value.facts


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("td3", "schedule.final_lr", 0.0), ("vtrace", "target.tau", 1.0), ("sac", "actions.mask_leaf", "obs"),
        ("sac", "lr", 1e-3), ("ppo", "exploration.scale", 0.1),
    ],
)  # fmt: skip
def test_no_key_of_another_kind_stands_in_for_that_of_another_algorithm(name, key, value):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"algorithm.name": name, f"algorithm.{key}": value})
    assert caught.value.fix == f"remove it: {name} does not read it"
    assert "nearest" not in caught.value.facts


@pytest.mark.parametrize("key", ["zzzzzzzzzzzz", "run.zzzzzzzzzzzz"])
def test_key_that_resembles_nothing_gets_no_suggestion(key):
    error = refused({key: 1})
    assert "nearest" not in error.facts
    assert error.fix == "choose one of these, or remove it: nothing reads it"


def test_where_nothing_resembles_a_key_those_beside_it_are_named():
    error = refused({"algorithm.exploration.lerning_rate": 1})  # the long name of the section makes up for nothing
    assert error.facts["known"] == "kind, scale, final_scale, decay_steps, theta"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("run.seed", "-1", "run.seed must be at least 0"),
        ("run.run_duration_s", "0", "run.run_duration_s must be above 0"),
        ("algorithm.gamma", "1.5", "algorithm.gamma must be at most 1"),
        ("algorithm.tau", "nan", "algorithm.tau must be a finite number"),
        ("deadlines.step_s", "inf", "deadlines.step_s must be a finite number"),
        ("run.steps", "many", "run.steps must be a whole number"),
        ("run.steps", True, "run.steps must be a whole number"),
        ("run.schedule", "sync", "run.schedule must be 'inline', 'lockstep' or 'async'"),
        ("algorithm.actor.hidden", "[64, 1.5]", "algorithm.actor.hidden.1 must be a whole number"),
        ("algorithm.actor.hidden", "[64, 0]", "algorithm.actor.hidden.1 must be at least 1"),
        ("algorithm.actor.hidden", "[]", "algorithm.actor.hidden must be a list of 1 or more"),
        ("algorithm.name", "td4", "algorithm.name must be one of 'td3', 'sac', 'dqn', 'iqn', 'ppo', 'vtrace'"),
        ("run", "3", "run must be a section with keys of its own"),
        ("env.kwargs", "3", "env.kwargs must be a table"),
        ("env.cast_observations", "1", "env.cast_observations must be true or false"),
        ("algorithm.actor.hidden", "64", "algorithm.actor.hidden must be a list"),
        ("env.workers", "many", "env.workers must be a whole number, or 'auto'"),
        ("agents.policies", "independent", "agents.policies must be 'shared' or 'own', or a table"),
        ("agents.policies", '{wolf = "wolf_*"}', "agents.policies.wolf must be a list"),
    ],
)
def test_refused_value_is_told_with_field_and_bound(key, value, what):
    assert refused({key: value}).what == what


def test_refused_value_is_told_in_full():
    assert str(refused({"run.seed": -1})) == (
        "[CFG-001] run.seed must be at least 0\n"
        "  value: -1\n"
        "  meaning: Every random stream of the run is derived from it.\n"
        "  configuration: pendulum-td3\n"
        "  fix: give run.seed a value that is at least 0"
    )


def test_a_value_of_several_types_is_one_problem():
    assert "also" not in refused({"agents.policies": 3}).facts
    error = refused({"agents.policies": {"wolf": "wolf_*", "sheep": "sheep"}})
    assert error.facts["also"] == "agents.policies.sheep must be a list"


def test_a_value_where_a_section_belongs_names_the_keys():
    error = refused({"algorithm.exploration": 0.1})
    assert error.facts["keys"] == "kind, scale, final_scale, decay_steps, theta"
    assert error.fix == "write its keys one by one: algorithm.exploration.kind = …"


def test_whole_number_with_an_exponent_is_explained():
    assert refused({"run.steps": "1e6"}).fix == "write 1000000: whole numbers have neither point nor exponent"


def test_every_problem_is_told_at_once():
    error = refused({"run.seed": -1, "run.stepz": 3})
    assert error.what == "run.seed must be at least 0"
    assert error.facts["also"] == "unknown key run.stepz"


def test_direct_construction_raises_config_error():
    with pytest.raises(ConfigError) as caught:
        TD3(batch_size=0)
    assert str(caught.value) == (
        "[CFG-001] batch_size must be at least 1\n"
        "  value: 0\n"
        "  meaning: Transitions per update.\n"
        "  fix: give batch_size a value that is at least 1"
    )


def test_keys_without_a_name_are_refused():
    with pytest.raises(ConfigError) as caught:
        DQNConfig("MlpPolicy", "CartPole-v1")
    assert str(caught.value) == (
        "[CFG-001] DQNConfig is given its keys by name\n"
        "  found: 'MlpPolicy', 'CartPole-v1'\n"
        "  fix: write name=value; what is trained in, and for how long, goes to "
        "headrace.train(env=..., algorithm=..., steps=...)"
    )


def test_path_of_a_nested_section_starts_at_the_outermost():
    with pytest.raises(ConfigError, match=re.escape("exploration.scale must be at least 0")):
        TD3.model_validate({"exploration": {"scale": -1}})
    with pytest.raises(ConfigError, match=re.escape("unknown key algorithm.exploration.scal\n")):
        ExperimentConfig.model_validate({"algorithm": {"exploration": {"scal": 1}}})


def test_tag_of_a_discriminated_section_stays_out_of_the_key():
    class A(Section):
        name: Literal["a"] = "a"
        size: int = 1

    class B(Section):
        name: Literal["b"] = "b"
        size: int = 1

    class Both(Section):
        algorithm: Annotated[A | B, Field(discriminator="name")] = A()

    Both.model_rebuild(_types_namespace={"A": A, "B": B, "Annotated": Annotated, "Field": Field})
    with pytest.raises(ConfigError, match=re.escape("[CFG-001] algorithm.size must be a whole number")):
        Both.model_validate({"algorithm": {"name": "b", "size": "x"}})
    with pytest.raises(ConfigError, match=re.escape("nearest: algorithm.size")):
        Both.model_validate({"algorithm": {"name": "b", "sice": 1}})


def test_cross_check_inside_a_section_keeps_its_own_words():
    with pytest.raises(ConfigError, match="the learner would give up before a collector that is frozen is found"):
        DeadlinesConfig(rows_s=5.0, credit_s=5.0)


def test_a_learner_that_would_wait_for_ever_is_refused():
    small = {"replay.capacity": 5_000, "replay.learning_starts": 5_001}
    assert refused(small).what.startswith("the learner would wait for ever: it starts after more steps than the replay")
    with pytest.raises(
        ConfigError, match=r"\[replay\] would be ignored by ppo"
    ):  # raising one of them would be no remedy
        load_config("cartpole-ppo", small)


@pytest.mark.parametrize(("algorithm", "network"), [("cartpole-dqn", "network"), ("cartpole-ppo", "network.actor")])
@pytest.mark.parametrize(("key", "value"), [("hidden", "[7]"), ("activation", "elu"), ("layer_norm", "true")])
def test_layers_beside_a_network_of_ones_own_are_refused(algorithm, network, key, value):
    own = {f"algorithm.{network}.factory": "my_module:network"}
    with pytest.raises(ConfigError, match=f"{key} would be ignored: the network is the one that my_module:network"):
        load_config(algorithm, own | {f"algorithm.{network}.{key}": value})


def test_a_network_of_ones_own_takes_the_place_of_a_presets_layers():
    config = load_config("halfcheetah-ppo", {"algorithm.network.actor.factory": "my_module:network"})
    assert config.algorithm.network.actor.network() == NetworkConfig(factory="my_module:network")
    assert config.algorithm.network.critic.hidden == [256, 256]


def test_a_kind_of_exploration_takes_the_place_of_what_a_preset_says_of_another():
    exploration = load_config("hockey-td3", {"algorithm.exploration.kind": "none"}).algorithm.exploration
    assert exploration == ExplorationConfig(kind="none")
    exploration = load_config("hockey-td3", {"algorithm.exploration.kind": "gaussian"}).algorithm.exploration
    assert exploration == ExplorationConfig(kind="gaussian", scale=0.2)
    with pytest.raises(ConfigError, match=re.escape("algorithm.exploration.scale would be ignored")):
        load_config("hockey-td3", {"algorithm.exploration.kind": "none", "algorithm.exploration.scale": 0.3})


def test_sections_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 3


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ({"env.factory": "a:b", "env.id": "Pendulum-v1"}, "two environments are named"),
        ({"run.collectors": 7}, "some collectors would have nothing to do"),
        ({"env.workers": 4, "run.collectors": 2}, "some workers would have nothing to do"),
        ({"env.workers": 7, "run.schedule": "inline"}, "some workers would have nothing to do"),
        ({"env.workers": 300}, 'env.workers must be "auto", or from 0 to 256'),
        ({"env.on_fault": "raise"}, "env.on_fault would be ignored"),
        ({"run.collectors": 4, "env.group_size": 2, "run.schedule": "lockstep"}, "some collectors would have nothing"),
        ({"run.schedule": "inline", "replay.free_running": True}, "replay.free_running would be ignored"),
        ({"run.schedule": "lockstep", "replay.slack_steps": 99}, "replay.slack_steps would be ignored"),
        ({"replay.free_running": True, "replay.slack_steps": 99}, "replay.slack_steps would be ignored"),
        ({"replay.slack_steps": 7}, "no chunk would ever be collected"),
        ({"replay.ratio": None}, "replay.ratio has no value"),
        ({"replay.capacity": 100, "replay.learning_starts": 50}, "the replay is too small"),
        ({"run.steps": 1000}, "the run would end before its first update"),
        (
            {
                "run.steps": 96,
                "env.lanes": 24,
                "replay.learning_starts": 5,
                "replay.n_step": 9,
                "collect.random_steps": 0,
            },
            "the run would end before its first update: no lane makes as many steps",
        ),
        ({"run.steps": 2000, "collect.random_steps": 2000}, "the policy would never act"),
        ({"algorithm.exploration.decay_steps": 9}, "algorithm.exploration.decay_steps would be ignored"),
        ({"algorithm.exploration.final_scale": 0.1}, "algorithm.exploration.scale would be left after one step"),
        ({"evaluation.target": 1.0, "evaluation.episodes": 0}, "evaluation.target would be ignored"),
        ({"deadlines.rows_s": 150.0}, "the learner would give up before a collector that is frozen is found"),
        ({"deadlines.credit_s": 200.0, "deadlines.rows_s": 240.0}, "the learner would give up before a collector"),
        ({"deadlines.update_s": 90.0, "deadlines.credit_s": 80.0}, "deadlines.update_s would be overruled"),
        ({"deadlines.checkpoint_s": 90.0, "deadlines.credit_s": 90.0}, "deadlines.checkpoint_s would be overruled"),
        ({"deadlines.step_s": 200.0, "deadlines.rows_s": 160.0}, "deadlines.step_s would be overruled"),
        ({"supervision.lane_faults": 2}, "supervision.lane_faults would be ignored"),
        ({"supervision.learner_save_every_s": 5.0}, "supervision.learner_save_every_s would be ignored"),
        ({"supervision.when_spent": "degrade", "supervision.max_restarts": 1}, "no lane would ever be left out alone"),
        ({"env.kwargs": {"f": print}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"level": Level.A}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"deep": [{"level": Level.A}]}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"price": Decimal("0.1")}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"file": "caf\udce9"}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"nothing": None}}, "an argument of the environment cannot be written"),
        ({"env.kwargs": {"table": {1: 2}}}, "an argument of the environment cannot be written"),
    ],
)
def test_contradictions_are_refused_before_anything_starts(overrides, what):
    error = refused(overrides)
    assert error.what.startswith(what)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "overrides",
    [
        {"run.collectors": 6},
        {"deadlines.rows_s": 151.0},
        {"deadlines.credit_s": 200.0},  # the learner's patience follows it
        {"deadlines.credit_s": 10.0},  # and nobody asked for longer updates than usual
        {"deadlines.update_s": 90.0, "deadlines.credit_s": 91.0},
        {"deadlines.step_s": 1000.0, "deadlines.update_s": 1000.0},
        {"supervision.when_spent": "degrade", "supervision.max_restarts": 2},
        {"supervision.max_restarts": 0},
        {"run.collectors": 7, "run.schedule": "inline"},  # one process, whatever the number
        {"replay.slack_steps": 8},
        {"replay.capacity": 6 * 18, "replay.learning_starts": 50},
        {"run.steps": 1001},
        {"run.steps": 96, "env.lanes": 24, "replay.learning_starts": 5, "replay.n_step": 8, "collect.random_steps": 0},
        {"algorithm.exploration.decay_steps": 9, "algorithm.exploration.final_scale": 0.0},
    ],
)
def test_the_last_value_before_a_refusal_is_accepted(overrides):
    load_config("pendulum-td3", overrides)


def test_no_environment_is_refused():
    with pytest.raises(ConfigError, match="no environment is named"):
        ExperimentConfig()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("async", "async"),
        ("my_module:make", "my_module:make"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_override_is_a_toml_value_or_plain_text(text, value):
    assert toml.parse_value(text) == value


def test_override_reaches_nested_sections():
    config = load_config("pendulum-td3", {"algorithm.actor.hidden": "[8, 8]", "env.kwargs.g": "9.81"})
    assert config.algorithm.actor.hidden == [8, 8]
    assert config.env.kwargs == {"g": 9.81}


@pytest.mark.parametrize(
    "overrides",
    [
        {"algorithm": {"target": {"tau": 0.5}}},
        {"algorithm.target": {"tau": 0.5}},
        {"algorithm.target": "{tau = 0.5}"},
    ],
)
def test_a_table_changes_the_keys_it_states_and_leaves_the_others(overrides):
    assert load_config("cartpole-dqn", overrides) == load_config("cartpole-dqn", {"algorithm.target.tau": 0.5})


def test_tables_of_the_users_own_are_taken_as_they_are(file):
    path = file(
        '[run]\ncollectors = 1\n[env]\nfactory = "m:f"\nlanes = 2\ngroup_size = 2\nkwargs = {a = 1}\n'
        '[agents]\ncount = 2\npolicies = {x = ["*"]}\n'
    )
    config = load_config(path, {"env.kwargs": {"b": {"c": 2}}, "agents.policies": {"y": ["*"]}})
    assert config.env.kwargs == {"b": {"c": 2}}
    assert config.agents.policies == {"y": ["*"]}


def test_another_algorithm_takes_the_place_of_the_files():
    other = load_config("cartpole-dqn", {"algorithm": {"name": "iqn", "lr": 0.5}}).algorithm
    assert (other.name, other.lr, other.target.every_updates) == ("iqn", 0.5, 500)
    assert load_config("cartpole-dqn", {"algorithm": NETWORK_16.model_dump()}).algorithm == NETWORK_16


def test_another_environment_in_a_table_makes_way_too(file):
    path = file('[env]\nfactory = "m:f"\nkwargs = {a = 1}\nlanes = 2\n')
    env = load_config(path, {"env": {"id": "CartPole-v1"}}).env
    assert (env.id, env.factory, env.kwargs, env.lanes) == ("CartPole-v1", None, {}, 2)


def test_override_below_a_value_is_refused(file):
    path = file("run = 3\n")
    with pytest.raises(ConfigError, match=re.escape("unknown key run.seed\n  problem: run is a value")):
        load_config(path, {"run.seed": 1})


@pytest.mark.parametrize("load", [load_config, lambda path: load_rl_config([Source(path)])])
def test_where_presets_are_known_one_is_proposed_for_a_file_that_cannot_be_read(load):
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        load("/proc/self/mem")  # a file, whoever asks
    assert refused.value.fix == "name a TOML file that exists and is readable, or a preset (headrace list)"


def test_syntax_error_names_file_and_line(file):
    path = file("[run]\nseed = 1\nsteps = = 2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.facts["file"] == path
    assert caught.value.facts["line"] == "3"


def test_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not written in UTF-8"):
        load_config(path)


def test_dump_holds_every_key_and_reads_back_the_same(file):
    config = load_config(
        "pendulum-td3",
        {"env.kwargs": {"g": 9.81, "name": "x", "parts": [{"a": 1}, {"a": 2}], "deep": {"b": [1.5]}}},
    )
    text = dump_toml(config)
    again = load_config(file(text))
    assert again == config
    assert config_sha256(again) == config_sha256(config)
    assert config_sha256(config) in text.splitlines()[0]
    for section in ExperimentConfig.model_fields:
        for key in type(getattr(config, section)).model_fields:
            assert re.search(rf"^(# |\[{section}\.)?{key}\b", text, re.MULTILINE), f"{section}.{key} is missing"


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "a\u2029b", "a\x0b\x0c\x1cb", "a\r\nb\n"])
def test_a_text_may_hold_any_end_of_a_line(file, text):
    for settings in ({"env.kwargs": {"sep": text, "deep": {"of": [text]}}}, {"run.directory": text}):
        config = load_config("pendulum-td3", settings)
        assert load_config(file(dump_toml(config))) == config


def test_arguments_are_in_the_first_session_what_they_are_in_a_later_one(file):
    given = {"size": (3, (4, 5)), "deep": {"of": ({"a": (1,)},)}, "rate": np.float64(0.5), "b": True}
    config = load_config("pendulum-td3", {"env.kwargs": given})
    again = load_config(file(dump_toml(config)))
    assert config == again
    assert config.env.kwargs["size"] == [3, [4, 5]]
    assert config.env.kwargs["deep"] == {"of": [{"a": [1]}]}
    assert type(config.env.kwargs["rate"]) is float
    assert math.isnan(load_config("pendulum-td3", {"env.kwargs": {"never": math.nan}}).env.kwargs["never"])


def test_hash_changes_with_any_value():
    assert config_sha256(load_config("pendulum-td3")) != config_sha256(load_config("pendulum-td3", {"run.seed": 1}))


def test_factory_name_says_where_a_callable_is_found():
    assert factory_name(functools.partial(factory_name, 3)) == "headrace.core.config:factory_name"
    assert factory_name(NetworkConfig) == "headrace.algorithms.configs:NetworkConfig"


def test_defaults_of_every_section_are_accepted():
    config = ExperimentConfig(env=EnvConfig(id="Pendulum-v1"), algorithm=TD3(exploration=ExplorationConfig()))
    assert config.algorithm.name == "td3"
