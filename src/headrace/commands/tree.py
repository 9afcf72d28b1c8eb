"""A program with all it starts: begun, signalled, and ended to the last descendant."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.core.errors import ComponentDied
from headrace.core.procstat import PROC, SESSION, STARTED, STATE, stat_fields
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import adopt_orphans, die_with_parent
from headrace.ipc.processes import kill_group, pidfd_of, send_signal
from headrace.supervision.spec import describe_exit

_LOOK_S = 0.02


class Tree:
    """One running program and its descendants, which this process adopts when their own parents end.

    Made in a process of its own, for it takes whatever this process is the parent of to be the program's.

    Args:
        name: Of the component.
        command: Program and arguments.
        cwd: Folder it runs in.
        env: All its variables.
        orphaned: What the program is sent when this process ends without ending it.

    Raises:
        ComponentDied: It cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        *,
        orphaned: signal.Signals = signal.SIGKILL,
    ) -> None:
        adopt_orphans()
        keeper = os.getpid()

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored here, and would be there
            die_with_parent(orphaned, keeper)

        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            self._process = subprocess.Popen(
                list(command), cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
                start_new_session=True, preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread as yet
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.close(reader)
            raise ComponentDied(
                f"{name} could not be started",
                command=command[0],
                problem=error,
                fix="name a program that exists and may be executed; a path counts from cwd",
            ) from None
        finally:
            os.close(writer)
        self.pid = self._process.pid
        self.output_fd = reader
        """What it and its descendants print; never blocks."""
        self.pidfd = pidfd_of(self.pid)
        """Readable when the program has ended; -1 where there are none."""

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Descendants that have ended are put away."""
        for pid in _children():
            if pid != self.pid and stat_fields(pid)[STATE : STATE + 1] == ["Z"]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.0)
        return self._process.returncode

    def signal(self, number: int) -> bool:
        """Send a signal to its process group, and let it go on if it is stopped, so that it can heed it; False: it has ended."""
        if self.ended() is not None:
            return False  # its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)
        return True

    def group_gone(self) -> bool:
        """Whether it and whoever else `signal` reaches have ended: not what has begun a session or a group of its own."""
        if self.ended() is None:
            return False
        try:
            os.killpg(self.pid, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)  # or whoever is left is another user's
        return False

    def kill(self, within_s: float) -> bool:
        """Kill it and every descendant; whether all were gone in time: this user may not kill everybody (sudo, setuid)."""
        deadline = Deadline(within_s)
        if self.ended() is None:
            kill_group(self.pid)
        while True:
            for pid in _children():  # the children of those that die become ours, and are found the next time
                send_signal(pid, signal.SIGKILL)
            code = self.ended()
            if code is not None and not _children():
                return True
            if deadline.passed:
                return False
            poll_fds({}, _LOOK_S)

    def gone(self) -> bool:
        """Whether it and every descendant have ended."""
        return self.ended() is not None and not _children()

    def stopped(self) -> bool:
        """Whether the program is stopped by a signal."""
        return stat_fields(self.pid)[STATE : STATE + 1] in (["T"], ["t"])

    def in_words(self) -> list[str]:
        """Every process of it, a line each: number, state, where in the kernel it waits, command."""
        return [_one(self.pid), *in_words_below(self.pid)]

    def in_words_left(self) -> list[str]:
        """What has not ended of it, a line each."""
        return in_words_below(os.getpid())

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.output_fd)
        if self.pidfd >= 0:
            os.close(self.pidfd)


Known = frozenset[tuple[int, str]]
"""Processes by number and start, which no other one will ever have."""


def children_now() -> Known:
    """Those that this process is the parent of, for `end_adopted` to spare."""
    return frozenset((pid, _start(pid)) for pid in _children())


def end_adopted(within_s: float, spared: Known) -> None:
    """Kill what this process has become the parent of, and theirs; for one that adopts orphans of a fork server.

    Args:
        within_s: Limit in seconds.
        spared: Who was its child before: a shell has replaced itself by this process. Whatever is in the session of this
            process is spared as well, for the fork server begins one of its own.
    """
    deadline = Deadline(within_s)
    while (left := [pid for pid in _children() if not _was_here(pid, spared)]) and not deadline.passed:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        poll_fds({}, _LOOK_S)


def _was_here(pid: int, spared: Known) -> bool:
    return (pid, _start(pid)) in spared or stat_fields(pid)[SESSION : SESSION + 1] == [str(os.getsid(0))]


def _start(pid: int) -> str:
    return "".join(stat_fields(pid)[STARTED : STARTED + 1])


def in_words_below(pid: int) -> list[str]:
    """Every process that one has started, and theirs, a line each."""
    return [_one(below) for below in _below(pid)]


def exit_in_words(code: int) -> str:
    """``exited with code 1``; ``was killed by SIGKILL (often the out-of-memory killer)``."""
    return f"exited with code {code}" if code >= 0 else f"was {describe_exit(code)}"


def _children(pid: int | None = None) -> list[int]:
    """Direct children of a process, of all its threads; empty where the system does not tell."""
    found = []
    for task in _tasks(pid or os.getpid()):
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _below(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _below(child)


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "inside the kernel",
    "T": "stopped by a signal",
    "Z": "ended",
    "t": "traced",
}


def _one(pid: int) -> str:
    folder = PROC / str(pid)
    fields = stat_fields(pid)
    state = _STATES.get(fields[STATE], fields[STATE]) if fields else "gone"
    place, command = "", ""
    with contextlib.suppress(OSError):
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    with contextlib.suppress(OSError):
        place = (folder / "wchan").read_text().strip()
    where = f" in {place}" if place and place != "0" else ""
    return f"pid {pid}: {state}{where}: {command}"
