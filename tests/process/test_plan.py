"""``headrace plan`` itself: real runs of a small task, timed and checked; what it says, not how fast it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from run_support import Runs

pytestmark = pytest.mark.process

CONFIG = """
[run]
schedule = "async"
collectors = 2
[env]
factory = "{factory}"
lanes = 4
group_size = 2
{env}
[replay]
learning_starts = 100
capacity = 20_000
ratio = 0.25
[collect]
chunk_steps = 8
random_steps = 100
[algorithm]
batch_size = 32
{algorithm}
"""
TD3 = "[algorithm.actor]\nhidden = [16]\n[algorithm.critic]\nhidden = [16]"
DQN = 'name = "dqn"\n[algorithm.network]\nhidden = [16]'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command keeps what it runs."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def config(tmp_path: Path, factory: str = "headrace.envs.toy:target", env: str = "", algorithm: str = TD3) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(CONFIG.format(factory=factory, env=env, algorithm=algorithm))
    return str(path)


def plan(*arguments: str) -> int:
    """Run the command here, from the warm fork server; its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["plan", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.table
def test_plans_are_predicted_and_the_best_checked(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(config(tmp_path), "--seconds", "3", "--check", "2", "--json") == 0
    printed, errors = capsys.readouterr()
    told = json.loads(printed)
    assert errors == ""
    assert list(kept.iterdir()) == []

    step = told["step"]
    assert step["count"] > 100
    assert 0.0 < step["median_s"] <= step["p99_s"] <= step["max_s"]
    assert 0.0 <= step["waits"] < 0.5  # it computes
    assert all(
        told["costs"][name] > 0.0 for name in ("step_cpu_s", "act_s", "row_s", "chunk_s", "commit_s", "update_s")
    )
    assert told["costs"]["resets_per_step"] == pytest.approx(0.1, abs=0.05)  # episodes of ten steps

    plans = {(one["schedule"], one["collectors"]): one for one in told["plans"]}
    assert {("inline", None), ("lockstep", 2), ("async", 1), ("async", 2)} <= set(plans)
    checked = {name for name, one in plans.items() if one["start_s"] is not None}
    assert checked == {("inline", None), ("async", 2)}  # the simplest and the configured one
    for name, one in plans.items():
        assert one["predicted_steps_per_s"] > 0.0
        assert sum(one["limited_by"].values()) == pytest.approx(1.0)
        if one["measured_steps_per_s"] is not None:  # on a machine that does other work, nothing may have happened
            assert name in checked
            assert one["error"] == one["predicted_steps_per_s"] / one["measured_steps_per_s"] - 1.0
        else:
            assert (one["not_measured"] is not None) == (name in checked)
    recommended = told["recommended"]
    assert recommended["command"].endswith(
        f"--schedule {recommended['schedule']}"
        + ("" if recommended["schedule"] == "inline" else f" --collectors {recommended['collectors']}")
    )
    assert told["sentence"].startswith(recommended["schedule"])


@pytest.mark.table
def test_a_learner_is_timed_with_every_number_of_threads(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(config(tmp_path), "--seconds", "2", "--no-check", "--learner", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    found = [(way["threads"], way["precision"], way["compiled"]) for way in told["learner"]]
    assert found[0] == (1, "float32", False)
    assert len(set(found)) == len(found)
    assert all(way["update_s"] > 0.0 for way in told["learner"] if way["why_not"] is None)
    assert told["learner"][0]["why_not"] is None
    assert list(kept.iterdir()) == []


@pytest.mark.table
def test_environments_in_workers_are_timed_where_they_are(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--set", "run.schedule=inline", "--set", "env.workers=2", "--seconds", "1", "--no-check", "--json")
    assert plan(config(tmp_path), *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"]["count"] > 20
    assert told["recommended"]["measured"] is False
    assert [one["measured_steps_per_s"] for one in told["plans"]] == [None] * len(told["plans"])
    assert "--set env.workers=2 --schedule" in told["recommended"]["command"]


@pytest.mark.table
def test_agents_of_a_copy_are_timed_together(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = ("--set", "agents.count=3", "--set", "env.lanes=6", "--set", "env.group_size=3")
    assert (
        plan(config(tmp_path, "agent_envs:comers", algorithm=DQN), *lanes, "--seconds", "1", "--no-check", "--json")
        == 0
    )
    assert json.loads(capsys.readouterr().out)["step"]["count"] > 20


def test_an_environment_that_raises_is_told_of_as_in_a_run(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = '[env.kwargs]\nfault = "fail"'
    assert plan(config(tmp_path, "run_envs:make", env), "--seconds", "2") == 1
    printed, errors = capsys.readouterr()
    assert printed == "timing 0.6 s under inline\n"
    assert errors.startswith("[ENV-004] run_envs:make in lane 0 raised ValueError in step()\n")
    assert "burn map corrupt, tile 7" in errors
    folder = next(kept.iterdir())
    assert errors.endswith(f"no plan: the run that was to be timed failed; it is kept in {folder}\n")
    assert "Traceback" in (folder / "timed" / "logs" / "learner.log").read_text()


@pytest.mark.table
def test_an_environment_that_hangs_is_told_of_as_in_a_run(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = '[env.kwargs]\nfault = "hang"\n[deadlines]\nstep_s = 1.0'
    assert plan(config(tmp_path, "run_envs:make", env), "--seconds", "2", "--json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] is None
    assert told["error"].startswith("[SUP-002] learner was busy with env.step")


def test_a_setting_that_does_not_suit_leaves_nothing_behind(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(config(tmp_path, algorithm=DQN), "--seconds", "1") == 2
    assert capsys.readouterr().err.startswith("[ENV-005] action space cannot be used")
    assert list(kept.iterdir()) == []


def test_a_time_that_is_too_short_is_refused(
    runs: Runs, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chunk of one group takes longer than the run and the time it is given to end in order."""
    env = "[env.kwargs]\nstep_s = 0.25\n[deadlines]\nstop_s = 1.0"
    code = plan(config(tmp_path, "run_envs:make", env), "--seconds", "1", "--no-check")
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.startswith("[CFG-001] the time was too short to measure anything: there was no update\n")
    assert list(kept.iterdir()) == []
