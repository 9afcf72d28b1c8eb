"""``headrace.train``: what it refuses before anything starts, and how arguments become a configuration."""

from __future__ import annotations

import threading

import pytest

import headrace
from headrace.core.errors import ConfigError
from headrace.runtime import api
from headrace.runtime.config import load_config
from resume_support import PastRun


@pytest.fixture
def started(monkeypatch):
    """What would have been run."""
    runs = []

    def run_experiment(config, place, on_progress, env_factory, resume, make_way):
        runs.append((config, on_progress, env_factory, resume))
        error = None if config.run.seed == 0 else "why"
        return {"outcome": "failed" if error else "completed", "error": error}

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
    ((config, on_progress, factory, resume),) = started
    assert (config.run.steps, config.run.collectors, config.run.schedule) == (5000, 3, "lockstep")
    assert (config.replay.ratio, config.env.lanes, config.algorithm) == (0.5, 9, algorithm)
    assert (on_progress, factory, resume) == (None, None, None)
    assert (run.completed, run.path) == (True, tmp_path / "run")
    assert (run.path / "config.toml").is_file()


def test_callable_environment_replaces_the_presets(started, tmp_path):
    run = headrace.train("hockey-td3", env=make_env, run_dir=tmp_path / "run", seed=1)
    ((config, _, factory, _),) = started
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


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"env": object()}, "env is neither a Gymnasium id nor something that can be called"),
        ({"env": make_env, "algorithm": "ppo"}, "algorithm holds no hyperparameters"),
        ({"env": make_env, "algorithm": headrace.PPO}, "algorithm holds no hyperparameters"),
    ],
)
def test_what_is_of_another_kind_is_refused_before_anything_starts(started, tmp_path, given, what):
    with pytest.raises(ConfigError) as caught:
        headrace.train(**given, steps=50_000, run_dir=tmp_path / "run")
    assert caught.value.what == what
    assert not started


def test_every_algorithm_is_at_hand(started, tmp_path):
    for name in ("DQN", "IQN", "PPO", "SAC", "TD3", "VTrace"):
        headrace.train(env=make_env, algorithm=getattr(headrace, name)(), steps=50_000, run_dir=tmp_path / name)
        assert started[-1][0].algorithm.name == name.lower()


def ended(path, config=None):
    """A run that was interrupted, with a checkpoint."""
    past = PastRun(path, config)
    past.learn(3)
    past.checkpoint()
    return past.end("interrupted")


def test_run_goes_on_as_it_was_but_for_what_is_given(started, tmp_path):
    path = ended(tmp_path / "run", load_config("pendulum-td3", {"replay.ratio": 0.5}))
    run = headrace.train(run_dir=path, resume=True, steps=77_000, settings={"evaluation.episodes": 2})
    ((config, _, _, resume),) = started
    assert (config.replay.ratio, config.run.steps, config.evaluation.episodes) == (0.5, 77_000, 2)
    assert (resume.env_steps, resume.updates) == (30, 12)
    assert run.path == path


def test_same_call_begins_a_run_and_goes_on_with_it(started, tmp_path):
    call = {"env": make_env, "algorithm": headrace.TD3(batch_size=7), "steps": 50_000, "resume": True}
    headrace.train(**call, run_dir=tmp_path / "run")
    ((config, _, factory, resume),) = started
    assert (factory, resume) == (make_env, None)
    headrace.train(**call, run_dir=tmp_path / "run")  # nothing was learned, so it begins once more
    assert started[1][3] is None
    path = ended(tmp_path / "other", config)
    headrace.train(**call, run_dir=path)
    again, _, factory, resume = started[2]
    assert (again, factory) == (config, make_env)
    assert resume is not None


def test_a_callable_that_cannot_be_sent_to_processes_is_refused_with_what_stays(started, monkeypatch, tmp_path):
    names = {"__name__": "__main__", "_lock": threading.Lock()}
    exec("def make():\n    with _lock:\n        pass", names)
    with pytest.raises(ConfigError) as caught:
        headrace.train(env=names["make"], run_dir=tmp_path / "run", steps=50_000)
    assert str(caught.value) == (
        "[CFG-001] the environment's factory __main__:make cannot be pickled, and every process of the run is sent it\n"
        "  stays here: _lock, a _thread.lock, used by make\n"
        "  error: TypeError: cannot pickle '_thread.lock' object\n"
        "  fix: put the factory into a module of its own, which each process imports; "
        "or make locks, files and sockets inside of it"
    )
    assert not started
    assert not (tmp_path / "run").exists()


def test_callable_environment_has_to_be_given_again(started, tmp_path):
    lambdas = [lambda: None, lambda: None]
    headrace.train(env=lambdas[0], run_dir=tmp_path / "run", steps=50_000)
    path = ended(tmp_path / "other", started[0][0])
    with pytest.raises(ConfigError, match="was handed over in Python, so it has to be handed over again"):
        headrace.train(run_dir=path, resume=True)
    headrace.train(env=lambdas[1], run_dir=path, resume=True)
    assert started[-1][2] is lambdas[1]
    with pytest.raises(ConfigError, match=r"env\.factory decides what is learned"):
        headrace.train(env=make_env, run_dir=path, resume=True)


def test_resume_without_a_directory_is_refused(started):
    with pytest.raises(ConfigError, match="resume does not say which run to go on with"):
        headrace.train("pendulum-td3", resume=True)
    assert not started
