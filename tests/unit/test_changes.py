"""What a run that goes on may be told anew."""

from __future__ import annotations

import pytest

from headrace.core.config import EnvConfig, EvaluationConfig
from headrace.core.errors import ConfigError
from headrace.runtime.changes import changes, next_config
from headrace.runtime.config import ExperimentConfig, load_config


@pytest.fixture(scope="module")
def before():
    """As a run was started: a preset, and something on top."""
    return load_config("pendulum-td3", {"replay.ratio": 0.5, "run.schedule": "lockstep", "env.kwargs.g": 9.0})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.steps", 77_000), ("run.run_duration_s", 12.5), ("run.collectors", 5), ("run.directory", "elsewhere"),
        ("run.schedule", "inline"), ("evaluation.episodes", 2), ("evaluation.every_steps", 0), ("evaluation.target", 1.0),
        ("deadlines.step_s", 99.0), ("supervision.when_spent", "degrade"), ("record.rows", "all"),
        ("checkpoint.keep", 9), ("checkpoint.every_s", None), ("collect.preload", ["json"]),
    ],
)  # fmt: skip
def test_what_does_not_change_what_is_learned_may_be_told_anew(before, key, value):
    after = next_config(before, None, {key: value})
    ((changed, _, new),) = changes(before, after)
    assert (changed, new) == (key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.seed", 3), ("run.schedule", "async"), ("env.lanes", 12), ("env.max_episode_steps", 5), ("env.kwargs.g", 1.0),
        ("env.id", "CartPole-v1"), ("env.factory", "a:b"), ("replay.capacity", 70_000), ("collect.threads", 2),
        ("collect.chunk_steps", 16), ("learn.threads", 2), ("learn.device", "cuda"), ("learn.publish_every", 3),
        ("algorithm.batch_size", 3), ("algorithm.actor.hidden", [3]), ("algorithm.exploration.scale", 0.7),
    ],
)  # fmt: skip
def test_what_changes_what_is_learned_is_refused(before, key, value):
    with pytest.raises(ConfigError, match=f"^.*{key.removesuffix('.g')} decides what is learned"):
        next_config(before, None, {key: value})


def test_refusal_names_the_first_key_both_values_and_all_others(before):
    with pytest.raises(ConfigError) as caught:
        next_config(before, None, {"replay.n_step": 3, "run.steps": 77_000, "algorithm.batch_size": 3})
    assert str(caught.value) == (
        "[CFG-001] replay.n_step decides what is learned, so a run that is resumed keeps its own value\n"
        "  value of the run: 1\n"
        "  given: 3\n"
        f"  also: algorithm.batch_size: {before.algorithm.batch_size}, given 3\n"
        "  fix: leave replay.n_step out; for a run with another value choose another --run-dir"
    )


def test_asynchronous_run_stays_one():
    before = load_config("pendulum-td3", {"run.schedule": "async"})
    with pytest.raises(ConfigError, match=r"run.schedule decides what is learned"):
        next_config(before, None, {"run.schedule": "lockstep"})


def test_same_value_given_again_is_no_change(before):
    assert next_config(before, None, {"replay.ratio": "0.5", "run.seed": 0}) == before
    assert next_config(before, None, {"algorithm": before.algorithm.model_dump()}) == before


def test_configuration_given_again_changes_nothing_that_it_does_not_state(before, tmp_path):
    assert next_config(before, "pendulum-td3", {"replay.ratio": 0.5, "run.schedule": "lockstep"}) == before
    file = tmp_path / "some.toml"
    file.write_text('[run]\nsteps = 90_000\n[env]\nid = "Pendulum-v1"\n')
    after = next_config(before, file, {})
    assert [key for key, *_ in changes(before, after)] == ["run.steps"]
    assert after.env.kwargs == {"g": 9.0}


def test_argument_of_the_environment_is_a_key_like_any_other(before, tmp_path):
    file = tmp_path / "some.toml"
    file.write_text('[env]\nid = "Pendulum-v1"\n[env.kwargs]\nm = 1.0\n')
    with pytest.raises(ConfigError, match=r"env\.kwargs decides.*\n  value of the run: \{'g': 9\.0\}\n  given: "):
        next_config(before, file, {})
    first = load_config(file, {"env.kwargs.g": 9.0, "run.steps": 50_000})
    assert next_config(first, file, {}) == first


def test_key_that_a_configuration_states_counts_as_given(before, tmp_path):
    file = tmp_path / "some.toml"
    file.write_text("[replay]\nratio = 1.0\n")
    with pytest.raises(ConfigError, match=r"replay.ratio decides.*\n  value of the run: 0.5\n  given: 1.0"):
        next_config(before, file, {})
    assert next_config(before, file, {"replay.ratio": 0.5}) == before


def test_configuration_that_is_whole_only_with_the_runs_own_values_is_taken(tmp_path):
    """As when the same file is given again without the flags the run was started with."""
    file = tmp_path / "some.toml"
    file.write_text('[run]\ndirectory = "12"\n[env]\nid = "Pendulum-v1"\n[replay]\nlearning_starts = 30_000\n')
    before = load_config(file, {"run.steps": 50_000})
    with pytest.raises(ConfigError):
        load_config(file, {"run.steps": 20_000})
    file.write_text(file.read_text().replace("[run]", "[run]\nsteps = 20_000"))
    assert next_config(before, file, {"run.steps": 50_000}) == before
    assert before.run.directory == "12"  # text stays text


def test_object_counts_with_what_was_set_in_it(before):
    told = ExperimentConfig(env=EnvConfig(id="Pendulum-v1"), evaluation=EvaluationConfig(episodes=2))
    after = next_config(before, told, {})
    assert [key for key, *_ in changes(before, after)] == ["evaluation.episodes"]


def test_another_environment_is_refused_by_its_name_and_not_because_there_would_be_two(tmp_path):
    before = load_config("pendulum-td3", {"env.factory": "mine:make"})
    with pytest.raises(ConfigError, match=r"env\.id decides what is learned") as caught:
        next_config(before, "pendulum-td3", {})
    assert "env.factory: 'mine:make', given None" in caught.value.facts["also"]
