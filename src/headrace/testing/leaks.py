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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import psutil

from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import adopt_orphans

SETTLE_S = 2.0
"""Seconds that things which are on their way out are given."""

_COUNTED = ("pipe:", "socket:", "/memfd:", "pidfd:", "anon_inode:[pidfd]")
_SHARED_MEMORY = Path("/dev/shm")


class Leaked(AssertionError):
    """Something was left behind; the message says what."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds. Subtract an earlier one to see what has been added."""

    processes: frozenset[str] = frozenset()
    """Descendants, however deep, that are not zombies: pid, start and command line."""
    threads: frozenset[str] = frozenset()
    descriptors: frozenset[str] = frozenset()
    """Pipes, sockets, memfds and pidfds, each by its kind and identity."""
    mappings: frozenset[str] = frozenset()
    """Mapped memfds whose descriptor may be closed already."""
    shared_memory: frozenset[str] = frozenset()
    """Names in /dev/shm that no process outside of this family has open."""
    pids: Mapping[int, str] = field(default_factory=dict)
    """Of ``processes``."""

    @classmethod
    def now(cls) -> Holdings:
        """Count."""
        family = _family()
        return cls(
            processes=frozenset(family.values()),
            threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
            descriptors=frozenset(_descriptors()),
            mappings=frozenset(_mappings()),
            shared_memory=frozenset(_names()),
            pids=family,
        )

    def since(self, before: Holdings) -> dict[str, list[str]]:
        """What is here and was not there, by kind; empty if nothing."""
        added = {
            kind.name: sorted(getattr(self, kind.name) - getattr(before, kind.name))
            for kind in fields(self)
            if kind.name != "pids"
        }
        return {kind: things for kind, things in added.items() if things}


@contextlib.contextmanager
def no_leaks(settle_s: float = SETTLE_S) -> Iterator[None]:
    """Check that the block leaves nothing behind; kills the processes it does leave.

    Raises:
        Leaked: It left something behind. Not raised over an exception of the block itself.
    """
    adopt_orphans()  # or a grandchild whose parent was killed would leave the family, and go unseen
    before = Holdings.now()
    try:
        yield
    finally:
        added = settled(before, settle_s)
        end_processes(before)
    if added:
        raise Leaked(describe(added))


def settled(before: Holdings, settle_s: float) -> dict[str, list[str]]:
    """What has been added since ``before``, once whatever is on its way out is gone, or ``settle_s`` is over."""
    deadline = Deadline(settle_s)
    reap()
    added = Holdings.now().since(before)
    if added:
        gc.collect()  # objects in cycles hold descriptors and mappings until then
        added = Holdings.now().since(before)
    while added and not deadline.passed:
        _wait_for_an_exit(before, deadline)
        reap()
        added = Holdings.now().since(before)
        if "processes" not in added:
            break  # nothing else goes away by itself
    return added


def end_processes(before: Holdings) -> list[str]:
    """Kill every descendant that was not there before, and wait for its end; what was killed."""
    killed = []
    deadline = Deadline(SETTLE_S)
    while not deadline.passed:
        family = {pid: name for pid, name in _family().items() if name not in before.processes}
        if not family:
            break
        for pid, name in family.items():
            killed.append(name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for_an_exit(before, deadline)
        reap()
    return sorted(set(killed))


def reap() -> None:
    """Collect adopted orphans that have ended. Children somebody here still waits for are left to them."""
    if not _has_children():
        return
    zombies = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                zombies.append(process.pid)
    if not zombies:
        return  # looking through all objects for those who wait takes a twentieth of a second
    for pid in set(zombies) - _waited_for():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def describe(added: Mapping[str, list[str]]) -> str:
    """What was left behind, one thing a line."""
    lines = [f"  {kind.replace('_', ' ')}: {thing}" for kind, things in added.items() for thing in things]
    return "\n".join(["left behind:", *lines])


def _waited_for() -> set[int]:
    """Pids that a living Popen or multiprocessing object will wait for itself."""
    popen = {held.pid for held in gc.get_objects() if type(held) is subprocess.Popen and held.returncode is None}
    return popen | {child.pid for child in multiprocessing.active_children() if child.pid}


def _has_children() -> bool:
    """Quickly: psutil reads every process of the machine to find out, and most tests start none."""
    try:
        return any(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True


def _family() -> dict[int, str]:
    family: dict[int, str] = {}
    if not _has_children():
        return family
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                command = " ".join(process.cmdline()) or process.name()
                family[process.pid] = f"{process.pid} started {process.create_time():.2f}: {command[:200]}"
    return family


def _wait_for_an_exit(before: Holdings, deadline: Deadline) -> None:
    """Wait until one of the new processes has ended."""
    pidfds = []
    for pid, name in _family().items():
        if name not in before.processes:
            with contextlib.suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(pid))
    try:
        if pidfds:
            poll_fds(dict.fromkeys(pidfds, select.POLLIN), deadline.left_s())
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
            _, _, _, _, inode, *name = line.split(maxsplit=5)
            if name and name[0].startswith("/memfd:headrace"):
                yield f"{name[0]} inode {inode}"


def _names() -> Iterator[str]:
    """Names in /dev/shm. Other programs come and go there, so what one of them has open is not counted."""
    with contextlib.suppress(OSError):
        names = {str(path) for path in _SHARED_MEMORY.iterdir()}
        if names:
            yield from names - _open_elsewhere()


def _open_elsewhere() -> set[str]:
    """Files in /dev/shm that processes outside of this family have open or mapped, as far as they may be seen."""
    ours = {os.getpid(), *_family()}
    found: set[str] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                found.update(line.split(maxsplit=5)[5:])
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(str(entry.readlink()))
    return found
