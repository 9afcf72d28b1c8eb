"""``headrace.train``: what it refuses before anything starts, and how arguments become a configuration."""

from __future__ import annotations

import pytest

import headrace
from headrace.core.errors import ConfigError
from headrace.runtime import api


@pytest.fixture
def started(monkeypatch):
    """What would have been run."""
    runs = []

    def run_experiment(config, place, on_progress, env_factory):
        runs.append((config, on_progress, env_factory))
        return {"outcome": "completed" if config.run.seed == 0 else "failed"}

    monkeypatch.setattr(api, "run_experiment", run_experiment)
    return runs


def make_env(size: int = 1) -> None:
    raise AssertionError("nothing is built here")


def test_arguments_settings_and_algorithm_come_together(started, tmp_path):
    algorithm = headrace.TD3(batch_size=7)
    run = headrace.train(
        "pendulum-td3", steps=5000, collectors=3, schedule="lockstep", algorithm=algorithm, run_dir=tmp_path / "run",
        settings={"replay.ratio": 0.5, "env.lanes": "9"},
    )  # fmt: skip
    ((config, on_progress, factory),) = started
    assert (config.run.steps, config.run.collectors, config.run.schedule) == (5000, 3, "lockstep")
    assert (config.replay.ratio, config.env.lanes, config.algorithm) == (0.5, 9, algorithm)
    assert (on_progress, factory) == (None, None)
    assert (run.completed, run.path) == (True, tmp_path / "run")
    assert (run.path / "config.toml").is_file()


def test_callable_environment_replaces_the_presets(started, tmp_path):
    run = headrace.train("hockey-td3", env=make_env, run_dir=tmp_path / "run", seed=1)
    ((config, _, factory),) = started
    assert factory is make_env
    assert (config.env.id, config.env.factory) == (None, f"{__name__}:make_env")
    assert config.env.kwargs == {}
    assert not run.completed


def test_unknown_argument_is_refused_before_anything_starts(started, tmp_path):
    with pytest.raises(ConfigError, match=r"train\(\) has no argument stepz") as caught:
        headrace.train("pendulum-td3", stepz=5, run_dir=tmp_path / "run")
    assert "steps" in caught.value.facts["known"]
    assert not started
    assert not (tmp_path / "run").exists()
