"""The worker processes of one vector environment: started, told, waited for, ended."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import Clock, MonotonicClock, away_s
from headrace.core.errors import HeadraceError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import Failed
from headrace.ipc.forkserver import Advice, ForkServer
from headrace.ipc.shm import SharedBlock
from headrace.vector import losses
from headrace.vector.handle import Handle
from headrace.vector.interrupts import Held, LetThrough
from headrace.vector.limits import Limits
from headrace.vector.messages import Assignment, Attach, Built, Leave, NotBuilt
from headrace.vector.output import Output
from headrace.vector.signals import Signal, Waiter
from headrace.vector.slab import Field, Mailbox, Slab

TELL_S = 30.0
"""How long a worker may take to make room for a message; it is watched meanwhile."""

_TARGET = "headrace.vector.worker:serve"
_CAPPED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ADVICE = Advice(
    lost="see in the kernel's log whether the machine was out of memory; if it was, take fewer workers",
    late="import less in the modules that the factories are written in, or raise start_timeout_s",
)
_FEWER = "take fewer environments or smaller observations, or let this process and the machine have more memory"
_SLICE_S = 0.25
_NOWHERE = -1
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewOptions:
    """What a crew is made of."""

    groups: list[list[int]]
    """Environments of each worker."""
    template: Assignment
    """What every worker is told; its factories are all environments'."""
    limits: Limits
    log_path: str | Path | None = None
    pinned: bool = False
    """Whether each worker keeps to one core."""


def start_server(preload: Sequence[str], start_s: float) -> ForkServer:
    """The process that workers are forked from; it imports in the background. One thread per worker for BLAS."""
    return ForkServer(preload, dict.fromkeys(_CAPPED, "1"), os.devnull, start_timeout_s=start_s, advice=_ADVICE)


class Crew:
    """See the module. Leaves nothing behind once it is closed.

    Args:
        server: Forks them; owned from now on.
        options: See there.
    """

    def __init__(self, server: ForkServer, options: CrewOptions) -> None:
        self.server = server
        self.options = options
        self.handles: dict[int, Handle] = {}
        self.alarm = False
        """Whether a worker may have ended since somebody looked."""
        self._output = Output(options.log_path)
        self._slab_block = SharedBlock.create(1, _FEWER)
        self._attach: Attach | None = None
        self._homes = np.full(options.template.num_envs, _NOWHERE)
        """[N]; index of the worker that steps each environment."""
        self._count = sum(map(len, options.groups))
        self._next_index = 0
        self._releasing = False
        """Whether everything is being given back, or has been."""
        self._waiter = Waiter()
        self._clock: Clock = MonotonicClock()
        self._launched = Deadline(0.0)
        self._whole: list[tuple[Handle, Ids]] = []

    @property
    def stacks(self) -> Path:
        """To which file workers append their stacks."""
        return self._output.stacks

    def launch(self) -> None:
        """Start every worker; each builds its environments."""
        self._launched = Deadline(self.options.limits.construct_s)
        for ids in self.options.groups:
            self.spawn(ids, build=True)

    def built(self) -> list[Built]:
        """Wait until all environments are built, which the limit of construction bounds from `launch` on.

        Raises:
            EnvironmentNotBuilt: One of them could not be built; the error names it.
            ComponentStalled: They were not built in time.
        """
        deadline, left, built = self._launched, dict(self.handles), dict[int, Built]()
        said: dict[str, HeadraceError] = {}
        while left:
            self.wait(min(deadline.left_s(), _SLICE_S))
            ended = {child.id: child.exit_code for child in self.server.collect()}
            for index, handle in list(left.items()):
                message = self._first_reply(handle)
                if isinstance(message, Built):
                    built[index] = message
                    del left[index]
                elif isinstance(message, NotBuilt):
                    raise losses.not_built(message.env, message.problem)
                elif isinstance(message, Failed):
                    said[handle.name] = message.error
            for handle in self.handles.values():  # also one that has built all of its own
                if handle.name in ended:
                    name, exit_code = handle.name, ended[handle.name] or 0
                    raise losses.died_starting(name, exit_code, handle.ids, said.get(name))
            if self.server.error is not None:
                raise self.server.error
            if left and deadline.passed:
                late = next(iter(left.values()))
                inside = [env for env, _ in late.seats.inside(lambda _env: True)]
                raise losses.not_built_in_time(inside or late.ids, late.name, self.options.limits.construct_s)
        return [message for _, message in sorted(built.items())]

    def attach(self, observation: Any, action: Any, fields: list[Field], nbytes: int) -> Slab:
        """Share memory with the workers, and with those that come later.

        Raises:
            ConfigError: The machine refuses as much.
        """
        block = SharedBlock.sized(os.dup(self._slab_block.fd), nbytes, _FEWER)
        self._slab_block.close()
        self._slab_block = block
        self._attach = Attach(cloudpickle.dumps(observation), cloudpickle.dumps(action), fields, nbytes)
        for handle in self.handles.values():
            handle.tell(self._attach, TELL_S)
        return Slab.over(block, fields)

    def relieve(self, handle: Handle) -> None:
        """Start a worker to which the environments of another one move when `move` says so."""
        ids = self.housed(handle)
        handle.successor = self.spawn(ids, build=False, housed=False)

    def move(self, env: int) -> None:
        """An environment moves to the successor of its worker; one that nobody is left in is ended."""
        old = self.handles.get(int(self._homes[env]))
        if old is None or old.successor is None:
            return
        self._homes[env] = old.successor.index
        self._whole = []
        if not self.housed(old):
            old.child.kill()

    def housed(self, handle: Handle) -> list[int]:
        """Environments that a worker steps."""
        own: list[int] = np.flatnonzero(self._homes == handle.index).tolist()
        return own

    def spawn(self, ids: Sequence[int], *, build: bool, housed: bool = True) -> Handle:
        """Start a worker for these environments.

        Args:
            ids: Of whom.
            build: Whether it builds them at once, or each when it is first asked.
            housed: Whether they move to it now.

        Raises:
            HeadraceError: It could not be started.
        """
        template = self.options.template
        index, self._next_index = self._next_index, self._next_index + 1
        factories = {env: template.factories[env] for env in ids}
        given = replace(template, factories=factories, build=build, core=self._core(index))
        block = SharedBlock.create(Mailbox.nbytes(template.num_envs), _FEWER)
        mailbox = Mailbox(block, template.num_envs)
        ordered, answered = Signal.create(), Signal.create()
        fds = {"mailbox": block.fd, "slab": self._slab_block.fd, "output": self._output.fd}
        fds |= ordered.fds("ordered", reader=True) | answered.fds("answered", reader=False)
        try:
            child = self.server.spawn(f"worker-{index}", _TARGET, given, fds, os.devnull, self._output.stacks)
        except BaseException:
            mailbox.close()
            ordered.close()
            answered.close()
            raise
        handle = Handle(index, ids, child, mailbox, (ordered, answered), threaded=template.threaded)
        self.handles[index] = handle
        if housed:
            self._homes[list(ids)] = index
        self._whole = []
        for fd in handle.fds():
            self._waiter.add(fd)
        if self._attach is not None:
            handle.tell(self._attach, TELL_S)
        return handle

    def grouped(self, ids: Ids) -> list[tuple[Handle, Ids]]:
        """These by worker; one is started now for each that has none."""
        everybody = len(ids) == self._count
        if everybody and self._whole:
            return self._whole
        homes = self._homes[ids]
        for env in ids[homes == _NOWHERE].tolist():
            homes = np.where(ids == env, self.spawn([env], build=False).index, homes)
        parts = [(handle, ids[homes == handle.index]) for handle in self.handles.values()]
        groups = [(handle, part) for handle, part in parts if len(part)]
        if everybody:
            self._whole = groups
        return groups

    def wait(self, timeout_s: float) -> None:
        """Wait until a worker has something to say; what it says is taken in. Time in which all were frozen does not count."""
        begun_s = self._clock.now()
        with LetThrough():
            found = self._waiter.wait(timeout_s)
        absent_s = away_s(self._clock.now() - begun_s, max(timeout_s, self.options.limits.look_s))
        if absent_s:
            self._launched.put_off(absent_s)
            for handle in self.handles.values():
                handle.seats.excuse(absent_s)
        ready = {fd for fd, _ in found}
        if not ready:
            return
        for handle in self.handles.values():
            if handle.answered.reader_fd in ready:
                handle.answered.clear()
            if handle.child.control.fileno() in ready:
                handle.read()
                if handle.child.control.closed_by_peer:
                    self._waiter.remove(handle.child.control.fileno())
                    self.alarm = True
            if handle.child.pidfd in ready:
                self._waiter.remove(handle.child.pidfd)
                self.alarm = True

    def bury(self, handle: Handle, apart: Sequence[int]) -> None:
        """A worker has ended: forget it. Its environments move to its successor, or have none until they get one.

        Args:
            handle: The worker.
            apart: Those of its environments that do not move to its successor.
        """
        for fd in handle.fds():
            self._waiter.remove(fd)
        del self.handles[handle.index]
        heir = handle.successor
        self._homes[list(apart)] = _NOWHERE
        self._homes[self._homes == handle.index] = _NOWHERE if heir is None else heir.index
        for other in self.handles.values():
            if other.successor is handle:
                other.successor = None
        self._whole = []
        handle.close()

    def close(self, timeout_s: float) -> None:
        """Ask every worker to close its environments and leave; end those that do not. Takes bounded time.

        Ctrl-C ends the wait for them, and they are ended; again is harmless, and goes on with what was broken off.
        """
        held = Held()
        try:
            if not self._releasing:  # otherwise some cannot be told anything any more
                self._see_off(Deadline(timeout_s))
        finally:
            self._releasing = True
            try:
                with held:
                    self._release()
            finally:
                held.catch_up()

    def _see_off(self, deadline: Deadline) -> None:
        """Ask every worker to leave, and wait for it."""
        for handle in self.handles.values():
            with contextlib.suppress(HeadraceError):  # it is stuck or gone; then it is ended afterwards
                handle.tell(Leave(), min(0.2, deadline.left_s()))
        left = list(self.handles.values())
        while left and not deadline.passed and self.server.error is None:
            _poll(left, min(0.05, deadline.left_s()))
            left = [handle for handle in left if not handle.child.ended()]

    def _release(self) -> None:
        """End the server with all workers, and give everything back; each part may have been given back already."""
        self.server.close()
        for handle in self.handles.values():
            handle.close()
        self.handles.clear()
        self._output.close()
        self._slab_block.close()

    def _core(self, index: int) -> int | None:
        if not self.options.pinned or not hasattr(os, "sched_getaffinity"):
            return None
        usable = sorted(os.sched_getaffinity(0))
        return usable[index % len(usable)]

    def _first_reply(self, handle: Handle) -> object:
        handle.read()
        return handle.replies.pop(0) if handle.replies else None


def _poll(handles: Iterable[Handle], timeout_s: float) -> None:
    """Wait for one of them to end; read meanwhile, for it may be waiting for us to."""
    fds = {}
    for handle in handles:
        handle.read()
        if handle.child.pidfd >= 0:
            fds[handle.child.pidfd] = select.POLLIN
    poll_fds(fds, timeout_s)
