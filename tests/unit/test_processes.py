"""Signals to processes and descriptors of them, where the system has none, or forbids them."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess

import pytest

from headrace.commands import tree
from headrace.commands.tree import Tree
from headrace.ipc import processes
from headrace.ipc.processes import pidfd_of, send_signal, wait_for_end
from headrace.vector.signals import Signal, Waiter
from supervise_support import running

LIMIT_S = 60.0  # bounds a failure; a success never waits for it


def refusing(number):
    def refuse(*_args):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.fixture
def program():
    """One that runs until it is ended."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE, errno.ESRCH])
def test_a_descriptor_that_is_refused_is_none(monkeypatch, number):
    monkeypatch.setattr(os, "pidfd_open", refusing(number))
    assert pidfd_of(os.getpid()) == -1


def test_a_system_without_such_descriptors_has_none(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    assert pidfd_of(os.getpid()) == -1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_what_cannot_be_signalled_by_its_descriptor_is_by_its_number(monkeypatch, program, number):
    monkeypatch.setattr(signal, "pidfd_send_signal", refusing(number))
    pidfd = pidfd_of(program.pid)
    assert send_signal(program.pid, signal.SIGKILL, pidfd)
    os.close(pidfd)
    assert program.wait(LIMIT_S) == -signal.SIGKILL


def test_a_descriptor_is_believed_that_its_process_is_gone(monkeypatch, program):
    pidfd = pidfd_of(program.pid)
    program.kill()
    program.wait(LIMIT_S)
    killed = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    assert not send_signal(program.pid, signal.SIGKILL, pidfd)
    os.close(pidfd)
    assert not killed


@pytest.mark.parametrize("number", [errno.EPERM, errno.ESRCH])
def test_a_signal_that_is_refused_ends_nobody_else(monkeypatch, number):
    monkeypatch.setattr(os, "kill", refusing(number))
    assert not send_signal(1, signal.SIGKILL)


@pytest.mark.parametrize("told", [True, False])
def test_an_end_is_waited_for_with_and_without_descriptor(program, told):
    pidfd = pidfd_of(program.pid) if told else -1
    assert not wait_for_end(program.pid, pidfd, 0.0)
    program.kill()
    assert wait_for_end(program.pid, pidfd, LIMIT_S)
    assert program.returncode is None  # it was not put away
    if told:
        os.close(pidfd)


def test_an_end_is_waited_for_where_the_system_keeps_no_files_of_processes(program, monkeypatch):
    monkeypatch.setattr(processes, "stat_fields", lambda *_: [])
    assert not wait_for_end(os.getpid(), -1, 0.0)
    assert not wait_for_end(program.pid, -1, 0.0)
    program.kill()
    assert wait_for_end(program.pid, -1, LIMIT_S)
    assert program.wait(LIMIT_S) == -signal.SIGKILL
    assert wait_for_end(program.pid, -1, 0.0)


def test_a_tree_without_descriptor_is_seen_to_end(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "pidfd_open", refusing(errno.ENOSYS))
    found = Tree("p", ["true"], str(tmp_path), {"PATH": os.environ["PATH"]})
    assert found.pidfd == -1
    assert wait_for_end(found.pid, -1, LIMIT_S)
    assert found.ended() == 0
    found.close()


def test_a_tree_in_which_somebody_may_not_be_killed_says_that_one_is_left(monkeypatch, tmp_path):
    found = Tree("p", ["cat", "/dev/zero"], str(tmp_path), {"PATH": os.environ["PATH"]})  # until its output is full
    # This process has other children, which are not the tree's.
    monkeypatch.setattr(
        tree, "_children", lambda pid=None: [found.pid] if running(found.pid) and pid != found.pid else []
    )
    with monkeypatch.context() as forbidden:
        forbidden.setattr(os, "kill", refusing(errno.EPERM))
        forbidden.setattr(os, "killpg", refusing(errno.EPERM))
        assert not found.kill(0.0)
        assert [line.partition(":")[0] for line in found.in_words_left()] == [f"pid {found.pid}"]
    assert found.kill(LIMIT_S)
    assert found.ended() == -signal.SIGKILL
    found.close()


def test_a_waiter_waits_as_long_as_anybody_likes():
    woken, waiter = Signal.create(), Waiter()
    waiter.add(woken.reader_fd)
    woken.set()
    assert waiter.wait(1e9) == [(woken.reader_fd, select.POLLIN)]
    woken.close()
