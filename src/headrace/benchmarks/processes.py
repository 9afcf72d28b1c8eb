"""Processes of sides: started in the first environment that has what they need, asked in turns, and ended whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.benchmarks.sides import INSTALLED_BY, Found, Request
from headrace.core.errors import ConfigError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.processes import pidfd_of, wait_for_end

ENTRY = Path(__file__).absolute().with_name("entry.py")
OPENING_S = 300.0
"""Seconds in which a side must have imported, built and compiled what it needs."""
_ENDING_S = 10.0
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_READ_BYTES = 1 << 16
_OURS = re.compile(r"(headrace\.[\w.]+: )?\[[A-Z]+-\d{3}\] ")
"""How an error of ours begins, also below a traceback."""


class SideFailedError(Exception):
    """A side has no figures; the text says why, in one line."""


class SideMissingError(SideFailedError):
    """Something it needs is not installed where it was looked for."""


def interpreters(named: Sequence[Path]) -> list[Path]:
    """Where peers are looked for: this environment, those that are named, and folders ``.peers*`` of the working directory.

    Args:
        named: Folders of virtual environments, or their interpreters.

    Raises:
        ConfigError: One of them is neither.
    """
    found = [Path(sys.executable)]
    for path in named:
        python = path / "bin" / "python" if path.is_dir() else path
        if not os.access(python, os.X_OK) or python.is_dir():
            raise ConfigError(
                f"--peers {path} is no virtual environment",
                looked_for=python,
                fix="name the folder of one: python -m venv DIR, then DIR/bin/pip install what the peer needs",
            )
        found.append(python.absolute())  # not resolved: that would leave the environment
    return [*found, *(python.absolute() for python in sorted(Path.cwd().glob(".peers*/bin/python")))]


class SideProcess:
    """One side in a process of its own.

    Args:
        python: Its interpreter.
        request: What it is opened with.
        threads: It may use, and processors.

    Raises:
        SideMissingError: This environment lacks what it needs.
        SideFailedError: It could not be opened.
    """

    def __init__(self, python: Path, request: Request, threads: int | None = None) -> None:
        self._answers, answers = os.pipe()
        leash, self._leash = os.pipe()
        os.set_blocking(self._answers, False)
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-bench-")  # some peers leave things where they run
        self._buffer = b""
        try:
            told = {**request, "answers": answers, "leash": leash, "threads": threads}
            with (Path(self._folder.name) / "output").open("wb") as output:
                self._process = subprocess.Popen(
                    [str(python), str(ENTRY), json.dumps(told)], stdin=subprocess.PIPE, stdout=output, stderr=output,
                    pass_fds=(answers, leash), start_new_session=True, cwd=self._folder.name, env=_variables(threads),
                )  # fmt: skip
        except OSError as error:
            self._put_away()
            raise SideFailedError(f"{python} cannot be run: {error.strerror}") from None
        finally:
            os.close(answers)
            os.close(leash)
        self._pidfd = pidfd_of(self._process.pid)  # waited for by this, its number stays its own until all are killed
        try:
            opened = self._answer(OPENING_S)
            if "missing" in opened:
                raise SideMissingError(str(opened["missing"]))
            self.version = str(opened["version"])
        except BaseException:  # passed on; a side that could not be opened leaves no process behind
            self.close()
            raise

    def ask(self, question: Mapping[str, Any], limit_s: float) -> Found:
        """One turn.

        Raises:
            SideFailedError: It has ended, or does not answer in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is told below
            self._process.stdin.write(f"{json.dumps(question)}\n".encode())
            self._process.stdin.flush()
        return self._answer(limit_s)

    def close(self) -> None:
        """End it, and all that it has started; a training that goes on may end in order first."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.kill(self._process.pid, signal.SIGTERM)
        wait_for_end(self._process.pid, self._pidfd, _ENDING_S)
        if self._pidfd >= 0:
            os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=_ENDING_S)
        self._put_away()

    def _put_away(self) -> None:
        os.close(self._answers)
        os.close(self._leash)
        self._folder.cleanup()

    def _answer(self, limit_s: float) -> Found:
        deadline = Deadline(limit_s)
        while b"\n" not in self._buffer:
            if not poll_fds({self._answers: select.POLLIN}, deadline.left_s()):
                raise SideFailedError(f"not done after {limit_s:g} s")
            piece = os.read(self._answers, _READ_BYTES)
            if not piece:
                raise SideFailedError(self._complaint())
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: Found = json.loads(line)
        return found

    def _complaint(self) -> str:
        """What it has printed of its end; it ends now, if it has not."""
        wait_for_end(self._process.pid, self._pidfd, _ENDING_S)
        return complaint((Path(self._folder.name) / "output").read_text(errors="replace"))


def complaint(printed: str) -> str:
    """The last error of ours with its remedy, in one line; else the last line."""
    lines = printed.strip().splitlines()
    begun = [number for number, line in enumerate(lines) if _OURS.match(line)]
    if not begun:
        return lines[-1] if lines else "it ended without a word"
    what = lines[begun[-1]]
    fix = next((line.strip() for line in lines[begun[-1] :] if line.startswith("  fix: ")), None)
    return what[what.index("[") :] + (f"; {fix}" if fix is not None else "")


@contextmanager
def opened(pythons: Sequence[Path], request: Request, threads: int | None = None) -> Iterator[SideProcess]:
    """A side in the first interpreter that has what it needs; ended when the block is left.

    Raises:
        SideMissingError: None has it; tells what brings it.
        SideFailedError: It could not be opened.
    """
    process, missing = None, []
    for python in pythons:
        try:
            process = SideProcess(python, request, threads)
            break
        except SideMissingError as error:
            missing.append(str(error))
    if process is None:
        raise SideMissingError(_not_there(request, missing))
    try:
        yield process
    finally:
        process.close()


def _not_there(request: Request, missing: Sequence[str]) -> str:
    modules = ", ".join(dict.fromkeys(missing)) or "an interpreter"
    remedy = request.get("remedy") or INSTALLED_BY.get(
        request["side"].partition(",")[0], "pip install 'PATH_OF_THE_CLONE[peers]'"
    )
    return f"{modules} is not installed: {remedy}; or name an environment that has it with --peers DIR"


def _variables(threads: int | None) -> dict[str, str]:
    """Ours, with limits for libraries that read theirs when they are imported."""
    return {**os.environ, **dict.fromkeys(_THREAD_LIMITS, str(threads or 1))}
