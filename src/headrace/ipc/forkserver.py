"""A clean process that has imported what children need, and forks them on request.

Forking the supervisor itself would hand its threads' locks, its descriptors and its memory to every child; a fresh
interpreter per child would import everything anew. The fork server is a fresh interpreter without threads, so a child
is ready in milliseconds and inherits nothing but modules. `ForkServer` is the end in the parent; `serve` is the server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle

from headrace.core.errors import (
    ChannelClosed,
    ComponentDied,
    ComponentStalled,
    ConfigError,
    HeadraceError,
)
from headrace.ipc.channel import Channel, Deadline, poll_fds
from headrace.ipc.child import Bootstrap
from headrace.ipc.descriptors import MAX_FDS, FdChannel, out_of_descriptors
from headrace.ipc.processes import kill_group, send_signal
from headrace.ipc.shm import OUT_OF_FILES, SharedBlock

_EXIT_REPORT_S = 10.0
_LEAVE_S = 5.0
_REAP_S = 1.0
_SMALLER_PAYLOAD = "hand less to a process that is started, or let this one and the machine have more memory"


@dataclass(frozen=True, slots=True)
class Hello:
    """First message to the server: how to become ready."""

    preload: tuple[str, ...]
    path: tuple[str, ...]
    parent_pid: int
    die_with_parent: bool
    children_adopt: bool


@dataclass(frozen=True, slots=True)
class Spawn:
    """Request: start a child. Carries the descriptors of control channel and payload, then the named ones."""

    number: int
    bootstrap: Bootstrap


@dataclass(frozen=True, slots=True)
class Awake:
    """The server is ready; which imports failed, and how."""

    failed_imports: dict[str, str]


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child was started. Carries its pidfd where there are such."""

    number: int
    pid: int
    pidfds: int


@dataclass(frozen=True, slots=True)
class NotSpawned:
    """A child could not be started."""

    number: int
    problem: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A child ended; the code is negative for a signal."""

    number: int
    exit_code: int


class Child:
    """A process the fork server has started, as its parent sees it. Made by `ForkServer.spawn`."""

    def __init__(self, child_id: str, pid: int, control: Channel, pidfd: int) -> None:
        self.id = child_id
        self.pid = pid
        self.control = control
        self.exit_code: int | None = None
        """None while it is not known to have ended; negative for a signal."""
        self.pidfd = pidfd
        """Readable when the process has ended; -1 where there are none, or when that was seen."""
        self.report_due: Deadline | None = None

    def send_signal(self, sig: int) -> bool:
        """Send it a signal; False if it is gone."""
        return self.exit_code is None and send_signal(self.pid, sig, self.pidfd)

    def kill(self) -> bool:
        """Send it SIGKILL; False if it is gone. What it has started is ended by the fork server."""
        return self.send_signal(signal.SIGKILL)

    def ended(self) -> bool:
        """Whether the process is gone, as far as the kernel tells; reaping may still be due."""
        if self.exit_code is not None or self.report_due is not None:
            return True
        if self.pidfd >= 0:
            return bool(poll_fds({self.pidfd: select.POLLIN}, 0.0))
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close_pidfd(self) -> None:
        """Give that descriptor back; again is harmless."""
        if self.pidfd >= 0:
            fd, self.pidfd = self.pidfd, -1  # first: what is interrupted here may be called again
            os.close(fd)

    def close(self) -> None:
        """Give its descriptors back; does not end it. Again is harmless."""
        self.control.close()
        self.close_pidfd()


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a server that fails; only its owner knows what it was for, and where it has its settings."""

    lost: str = "read its log, and see whether the machine was out of memory"
    """Where it is gone."""
    late: str = "see its log for what it was importing"
    """Where it has not started a child in time."""


_IN_GENERAL = Advice()


class ForkServer:
    """Starts children and sees them end. A context manager; leaving it ends the server and every child.

    The server process starts at once and imports in the background; the first `spawn` waits for it.

    Args:
        preload: Modules it imports, so that children need not. One that cannot be imported is noted in
            ``failed_imports``; a child that needs it fails with its own traceback.
        environment: Variables set before anything is imported, e.g. ``OMP_NUM_THREADS``.
        log_path: File to which the server's own output is appended.
        start_timeout_s: Limit for its imports.
        spawn_timeout_s: Limit for starting one child.
        children_adopt: Every child adopts what it has started itself (`headrace.ipc.child.adopt_orphans`). What the server
            is left with was then a dead child's, and is ended at once, whatever session it is in.
        advice: For errors.
    """

    def __init__(
        self,
        preload: Sequence[str],
        environment: Mapping[str, str],
        log_path: str | os.PathLike[str],
        *,
        start_timeout_s: float = 60.0,
        spawn_timeout_s: float = 20.0,
        children_adopt: bool = False,
        advice: Advice = _IN_GENERAL,
    ) -> None:
        self.failed_imports: dict[str, str] = {}
        self.error: HeadraceError | None = None
        """Why the server is of no more use; None while it is well."""
        self._advice = advice
        self._owner = os.getpid()
        self._spawn_timeout_s = spawn_timeout_s
        self._start = Deadline(start_timeout_s)
        self._awake = False
        self._numbers = itertools.count()
        self._children: dict[int, Child] = {}
        self._wanted: tuple[int, str, Channel] | None = None  # the child being asked for: number, id, control
        self._answer: Child | NotSpawned | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link = FdChannel(ours, "the fork server")
        with theirs, Path(log_path).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.ipc.forkserver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment},
                start_new_session=True,  # a terminal's Ctrl-C reaches only us
            )
        # The death signal is tied to the thread that starts a process: a short-lived one must not take it along.
        in_main = threading.current_thread() is threading.main_thread()
        paths = tuple(sys.path)
        self._link.try_send(
            Hello(tuple(preload), paths, os.getpid(), die_with_parent=in_main, children_adopt=children_adopt)
        )

    @property
    def awake(self) -> bool:
        """Whether it has imported everything, as far as was read; `spawn` waits for that, and `collect` reads."""
        return self._awake

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def spawn(
        self,
        child_id: str,
        target: str,
        payload: object,
        fds: Mapping[str, int],
        log_path: str | os.PathLike[str],
        stacks_path: str | os.PathLike[str],
    ) -> Child:
        """Start a child; returns when its process exists, which does not wait for anything the child does.

        Args:
            child_id: Its component id.
            target: ``module:function``; called with a `headrace.ipc.child.ChildContext`.
            payload: Anything cloudpickle can pickle. It travels in shared memory: no size and no death of the
                child can make this call, or a later one, wait.
            fds: Descriptors the child shall have, by name; copies, yours stay open.
            log_path: File to which its output is appended.
            stacks_path: File to which its stacks go on SIGUSR2.

        Raises:
            ConfigError: The payload cannot be pickled, there are too many descriptors, or this process may not open as many
                files.
            ComponentStalled: The server is not ready, or does not answer, within its limits.
            ComponentDied: The server is gone, or the machine refuses another process.
        """
        if len(fds) + 2 > MAX_FDS:
            raise ConfigError(
                f"{child_id} cannot be given so many descriptors",
                descriptors=len(fds),
                limit=MAX_FDS - 2,
                fix="share larger blocks of memory, or more of them per descriptor",
            )
        data = _pickled(child_id, payload)
        number = next(self._numbers)
        bootstrap = Bootstrap(
            child_id, target, len(data), tuple(fds), str(Path(log_path).absolute()), str(Path(stacks_path).absolute())
        )
        try:
            return self._request(Spawn(number, bootstrap), data, list(fds.values()))
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            raise out_of_descriptors(child_id) from error

    def collect(self) -> list[Child]:
        """Children that have ended since the last call, each once, with their exit codes; never waits.

        If the server itself is gone, `error` tells, and children are still seen to end.
        """
        self._read_link()
        ended = []
        for number, child in list(self._children.items()):
            if child.exit_code is None and child.ended():
                self._note_end(child)
            if child.exit_code is not None:
                del self._children[number]
                ended.append(child)
        return ended

    def fds(self) -> list[int]:
        """Descriptors that are readable when `collect` has something new to see."""
        link = [] if self.error else [self._link.fileno()]
        return link + [c.pidfd for c in self._children.values() if c.pidfd >= 0 and c.report_due is None]

    def close(self) -> None:
        """End the server and every child, with SIGKILL; takes bounded time. Again is harmless.

        A fork of the process that started it ends nothing: it only gives its copies of descriptors back.
        """
        if os.getpid() != self._owner:
            self._link.close()
            for child in self._children.values():
                child.close()
            return
        if self._link.fileno() >= 0:
            self._read_link()
        self._link.close()  # end of file: it ends its children, and what they have started, and leaves
        if self._process.returncode is None:
            self._process.terminate()  # means the same to it, and also ends an import that never returns
        try:
            self._process.wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_LEAVE_S)
        if self.error is None:
            self._lose("it was closed")
        self._outlive_children()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _outlive_children(self) -> None:
        """Wait for what died with the server, which is nobody's to reap here, and close our ends."""
        deadline = Deadline(_LEAVE_S)
        for child in self._children.values():
            if child.pidfd >= 0 and child.report_due is None:
                poll_fds({child.pidfd: select.POLLIN}, deadline.left_s())
            self._note_end(child)
            child.close()
        self._children.clear()

    def _request(self, request: Spawn, data: bytes, fds: list[int]) -> Child:
        """Have a child started, and hand it its payload and these descriptors."""
        control, theirs = Channel.pair()
        control.peer = request.bootstrap.id
        self._wanted, self._answer = (request.number, control.peer, control), None
        try:
            with theirs, SharedBlock.create(len(data), _SMALLER_PAYLOAD) as block:
                block.buf[:] = data
                self._link.attach_fds([theirs.fileno(), block.fd, *fds])
                return self._ask(request)
        except BaseException:
            control.close()
            raise
        finally:
            self._wanted = None  # should the answer come later, that child is not wanted any more

    def _ask(self, request: Spawn) -> Child:
        """Send a request and wait for its answer."""
        deadline, was_awake = Deadline(self._spawn_timeout_s), self._awake
        with contextlib.suppress(ChannelClosed):  # the next read finds that too, and what was said before
            self._link.send(request, self._limit(deadline).left_s())
        self._read_link()
        while self._answer is None:
            if self.error is not None:
                raise self.error
            if self._awake and not was_awake:  # its imports were no part of starting this child
                deadline, was_awake = Deadline(self._spawn_timeout_s), True
            limit = self._limit(deadline)
            if limit.passed:
                raise self._late(request, limit)
            poll_fds({self._link.fileno(): select.POLLIN}, limit.left_s())
            self._read_link()
        if isinstance(self._answer, NotSpawned):
            raise ComponentDied(
                f"{request.bootstrap.id} could not be started",
                problem=self._answer.problem,
                fix="see whether the machine has memory and room for more processes and open files",
            )
        return self._answer

    def _limit(self, deadline: Deadline) -> Deadline:
        """While the server is still importing, its own, longer limit holds."""
        return deadline if self._awake else self._start

    def _late(self, request: Spawn, limit: Deadline) -> ComponentStalled:
        return ComponentStalled(
            f"the fork server did not start {request.bootstrap.id} within {limit.timeout_s:g} s",
            pid=self.pid,
            imports_done=self._awake,
            fix=self._advice.late,
        )

    def _read_link(self) -> None:
        """Take in what the server has said, without waiting."""
        if self.error is not None:
            return
        try:
            messages = self._link.receive_all()
        except ChannelClosed:
            self._lose("it ended")
            return
        for message in messages:
            match message:
                case Awake(failed_imports):
                    self._awake, self.failed_imports = True, failed_imports
                case Spawned():
                    self._welcome(message)
                case NotSpawned(number) if self._wanted and number == self._wanted[0]:
                    self._answer = message
                case Ended(number, exit_code) if number in self._children:
                    self._children[number].exit_code = exit_code

    def _welcome(self, message: Spawned) -> None:
        """Know a new child before anything else is read: its end may be the very next message."""
        pidfd = -1
        with contextlib.suppress(OSError):  # no room for it: as where there are none
            [pidfd] = self._link.take_fds() if message.pidfds else [-1]
        if self._wanted is not None and self._wanted[0] == message.number:
            number, child_id, control = self._wanted
            self._children[number] = self._answer = Child(child_id, message.pid, control, pidfd)
        else:
            _end_unwanted(message.pid, pidfd)

    def _note_end(self, child: Child) -> None:
        """The kernel says that a child is gone; its exit code is the server's to tell, if it still can."""
        if child.report_due is None:
            child.report_due = Deadline(_EXIT_REPORT_S)
        if child.report_due.passed and self.error is None:
            self._process.kill()
            self._lose(f"it did not report an exit within {_EXIT_REPORT_S:g} s")
        if self.error is not None and child.exit_code is None:
            child.exit_code = -signal.SIGKILL  # what the kernel sends to children of a server that dies
            if self._process.returncode != 0:  # it did not leave in order, so what the child had started still runs
                kill_group(child.pid)

    def _lose(self, how: str) -> None:
        """The server is of no more use. Its children go with it, also where the kernel does not see to that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_REAP_S)
        self.error = ComponentDied(
            f"the fork server is gone: {how}",
            pid=self.pid,
            exit_code="not known" if self._process.returncode is None else self._process.returncode,
            fix=self._advice.lost,
        )
        for child in self._children.values():
            child.kill()


def _end_unwanted(pid: int, pidfd: int) -> None:
    """End a child whose start was given up before it was reported."""
    send_signal(pid, signal.SIGKILL, pidfd)
    if pidfd >= 0:
        os.close(pidfd)


def _pickled(child_id: str, payload: object) -> bytes:
    try:
        data: Any = cloudpickle.dumps(payload)
    except Exception as error:
        # Pickling runs the payload's own code, which may raise anything.
        raise ConfigError(
            f"what {child_id} is to be started with cannot be pickled",
            error=f"{type(error).__name__}: {error}",
            fix="hand over a function that makes the object, instead of the object with its locks, files or sockets",
        ) from error
    return bytes(data)


if __name__ == "__main__":
    # This module is imported under its own name as well, or messages would be of two different classes.
    from headrace.ipc.server import main

    main(int(sys.argv[1]))
