"""What is noted about a child before it is killed, or once it has died: resources, last words, native stacks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from headrace.core.clock import Clock
from headrace.ipc.channel import Deadline
from headrace.telemetry.board import Slot

SAMPLE_S = 2.0
"""Seconds between two looks at what the children use."""

NATIVE_S = 1.0
"""Seconds py-spy is given; a stuck child's replacement waits for it."""

_REAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used at one moment."""

    state: str
    """running, sleeping, stopped, disk-sleep (inside the kernel), zombie, …"""
    cpu_s: float
    """Processor time since it began."""
    rss_bytes: int
    threads: int
    open_files: int
    """Descriptors, sockets and pipes included."""

    def __str__(self) -> str:
        return (
            f"{self.state}, {self.cpu_s:.1f} s of processor time, {self.rss_bytes / 1e6:,.0f} MB resident, "
            f"{self.threads} threads, {self.open_files} open files"
        )


def usage(pid: int) -> Usage | None:
    """What a process uses now; None if it is gone or the system does not tell."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return Usage(
                state=str(process.status()),
                cpu_s=round(times.user + times.system, 2),
                rss_bytes=int(process.memory_info().rss),
                threads=int(process.num_threads()),
                open_files=int(process.num_fds()),
            )
    except (psutil.Error, OSError):
        return None


def started_bytes(pid: int) -> int:
    """Memory of all that a process has started and that is no other process's as well; 0 where nothing tells."""
    total = 0
    with contextlib.suppress(psutil.Error, OSError):
        for child in _started(pid):
            with contextlib.suppress(psutil.Error, OSError):  # it has ended meanwhile
                total += int(child.memory_full_info().uss)
    return total


def _started(pid: int) -> list[psutil.Process]:
    """Its children, and theirs. Most have none, which the kernel says at once; psutil looks through all processes."""
    threads = Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        if not any((thread / "children").read_bytes() for thread in threads.iterdir()):
            return []
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


class Sampled(Protocol):
    """Whoever is looked at."""

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        ...

    def sample(self) -> None:
        """Note what it uses now."""
        ...


class Own:
    """The supervisor's own use of resources.

    Args:
        slot: Its place on the board; None: it has none.
    """

    def __init__(self, slot: Slot | None) -> None:
        self._slot = slot
        self.alive = slot is not None

    def sample(self) -> None:
        """Note it on the board."""
        used = usage(os.getpid())
        if self._slot is not None and used is not None:
            self._slot.count("rss_bytes", used.rss_bytes)


class Sampler:
    """Has everybody's use of resources noted every `SAMPLE_S` seconds, so that the last use of a dead one is known.

    Args:
        sampled: All of them.
        clock: Monotonic.
    """

    def __init__(self, sampled: Iterable[Sampled], clock: Clock) -> None:
        self._sampled = list(sampled)
        self._clock = clock
        self._due_s = clock.now()

    def look(self) -> None:
        """Take a sample, if it is time to."""
        now_s = self._clock.now()
        if now_s < self._due_s:
            return
        self._due_s = now_s + SAMPLE_S
        for one in self._sampled:
            if one.alive:
                one.sample()


class NativeDump:
    """Stacks with their native frames from py-spy, where it is installed; never waits, and never raises.

    What py-spy says goes to the end of a file, also that it may not look (it needs the right to trace).

    Args:
        pid: Whose.
        path: The file.
    """

    def __init__(self, pid: int, path: Path) -> None:
        self._deadline = Deadline(NATIVE_S)
        self._process: subprocess.Popen[bytes] | None = None
        program = shutil.which("py-spy")
        if program is None:
            return
        command = [program, "dump", "--native", "--pid", str(pid)]
        with contextlib.suppress(OSError), path.open("ab") as file:
            file.write(b"\n== native stacks, by py-spy\n")
            file.flush()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def finished(self) -> bool:
        """Whether there is nothing more to wait for; ends a py-spy that takes too long."""
        if self._process is None:
            return True
        if self._ended(0.0):
            return True
        if not self._deadline.passed:
            return False
        self.close()
        return True

    def close(self) -> None:
        """End it if it still runs; again is harmless."""
        if self._process is not None and not self._ended(0.0):
            self._process.kill()
            self._ended(_REAP_S)

    def _ended(self, within_s: float) -> bool:
        process = self._process
        if process is None:
            return True
        try:
            process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        return True


def write_evidence(path: Path, headline: str, used: Usage | None, log_tail: Sequence[str]) -> None:
    """Append what is known about a child to its file of stacks; a full disk costs the evidence, not the run.

    Args:
        path: The file.
        headline: Who, and what happened, in one line.
        used: Its resources.
        log_tail: The last lines it printed.
    """
    lines = [f"== {headline}", f"== resources: {used or 'not known'}", f"== the last {len(log_tail)} lines it printed"]
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([*lines, *log_tail, ""]))
