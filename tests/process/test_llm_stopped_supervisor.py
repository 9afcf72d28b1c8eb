"""A launcher that a signal stops, alone (Ctrl-Z): its components go on, and it hears of everything when it goes on too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.ipc.channel import Deadline, poll_fds
from headrace.llm.loading import load_rl_config
from headrace.runtime.config import dump_toml
from llm_real_support import SMALL, real, real_server
from run_support import events

__all__ = ["real", "real_server"]

pytestmark = [pytest.mark.process, pytest.mark.table]

LIMIT_S = 60.0  # bounds a failure; a success never waits for it
STEPS = 150  # reports of some 50 fill the socket
SMALLEST: dict[str, object] = {
    "run.steps": STEPS, "model.hidden": 8, "model.layers": 1, "model.heads": 1, "model.context_tokens": 40,
    "env.name": "reverse-text", "sampling.max_tokens": 1, "orchestrator.groups_per_step": 1,
    "orchestrator.group_size": 2, "orchestrator.max_policy_lag": 0, "orchestrator.filter.zero_advantage": False,
    "evaluation.problems": 1, "evaluation.every_steps": 0, "inference.slots": 4, "sft.steps": 0,
    "deadlines.stop_s": 0.2, "checkpoint.every_steps": 0, "env.factory": None,
}  # fmt: skip


def until(seen: Callable[[], bool]) -> None:
    deadline = Deadline(LIMIT_S)
    while not seen():
        assert not deadline.passed
        poll_fds({}, 0.02)


def newest(run: Path) -> int:
    return max((int(name.name) for name in (run / "weights").glob("[0-9]*")), default=0)


def test_a_run_goes_on_while_its_launcher_is_stopped_and_learns_the_same(real, tmp_path):
    run = tmp_path / "stopped"
    (tmp_path / "stopped.toml").write_text(dump_toml(load_rl_config([], {**SMALL, **SMALLEST})))
    command = [sys.executable, "-m", "headrace", "rl", "@", str(tmp_path / "stopped.toml"), "--run-dir", str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        try:
            until(lambda: newest(run) >= 5 or program.poll() is not None)
            assert program.poll() is None, program.stderr.read()
            (orchestrator,) = events(run, "started", "orchestrator")
            program.send_signal(signal.SIGSTOP)
            until(lambda: newest(run) == STEPS or not psutil.pid_exists(orchestrator["pid"]))
        finally:
            program.send_signal(signal.SIGCONT)
        assert program.wait(LIMIT_S) == 0, program.stderr.read()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["outcome"], summary["steps"], summary["faults"]) == ("completed", STEPS, {})
    assert summary["books"]["balanced"]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in steps if "optim/lr" in one] == list(range(1, STEPS + 1))
    alike = {key.replace(".", "__"): value for key, value in SMALLEST.items()}
    twin = real(**alike, run__schedule="inline")
    assert summary["weights_sha256"] == twin["weights_sha256"], twin["error"]
