"""What happens inside a child between fork and exit."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, cast

import cloudpickle

from headrace.core.errors import (
    ChannelClosed,
    ComponentDied,
    ComponentError,
    ConfigError,
    EnvironmentFault,
    HeadraceError,
    NothingToTrain,
)
from headrace.core.files import remedy
from headrace.ipc import printing, stacks
from headrace.ipc.channel import LONGEST_S, Channel, poll_fds
from headrace.ipc.copies import copies_ended, exit_code_of
from headrace.ipc.shm import SharedBlock

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Failed:
    """Last message of a child that failed: why."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """All a new child has to know before it can fetch the rest; always small."""

    id: str
    target: str
    payload_bytes: int
    fd_names: tuple[str, ...]
    log_path: str
    stacks_path: str


@dataclass(slots=True)
class ChildContext:
    """What a child's target is called with."""

    id: str
    payload: Any
    fds: dict[str, int]
    """Descriptors by the name the parent gave them; the child owns them. Close-on-exec."""
    control: Channel
    """To the parent."""
    server_pid: int

    def parent_alive(self) -> bool:
        """Whether anybody is left to work for."""
        return os.getppid() == self.server_pid and self.control.peer_alive()


def run(bootstrap: Bootstrap, fds: list[int], server_pid: int) -> NoReturn:
    """Become the child: set the process up, call the target, leave. Called once, right after the fork.

    Args:
        bootstrap: See there.
        fds: Descriptors of the control channel and of the payload, then one per ``fd_names``.
        server_pid: The fork server's.
    """
    code = 1
    try:
        try:
            die_with_parent(signal.SIGKILL, server_pid)
            _reset_signals()
            os.setsid()  # so that whatever it starts can be found and ended with it
            with copies_ended(bootstrap.id):
                code = _work(bootstrap, fds, server_pid)
        except BaseException:  # noqa: BLE001 - the last border: nothing may run on into the fork server's own code
            printing.tell(traceback.format_exc())
    finally:
        # Not sys.exit: exit handlers and threads inherited from the fork server, or left by the target, may hang.
        with contextlib.suppress(BaseException):  # the streams may be anybody's by now, and a signal may raise
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(bootstrap: Bootstrap, fds: list[int], server_pid: int) -> int:
    """Fetch the payload, call the target; the exit code."""
    control_fd, payload_fd, *given = fds
    with Channel.attach(control_fd, "the supervisor") as control:
        try:
            _redirect_output(bootstrap, keep=fds)  # here, where somebody hears of it if that cannot be done
            payload = _fetch(payload_fd, bootstrap.payload_bytes)
            target = resolve(bootstrap.target)
            named = dict(zip(bootstrap.fd_names, given, strict=True))
            target(ChildContext(bootstrap.id, payload, named, control, server_pid))
        except SystemExit as request:
            if not _by_us(request):  # an environment, say, for which it is the way to tell that something is missing
                _report(control, bootstrap.id, request)  # first: the log may take nothing
                printing.tell(traceback.format_exc())
                _hand_over(control)
            return exit_code_of(request)
        except Exception as error:  # noqa: BLE001 - a process border: it goes into the log, and to the supervisor
            if isinstance(error, ChannelClosed) and not control.peer_alive():
                # Nobody's fault here and nobody left to tell: a line for whoever reads the logs, instead of a page each.
                printing.tell(f"{bootstrap.id} leaves: {error.what}\n")
                return 1
            _report(control, bootstrap.id, error)
            # Of some it says what to change, and where in our code it was found helps nobody.
            known = isinstance(error, (ConfigError, NothingToTrain))
            printing.tell(f"{error}\n" if known else traceback.format_exc())
            _hand_over(control)
            return 1
    return 0


def _fetch(fd: int, nbytes: int) -> Any:
    """The payload. It waits in shared memory, so neither side can block on the other, whatever its size."""
    with SharedBlock.attach(fd, nbytes) as block:
        return cloudpickle.loads(block.buf)


def resolve(target: str) -> Callable[[ChildContext], None]:
    """Import the function that ``module:function`` names.

    Raises:
        ConfigError: It is not spelled like that, or the module has no such function. An import that fails
            raises its own error.
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{target!r} names no function", fix='write it as "package.module:function"')
    found: Any = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ConfigError(
            f"module {module} has no function {name}", found=type(found).__name__, fix="name a function of this module"
        )
    return cast("Callable[[ChildContext], None]", found)


def _by_us(request: SystemExit) -> bool:
    """Whether this package has asked to end the process, and so has told why."""
    trace = request.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _is_ours(trace)


def _report(control: Channel, child_id: str, error: Exception | SystemExit) -> None:
    """Tell the supervisor. It may be gone or busy; the log has the traceback in any case."""
    ours = error if isinstance(error, HeadraceError) else wrapped(child_id, error)
    if isinstance(ours, EnvironmentFault):
        ours.place(component=child_id)
    with contextlib.suppress(ComponentError):
        try:
            control.post(Failed(ours))
        except ComponentError:
            control.post(Failed(wrapped(child_id, error)))  # a subclass that cannot be pickled


def _hand_over(control: Channel) -> None:
    """Whatever the supervisor has not taken yet, the last words too: it may be stopped (Ctrl-Z), as long as it lives."""
    with contextlib.suppress(ChannelClosed):
        while not control.flush():
            poll_fds({control.fileno(): select.POLLOUT}, LONGEST_S)


def wrapped(child_id: str, error: BaseException) -> ComponentDied:
    """An exception that is not ours, in our words: what was raised, and where."""
    return ComponentDied(
        f"{child_id} raised {type(error).__name__}",
        error=f"{type(error).__name__}: {error}",
        where=_where(error.__traceback__),
        fix=f"read the traceback in logs/{child_id}.log",
    )


def _where(trace: TracebackType | None) -> str:
    """The innermost frame outside of this package, or the innermost at all: ``fire.py:88 in spread``."""
    place = innermost = "unknown"
    while trace is not None:
        frame = trace.tb_frame
        innermost = f"{Path(frame.f_code.co_filename).name}:{trace.tb_lineno} in {frame.f_code.co_name}"
        if not _is_ours(trace):
            place = innermost
        trace = trace.tb_next
    return innermost if place == "unknown" else place


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "headrace"


def die_with_parent(sig: int, parent_pid: int) -> None:
    """Have the kernel send ``sig`` to this process when its parent ends, where it can (Linux).

    Exits at once if the parent is gone already. Elsewhere, end of file on the control channel has to do.
    """
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, where the system can (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _reset_signals() -> None:
    """Undo what the fork server, or a module it imported, has set."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # A terminal's Ctrl-C is for the supervisor, which then asks its children to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _redirect_output(bootstrap: Bootstrap, keep: Iterable[int]) -> None:
    """Output goes to files of this child, every descriptor it was not given is closed.

    Raises:
        ComponentDied: One of these files cannot be opened.
    """
    log = _appended_to(bootstrap.id, bootstrap.log_path)
    stacks_fd = _appended_to(bootstrap.id, bootstrap.stacks_path)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, place)
    close_all_but({0, 1, 2, stacks_fd, *keep})
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    printing.keep_printing()
    # A file and not a pipe: nobody has to read it for the child to go on.
    stacks.enable(open(stacks_fd, "a"), sys.stderr)  # noqa: SIM115, PTH123 - lives as long as the process


def _appended_to(child_id: str, path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise ComponentDied(
            f"{child_id} could not open {Path(path).name}",
            problem=f"{type(error).__name__}: {error}",
            fix=remedy(error),
        ) from None


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor of this process that is not in ``keep``."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - only the numbers are wanted
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(int(name))
