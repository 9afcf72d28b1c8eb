"""Ctrl-C and SIGTERM while the command is still loading: one line and exit code 130, wherever it stands."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.core.clock import MonotonicClock
from record_here import record_here

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

SCRIPT = Path(sys.executable).with_name("headrace")
LIMIT_S = 30.0


def start(*arguments: str, where: Path, command: Sequence[str | Path] = (SCRIPT,)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[int], bool]) -> None:
    """Look at a process again and again until it has reached some point; never longer than the limit."""
    clock = MonotonicClock()
    due_s = clock.now() + LIMIT_S
    descriptor = os.pidfd_open(process.pid)
    try:
        while not reached(process.pid):
            ended, _, _ = select.select([descriptor], [], [], 0.0005)
            assert not ended, process.communicate(timeout=LIMIT_S)
            assert clock.now() < due_s, "the point was not reached"
    finally:
        os.close(descriptor)


def catches_sigterm(pid: int) -> bool:
    """Whether its first line of our own has run: Python itself leaves SIGTERM alone."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def has_mapped(part: str) -> Callable[[int], bool]:
    """Whether a library is mapped whose path has this part: the import has come so far."""
    return lambda pid: part in Path(f"/proc/{pid}/maps").read_text()


POINTS = {
    "first line": catches_sigterm,
    "numpy begins": has_mapped("_multiarray_umath"),
    "numpy's random generators": has_mapped("numpy/random/"),
    "pydantic": has_mapped("pydantic_core"),
}


@pytest.mark.parametrize("command", [("-m", "headrace"), ("-mheadrace",)], ids=" ".join)
def test_module_is_the_command_from_its_first_line_on(command, tmp_path):
    with start("list", where=tmp_path, command=command) as process:
        wait_until(process, catches_sigterm)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_module_answers_as_the_command_does(tmp_path):
    with start("nonsense", where=tmp_path, command=("-m", "headrace")) as process:
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (2, "")
        assert err.startswith("Usage: headrace [OPTIONS] COMMAND [ARGS]...\n")


def test_module_is_not_run_again_in_processes_that_python_starts():
    """multiprocessing imports the main module in its children."""
    program = (
        "import multiprocessing, runpy, sys\n"
        "import headrace.cli.main as cli\n"
        "def command():\n"
        "    for method in ('spawn', 'forkserver'):\n"
        "        child = multiprocessing.get_context(method).Process(target=print, args=(method,))\n"
        "        child.start(); child.join(20.0); assert child.exitcode == 0\n"
        "cli.main = command\n"
        "runpy.run_module('headrace', run_name='__main__', alter_sys=True)\n"
        "runpy.run_module('headrace.__main__', run_name='__mp_main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )  # fmt: skip
    assert done.stdout == "spawn\nforkserver\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("point", POINTS)
def test_interrupted_while_loading_it_says_so_in_one_line(point, number, tmp_path):
    with start("train", "pendulum-td3", where=tmp_path) as process:
        wait_until(process, POINTS[point])
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, err) == (130, "", "interrupted\n")
        assert list(tmp_path.iterdir()) == []  # no run directory was begun


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_last_import_of_a_run_it_leaves_no_directory(number, tmp_path):
    with start("train", "pendulum-td3", where=tmp_path) as process:
        # tensorboard's protocol buffers come with the run itself, after the configuration has been read.
        wait_until(process, has_mapped("google/_upb"))
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, err) == (130, "", "interrupted\n")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 6, 7, 8])
def test_no_traceback_at_any_point(times, tmp_path):
    """At moments that are spread over the start by how much memory is mapped, not by the clock."""
    with start("list", where=tmp_path) as process:
        wait_until(process, catches_sigterm)
        begun = mappings(process.pid)
        wait_until(process, lambda pid: mappings(pid) >= begun + 8 * times)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (130, "interrupted\n"), out


def mappings(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("\n")


def test_signal_that_comes_before_python_runs_ends_it_silently(tmp_path):
    with start("list", where=tmp_path) as process:
        process.send_signal(signal.SIGTERM)  # nobody catches it so early; the system ends the process
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (-signal.SIGTERM, 130)
        assert "Traceback" not in err


def test_ignored_signals_stay_ignored(tmp_path):
    """As under nohup, or in the background of a shell script."""
    script = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", script, sys.executable, str(SCRIPT), "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        wait_until(process, catches_sigterm)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (0, "")
        assert out.startswith("headrace ")


def test_other_programs_keep_their_own_handlers():
    program = "import signal, headrace; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )  # fmt: skip
    assert done.stdout == "True\n"


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--stps", "3"], ["nonsense"]])
def test_short_answers_load_no_more_than_they_need(arguments):
    program = (
        "import sys; from headrace.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'tensorboard', 'matplotlib', 'psutil', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.table
def test_interrupt_at_the_prompt_of_a_replay_ends_the_line_and_not_the_session(tmp_path):
    run = record_here(tmp_path / "run")
    command = [sys.executable, SCRIPT, "replay", run, "--until", "update:3"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("print('stands at', learner.updates, flush=True)\n")
        assert process.stdout.readline().endswith("stands at 2\n")
        process.stdin.write("import os, signal; os.kill(os.getpid(), signal.SIGINT)\n")
        out, err = process.communicate("print('still at', learner.updates)\n", timeout=LIMIT_S)
        assert "still at 2" in out, err
        assert process.returncode == 0


TWICE = """
import signal, sys
sys.argv = ["headrace", "list"]
import headrace.cli.early as early
from headrace.cli import main, unheard

def command(commands, ctx):
    early.hand_over()
    {command}

def meddled(*told):
    if not left:
        setattr(unheard, "{where}", former)
        signal.raise_signal(signal.SIGINT)
    else:
        left.pop()
    former(*told)

left = [None] * {after}
former = unheard.{where}
unheard.{where} = meddled
main.Commands.invoke = command
main.main()
"""


@pytest.mark.parametrize(
    ("command", "where", "after"),
    [("raise KeyboardInterrupt", "complain", 0), ("raise KeyboardInterrupt", "hurry", 0), ("return 0", "finish", 1)],
    ids=["as it is told", "before it is told", "when all is done"],
)
def test_no_traceback_where_it_is_interrupted_at_its_very_end(command, where, after):
    program = TWICE.format(command=command, where=where, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_a_bar_that_is_left_at_once_gives_the_cursor_back(monkeypatch):
    program = (
        "import signal, sys; sys.argv[0] = 'headrace'; import headrace.cli.early\n"
        "from headrace.cli.bars import bar\n"
        "with bar() as drawn:\n"
        "    drawn.add_task('replaying', total=9); drawn.refresh()\n"
        "    signal.raise_signal(signal.SIGINT)\n"
    )
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", program], stderr=slave, timeout=LIMIT_S, check=False)
        drawn = os.read(master, 1 << 16)
        assert (done.returncode, drawn[-13:]) == (130, b"interrupted\r\n")
        assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")
    finally:
        os.close(slave)
        os.close(master)
