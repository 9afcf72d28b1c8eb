"""The command where nobody reads what it prints: the run goes on, and the exit code is the command's own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.ipc.channel import Deadline, poll_fds
from headrace.monitor.logsession import LogSession
from headrace.monitor.reader import read_run
from headrace.runtime.rundir import RunDirectory
from resume_support import PastRun
from supervise_support import LIMIT_S, Command

pytestmark = pytest.mark.process

SCRIPT = Path(sys.executable).with_name("headrace")

SERVER = """
[process.server]
command = ['sh', '-c', 'echo up; sleep 1000']
ready = { log = "up" }
stop_s = 5.0
"""
FAILS = """
[process.server]
command = ['sh', '-c', 'echo up; exit 4']
ready = { log = "up" }
"""
BLOCK = """
[process.block]
command = ['printf', '\\342\\226\\210\\n']
lifetime = "until-done"
"""
QUIET = """
[process.quiet]
command = "true"
lifetime = "until-done"
"""


def closed() -> int:
    """A pipe that nobody reads from any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@contextmanager
def full() -> Iterator[int]:
    """A pipe that is full, and stays so."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"f" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(writing)
        os.close(reading)


def ended(*arguments: str | Path, where: Path, **streams: int) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; descriptors that are given are closed here."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    try:
        return subprocess.run(
            [sys.executable, SCRIPT, *arguments], cwd=where, text=True, timeout=LIMIT_S, check=False, **pipes
        )
    finally:
        for fd in streams.values():
            os.close(fd)


@pytest.fixture
def past(tmp_path) -> Path:
    """A run that has completed."""
    run = PastRun(tmp_path / "run")
    run.learn()
    return run.end("completed")


@pytest.mark.table
def test_a_reader_who_leaves_changes_no_exit_code(past, tmp_path):
    """``headrace doctor RUN | head -1``."""
    assert ended("doctor", past, where=tmp_path).returncode == 0
    found = ended("doctor", past, where=tmp_path, stdout=closed())
    assert (found.returncode, found.stderr) == (0, "")
    found = ended("doctor", tmp_path / "none", where=tmp_path, stderr=closed())
    assert found.returncode == 2


@pytest.mark.table
def test_nobody_is_left_to_watch_for(past, tmp_path):
    """``headrace monitor RUN | head -1`` of a run that goes on for days."""
    (past / "summary.json").unlink()
    with RunDirectory.resume(past):
        assert read_run(past).live
        found = ended("monitor", past, where=tmp_path, stdout=closed())
    assert (found.returncode, found.stderr) == (0, ""), "what it found"


def test_what_is_lost_on_a_full_disk_is_told(past, tmp_path):
    found = ended("doctor", past, where=tmp_path, stdout=os.open("/dev/full", os.O_WRONLY))
    assert (found.returncode, found.stderr) == (1, "what was to be printed is lost: No space left on device\n")


@pytest.mark.parametrize(
    "words", ["{run}", "{run} --once", "{run} --json", "--log-file log --once", "--log-file log --once --json"]
)
def test_what_a_watch_loses_on_a_full_disk_is_told(past, tmp_path, monkeypatch, capsys, words):
    """It has the signals, as a run has, and goes on for nobody."""
    monkeypatch.chdir(tmp_path)
    Path("log").write_text("step 1 loss 0.5\n")
    with Path("/dev/full").open("r+b", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "utf-8", write_through=True))
        with pytest.raises(SystemExit) as left:
            main(["monitor", *words.format(run=past).split()])
    assert left.value.code == 1
    assert capsys.readouterr().err == "what was to be printed is lost: No space left on device\n"


def test_a_watch_that_is_interrupted_waits_for_nobody(tmp_path, monkeypatch):
    def follow(*_):
        signal.raise_signal(signal.SIGINT)
        return iter(())

    monkeypatch.setattr(LogSession, "follow", follow)
    with full() as stdout, os.fdopen(os.dup(stdout), "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "utf-8", write_through=True))
        with pytest.raises(SystemExit) as left:
            main(["monitor", "--log-file", str(tmp_path / "log")])
    assert left.value.code == 130


@pytest.mark.parametrize(("where", "words"), [("monitor", "--log-file log"), ("watching", "{run}")])
def test_a_watch_hands_over_again_and_again_what_its_reader_had_no_room_for(past, tmp_path, monkeypatch, where, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"headrace.cli.{where}.pass_on", lambda: signal.raise_signal(signal.SIGINT))
    (past / "summary.json").unlink()
    with RunDirectory.resume(past), pytest.raises(SystemExit) as left:
        main(["monitor", *words.format(run=past).split(), "--run-duration", "20"])
    assert left.value.code == 130, "it was called, and that is all that ends it before its time"


@pytest.mark.thin(2)
@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_reader_who_stands_still_holds_no_supervisor_up(tmp_path, quiet):
    """Ctrl-S, a pager that waits for a key, a connection that is stuck."""
    with full() as stdout, Command(tmp_path, SERVER, *quiet, stdout=stdout) as command:
        command.until("ready", "server")
        command.process.send_signal(signal.SIGTERM)
        assert command.ended() == 130
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "interrupted"


def test_an_interrupt_ends_a_command_that_waits_for_its_end_to_be_read(tmp_path):
    with full() as stdout, Command(tmp_path, FAILS, stdout=stdout) as command:
        deadline = Deadline(LIMIT_S)
        while "exited with code 4" not in command.output():  # what went wrong is told before anybody reads how it ended
            assert not deadline.passed
            poll_fds({}, 0.02)
        while "interrupted\n" not in command.output() and not deadline.passed:
            command.process.send_signal(signal.SIGINT)
            poll_fds({}, 0.05)
        assert command.ended() == 130
        assert "Traceback" not in command.output()


@pytest.mark.thin(2)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_stream_that_fails_is_the_one_that_falls_silent(tmp_path, stream):
    """``headrace supervise FILE --json 2>&1 >out.json | head``."""
    (tmp_path / "run.toml").write_text(FAILS)
    found = ended("supervise", "run.toml", "--json", "--run-dir", "run", where=tmp_path, **{stream: closed()})
    assert found.returncode == 1
    if stream == "stderr":
        assert json.loads(found.stdout)["exit_code"] == 1
    else:
        assert found.stderr.splitlines()[-1].startswith("  ")  # the error's last line
        assert "standard output takes no more (Broken pipe); the run goes on\n" in found.stderr


@pytest.mark.thin(2)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_locale_lacks_end_nobody(tmp_path, monkeypatch, encoding):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    (tmp_path / "run.toml").write_text(BLOCK)
    found = ended("supervise", "run.toml", "--run-dir", "run", where=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert ("| \\u2588" if encoding == "latin-1" else "| ") in found.stdout


def test_streams_that_are_closed_are_no_file_of_the_run(tmp_path):
    """``headrace supervise FILE >&- 2>&-``: what would get their numbers next is the board, and whoever prints writes into it."""
    (tmp_path / "run.toml").write_text(QUIET)
    shell = 'exec "$0" "$@" >&- 2>&-'
    line = ["sh", "-c", shell, sys.executable, str(SCRIPT), "supervise", "run.toml", "--run-dir", "run"]
    assert subprocess.run(line, cwd=tmp_path, timeout=LIMIT_S, check=False).returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "completed"


def test_an_interrupt_while_it_loads_leaves_at_once_though_nobody_reads(tmp_path):
    program = (
        "import os, signal, sys; sys.argv[0] = 'headrace'; import headrace.cli.early\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    gone = closed()
    with full() as stderr:
        for stream in (stderr, gone):
            done = subprocess.run([sys.executable, "-c", program], stderr=stream, timeout=LIMIT_S, check=False)
            assert done.returncode == 130
    os.close(gone)
