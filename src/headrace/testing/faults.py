"""A zoo of children that misbehave on purpose, to be started by a `ForkServer` or a `Supervisor`.

Each is a target, ``headrace.testing.faults:name``. Its payload is a `Misbehaviour`, or None for the plain fault
before it is ready. Waiting here is done on the control channel, so that an idle child still notices its parent's end.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import NoReturn

from headrace.core.errors import ChannelClosed, ComponentStalled, EnvironmentRaised, ObservationMismatch
from headrace.ipc.child import ChildContext
from headrace.supervision.messages import Command, Done, Ready, Report, Stop
from headrace.telemetry.board import Activity, Board, Slot, State

FOR_EVER_S = 600.0


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """When a fault happens."""

    after_ready: bool = False
    board: str | None = None
    """Path of the board, if the child shall be seen there."""
    data: object = None
    """Anything more, e.g. something that is hard to unpickle."""


class DiesWhenUnpickled:
    """Kills the process that unpickles it; large, so that no pipe or socket could buffer it."""

    def __init__(self, nbytes: int = 5_000_000) -> None:
        self.filling = bytes(nbytes)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _die, (self.filling,)


def _die(_filling: bytes) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class RefusesToPickle:
    """Cannot be sent to any process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("this object stays where it is")


def idle(context: ChildContext) -> None:
    """Behave: say so when ready, answer commands, leave when asked."""
    _begin(context, always=True)
    while True:
        message = context.control.receive(FOR_EVER_S)
        match message:
            case Stop():
                context.control.send(Done({}), 5.0)
                return
            case Command(name, facts):
                context.control.send(Report(name, {**facts, "pid": os.getpid()}), 5.0)


def exit_0(context: ChildContext) -> None:
    """Leave without being asked, as if all were well."""
    _begin(context)


def exit_3(context: ChildContext) -> NoReturn:
    """Leave with an exit code."""
    _begin(context)
    os._exit(3)


def raises(context: ChildContext) -> NoReturn:
    """Raise an exception that is none of ours."""
    _begin(context)
    raise ValueError("the fault zoo sends its regards")


def raises_environment_fault(context: ChildContext) -> NoReturn:
    """Raise what trying again cannot mend."""
    _begin(context)
    raise ObservationMismatch("lane 3 returned an observation that does not fit", lane=3, fix="fix the environment")


def raises_environment_raised(context: ChildContext) -> NoReturn:
    """Raise what trying again may mend."""
    _begin(context)
    raise EnvironmentRaised("lane 3 raised in step", lane=3, fix="read the traceback")


def kills_itself(context: ChildContext) -> NoReturn:
    """Die of SIGKILL, as by the out-of-memory killer."""
    _begin(context)
    _die(b"")


def crashes(context: ChildContext) -> None:
    """Die of SIGSEGV."""
    _begin(context)
    ctypes.string_at(0)


def stops_itself(context: ChildContext) -> None:
    """Be stopped by SIGSTOP inside a step."""
    slot = _begin(context)
    if slot is not None:
        slot.enter(Activity.ENV_STEP, lane=2, step=7)
    os.kill(os.getpid(), signal.SIGSTOP)
    _wait_for_ever(context)


def loops(context: ChildContext) -> NoReturn:
    """Loop for ever inside a step, without ever giving the interpreter lock back by waiting."""
    slot = _begin(context)
    if slot is not None:
        slot.enter(Activity.ENV_STEP, lane=2, step=7)
    while True:
        pass


def holds_the_lock(context: ChildContext) -> None:
    """Call C code inside a step that keeps the interpreter lock for ever; no Python code of this process runs again."""
    slot = _begin(context)
    if slot is not None:
        slot.enter(Activity.ENV_STEP, lane=2, step=7)
    sys.stdout.write("going down\n")
    re.compile(r"(a+)+$").match("a" * 64 + "b")  # 2^64 attempts, none of which gives the lock back


def chatters(context: ChildContext) -> NoReturn:
    """Print 256 KiB to each stream, more than any pipe holds, then fail."""
    _begin(context)
    for number in range(4096):
        for stream in (sys.stdout, sys.stderr):
            stream.write(f"{number:06d} {'o' * 56}\n")
    os.write(1, b"the last line\n")
    os._exit(3)


def ignores_stop(context: ChildContext) -> None:
    """Be ready, then take no notice of anything it is told, nor of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _begin(context, always=True)
    _wait_for_ever(context)


def starts_a_program(context: ChildContext) -> None:
    """Start a program that would outlive it, report its pid, and idle."""
    command = [sys.executable, "-c", "import select; select.select([], [], [], 600)"]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    context.control.send(Report("program", {"pid": program.pid}), 5.0)
    idle(context)


def describes_itself(context: ChildContext) -> None:
    """Report how it was set up, then idle. Reads one byte from each descriptor it was given."""
    facts = {
        "open": sorted(os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")),  # noqa: PTH208
        "given": {name: os.read(fd, 1) for name, fd in context.fds.items()},
        "session": os.getsid(0),
        "parent_alive": context.parent_alive(),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "sigterm_default": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "data": context.payload.data,
    }
    context.control.send(Report("self", facts), 5.0)
    idle(context)


def _begin(context: ChildContext, *, always: bool = False) -> Slot | None:
    """Report ready if the payload, or the fault itself, says so; the child's slot if it has one."""
    how = context.payload if isinstance(context.payload, Misbehaviour) else Misbehaviour()
    slot = None
    if how.board is not None:
        slot = Board.attach(how.board).slot(context.id)
        slot.set_state(State.RUNNING)
    if how.after_ready or always:
        context.control.send(Ready({"pid": os.getpid()}), 5.0)
    return slot


def _wait_for_ever(context: ChildContext) -> None:
    """Swallow whatever comes until the parent is gone."""
    while True:
        try:
            context.control.receive(FOR_EVER_S)
        except ComponentStalled:
            continue
        except ChannelClosed:
            return
