"""``headrace monitor`` over real processes: busy, idle, zombie, killed, stopped, ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

import psutil
import pytest

from headrace.core.clock import MonotonicClock
from headrace.ipc.channel import Deadline, poll_fds
from headrace.monitor.logfindings import WatchLimits
from headrace.monitor.logprocesses import ProcessWatch, sample

pytestmark = pytest.mark.process

LIMIT_S = 20.0
IDLES = "import sys; print('up', flush=True); sys.stdin.read()"
LOOPS = "print('up', flush=True)\nwhile True: pass"
HAS_ZOMBIE = "import subprocess, sys; kept = subprocess.Popen(['false']); print('up', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def running(code, up="up"):
    """A Python process that has printed ``up``; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert poll_fds({process.stdout.fileno(): select.POLLIN}, LIMIT_S), "it did not start"
            assert process.stdout.readline() == f"{up}\n"
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_S)


def found_in_time(watch, wanted, silent_for_s=100.0, later_s=0.0):
    """Look until a finding of this kind is there; its sentence. To the watch each look is so much later than it is."""
    clock, deadline, looks = MonotonicClock(), Deadline(LIMIT_S), 0
    while not deadline.passed:
        now_s, looks = clock.now() + looks * later_s, looks + 1
        watch.feed(sample(watch.to_sample(), now_s), now_s)
        for finding in watch.findings(now_s, silent_for_s):
            if finding.kind == wanted:
                return finding.sentence
        poll_fds({}, 0.05)
    raise AssertionError(f"no {wanted} within {LIMIT_S} s")


def watch_over(process):
    return ProcessWatch([process.pid], WatchLimits(busy_share=0.2))


def test_a_process_that_loops_is_busy():
    with running(LOOPS) as process:
        text = found_in_time(watch_over(process), "busy")
        assert text.startswith(f"process {process.pid} (python")
        assert "of a core while the log has stood still for 100 s" in text


def test_a_process_that_waits_is_idle():
    with running(IDLES) as process:
        assert "does not compute" in found_in_time(watch_over(process), "idle")


def test_a_child_that_nobody_collects_is_a_zombie_with_its_exit_code():
    with running(HAS_ZOMBIE) as process:
        text = found_in_time(watch_over(process), "zombie", later_s=1.0)
        assert text.endswith(
            "(false) has ended, exit code 1 while 1 other goes on and stays a zombie: its parent does not notice"
        )


def test_a_killed_process_is_told_with_its_signal():
    with running(IDLES) as process:
        watch = watch_over(process)
        watch.feed(sample([process.pid], 0.0), 0.0)
        process.send_signal(signal.SIGKILL)
        assert found_in_time(watch, "ended") == (
            f"process {process.pid} ({psutil.Process(process.pid).name()}) has ended, killed by SIGKILL"
        )


def test_a_stopped_process_is_told():
    with running(IDLES) as process:
        process.send_signal(signal.SIGSTOP)
        assert "has been stopped" in found_in_time(watch_over(process), "stopped")
        assert psutil.pid_exists(process.pid)


# the command


HURRIES = """
from headrace.cli.main import main
from headrace.monitor import logprocesses, logsession
logprocesses.GRACE_S, logsession.LOOK_EVERY_S = 0.5, 0.1
main()
"""
"""The command, which looks more often than users need it to, and does not wait long for the last lines of a log."""


@contextlib.contextmanager
def monitor(*arguments):
    """The command in a process of its own; its output comes with `ended`."""
    command = [sys.executable, "-c", HURRIES, "monitor", *map(str, arguments)]
    # Without a buffer, or lines that `poll` cannot see would lie in it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_S)


def ended(process):
    """Exit code, the rest of standard output, and standard error."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out.decode(), err.decode()


def line_with(process, words):
    """The first line of output that holds these words."""
    deadline = Deadline(LIMIT_S)
    while poll_fds({process.stdout.fileno(): select.POLLIN}, deadline.left_s()):
        line = process.stdout.readline().decode()
        if words in line or not line:
            return line
    raise AssertionError(f"nothing said {words!r} within {LIMIT_S} s")


@pytest.mark.table
def test_silence_is_told_while_it_lasts_and_when_it_is_over(tmp_path):
    log = tmp_path / "training.log"
    log.write_text("step=1\n")
    with running(IDLES) as training, monitor("--log-file", log, "--pid", training.pid, "--silence-s", "0.5") as command:
        assert 'the last one: "step=1"' in line_with(command, "error: no new line for")
        assert "waits" in line_with(command, "does not compute")
        with log.open("a") as file:
            file.write("step=2\n")
        assert "no new line for" in line_with(command, "over after")
        training.kill()
        training.wait(LIMIT_S)
        code, out, err = ended(command)
        assert code == 1
        assert "ended after" in out
        assert err == ""


def test_interrupted_it_sums_up_and_leaves_with_130(tmp_path):
    log = tmp_path / "training.log"
    log.write_text("RuntimeError: boom\n")
    with monitor("--log-file", log) as command:
        assert "RuntimeError: boom" in line_with(command, "warning: error once")
        command.send_signal(signal.SIGINT)
        code, out, err = ended(command)
        assert (code, err) == (130, "")
        assert "interrupted after" in out
        assert '  open    warning: error once (line 1): "RuntimeError: boom"' in out


@pytest.mark.table
def test_json_names_the_signal_that_ended_a_process(tmp_path):
    log = tmp_path / "training.log"
    log.write_text("step=1\n")
    with running(IDLES) as training:
        training.kill()
        os.waitid(os.P_PID, training.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
        with monitor("--log-file", log, "--pid", training.pid, "--json") as command:
            code, out, err = ended(command)
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert [finding["kind"] for finding in report["findings"]] == ["ended"]
    assert (report["outcome"], report["processes"][0]["exit_code"]) == ("ended", -9)


def test_a_command_that_cannot_work_says_so_without_a_traceback(tmp_path):
    with monitor("--log-file", tmp_path, "--once") as command:
        code, out, err = ended(command)
    assert (code, out) == (2, "")
    assert err.startswith("[CFG-001]")
    assert "is not a regular file" in err
