"""Inside the fork server: import, fork on request, reap, report; end everything when the parent is gone.

It has one thread, so that a fork copies no lock in a state that nobody will ever release, and it never waits for
the parent to read: reports that do not fit wait in line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections import deque
from pathlib import Path
from types import FrameType
from typing import NoReturn

from headrace.core.errors import ChannelClosed
from headrace.core.garbage import uncollected
from headrace.ipc import child, printing
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.descriptors import FdChannel, close_on_exec
from headrace.ipc.forkserver import Awake, Ended, Hello, NotSpawned, Spawn, Spawned
from headrace.ipc.processes import kill_group, pidfd_of, send_signal

_HELLO_S = 30.0
_LOOK_S = 5.0
_LEAVE_S = 3.0


def main(link_fd: int) -> NoReturn:
    """Serve the parent at the other end of ``link_fd`` until it is gone."""
    code = 1
    printing.keep_printing()
    try:
        link = FdChannel(socket.socket(fileno=link_fd), "the supervisor")
        close_on_exec(link_fd)
        hello = link.receive(_HELLO_S)
        if hello.die_with_parent:
            # SIGTERM and not SIGKILL: what children have started can then still be ended.
            child.die_with_parent(signal.SIGTERM, hello.parent_pid)
        child.adopt_orphans()
        sys.path[:] = hello.path
        server = Server(link, hello)
        server.serve()
        code = 0
    except ChannelClosed:
        code = 0
    except BaseException:  # noqa: BLE001 - the last border of the process; the log is all that is left to tell
        printing.tell(traceback.format_exc())
    finally:
        os._exit(code)  # exit handlers of modules that were only imported for children have no business here


class Server:
    """The loop of the fork server."""

    def __init__(self, link: FdChannel, hello: Hello) -> None:
        self._link = link
        self._parent_pid = hello.parent_pid
        self._children_adopt = hello.children_adopt
        self._numbers: dict[int, int] = {}  # pid of a living child -> its number
        self._sessions: set[int] = set()  # pids of children that have ended; what they started still bears them
        self._reports: deque[tuple[object, int]] = deque()  # message, pidfd to send along or -1
        self._leave = False
        self._wake_reader, self._wake_writer = os.pipe()
        for fd in (self._wake_reader, self._wake_writer):
            os.set_blocking(fd, False)
        self._reports.append((Awake(_preload(hello.preload)), -1))
        gc.freeze()  # a collection in a child would otherwise write to, and so copy, every page it shares with us

    def serve(self) -> None:
        """Fork on request until the parent is gone, or SIGTERM says so; then end every child."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # wakes the poll below
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not self._leave:
                self._turn()
        except ChannelClosed:
            pass  # the parent has left: that is the end of the work, not an error
        finally:
            self._end_all()

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._leave = True

    def _turn(self) -> None:
        for request in self._link.receive_all():  # first: some may have arrived together with an earlier message
            self._spawn(request)
        self._send_reports()
        wanted = select.POLLIN | (select.POLLOUT if self._reports or self._link.unsent_bytes else 0)
        seen = poll_fds({self._link.fileno(): wanted, self._wake_reader: select.POLLIN}, _LOOK_S)
        if self._wake_reader in seen:
            _drain(self._wake_reader)
            self._reap()
        if not seen and os.getppid() != self._parent_pid:
            self._leave = True

    def _send_reports(self) -> None:
        while self._reports:
            message, pidfd = self._reports[0]
            if not self._link.flush():
                return
            self._link.attach_fds([pidfd] if pidfd >= 0 else [])
            if not self._link.try_send(message):
                return
            self._reports.popleft()
            if pidfd >= 0:
                os.close(pidfd)

    def _spawn(self, request: Spawn) -> None:
        fds: list[int] = []
        # Until the child has undone our handlers, a signal to it would be taken for one to us, and have no effect.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            fds = self._link.take_fds()
            pid = os.fork()
        except OSError as error:
            self._reports.append((NotSpawned(request.number, str(error)), -1))
        else:
            if pid == 0:
                child.run(request.bootstrap, fds, os.getppid())
            self._numbers[pid] = request.number
            # Taken before the child can be reaped, so the number cannot be another process's by then.
            pidfd = pidfd_of(pid)
            self._reports.append((Spawned(request.number, pid, int(pidfd >= 0)), pidfd))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for fd in fds:
                os.close(fd)

    def _reap(self) -> None:
        """Report every child that has ended, and end what it had started."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            number = self._numbers.pop(pid, None)
            if number is not None:
                # Where orphans cannot be adopted, and so not be found, this is all that ends its programs.
                kill_group(pid)
                self._sessions.add(pid)
                self._reports.append((Ended(number, os.waitstatus_to_exitcode(status)), -1))
        self._end_orphans(only_of_ended=bool(self._numbers) and not self._children_adopt)

    def _end_orphans(self, *, only_of_ended: bool) -> None:
        """Kill adopted processes: those in the session of a child that has ended, or all of them.

        A process that has left its session may belong to a child that still lives; it is spared until no child
        does. The descendants of one that is killed here are adopted in turn, and that wakes us again.
        """
        for pid in _own_children():
            if pid in self._numbers:
                continue
            with contextlib.suppress(ProcessLookupError):
                if not only_of_ended or os.getsid(pid) in self._sessions:
                    send_signal(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        """End every child and everything it has started."""
        deadline = Deadline(_LEAVE_S)
        for pid in self._numbers:
            send_signal(pid, signal.SIGKILL)
        self._reap()
        while not deadline.passed and (self._numbers or _own_children()):
            poll_fds({self._wake_reader: select.POLLIN}, min(0.1, deadline.left_s()))
            _drain(self._wake_reader)
            self._reap()


def _preload(modules: tuple[str, ...]) -> dict[str, str]:
    """Import them; the failures by module. A child that needs such a module meets, and tells, the error itself."""
    failed = {}
    for module in modules:
        try:
            with uncollected():
                importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - somebody else's code, which may even exit; its child will report it
            failed[module] = f"{type(error).__name__}: {error}"
            printing.tell(traceback.format_exc())
    return failed


def _own_children() -> list[int]:
    """Pids of this process's children, adopted ones included; empty where the system does not tell."""
    pid = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass
