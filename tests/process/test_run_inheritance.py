"""Runs that begin from another run's networks (`learn.begin_from`), and runs that end when whoever looks on has seen enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import ConfigError, RecordDamaged, RunDirectoryError
from headrace.learners.manifest import Checkpoint
from headrace.record.trace import Trace
from headrace.runtime.api import Run
from headrace.runtime.inheritance import BEGINNING_FILE, HEADER_KEY
from headrace.weights.policy_file import load_policy_arrays, policy_versions
from run_support import SMALL, Runs

pytestmark = pytest.mark.process

PPO: dict[str, Any] = {
    "algorithm__name": "ppo",
    "algorithm__batch_size": 96,
    "algorithm__epochs": 2,
    "algorithm__normalize": {"observations": True, "rewards": True},
    "collect__random_steps": 0,
    "evaluation__episodes": 1,
    "run__collectors": 2,
    "run__steps": 192,
}
"""Four rollouts of 48 steps."""
REPLAY = {key for key in SMALL if key.startswith("replay.")}


def train(runs: Runs, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Run:
    for key in REPLAY:
        monkeypatch.delitem(SMALL, key, raising=False)  # type: ignore[arg-type]
    run = runs.train("Pendulum-v1", **(PPO | settings))
    assert run.completed, run.summary["error"]
    return run


def newest(run: Run) -> Checkpoint:
    return Checkpoint.read(run.path / "checkpoints" / str(policy_versions(run.path / "checkpoints")[-1]))


def test_it_begins_with_the_others_networks_and_statistics_and_is_replayed(runs, monkeypatch):
    first = train(runs, monkeypatch)
    learned = newest(first).load().arrays
    settings = {"learn__begin_from": str(first.path), "algorithm__lr": 1e-30, "run__seed": 7}
    second = train(runs, monkeypatch, **settings)  # such a step changes nothing

    state = newest(second).load().arrays
    assert np.array_equal(state["network"], learned["network"])
    assert state["counters"][0] == 8  # its own updates: nothing but networks and statistics was taken over
    assert not np.array_equal(state["network.exp_avg"], learned["network.exp_avg"])
    assert state["normaliser.collected_count"] == learned["normaliser.collected_count"] + 192
    assert headrace.replay(second.path).ended

    (second.path / "record" / BEGINNING_FILE).unlink()
    with pytest.raises(RecordDamaged, match="the networks that this run began with are not beside its record"):
        headrace.replay(second.path)


@pytest.mark.table
def test_another_beginning_is_not_taken_for_it(runs, monkeypatch):
    first = train(runs, monkeypatch)
    older = policy_versions(first.path / "checkpoints")[-1]
    second = train(runs, monkeypatch, learn__begin_from=str(first.path / "checkpoints" / str(older)))
    with Trace.open(second.path / "record" / "trace.bin") as trace:
        assert trace.header[HEADER_KEY].keys() == {"bytes", "crc32"}
    path = second.path / "record" / BEGINNING_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordDamaged) as caught:
        headrace.replay(second.path)
    assert caught.value.facts["problem"] == "its bytes are not those that the run began with"


@pytest.mark.table
def test_it_is_resumed_without_the_other(runs, monkeypatch):
    first = train(runs, monkeypatch)
    second = train(runs, monkeypatch, learn__begin_from=str(first.path))
    first.path.rename(first.path.with_name("elsewhere"))
    longer = headrace.train(run_dir=second.path, resume=True, steps=288)
    assert longer.completed, longer.summary["error"]
    assert longer.summary["env_steps"] == 288
    assert headrace.replay(longer.path).ended


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        (
            {"algorithm__network": {"actor": {"hidden": [8]}}},
            "algorithm.network.actor.hidden: [64, 64] there, [8] here",
        ),
        (
            {"algorithm__network": {"critic": {"activation": "relu"}}},  # as many weights, and another function of them
            "algorithm.network.critic.activation: 'tanh' there, 'relu' here",
        ),
        ({"algorithm__normalize": {"observations": True}}, "algorithm.normalize.rewards: True there, False here"),
    ],
)
def test_networks_that_are_not_alike_are_refused_before_anything_starts(runs, monkeypatch, given, differs):
    first = train(runs, monkeypatch)
    with pytest.raises(ConfigError, match="has other networks or statistics than this one") as caught:
        train(runs, monkeypatch, learn__begin_from=str(first.path), **given)
    assert caught.value.facts["differs"] == differs


def test_networks_of_another_environment_are_refused(runs, monkeypatch):
    first = train(runs, monkeypatch)
    run = runs.train("headrace.envs.toy:target", **(PPO | {"learn__begin_from": str(first.path)}))
    assert "the run that learn.begin_from names has another observation space than this one" in run.summary["error"]
    assert run.summary["env_steps"] == 0


def test_what_cannot_be_begun_from_is_refused_before_anything_starts(tmp_path):
    def begin(where: Path, **settings: object) -> None:
        headrace.train("cartpole-ppo", run_dir=tmp_path / "run", settings={"learn.begin_from": str(where), **settings})

    with pytest.raises(RunDirectoryError):
        begin(tmp_path / "nowhere")
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match="has no checkpoint 3"):
        begin(tmp_path / "checkpoints" / "3")
    with pytest.raises(ConfigError, match=r"learn\.begin_from would be ignored: td3 begins with fresh networks"):
        headrace.train("pendulum-td3", run_dir=tmp_path / "run", settings={"learn.begin_from": "runs/x"})


def test_whoever_looks_on_can_end_it(runs, monkeypatch):
    for key in REPLAY:
        monkeypatch.delitem(SMALL, key, raising=False)  # type: ignore[arg-type]
    seen: list[int] = []

    def look(progress: headrace.runtime.progress.Progress) -> bool:
        seen.append(len(progress.evaluations))
        return bool(progress.evaluations)

    settings = PPO | {"env__id": "Pendulum-v1", "run__steps": 10**9, "evaluation__every_steps": 48}
    run = headrace.train(
        run_dir=runs._folder / "looked-at", on_progress=look,
        settings={**{k: v for k, v in SMALL.items() if not k.startswith("algorithm.")},
                  **{key.replace("__", "."): value for key, value in settings.items()}},
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert 48 <= run.summary["env_steps"] < 10**9
    assert seen[0] == 0
    version = run.summary["evaluations"][0]["version"]
    assert load_policy_arrays(run.path / "checkpoints", version)
