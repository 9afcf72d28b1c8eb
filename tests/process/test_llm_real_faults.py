"""Runs of the real components on two cores: they complete, or whoever breaks them is named; minutes in sum."""

from __future__ import annotations

import errno
import json
import os
import signal

import pytest

from headrace.llm.launch.launcher import launch
from headrace.llm.launch.starting import resume
from llm_real_support import real, real_server

__all__ = ["real", "real_server"]

pytestmark = [pytest.mark.process, pytest.mark.table]


def resumed(run):
    what = resume(run, None)
    with what.place:
        return launch(what)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_completes_and_its_books_balance(real, lag):
    summary = real(orchestrator__max_policy_lag=lag)
    assert summary["outcome"] == "completed", summary["error"]
    assert (summary["steps"], summary["books"]["balanced"], summary["policy_version"]) == (3, True, 3)
    assert summary["policy_lag"]["max"] <= lag
    assert len(summary["weights_sha256"]) == 64


def test_three_processes_without_lag_and_the_twin_make_the_same_weights(real, tmp_path):
    three = real(orchestrator__max_policy_lag=0, orchestrator__filter__zero_advantage=True)
    assert three["outcome"] == "completed", three["error"]
    real.path.rename(tmp_path / "three")
    twin = real(run__schedule="inline", orchestrator__max_policy_lag=0, orchestrator__filter__zero_advantage=True)
    assert twin["outcome"] == "completed", twin["error"]
    assert three["weights_sha256"] == twin["weights_sha256"]
    assert three["policy_lag"]["max"] == twin["policy_lag"]["max"] == 0.0
    assert three["books"] == twin["books"]
    assert three["evaluations"] == twin["evaluations"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_killed_or_frozen_is_replaced_with_the_newest_weights(real, signum):
    struck = []

    def strike(line):
        if line.component == "trainer" and line.text.startswith("Step 1/") and not struck:
            struck.append(real.pid_of("inference"))
            os.kill(struck[0], signum)

    summary = real(strike, run__steps=6, deadlines__generate_s=3.0)
    assert struck
    assert summary["outcome"] == "completed", summary["error"]
    assert summary["restarts"] == 1
    assert summary["faults"] == {"died" if signum == signal.SIGKILL else "stalled": 1}
    assert summary["books"]["balanced"]


@pytest.mark.parametrize("component", ["trainer", "orchestrator"])
def test_a_component_that_is_killed_ends_the_run_by_name(real, component):
    def strike(line):
        if line.component == "trainer" and line.text.startswith("Step 1/"):
            os.kill(real.pid_of(component), signal.SIGKILL)

    summary = real(strike, run__steps=50)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 1, component)


def test_an_environment_that_cannot_be_imported_by_the_orchestrator_is_named(real, tmp_path):
    summary = real(
        env__factory="llm_fault_envs:make_only_for_the_warm_start", env__kwargs={"marker": str(tmp_path / "marker")}
    )
    assert (summary["outcome"], summary["culprit"]) == ("failed", "orchestrator")
    assert "No module named 'nltk'" in summary["error"]


def test_a_reward_that_never_returns_is_found_by_its_deadline(real):
    summary = real(env__kwargs={"fault": "hang", "at": 20}, deadlines__env_s=1.0, run__steps=50)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "orchestrator")
    assert "llm_fault_envs.py" in (real.path / "stacks" / "orchestrator.0.txt").read_text()


def test_a_reward_that_always_raises_ends_the_run_with_its_reason(real):
    summary = real(
        env__kwargs={"fault": "raise", "at": 20}, orchestrator__failures_in_row=20, orchestrator__backoff_s=0.0,
        orchestrator__max_retries=0, run__steps=50,
    )  # fmt: skip
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "orchestrator")
    assert "corpus damaged, page 7" in summary["error"]
    assert summary["books"] is None or summary["books"]["balanced"]


def test_a_reward_that_exits_fails_its_rollouts_and_nobody_else_is_blamed(real):
    summary = real(env__kwargs={"fault": "exit"}, run__steps=20, orchestrator__failures_in_row=20)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "orchestrator")
    assert "raised SystemExit: 4" in summary["error"]


def test_a_reward_that_makes_a_copy_of_the_orchestrator_leaves_one(real):
    summary = real(env__kwargs={"fault": "fork"})
    assert (summary["outcome"], summary["books"]["balanced"], summary["policy_version"]) == ("completed", True, 3)


def test_weights_that_have_run_away_are_the_trainers_fault(real):
    summary = real(trainer__lr=1e30)
    assert (summary["culprit"], summary["policy_version"]) == ("trainer", 0)
    assert "version 1 of the weights is no policy any more; it was not published" in summary["error"]


def test_a_batch_of_another_run_is_never_taken(real):
    def plant(line):
        if line.text == "trainer is ready":
            (real.path / "rollouts" / "batch-0.safetensors").write_bytes(b"of another run")

    summary = real(plant, orchestrator__max_policy_lag=0)
    assert summary["outcome"] == "failed"
    assert "batch-0.safetensors" in summary["error"]


def test_a_full_disk_ends_the_run_and_leaves_a_summary(real, monkeypatch):
    from headrace.telemetry.events import JsonLines

    def full(self, line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonLines, "_write", full)
    summary = real()
    assert summary["outcome"] == "completed"  # events and metrics are lost, the run is not
    assert summary["lost_lines"]["events"] > 5
    assert json.loads((real.path / "summary.json").read_text()) == summary


def test_an_interrupt_saves_and_the_run_goes_on_to_the_same_weights(real, tmp_path):
    def interrupt(line):
        if line.component == "trainer" and line.text.startswith("Step 2/"):
            os.kill(os.getpid(), signal.SIGINT)

    settings = {"orchestrator__max_policy_lag": 0, "run__steps": 4}
    first = real(interrupt, **settings)
    assert (first["outcome"], first["exit_code"]) == ("interrupted", 130), first["error"]
    second = resumed(real.path)
    assert (second["outcome"], second["steps"]) == ("completed", 4), second["error"]
    real.path.rename(tmp_path / "interrupted")
    whole = real(**settings)
    assert whole["weights_sha256"] == second["weights_sha256"]


def test_a_run_whose_newest_checkpoint_is_damaged_comes_to_the_same_weights(real, tmp_path):
    """The older one's weights are published no more: they are made again of it."""
    settings = {"orchestrator__max_policy_lag": 0, "run__steps": 9, "checkpoint__every_steps": 1, "checkpoint__keep": 6}

    def interrupt(line):
        if line.component == "trainer" and line.text.startswith("Step 8/"):
            os.kill(os.getpid(), signal.SIGINT)

    assert real(interrupt, **settings)["outcome"] == "interrupted"
    for version in (8, 7, 6, 5):
        state = real.path / "checkpoints" / str(version) / "state.safetensors"
        content = bytearray(state.read_bytes())
        content[-1] ^= 1
        state.write_bytes(content)
    assert not (real.path / "weights" / "4").exists()
    second = resumed(real.path)
    assert (second["outcome"], second["steps"]) == ("completed", 9), second["error"]
    assert [alarm["kind"] for alarm in second["alarms"]] == ["damaged"] * 4
    real.path.rename(tmp_path / "damaged")
    assert real(**settings)["weights_sha256"] == second["weights_sha256"]
