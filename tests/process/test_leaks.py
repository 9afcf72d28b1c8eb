"""The leak counter sees what it is there to see: each kind of thing, left behind on purpose."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from headrace.core.procstat import stat_fields
from headrace.ipc.channel import Channel, MessagePipe
from headrace.ipc.shm import SharedBlock
from headrace.testing import leaks
from headrace.testing.leaks import Holdings, Leaked, no_leaks

pytestmark = pytest.mark.process

WAIT = "import select; select.select([], [], [], 600)"
DAEMON = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True)"


def test_nothing_left_is_no_complaint():
    with no_leaks(), SharedBlock.create(10) as block:
        block.buf[0] = 1
        seen = Holdings.now()
    assert any(name.startswith("/memfd:headrace") for name in seen.descriptors)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (Channel.pair, "socket:["),
        (lambda: [MessagePipe.create(1)], "pipe:["),
        (lambda: [SharedBlock.create(1)], "memfd"),
    ],
    ids=["socket", "pipe", "memfd"],
)
def test_an_open_descriptor_is_told(make, word):
    held = []
    with pytest.raises(Leaked, match="left behind:") as caught, no_leaks():
        held += make()
    for thing in held:
        thing.close()
    assert f"descriptors: {word}" in str(caught.value).replace("/", "")


def test_a_pidfd_is_told():
    before = Holdings.now()
    fd = os.pidfd_open(os.getpid())
    added = Holdings.now().since(before)
    os.close(fd)
    assert "pidfd" in added["descriptors"][0]


def test_memory_that_stays_mapped_without_a_descriptor_is_told():
    held = []
    with pytest.raises(Leaked, match="mappings: /memfd:headrace"), no_leaks(), SharedBlock.create(10) as block:
        held.append(block.array("u1", (10,)))
    held.clear()


def test_a_thread_is_told():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(60.0,), name="left-running")
    with pytest.raises(Leaked, match="threads: left-running"), no_leaks():
        thread.start()
    stop.set()
    thread.join(60.0)


def test_a_name_in_shared_memory_is_told():
    path = Path("/dev/shm") / f"headrace-test-{os.getpid()}"
    held = []
    with pytest.raises(Leaked, match=f"shared memory: {path}"), no_leaks():
        held.append(path.open("wb"))  # and stays open, so that tests in other processes see that it is none of theirs
    path.unlink()
    held.pop().close()


OPENS = "kept = open('/dev/shm/' + sys.argv[1], 'wb')"
MAPS_AS_A_SEMAPHORE = """
import _multiprocessing
kept = _multiprocessing.SemLock(1, 1, 1, '/' + sys.argv[1].removeprefix('sem.'), False)
"""


@pytest.mark.parametrize("holds", [OPENS, MAPS_AS_A_SEMAPHORE], ids=["open", "mapped"])
def test_a_name_in_shared_memory_that_another_program_holds_is_not_told(monkeypatch, holds):
    path = Path("/dev/shm") / f"sem.headrace-test-{os.getpid()}"
    code = f"import sys\n{holds}\nprint(flush=True)\nsys.stdin.read()"
    before = Holdings.now()
    with subprocess.Popen(
        [sys.executable, "-c", code, path.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        seen = Holdings.now()
        assert str(path) in seen.since(before)["shared_memory"]  # of this family
        monkeypatch.setattr(leaks, "_family", list)
        assert str(path) not in seen.since(before).get("shared_memory", [])
        other.stdin.close()
    path.unlink()


def test_a_program_is_told_and_ended():
    programs = []
    with pytest.raises(Leaked, match=r"processes: \d+ started .*import select"), no_leaks(settle_s=0.05):
        programs.append(subprocess.Popen([sys.executable, "-c", WAIT]))
    assert programs[0].wait(timeout=60.0) == -9


def test_a_grandchild_whose_parent_has_left_is_told_and_ended():
    before = Holdings.now()
    with pytest.raises(Leaked, match=r"processes: \d+ started .*import select"), no_leaks(settle_s=0.05):
        subprocess.run([sys.executable, "-c", DAEMON], check=True, timeout=60.0)
    assert leaks.end_processes(before) == []


def test_where_threads_do_not_tell_their_children_all_processes_are_looked_through(monkeypatch):
    before = Holdings.now()
    subprocess.run([sys.executable, "-c", DAEMON], check=True, timeout=60.0)
    told = Holdings.now().since(before)["processes"]
    monkeypatch.setattr(leaks, "_told_by_threads", lambda _: False)
    assert Holdings.now().since(before)["processes"] == told
    assert leaks.end_processes(before) == told


STARTS = f"""
import subprocess, sys
program = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
print(program.pid, flush=True)
program.wait()
"""


def await_end(pid: int) -> None:
    ended = os.pidfd_open(pid)
    try:
        assert select.select([ended], [], [], 60.0)[0]
    finally:
        os.close(ended)


@pytest.mark.parametrize("told_by_threads", [True, False])
@pytest.mark.parametrize("reaped", [True, False])
def test_a_program_whose_parent_ends_while_it_is_looked_for_is_told(monkeypatch, told_by_threads, reaped):
    before = Holdings.now()
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as parent:
        program = int(parent.stdout.readline())
        numbers, looked = leaks._process_numbers, []

        def look(pid):
            if pid == parent.pid and not looked:
                looked.append(pid)
                parent.kill()
                await_end(pid)
                if reaped:
                    parent.wait(60.0)
            return stat_fields(pid)

        monkeypatch.setattr(leaks, "stat_fields", look)
        monkeypatch.setattr(leaks, "_told_by_threads", lambda _: told_by_threads)
        monkeypatch.setattr(leaks, "_process_numbers", lambda: sorted(numbers(), key=lambda pid: pid == parent.pid))
        told = Holdings.now().since(before)["processes"]
        assert looked
    assert [line.partition(" ")[0] for line in told] == [str(program)]
    leaks.end_processes(before)


class OwnPopen(subprocess.Popen):
    """As libraries have one."""


@pytest.mark.parametrize("kind", [subprocess.Popen, OwnPopen])
def test_an_exit_code_somebody_waits_for_is_left_to_them(kind):
    with no_leaks():
        process = kind([sys.executable, "-c", "raise SystemExit(3)"])
        await_end(process.pid)
    assert process.wait(60.0) == 3


def test_an_exit_code_of_a_child_that_was_there_before_is_left_to_whoever_waits(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code = f"import sys; sys.exit(len(open({str(gate)!r}).read()))"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    with no_leaks():
        gate.write_text("abc")
        await_end(pid)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


SHARES = """
from multiprocessing import resource_tracker, shared_memory
from headrace.testing.leaks import no_leaks

for _ in range(2):
    with no_leaks():
        block = shared_memory.SharedMemory(create=True, size=1)
        block.close()
        block.unlink()
print(resource_tracker._resource_tracker._check_alive())
"""


def test_the_first_shared_memory_of_a_process_is_no_leak():
    done = subprocess.run([sys.executable, "-c", SHARES], capture_output=True, text=True, timeout=60.0, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_nobody_is_blamed_or_killed_for_a_clock_that_is_set(monkeypatch):
    waiting = subprocess.Popen([sys.executable, "-c", WAIT])
    with no_leaks():
        boot_time = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 1.0)
        assert psutil.Process(waiting.pid).create_time() > boot_time
    assert waiting.poll() is None
    waiting.kill()
    waiting.wait(60.0)


def test_a_process_that_changes_its_command_line_stays_the_same(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nread line\nexec cat -\n")
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as changing:
        with no_leaks():
            changing.stdin.write(b"go\nx\n")
            changing.stdin.flush()
            assert changing.stdout.read(2) == b"x\n"
        assert changing.poll() is None


def test_an_exception_of_the_block_is_not_hidden_by_what_it_left():
    held = []

    def fail_inside():
        with no_leaks():
            held.extend(Channel.pair())
            raise ValueError("the real reason")

    with pytest.raises(ValueError, match="the real reason"):
        fail_inside()
    for channel in held:
        channel.close()
