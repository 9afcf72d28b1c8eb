"""What a process holds, counted, so that a test can tell what was left behind.

Usage, in a user's own tests::

    with leaks.no_leaks():
        ...

A process that has been killed takes a moment to go; `no_leaks` grants that moment and nothing more. Linux only: other
systems do not tell what a process holds, and count as holding nothing but threads.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing import resource_tracker
from pathlib import Path

from headrace.core.procstat import PARENT, PROC, STARTED, STATE, stat_fields
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import adopt_orphans
from headrace.ipc.processes import pidfd_of

SETTLE_S = 2.0
"""Seconds that things which are on their way out are given."""

_WALKS = 10
_COUNTED = ("pipe:", "socket:", "/memfd:", "pidfd:", "anon_inode:[pidfd]")
_SHARED_MEMORY = Path("/dev/shm")
_ENDED = frozenset({"Z", "X"})

_Walked = list[tuple[int, list[str]]]
"""Processes, each with its `stat_fields`."""


class Leaked(AssertionError):
    """Something was left behind; the message says what."""


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process below this one. It stays the same when its command line changes, or the clock is set."""

    pid: int
    started: int
    """In ticks since the machine came up."""
    command: str = field(compare=False)

    def __str__(self) -> str:
        """For a message."""
        return f"{self.pid} started at tick {self.started}: {self.command}"


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds. Subtract an earlier one to see what has been added."""

    processes: frozenset[Descendant] = frozenset()
    """Descendants, however deep, that are not zombies."""
    threads: frozenset[str] = frozenset()
    descriptors: frozenset[str] = frozenset()
    """Pipes, sockets, memfds and pidfds, each by its kind and identity."""
    mappings: frozenset[str] = frozenset()
    """Mapped memfds whose descriptor may be closed already."""
    shared_memory: frozenset[str] = frozenset()
    """Names in /dev/shm."""
    children: frozenset[int] = field(default=frozenset(), compare=False)
    """Pids of this process's own children, zombies too; nothing that is counted."""

    @classmethod
    def now(cls) -> Holdings:
        """Count."""
        walked = _below(os.getpid())
        return cls(
            processes=frozenset(_living(walked)),
            threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
            descriptors=frozenset(_descriptors()),
            mappings=frozenset(_mappings()),
            shared_memory=frozenset(_names()),
            children=frozenset(pid for pid, stat in walked if int(stat[PARENT]) == os.getpid()),
        )

    def since(self, before: Holdings) -> dict[str, list[str]]:
        """What is here and was not there, by kind; empty if nothing.

        Other programs come and go in /dev/shm, so what one of them has open by now is not counted.
        """
        counted = (kind.name for kind in fields(self) if kind.compare)
        added = {kind: getattr(self, kind) - getattr(before, kind) for kind in counted}
        if added["shared_memory"]:  # rarely, and the open files of a whole machine take long to look through
            elsewhere = _open_elsewhere()
            added["shared_memory"] = {name for name in added["shared_memory"] if _inode(name) not in elsewhere}
        return {kind: sorted(map(str, things)) for kind, things in added.items() if things}


@contextlib.contextmanager
def no_leaks(settle_s: float = SETTLE_S) -> Iterator[None]:
    """Check that the block leaves nothing behind; kills the processes it does leave.

    Raises:
        Leaked: It left something behind. Not raised over an exception of the block itself.
    """
    before = beginning()
    try:
        yield
    finally:
        added = settled(before, settle_s)
        end_processes(before)
    if added:
        raise Leaked(describe(added))


def beginning() -> Holdings:
    """What is here before something that may leave things behind; from now on orphans stay in this family."""
    adopt_orphans()  # or a grandchild whose parent was killed would leave the family, and go unseen
    resource_tracker.ensure_running()  # starts with the first shared memory of multiprocessing, and stays: no leak
    return Holdings.now()


def settled(before: Holdings, settle_s: float) -> dict[str, list[str]]:
    """What has been added since ``before``, once whatever is on its way out is gone, or ``settle_s`` is over."""
    deadline = Deadline(settle_s)
    reap(before)
    added = Holdings.now().since(before)
    if added:
        gc.collect()  # objects in cycles hold descriptors and mappings until then
        added = Holdings.now().since(before)
    while added and not deadline.passed:
        _wait_for_an_exit(before, deadline)
        reap(before)
        added = Holdings.now().since(before)
        if "processes" not in added:
            break  # nothing else goes away by itself
    return added


def end_processes(before: Holdings) -> list[str]:
    """Kill every descendant that was not there before, and wait for its end; what was killed."""
    killed = []
    deadline = Deadline(SETTLE_S)
    while not deadline.passed:
        added = set(_family()) - before.processes
        if not added:
            break
        for process in added:
            killed.append(str(process))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        _wait_for_an_exit(before, deadline)
        reap(before)
    return sorted(set(killed))


def reap(before: Holdings) -> None:
    """Collect adopted orphans that have ended.

    Left to others are children somebody here still waits for, and those that were here before: an orphan adopted since
    then is none of them.
    """
    zombies = {pid for pid, stat in _below(os.getpid()) if stat[STATE] == "Z" and int(stat[PARENT]) == os.getpid()}
    zombies -= before.children
    if not zombies:
        return  # looking through all objects for those who wait takes a twentieth of a second
    for pid in zombies - _waited_for():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def describe(added: Mapping[str, list[str]]) -> str:
    """What was left behind, one thing a line."""
    lines = [f"  {kind.replace('_', ' ')}: {thing}" for kind, things in added.items() for thing in things]
    return "\n".join(["left behind:", *lines])


def _waited_for() -> set[int]:
    """Pids that a living Popen or multiprocessing object will wait for itself."""
    held = [thing for thing in gc.get_objects() if issubclass(type(thing), subprocess.Popen)]
    popen = {process.pid for process in held if process.returncode is None}
    return popen | {child.pid for child in multiprocessing.active_children() if child.pid}


def _family() -> list[Descendant]:
    return list(_living(_below(os.getpid())))


def _living(walked: _Walked) -> Iterator[Descendant]:
    for pid, stat in walked:
        if stat[STATE] not in _ENDED:
            yield Descendant(pid, int(stat[STARTED]), _command(pid))


def _below(pid: int) -> _Walked:
    """Every descendant with its `stat_fields`.

    Who ends during a walk may hand on its children to one whose own have been looked at: then the walk is made again.
    Not by psutil: it leaves out a child that by the wall clock is older than its parent, which a clock that is set
    while it reads them makes of any.
    """
    known: set[int] = set()
    found: _Walked = []
    for _ in range(_WALKS):
        found, ended = _walk(pid)
        if ended <= known:
            break
        known |= ended
    return found


def _walk(pid: int) -> tuple[_Walked, set[int]]:
    """The descendants one after the other, and those of them that had ended once their children were known."""
    ended: set[int] = set()
    children = _children if _told_by_threads(pid) else _children_among_all(ended)
    found: _Walked = []
    parents = [pid]
    for parent in parents:
        for child in children(parent):
            if stat := stat_fields(child):
                found.append((child, stat))
                parents.append(child)
            else:
                ended.add(child)
        stat = stat_fields(parent)
        if not stat or stat[STATE] in _ENDED:
            ended.add(parent)
    return found, ended


def _told_by_threads(pid: int) -> bool:
    """Whether this system's threads tell their children: then few files are read, and not each process's."""
    return (PROC / str(pid) / "task" / str(pid) / "children").exists()


def _children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _children_among_all(ended: set[int]) -> Callable[[int], Sequence[int]]:
    """Look at every process of the machine, and note those that are gone; the children of one of them."""
    children: dict[int, list[int]] = {}
    for number in _process_numbers():
        if stat := stat_fields(number):
            children.setdefault(int(stat[PARENT]), []).append(number)
        else:
            ended.add(number)
    return lambda pid: children.get(pid, ())


def _process_numbers() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return []


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return "?"


_LOOK_S = 0.02


def _wait_for_an_exit(before: Holdings, deadline: Deadline) -> None:
    """Wait until one of the new processes has ended."""
    added = set(_family()) - before.processes
    pidfds = [pidfd for process in added if (pidfd := pidfd_of(process.pid)) >= 0]
    try:
        if added:  # where no descriptor tells of an end, one looks again
            poll_fds(dict.fromkeys(pidfds, select.POLLIN), deadline.left_s() if pidfds else _LOOK_S)
    finally:
        for fd in pidfds:
            os.close(fd)


def _descriptors() -> Iterator[str]:
    for entry in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # the one that lists the folder is gone by now
            target = str(entry.readlink())
            if target.startswith(_COUNTED):
                # Memfds share one name, and pidfds one inode on older kernels.
                identity = f"fd {entry.name}" if "pidfd" in target else f"inode {entry.stat().st_ino}"
                yield f"{target} {identity}"


def _mappings() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/memfd:headrace" in line:
                _, _, _, _, inode, name = line.split(maxsplit=5)
                yield f"{name} inode {inode}"


def _names() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from map(str, _SHARED_MEMORY.iterdir())


def _open_elsewhere() -> set[int | None]:
    """Inodes in /dev/shm that processes outside of this family have open or mapped, as far as they may be seen.

    Not names: a semaphore is mapped under the one that it has before it is given its own. With None, for those that are
    gone by now.
    """
    ours = {os.getpid(), *(process.pid for process in _family())}
    found: set[int | None] = {None}
    for pid in set(_process_numbers()) - ours:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if f" {_SHARED_MEMORY}/" in line:
                    found.add(int(line.split(maxsplit=5)[4]))
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()).startswith(f"{_SHARED_MEMORY}/"):
                        found.add(entry.stat().st_ino)
    return found


def _inode(name: str) -> int | None:
    with contextlib.suppress(OSError):
        return Path(name).stat().st_ino
    return None
