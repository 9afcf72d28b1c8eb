"""Records that are cut short: everything was killed, or the run still trains; and environments that hang in a replay."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.core.clock import MonotonicClock
from headrace.runtime.replayer import Replayer
from replay_support import HERE, SCRIPT, headrace
from run_support import SMALL, Runs

pytestmark = pytest.mark.process

LIMIT_S = 60.0
FOR_EVER = {
    **SMALL, "run.steps": 10_000_000, "env.factory": "run_envs:make", "record.hash_every": 50,
    "algorithm.normalize_observations": True, "checkpoint.enabled": False,
}  # fmt: skip


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """``headrace train`` in a process group of its own, once its record has some length; and its directory."""
    run = tmp_path / "run"
    given = [f"--set={key}={json.dumps(value)}" for key, value in FOR_EVER.items()]
    (tmp_path / "empty.toml").write_text("")
    with (tmp_path / "output").open("wb") as output:
        command = [*SCRIPT, "train", tmp_path / "empty.toml", "--run-dir", run, "--quiet", *given]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=HERE, start_new_session=True)
    try:
        wait_for_record(process, run, 12_000, tmp_path / "output")
        yield process, run
    finally:
        kill_everything(process)


def wait_for_record(process: subprocess.Popen[bytes], run: Path, nbytes: int, output: Path) -> None:
    """Look until the trace is so long."""
    clock = MonotonicClock()
    due_s = clock.now() + LIMIT_S
    descriptor = os.pidfd_open(process.pid)
    try:
        while size(run / "record" / "trace.bin") < nbytes:
            ended, _, _ = select.select([descriptor], [], [], 0.005)
            assert not ended, output.read_text()
            assert clock.now() < due_s, "the record does not grow"
    finally:
        os.close(descriptor)


def kill_everything(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL all of its processes at once: frozen before, none of them sees another one go, and notes it."""
    if process.poll() is None:
        parent = psutil.Process(process.pid)
        everybody = [parent, *parent.children(recursive=True)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for one in everybody:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(number)
    process.wait(timeout=LIMIT_S)


@pytest.mark.table
def test_a_run_whose_processes_were_all_killed_replays_up_to_its_last_event(training):
    process, run = training
    kill_everything(process)
    told = headrace("replay", run)
    assert (told.returncode, told.stderr) == (0, "")
    first, *others = told.stdout.splitlines()
    assert re.fullmatch(r"identical: [\d,]+ events, [\d,]+ updates, weights [0-9a-f]{64}", first)
    assert others[0] == "  the record ends before the run did: it was killed, or goes on, or its disk was full"

    trace = run / "record" / "trace.bin"
    with Replayer(run) as replayer:
        replayer.run()
        whole = replayer.outcome()
    assert first == str(whole)
    os.truncate(trace, size(trace) - whole.torn_bytes - 3)  # as a machine leaves it that loses power
    told = headrace("replay", run, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["identical"], found["ended"], found["events"]) == (True, False, whole.events - 1)
    assert found["torn_bytes"] > 0


@pytest.mark.table
def test_a_run_is_replayed_while_it_trains(training, tmp_path):
    process, run = training
    with Replayer(run) as replayer:
        before = replayer.record_bytes
        wait_for_record(process, run, before + 2_000, tmp_path / "output")
        assert replayer.run() is None
        found = replayer.outcome()
    assert process.poll() is None, "it trained all the while"
    assert not found.ended
    assert found.updates > 20


@pytest.mark.table
def test_an_environment_that_hangs_in_the_replay_is_named(runs: Runs, tmp_path: Path):
    marker = tmp_path / "marker"
    marker.touch()  # it does not hang while it is there
    run = runs.train(kwargs={"fault": "hang", "at": 20, "marker": str(marker)}, deadlines__step_s=1.5)
    assert run.completed, run.summary["error"]
    marker.unlink()
    told = headrace("replay", run.path)
    assert (told.returncode, told.stdout) == (3, "")
    first, *facts = told.stderr.splitlines()
    assert re.fullmatch(r"\[SUP-002\] the replay has been inside env\.step for \d s \(limit 1\.5 s\)", first)
    lane, *others = facts
    assert re.fullmatch(r"  lane: [0-5]", lane)
    assert others == [
        "  step: 19",
        "  fix: raise the deadline if the environment is only slow; else find out why it hangs there",
    ]
    assert marker.exists()
    again = headrace("replay", run.path)
    assert again.returncode == 0, again.stderr
