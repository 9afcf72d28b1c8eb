"""Whole runs with vLLM as the server: the same orchestrator and trainer, supervised."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.llm.config import RLConfig
from headrace.llm.launch.chronicle import Line
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.starting import begin
from run_support import events

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

STEPS = 20
PROBE_NATS = 1e-4
KL_AT_EQUAL_WEIGHTS = 1e-6


def config_of(vllm: str, steps: int = STEPS, lag: int = 1) -> RLConfig:
    return RLConfig.model_validate(
        {
            "run": {"steps": steps},
            "model": {"hidden": 64, "layers": 2, "heads": 2, "context_tokens": 48},
            "env": {
                "name": "reverse-text",
                "max_turns": 1,
                "kwargs": {"shortest": 3, "longest": 4, "dialect": "brief"},
            },
            "sampling": {"max_tokens": 8},
            "orchestrator": {"groups_per_step": 8, "group_size": 8, "max_policy_lag": lag},
            "evaluation": {"every_steps": 10, "problems": 16},
            "inference": {"backend": "vllm", "command": [vllm, "serve"], "slots": 64},
            "trainer": {"lr": 3e-4},
            "sft": {"steps": 30, "batch_size": 32},
            "deadlines": {"start_s": 600.0},
        }
    )


def go(config: RLConfig, path: Path, on_line: Any = None) -> dict[str, Any]:
    what = begin(config, path, "vllm")
    with what.place:
        return launch(what, on_line)


def metrics(run: Path, name: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


@pytest.fixture
def vllm(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--vllm"))


@pytest.mark.parametrize("lag", [0, 1])
def test_twenty_steps_with_every_version_proved(vllm: str, tmp_path: Path, lag: int) -> None:
    run = tmp_path / "run"
    summary = go(config_of(vllm, lag=lag), run)
    assert (summary["outcome"], summary["steps"]) == ("completed", STEPS), summary["error"]
    assert [one["version"] for one in summary["evaluations"]] == [0, 10, 20]
    differences = metrics(run, "weights/probe_difference")
    assert len(differences) >= (STEPS - 1 if lag == 0 else 1)  # with a lag, some are overtaken by newer ones
    assert max(differences) < PROBE_NATS
    assert max(metrics(run, "off_policy/max")) <= lag
    if lag == 0:
        assert max(metrics(run, "mismatch_kl/mean")) < KL_AT_EQUAL_WEIGHTS


@pytest.mark.parametrize("victim", ["worker", "keeper"])
def test_a_server_that_is_killed_is_started_again_with_the_newest_weights(
    vllm: str, tmp_path: Path, victim: str
) -> None:
    run = tmp_path / "run"
    of_before: list[int] = []
    left: list[int] = []

    def on_line(line: Line) -> None:
        if not of_before and "evaluation of version 10" in line.text:
            of_before.extend(workers())
            for pid in of_before if victim == "worker" else [keeper(run)]:
                os.kill(pid, signal.SIGKILL)
        if of_before and line.component == "inference" and line.text == "inference is ready":
            left.extend(pid for pid in of_before if Path(f"/proc/{pid}").exists())

    summary = go(config_of(vllm), run, on_line)
    assert of_before
    assert (summary["outcome"], summary["steps"], summary["restarts"]) == ("completed", STEPS, 1), summary["error"]
    assert not left


def keeper(run: Path) -> int:
    """The process that runs vLLM."""
    return next(int(event["pid"]) for event in events(run, "started") if event["component"] == "inference")


def workers() -> list[int]:
    """Processes of ours in which vLLM computes."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if b"VLLM::Worker" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
