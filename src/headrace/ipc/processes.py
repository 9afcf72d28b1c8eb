"""Other processes by number: a descriptor that tells of their end, and signals, where the system has and allows them."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from headrace.core.procstat import STATE, stat_fields
from headrace.ipc.channel import Deadline, poll_fds

_LOOK_S = 0.02


def pidfd_of(pid: int) -> int:
    """A descriptor that is readable once a process has ended; -1 where there are none, or it is gone.

    That Python has the call tells what it was compiled with, and not that the kernel, or gVisor, or a container's filter of
    system calls lets it through.
    """
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        return -1


def send_signal(pid: int, number: int, pidfd: int = -1) -> bool:
    """Send a process a signal, whatever comes of it; False: it is gone, or this user may not (sudo, setuid).

    Args:
        pid: Its number.
        number: Of the signal.
        pidfd: As `pidfd_of` gives it; what it stands for is never another process that has got the number meanwhile.
    """
    try:
        if pidfd >= 0 and _send_by_pidfd(pidfd, number):
            return True
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _send_by_pidfd(pidfd: int, number: int) -> bool:
    """Whether the system has taken it.

    Raises:
        ProcessLookupError: The process is gone.
    """
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        raise
    except OSError:  # the system gives such descriptors, and refuses this call
        return False
    return True


def wait_for_end(pid: int, pidfd: int, timeout_s: float) -> bool:
    """Wait for a process to end; whether it has, or has never been. A child of this process is not put away by that.

    Args:
        pid: Its number.
        pidfd: As `pidfd_of` gives it.
        timeout_s: Limit in seconds.
    """
    if pidfd >= 0:
        return bool(poll_fds({pidfd: select.POLLIN}, timeout_s))
    deadline = Deadline(timeout_s)
    while not _has_ended(pid):
        if deadline.passed:
            return False
        poll_fds({}, min(_LOOK_S, deadline.left_s()))
    return True


def _has_ended(pid: int) -> bool:
    fields = stat_fields(pid)
    if fields:
        return fields[STATE] in {"Z", "X"}
    if stat_fields(os.getpid()):
        return True  # the system tells, and there is none
    import psutil  # slow to import, and needed only where there is no /proc

    try:
        return psutil.Process(pid).status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # another user's
        return False


def kill_group(pid: int) -> None:
    """Kill the process group that a process leads, as far as there is one and this user may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
