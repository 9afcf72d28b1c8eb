"""Processes of a benchmark: a fresh one for every measurement, what a family of them uses, and that none is left.

Linux only: it reads /proc. Imports nothing that is not in Python, because peers' environments run it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROC = Path("/proc")
MARK = "HEADRACE_BENCH_MARK"
"""Environment variable by which a measurement's processes are found, whoever their parent is by now."""
TICKS = os.sysconf("SC_CLK_TCK")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
GONE_S = 5.0
"""Seconds in which processes that were told to end must have ended."""


def interpreters(named: Sequence[str]) -> list[str]:
    """Where sides are looked for: in this environment, in those named, and in the checkout's folders ``.peers*``."""
    beside = sorted(Path(__file__).absolute().parents[1].glob(".peers*/bin/python"))
    # Not resolved: that would leave the environment. Absolute, because children run in folders of their own.
    return [sys.executable, *(str(Path(python).absolute()) for python in [*named, *beside])]


def end_tidily() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that the processes of a measurement are ended with it."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty if it is gone. The second one may hold blanks."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def family(root: int) -> list[int]:
    """``root`` and everything below it that lives."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat and stat[0] not in "ZX":
            children.setdefault(int(stat[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def marked(mark: str) -> list[int]:
    """Living processes that were started with this mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for pid in _pids():
        with contextlib.suppress(OSError):
            stat = _stat(pid)
            if stat and stat[0] not in "ZX" and wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def pss_mb(pids: Sequence[int]) -> float:
    """Their memory; what several of them share counts once."""
    total_kb = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb * 1024 / 1e6


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds they and their ended children have used."""
    return sum(sum(map(int, stat[11:15])) for stat in map(_stat, pids) if stat) / TICKS


def machine_cpu_s() -> float:
    """CPU seconds the whole machine has been busy since it came up."""
    user, nice, system, _idle, _io, irq, softirq = map(int, (PROC / "stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / TICKS


class Load:
    """How much of the machine others used while this process and its children were measured."""

    def __init__(self) -> None:
        self._at_s, self._machine_s, self._own_s = self._now()

    def cores(self) -> float:
        """Cores that were busy with something else since the beginning."""
        at_s, machine_s, own_s = self._now()
        others_s = (machine_s - self._machine_s) - (own_s - self._own_s)
        return max(0.0, others_s / (at_s - self._at_s))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), machine_cpu_s(), cpu_s(family(os.getpid()))


def end_all(pids: Sequence[int]) -> None:
    """Kill them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until_gone(mark: str, within_s: float = GONE_S) -> list[int]:
    """Processes with this mark that are still there after so many seconds."""
    end_s = time.perf_counter() + within_s
    left = marked(mark)
    while left and time.perf_counter() < end_s:
        time.sleep(0.05)
        left = marked(mark)
    return left


@dataclass
class Child:
    """One measurement's process and those it starts."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path
    ended: bool = field(default=False)

    def wait(self, limit_s: float) -> bool:
        """Whether it ends within ``limit_s``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=limit_s)
            self.ended = True
        return self.ended

    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects it has printed, one a line; what else was printed there is left out."""
        found = []
        for line in (self.folder / "out").read_text(errors="replace").splitlines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def complaint(self) -> str:
        """The last line of its standard error."""
        lines = (self.folder / "err").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"


@contextlib.contextmanager
def child(python: str, script: Path, request: dict[str, Any]) -> Iterator[Child]:
    """A fresh process that runs ``script`` with a request in JSON; leaving the block ends all it has started.

    It runs in a folder of its own: one of the peers leaves a link where it is imported.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = subprocess.Popen(
                [python, str(script), json.dumps(request)], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                text=True, start_new_session=True, cwd=folder, env={**os.environ, **ONE_THREAD, MARK: mark},
            )  # fmt: skip
        try:
            yield Child(process, mark, folder)
        finally:
            end_all([process.pid] if process.poll() is None else [])
            process.wait(timeout=GONE_S)
            end_all(marked(mark))
            wait_until_gone(mark)


def answer(
    pythons: Sequence[str], script: Path, request: dict[str, Any], limit_s: float
) -> tuple[dict[str, Any] | None, str]:
    """What a side answers in the first interpreter that has what it needs; None, and why not."""
    reason = "no interpreter"
    for python in pythons:
        with child(python, script, request) as process:
            ended = process.wait(limit_s)
            told = process.lines()
            reason = process.complaint() if ended else f"not done after {limit_s:g} s"
        if told and "missing" not in told[-1]:
            return told[-1], ""
        if not told:
            break
        reason = f"{told[-1]['missing']} is not there"
        if " " in told[-1]["missing"]:  # the peer is there, and has no such thing
            break
    return None, reason


@contextlib.contextmanager
def busy_neighbour(wanted: bool) -> Iterator[None]:
    """Somebody else who always has something to do on one core, unless not wanted."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()
