"""However a program that holds a vector environment ends, no process of it stays, and what it says stays readable."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headrace.ipc.channel import Deadline, poll_fds
from vector_support import BACKENDS

pytestmark = [pytest.mark.process, pytest.mark.thin(3)]

HERE = Path(__file__).resolve().parents[1]
SOON_S = 5.0
LIMIT_S = 40.0
ISOLATED = ("worker", "threads")

BEGIN = """
import sys
import numpy as np
import headrace
from told_envs import Gated, Told, Trouble, told, Printing, WithHelper
envs = headrace.VectorEnv({factories}, **{options})
envs.reset(seed=0)
envs.step(np.zeros(envs.num_envs, int))
print("pids", *envs.worker_pids().values(), flush=True)
"""


def source(rest: str, backend: str, factories: str = "told(4)", **options: object) -> str:
    return BEGIN.format(factories=factories, options={**BACKENDS[backend], **options}) + rest


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[bytes]]:
    """A user's program in a session of its own, stopped at the line it prints; its workers' pids are ``.pids``."""
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    with process:
        try:
            process.pids = pids_of(process)  # type: ignore[attr-defined]
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def pids_of(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert poll_fds({process.stdout.fileno(): select.POLLIN}, LIMIT_S), "the program says nothing"
        piece = process.stdout.read(1)
        assert piece, process.stderr.read().decode() if process.stderr else "no pids"
        line += piece
    word, *pids = line.split()
    assert word == b"pids"
    return [int(pid) for pid in pids]


def assert_gone(pids: list[int]) -> None:
    """All of them, soon."""
    assert pids
    deadline = Deadline(SOON_S)
    while [pid for pid in pids if alive(pid)] and not deadline.passed:
        poll_fds({}, 0.02)
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


IDLE = "import select; select.select([], [], [], 600)\n"
STEPPING = "while True: envs.step(np.zeros(envs.num_envs, int))\n"
HUNG = "told(4, 1, Trouble('sleep', at=2))"


@pytest.mark.thin(2)
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize(
    ("factories", "rest"),
    [("told(4)", IDLE), ("told(4)", STEPPING), (HUNG, STEPPING)],
    ids=["idle", "stepping", "hung"],
)
def test_a_killed_parent_leaves_no_worker_and_no_noise(backend, factories, rest):
    """C041 and D054 of the public reports."""
    with program(source(rest, backend, factories, step_timeout_s=600.0)) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        assert_gone(process.pids)
        assert process.stderr.read() == b""


@pytest.mark.thin(3)
@pytest.mark.parametrize("to", ["group", "parent"])
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("rest", [STEPPING, IDLE], ids=["stepping", "idle"])
def test_an_interrupt_is_told_once(backend, rest, to):
    """N180: the traceback of the user's own program, and not one of a worker."""
    with program(source(rest, backend)) as process:
        if to == "group":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) in (130, -signal.SIGINT)
        said = process.stderr.read().decode()
        assert_gone(process.pids)
    assert said.count("Traceback") <= 1
    assert said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.thin(7)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rest", "code", "last"),
    [
        ("raise RuntimeError('oh no')\n", 1, "RuntimeError: oh no"),
        ("sys.exit(3)\n", 3, ""),
        ("\n", 0, ""),
        ("envs.send(np.zeros(4, int))\n", 0, ""),
        ("import gc; del envs; gc.collect()\n", 0, ""),
    ],
    ids=["raises", "exits", "ends", "ends with open steps", "forgets"],
)
def test_a_program_that_never_closes_leaves_nothing(backend, rest, code, last):
    """A002 of the public reports, and its kin."""
    with program(source(rest, backend)) as process:
        assert process.wait(LIMIT_S) == code
        said = process.stderr.read().decode()
        if backend != "serial":
            assert_gone(process.pids)
    assert said.rstrip().endswith(last)
    assert said.count("Traceback") == (1 if last else 0)


@pytest.mark.thin(16)
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", ["sleep", "loop", "gil", "swallow", "sigstop"])
def test_a_program_ends_while_an_environment_hangs(backend, what):
    rest = "envs.send(np.zeros(4, int))\n"
    factories = f"told(4, 1, Trouble({what!r}, at=2))"
    with program(source(rest, backend, factories, step_timeout_s=600.0, close_timeout_s=1.0)) as process:
        assert process.wait(LIMIT_S) == 0
        assert_gone(process.pids)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_that_environments_print_is_lost_or_in_the_way(backend):
    """C038: 256 KiB to each stream in every step."""
    factories = "[lambda i=i: Printing(i) for i in range(3)]"
    rest = "for _ in range(6): envs.step(np.zeros(3, int))\nenvs.close()\nprint('end')\n"
    done = subprocess.run(
        [sys.executable, "-c", source(rest, backend, factories)],
        cwd=HERE, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout + done.stderr
    for letter in b"abc":
        assert said.count(bytes([letter])) == 2 * 7 * (256 * 1024 - 1)
    assert done.stdout.rstrip().endswith(b"end")


@pytest.mark.parametrize("backend", ISOLATED)
def test_what_environments_print_goes_to_a_file_if_asked(backend, tmp_path):
    log = tmp_path / "envs.log"
    factories = "[lambda i=i: Printing(i) for i in range(3)]"
    rest = "envs.step(np.zeros(3, int))\nenvs.close()\n"
    done = subprocess.run(
        [sys.executable, "-c", source(rest, backend, factories, log_path=str(log))],
        cwd=HERE, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    said = log.read_bytes()
    for letter in b"abc":
        assert said.count(bytes([letter])) == 2 * 2 * (256 * 1024 - 1)


@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("ending", [IDLE, "envs.close()\n"], ids=["killed", "closed"])
def test_programs_that_environments_have_started_end_with_them(backend, ending, tmp_path):
    pids = tmp_path / "pids"
    factories = f"[lambda: WithHelper({str(pids)!r}) for _ in range(3)]"
    with program(source(ending, backend, factories)) as process:
        if ending == IDLE:
            process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        assert_gone([*process.pids, *(int(pid) for pid in pids.read_text().split())])


@pytest.mark.parametrize("backend", ISOLATED)
def test_a_program_that_was_frozen_as_a_whole_loses_no_episode(tmp_path, backend):
    """Ctrl-Z, a paused container: what was being stepped goes on where it was, and nobody is late."""
    gate, limit_s = tmp_path / "gate", 1.5
    os.mkfifo(gate)
    factories = f"[lambda i=i: Gated({str(gate)!r}, index=i) if i == 1 else Told(i) for i in range(4)]"
    rest = "envs.step(np.zeros(4, int)); print('pids', len(envs.faults), int(envs.valid.sum()), flush=True)\n"
    with program(source(rest, backend, factories, step_timeout_s=limit_s)) as process:
        everybody, begun = [process.pid, *process.pids], Deadline(LIMIT_S)
        while not Path(f"{gate}.inside").exists():
            assert not begun.passed
            poll_fds({}, 0.02)
        poll_fds({}, 0.4)  # some looks long
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        poll_fds({}, 2.0 * limit_s)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        poll_fds({}, 0.4)
        with contextlib.suppress(OSError):  # nobody is there any more: the step was ended
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        assert pids_of(process) == [0, 4]
