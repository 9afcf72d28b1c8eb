"""Language-model runs of stand-ins: they end as declared, and whoever breaks one is named within seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from dataclasses import replace

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.llm.launch import launcher
from headrace.llm.launch.deciding import single_cast
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.place import read_endpoints
from headrace.llm.launch.starting import begin
from headrace.llm.loading import load_rl_config
from headrace.runtime.rundir import RunDirectory
from headrace.supervision.supervisor import Supervisor
from llm_launch_support import Launches, launches, llm_server
from llm_stand_ins import SAVING, TARGETS
from run_support import events, replace_run

__all__ = ["launches", "llm_server"]

pytestmark = [pytest.mark.process, pytest.mark.thin(3)]


def assert_left_in_order(launches: Launches, summary) -> None:
    """The summary was written, and no process of the run is left (which `no_leaks` sees too)."""
    assert json.loads((launches.path / "summary.json").read_text()) == summary


def test_a_run_goes_from_warm_start_to_summary(launches):
    summary = launches.run()
    assert summary["error"] is None
    assert (summary["outcome"], summary["exit_code"], summary["steps"]) == ("completed", 0, 3)
    assert summary["books"]["balanced"]
    assert summary["books"]["trained"] == 24
    assert summary["weights_sha256"] == "ab" * 32
    assert summary["policy_lag"] == {"declared": 1.0, "mean": 0.0, "max": 0.0}
    assert [point["win_rate"] for point in summary["evaluations"]] == [0.25, 0.75]
    assert (summary["faults"], summary["restarts"], summary["alarms"]) == ({}, 0, [])
    started = [event["component"] for event in events(launches.path, "started")]
    assert started == ["supervisor", "warm-start", "inference", "trainer", "orchestrator"]
    written = [json.loads(line) for line in (launches.path / "metrics.jsonl").read_text().splitlines()]
    assert {"loss/mean", "train/win_rate", "eval/win_rate", "sft/loss"} <= {name for line in written for name in line}
    assert list((launches.path / "tensorboard").iterdir())
    endpoints = read_endpoints(launches.path / "endpoints.json")
    assert endpoints is not None
    assert endpoints.run_id == summary["run_id"]
    assert "trainer: Step 3/3 | Loss 0.1000 | Off-Policy 0 max" in launches.texts("step")
    logs = {
        name: launches.path / "logs" / f"{name}.log" for name in ("warm-start", "inference", "trainer", "orchestrator")
    }
    for name, log in logs.items():
        told = [line.text for line in launches.lines if line.component == name and line.weight != "log"]
        written = [line for line in log.read_text().splitlines() if line.startswith("[headrace] ")]
        assert told
        assert [line.partition(" s  ")[2] for line in written] == told
    assert not any("[headrace]" in line.text for line in launches.lines)
    assert_left_in_order(launches, summary)


def test_the_twin_is_supervised_alike(launches):
    summary = launches.run(run__schedule="inline", orchestrator__max_policy_lag=0)
    assert (summary["outcome"], summary["steps"], summary["books"]["balanced"]) == ("completed", 3, True)
    assert summary["weights_sha256"] == "cd" * 32


@pytest.mark.parametrize("at", [-1, 1])
def test_a_server_that_is_killed_is_started_again_and_the_run_completes(launches, tmp_path, at):
    summary = launches.run(who="inference", fault="kill", at=at, once=str(tmp_path / "once"))
    assert summary["outcome"] == "completed"
    assert (summary["faults"], summary["restarts"]) == ({"died": 1}, 1)
    (fault,) = events(launches.path, "fault")
    assert fault["text"] == "inference killed by SIGKILL (often the out-of-memory killer)"


@pytest.mark.table
def test_a_server_that_ends_with_0_is_a_fault_too(launches, tmp_path):
    summary = launches.run(who="inference", fault="leave", at=1, once=str(tmp_path / "once"))
    assert (summary["outcome"], summary["restarts"]) == ("completed", 1)
    assert events(launches.path, "fault")[0]["text"] == "inference exit code 0"


@pytest.mark.table
def test_a_server_that_is_frozen_is_replaced(launches, tmp_path):
    summary = launches.run(
        who="inference", fault="freeze", at=1, once=str(tmp_path / "once"), deadlines__generate_s=0.6
    )
    assert summary["outcome"] == "completed", summary["error"]
    assert (summary["faults"], summary["restarts"]) == ({"stalled": 1}, 1)


@pytest.mark.table
def test_a_server_that_keeps_dying_spends_its_budget(launches):
    summary = launches.run(who="inference", fault="kill", at=0, supervision__inference_restarts=1)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 1, "inference")
    assert summary["error"].startswith(
        "[SUP-003] inference ended and is not started again: it ended again after 1 restart within 600 s\n"
        "  last time: inference ended although nobody asked it to: killed by SIGKILL (often the out-of-memory killer)\n"
    )
    assert "inference is about to kill" in summary["error"]


@pytest.mark.parametrize(
    ("who", "fault", "at", "words"),
    [
        ("trainer", "kill", 1, "killed by SIGKILL"),
        ("trainer", "leave", 1, "exit code 0"),
        ("orchestrator", "fail", 1, "ValueError: corpus damaged, page 7"),
        ("orchestrator", "fail", -1, "ValueError: corpus damaged, page 7"),
        ("warm-start", "fail", 0, "ValueError: corpus damaged, page 7"),
        ("inference", "refuse", -1, "[CFG-001] the tokenizer has no stop token"),
    ],
)
def test_whoever_cannot_be_replaced_ends_the_run_by_name(launches, who, fault, at, words):
    summary = launches.run(who=who, fault=fault, at=at)
    assert (summary["outcome"], summary["culprit"]) == ("failed", who)
    assert summary["exit_code"] == (2 if fault == "refuse" else 1)
    assert words in summary["error"]
    repeats = fault == "refuse"  # its last lines are that very error
    assert (f"\n  last lines of {who}: \n    " in summary["error"]) is not repeats
    if fault == "leave":
        shown = launches.texts()
        assert shown.index(f"{who}: last words") < shown.index(f"{who}: {who} exit code 0")
    assert_left_in_order(launches, summary)


def test_an_environment_that_never_returns_is_found_by_its_deadline(launches):
    summary = launches.run(who="orchestrator", fault="hang", at=1, deadlines__env_s=0.6)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "orchestrator")
    assert summary["error"].startswith("[SUP-002] orchestrator was busy with env.step for ")
    assert (launches.path / "stacks" / "orchestrator.0.txt").exists()


def test_a_wait_that_came_to_nothing_is_blamed_on_the_end_of_the_chain(launches):
    summary = launches.run(who="inference", fault="dawdle", at=1, deadlines__batch_s=1.0, deadlines__evaluate_s=0.9)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "inference")
    first = summary["error"].splitlines()[0]
    assert first.startswith("[SUP-002] trainer has waited ")
    assert "for a batch of orchestrator" in first
    assert "orchestrator has waited " in first
    assert "for completions of inference" in first
    assert "inference has had nothing to do for " in first
    assert "gave up: trainer waited 1 s for orchestrator" in summary["error"]


def test_who_finds_that_a_server_serves_something_else_is_not_to_blame(launches):
    summary = launches.run(who="orchestrator", fault="doubt", at=1)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "inference")
    assert summary["error"].startswith("[LLM-001] inference says that it serves version 1 and does not\n")
    assert "\n  component: inference\n  found by: orchestrator\n" in summary["error"]


def test_a_server_that_never_becomes_ready_is_named_after_its_time(launches):
    summary = launches.run(
        who="inference", fault="dawdle", at=-1, deadlines__start_s=1.0, supervision__inference_restarts=0
    )
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "inference")
    assert summary["steps"] == 0


@pytest.mark.table
def test_output_without_end_holds_nobody_up(launches):
    summary = launches.run(who="inference", fault="flood", at=1)
    assert summary["outcome"] == "completed"
    assert "line 19999 " in (launches.path / "logs" / "inference.log").read_text()
    assert any("more than can be shown here" in text for text in launches.texts("log"))


def test_an_interrupt_after_its_end_does_not_cost_a_run_its_summary(launches, monkeypatch):
    written = RunDirectory.write_summary

    def write(place, summary):
        signal.raise_signal(signal.SIGINT)
        written(place, summary)

    monkeypatch.setattr(RunDirectory, "write_summary", write)
    turns = []
    summary = launches.run(steps=1, on_turn=lambda: turns.append(len(launches.lines)))
    assert (summary["outcome"], summary["exit_code"]) == ("completed", 0)
    assert_left_in_order(launches, summary)
    assert turns[0] < turns[-1], "while it goes on, and not only before or after it"


def test_an_interrupt_ends_in_order_and_the_trainer_saves(launches):
    def interrupt(line):
        if line.text.startswith("Step 2/") and line.component == "trainer":
            os.kill(os.getpid(), signal.SIGTERM)

    summary = launches.run(steps=100_000, on_line=interrupt)
    assert (summary["outcome"], summary["exit_code"], summary["error"]) == ("interrupted", 130, None)
    assert summary["books"]["balanced"]
    assert list((launches.path / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("find_no_room", 2, "[CFG-002] the checkpoint cannot be written\n"),
        ("leave", 1, "[SUP-001] trainer was told to stop, and ended before it was done: exit code 0\n"),
        ("kill", 1, "[SUP-001] trainer was told to stop, and ended before it was done: killed by SIGKILL"),
    ],
)
def test_a_trainer_that_cannot_save_when_it_is_told_to_stop_fails_the_run(launches, fault, code, says):
    def interrupt(line):
        if line.text.startswith("Step 2/") and line.component == "trainer":
            os.kill(os.getpid(), signal.SIGTERM)

    summary = launches.run(steps=100_000, on_line=interrupt, who="trainer", fault=fault, at=SAVING)
    assert summary["error"].startswith(says)
    assert (summary["outcome"], summary["culprit"], summary["exit_code"]) == ("failed", "trainer", code)
    assert not list((launches.path / "checkpoints").iterdir())
    assert [event["component"] for event in events(launches.path, "fault")] == ["trainer"]


def test_an_interrupt_need_not_wait_for_imports(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("import select\nselect.select([], [], [], 600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = load_rl_config([])
    what = replace(begin(config, tmp_path / "run", "x"), targets=TARGETS, preload=("never_imported",))
    turns = []

    def interrupt(supervisor, timeout_s):
        turns.append(os.kill(os.getpid(), signal.SIGINT))
        return []

    monkeypatch.setattr(Supervisor, "poll", interrupt)
    with what.place:
        summary = launch(what)
    assert (summary["outcome"], len(turns)) == ("interrupted", 1)


def test_an_interrupt_does_not_wait_for_a_server_that_was_to_be_started_again(launches):
    def interrupt(line):
        if line.text.startswith("inference killed by"):
            os.kill(os.getpid(), signal.SIGINT)

    summary = launches.run(who="inference", fault="kill", at=1, on_line=interrupt, supervision__backoff_s=1e6)
    assert (summary["outcome"], summary["exit_code"], summary["restarts"]) == ("interrupted", 130, 1)


def test_a_run_ends_with_its_fork_server(tmp_path, monkeypatch):
    pids = []
    opened = launcher._fork_server

    @contextlib.contextmanager
    def seen(what):
        with opened(what) as server:
            pids.append(server.pid)
            yield server

    def kill(line):
        if line.text.startswith("Step 2/") and pids:
            os.kill(pids.pop(), signal.SIGKILL)

    monkeypatch.setattr(launcher, "_fork_server", seen)
    config = load_rl_config([], {"run.steps": 100_000})
    what = replace(begin(config, tmp_path / "run", "x"), targets=TARGETS, preload=("llm_stand_ins",))
    with what.place:
        summary = launch(what, kill)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 1, "supervisor")
    assert summary["error"].startswith("[SUP-001] the fork server is gone: it ended\n")


@pytest.mark.table
def test_a_run_ends_after_its_duration(launches):
    summary = launches.run(steps=100_000, run__run_duration_s=0.1)
    assert (summary["outcome"], summary["exit_code"]) == ("completed", 0)
    assert summary["steps"] > 0


def test_a_port_that_is_taken_is_named_before_anything_starts(launches):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            launches.run(inference__port=port)
    assert str(caught.value) == (
        f"[CFG-001] port {port} of 127.0.0.1 is taken by another program\n"
        "  key: inference.port\n"
        f"  fix: choose another (--inference.port {port + 1}), or 0 for one that is free"
    )


def test_a_warm_start_alone_is_a_run(launches):
    summary = launches.run(cast=single_cast("warm-start", warm_start=False))
    assert (summary["outcome"], summary["steps"], summary["sft"]) == ("completed", 0, {"steps": 3, "loss": 0.5})
    assert (launches.path / "weights" / "0").is_dir()


def test_a_run_is_watched_from_outside_while_it_goes_on_and_after_its_end(launches, capsys):
    def look(line):
        if line.component == "trainer" and line.text.startswith("Step 2/") and not told:
            assert main(["monitor", str(launches.path), "--once"], standalone_mode=False) == 0
            told.append(capsys.readouterr().out)

    told = []
    launches.run(on_line=look, steps=10**6, run__run_duration_s=0.5)  # over when it has been looked at
    assert all(f"\n{name}" in told[0] for name in ("supervisor", "inference", "trainer", "orchestrator"))
    assert " of 1,000,000 steps, " in told[0]
    assert "\nhealthy: " in told[0]
    assert main(["monitor", str(launches.path)], standalone_mode=False) == 0  # ends by itself
    assert "\nfinished: the run completed after " in capsys.readouterr().out


def test_a_run_whose_directory_is_replaced_leaves_no_summary_in_the_other_one(launches, tmp_path):
    def move(line):
        if "Step 1/" in line.text and not (tmp_path / "elsewhere").exists():
            replace_run(launches.path, tmp_path / "elsewhere", "checkpoints", "weights", "rollouts")

    summary = launches.run(steps=10_000, on_line=move)
    assert (summary["outcome"], summary["exit_code"]) == ("failed", 1)
    assert summary["error"].startswith(f"[CFG-003] the run directory {launches.path} was removed, moved or replaced")
    assert "found: another run's lock in it" in summary["error"]
    assert "unwritten" not in summary
    assert not [*tmp_path.rglob("summary.json*")]


def test_a_run_whose_weights_are_moved_away_ends_and_says_so(launches, tmp_path):
    def move(line):
        if "Step 1/" in line.text and not (tmp_path / "elsewhere").exists():
            (launches.path / "weights").rename(tmp_path / "elsewhere")

    summary = launches.run(steps=10_000, on_line=move)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 1, "supervisor")
    assert summary["error"].startswith(f"[CFG-003] the run directory {launches.path} was removed, moved or replaced")
    # The trainer may have made them anew.
    assert "found: no weights in it" in summary["error"] or "found: another weights in it" in summary["error"]
    assert_left_in_order(launches, summary)
