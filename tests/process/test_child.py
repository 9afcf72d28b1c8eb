"""Fork server and children against real processes: what a child is given, how it ends, and that nobody waits for it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import ComponentDied, ComponentStalled, ConfigError, ObservationMismatch
from headrace.ipc import forkserver
from headrace.ipc.channel import Deadline, MessagePipe, poll_fds
from headrace.ipc.child import Failed
from headrace.ipc.forkserver import Advice, ForkServer
from headrace.ipc.stacks import StackDump, innermost_frame, innermost_frames, is_stopped
from headrace.supervision.messages import Ready, Report, Stop
from headrace.testing.faults import DiesWhenUnpickled, Misbehaviour, RefusesToPickle

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # bounds a failure; a success never waits for it, not even on a starved machine
ZOO = "headrace.testing.faults:"


@pytest.fixture
def start(tmp_path):
    """Make fork servers whose log is in the test's folder."""
    servers = []

    def make(preload=(), environment=None, **limits):
        servers.append(ForkServer(preload, environment or {}, tmp_path / "forkserver.log", **limits))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def spawn(start, tmp_path):
    """Start one child of the zoo on a server of its own, or on the one given."""
    children = []

    def make(fault, payload=None, fds=None, server=None, name="child-0"):
        server = server or start()
        child = server.spawn(
            name, ZOO + fault, payload, fds or {}, tmp_path / f"{name}.log", tmp_path / f"{name}.stacks"
        )
        children.append(child)
        return server, child

    yield make
    for child in children:
        child.close()


def wait_for_end(server, child):
    deadline = Deadline(LIMIT_S)
    while child.exit_code is None:
        assert not deadline.passed, f"{child.id} is not seen to end"
        poll_fds(dict.fromkeys(server.fds(), select.POLLIN), deadline.left_s())
        server.collect()
    return child.exit_code


def reported_error(child):
    [failed] = child.control.receive_all()
    assert isinstance(failed, Failed)
    return failed.error


def wait_until_gone(*pids):
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert poll_fds({pidfd: select.POLLIN}, LIMIT_S), f"process {pid} lives on"
        finally:
            os.close(pidfd)


# --- what a child is given ---------------------------------------------------------------------------------------


def test_a_child_has_what_it_was_given_and_nothing_else(start, spawn):
    secret = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(secret, True)  # noqa: FBT003
    pipe = MessagePipe.create(1)
    pipe.put(b"x")
    try:
        server = start(environment={"OMP_NUM_THREADS": "1"})
        _, child = spawn("describes_itself", Misbehaviour(data=[1, "two"]), {"credits": pipe.reader_fd}, server)
        facts = child.control.receive(LIMIT_S).facts
    finally:
        pipe.close()
        os.close(secret)
    assert facts["given"] == {"credits": b"x"}
    assert facts["data"] == [1, "two"]
    kinds = sorted(Path(name).name.partition(":")[0] for name in facts["open"] if not Path(name).name.isdigit())
    assert kinds == sorted(["null", "child-0.log", "child-0.log", "child-0.stacks", "pipe", "socket"])
    assert facts["session"] == child.pid
    assert facts["parent_alive"]
    assert facts["sigint_ignored"]
    assert facts["sigterm_default"]
    assert b"OMP_NUM_THREADS=1" in Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")


def test_a_child_that_is_told_to_end_before_it_has_begun_ends(start, spawn):
    """Not with the fork server's own handler, which would take it for a wish that the server leaves."""
    server, child = spawn("describes_itself", server=start(("struck_fork",)))
    assert wait_for_end(server, child) == -signal.SIGTERM


def test_a_terminals_interrupt_reaches_only_the_parent(spawn):
    server, child = spawn("idle")
    assert os.getsid(server.pid) == server.pid != os.getsid(0)
    os.kill(child.pid, signal.SIGINT)
    assert child.control.receive(LIMIT_S) == Ready({"pid": child.pid})
    child.control.send(Stop("enough"), LIMIT_S)
    assert wait_for_end(server, child) == 0


def test_a_payload_of_any_size_arrives(spawn):
    data = bytes(range(256)) * 40_000  # 10 MB
    _, child = spawn("describes_itself", Misbehaviour(data=data))
    assert child.control.receive(LIMIT_S).facts["data"] == data


def test_an_import_that_fails_is_noted_and_is_the_childs_own_problem(start, spawn, tmp_path):
    server = start(preload=["no_such_module_at_all", "json"])
    spawn("idle", server=server)
    assert list(server.failed_imports) == ["no_such_module_at_all"]
    child = server.spawn("child-1", "no_such_module_at_all:f", None, {}, tmp_path / "1.log", tmp_path / "1.stacks")
    assert wait_for_end(server, child) == 1
    error = reported_error(child)
    child.close()
    assert error.facts["error"] == "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert "ModuleNotFoundError" in (tmp_path / "1.log").read_text()


def test_an_import_that_exits_is_one_that_fails(start, spawn, tmp_path, monkeypatch):
    (tmp_path / "exits_when_imported.py").write_text('import sys\nsys.exit("this machine has no screen")\n')
    monkeypatch.syspath_prepend(tmp_path)
    server = start(preload=["exits_when_imported"])
    _, child = spawn("idle", server=server)
    assert child.control.receive(LIMIT_S) == Ready({"pid": child.pid})
    assert server.failed_imports == {"exits_when_imported": "SystemExit: this machine has no screen"}


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "target", ["nonsense", "headrace.testing.faults:nobody", ":f", "headrace.testing.faults:caf\udce9"]
)
def test_a_target_that_is_none_is_a_configuration_error(start, tmp_path, target):
    server = start()
    child = server.spawn("child-0", target, None, {}, tmp_path / "0.log", tmp_path / "0.stacks")
    assert wait_for_end(server, child) == 1
    error = reported_error(child)
    child.close()
    assert isinstance(error, ConfigError)


# --- how it ends -------------------------------------------------------------------------------------------------


@pytest.mark.thin(10)
@pytest.mark.parametrize("after_ready", [False, True], ids=["before ready", "when ready"])
@pytest.mark.parametrize(
    ("fault", "exit_code"),
    [("exit_0", 0), ("exit_3", 3), ("raises", 1), ("kills_itself", -signal.SIGKILL), ("crashes", -signal.SIGSEGV)],
)
def test_every_way_of_ending_is_seen_with_its_exit_code(spawn, fault, exit_code, after_ready):
    server, child = spawn(fault, Misbehaviour(after_ready=after_ready))
    assert wait_for_end(server, child) == exit_code
    assert not child.kill()
    said = child.control.receive_all() if after_ready or fault == "raises" else []
    assert [type(message) for message in said if isinstance(message, Ready)] == [Ready] * after_ready
    assert server.collect() == []  # told once


def test_an_exception_is_reported_in_our_words_and_logged_in_its_own(spawn, tmp_path):
    server, child = spawn("raises")
    wait_for_end(server, child)
    error = reported_error(child)
    assert isinstance(error, ComponentDied)
    assert error.what == "child-0 raised ValueError"
    assert error.facts["error"] == "ValueError: the fault zoo sends its regards"
    assert error.facts["where"].startswith("faults.py:")
    assert error.facts["where"].endswith(" in raises")
    log = (tmp_path / "child-0.log").read_text()
    assert log.startswith("Traceback (most recent call last):")
    assert log.rstrip().endswith("ValueError: the fault zoo sends its regards")


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [("'no executable'", 1, "no executable"), ("0", 0, "0"), ("-1", 255, "-1"), ("2**40 + 3", 3, "1099511627779")],
)
def test_somebody_elses_exit_is_reported_with_its_words_and_place(
    start, spawn, tmp_path, monkeypatch, code, exit_code, words
):
    """As an environment does for which something is missing."""
    (tmp_path / "exits_when_built.py").write_text(f"import sys\ndef build(context):\n    sys.exit({code})\n")
    monkeypatch.syspath_prepend(tmp_path)
    server, beside = spawn("idle", server=start(), name="beside")
    child = server.spawn("child-0", "exits_when_built:build", None, {}, tmp_path / "0.log", tmp_path / "0.stacks")
    assert wait_for_end(server, child) == exit_code
    error = reported_error(child)
    child.close()
    assert beside.exit_code is None
    assert error.what == "child-0 raised SystemExit"
    assert error.facts == {"error": f"SystemExit: {words}", "where": "exits_when_built.py:3 in build"}
    assert (tmp_path / "0.log").read_text().endswith(f"SystemExit: {words}\n")


@pytest.mark.parametrize("missing", ["log", "stacks"])
def test_a_file_of_its_own_that_cannot_be_opened_is_reported(start, tmp_path, missing):
    server = start()
    files = {"log": tmp_path / "0.log", "stacks": tmp_path / "0.stacks"}
    files[missing] = tmp_path / "nowhere" / files[missing].name
    child = server.spawn("child-0", ZOO + "idle", None, {}, files["log"], files["stacks"])
    assert wait_for_end(server, child) == 1
    error = reported_error(child)
    child.close()
    assert error.what == f"child-0 could not open 0.{missing}"
    assert error.facts["problem"].startswith("FileNotFoundError: ")
    assert error.fix == "keep its folder where it is until the run has ended"


def test_an_error_of_ours_is_reported_as_it_is(spawn):
    server, child = spawn("raises_environment_fault")
    wait_for_end(server, child)
    error = reported_error(child)
    assert type(error) is ObservationMismatch
    assert list(error.facts.items()) == [("component", "child-0"), ("lane", 3)], "and where, if it does not say"


def test_a_crash_leaves_its_stack_in_the_log(spawn, tmp_path):
    server, child = spawn("crashes")
    wait_for_end(server, child)
    log = (tmp_path / "child-0.log").read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert " in crashes" in log


def test_more_output_than_a_pipe_holds_blocks_nobody_and_is_kept(spawn, tmp_path):
    server, child = spawn("chatters")
    assert wait_for_end(server, child) == 3
    lines = (tmp_path / "child-0.log").read_text().splitlines()
    assert len(lines) == 2 * 4096 + 1
    assert lines[-1] == "the last line"


def test_a_payload_that_kills_while_it_is_unpickled_blocks_nobody(spawn):
    server, child = spawn("idle", DiesWhenUnpickled(5_000_000))
    assert wait_for_end(server, child) == -signal.SIGKILL
    _, other = spawn("idle", server=server, name="child-1")
    assert other.control.receive(LIMIT_S) == Ready({"pid": other.pid})


def test_a_payload_that_cannot_be_pickled_is_refused_before_anything_is_started(start, tmp_path):
    server = start()
    with pytest.raises(ConfigError) as caught:
        server.spawn("child-0", ZOO + "idle", RefusesToPickle(), {}, tmp_path / "0.log", tmp_path / "0.stacks")
    assert str(caught.value) == (
        "[CFG-001] what child-0 is to be started with cannot be pickled\n"
        "  error: TypeError: this object stays where it is\n"
        "  fix: hand over a function that makes the object, instead of the object with its locks, files or sockets"
    )
    assert not (tmp_path / "0.log").exists()


@pytest.fixture
def filled():
    """Opens files until this process may open just so many more; they are closed at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []

    def fill(free):
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(256))
        for _ in range(free):
            os.close(held.pop())

    yield fill
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in held:
        os.close(fd)


def test_a_child_is_started_also_where_there_is_no_room_for_what_tells_of_its_end(spawn, filled):
    server, first = spawn("idle")  # so that the server is awake
    first.control.receive(LIMIT_S)
    filled(4)  # for both ends of a channel, and the payload with its mapping
    _, child = spawn("idle", server=server, name="child-1")
    assert child.pidfd == -1
    assert child.control.receive(LIMIT_S) == Ready({"pid": child.pid})
    assert child.kill()
    assert wait_for_end(server, child) == -signal.SIGKILL


@pytest.mark.parametrize("free", [0, 2, 3])
def test_a_process_that_may_open_no_more_files_says_so(spawn, filled, free):
    server, first = spawn("idle")
    first.control.receive(LIMIT_S)
    filled(free)
    with pytest.raises(ConfigError) as caught:
        spawn("idle", server=server, name="child-1")
    assert str(caught.value) == (
        "[CFG-001] child-1 may not open as many files as the run needs: Too many open files\n"
        "  limit: 256\n"
        "  fix: raise it with ulimit -n, or take fewer collectors or workers"
    )


def test_too_many_descriptors_are_refused(start, tmp_path):
    fds = {str(number): 0 for number in range(300)}
    with pytest.raises(ConfigError, match="so many descriptors"):
        start().spawn("child-0", ZOO + "idle", None, fds, tmp_path / "0.log", tmp_path / "0.stacks")


def test_a_child_leaves_when_nobody_is_at_the_other_end(spawn):
    server, child = spawn("ignores_stop")
    child.control.receive(LIMIT_S)
    child.control.close()
    assert wait_for_end(server, child) == 0


# --- what it has started -----------------------------------------------------------------------------------------


def test_a_killed_childs_programs_are_ended_with_it(spawn):
    server, child = spawn("starts_a_program")
    program = child.control.receive(LIMIT_S).facts["pid"]
    child.kill()
    assert wait_for_end(server, child) == -signal.SIGKILL
    wait_until_gone(program)


@pytest.mark.parametrize("how", ["close", "kill"])
def test_the_end_of_the_server_is_the_end_of_everything(spawn, how):
    server, child = spawn("starts_a_program")
    program = child.control.receive(LIMIT_S).facts["pid"]
    _, stubborn = spawn("ignores_stop", server=server, name="child-1")
    if how == "close":
        server.close()
    else:
        os.kill(server.pid, signal.SIGKILL)
        wait_for_end(server, child)
        wait_for_end(server, stubborn)
    assert child.exit_code == stubborn.exit_code == -signal.SIGKILL
    wait_until_gone(child.pid, stubborn.pid, program)


def test_the_kernel_ends_children_of_a_killed_server_also_if_nobody_looks(spawn):
    server, child = spawn("ignores_stop")
    child.control.receive(LIMIT_S)
    os.kill(server.pid, signal.SIGKILL)
    wait_until_gone(child.pid)  # its control channel is open, and nothing was collected


IMPORTING_PARENT = """
import os, select, sys
sys.path.insert(0, sys.argv[1])
from headrace.ipc.forkserver import ForkServer
server = ForkServer(["never_imported"], {}, sys.argv[1] + "/forkserver.log")
print(server.pid, flush=True)
select.select([], [], [], 600)
"""


@pytest.mark.table
def test_the_kernel_ends_a_server_that_is_importing_when_its_parent_is_killed(tmp_path):
    begun = tmp_path / "begun"
    source = f"import select\nopen({str(begun)!r}, 'w').close()\nselect.select([], [], [], 600)\n"
    (tmp_path / "never_imported.py").write_text(source)
    command = [sys.executable, "-c", IMPORTING_PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        server_pid = int(parent.stdout.readline())
        deadline = Deadline(LIMIT_S)
        while not begun.exists():
            assert not deadline.passed
            poll_fds({parent.stdout.fileno(): select.POLLIN}, 0.01)
        parent.kill()
        parent.wait(timeout=LIMIT_S)
    wait_until_gone(server_pid)


def test_a_dead_server_is_an_error_that_says_so(spawn, tmp_path):
    server, child = spawn("idle")
    os.kill(server.pid, signal.SIGKILL)
    wait_for_end(server, child)
    assert isinstance(server.error, ComponentDied)
    assert server.error.facts == {"pid": server.pid, "exit_code": -9}
    with pytest.raises(ComponentDied, match="the fork server is gone") as caught:
        server.spawn("child-1", ZOO + "idle", None, {}, tmp_path / "1.log", tmp_path / "1.stacks")
    assert str(caught.value) == (
        "[SUP-001] the fork server is gone: it ended\n"
        f"  pid: {server.pid}\n"
        "  exit code: -9\n"
        "  fix: read its log, and see whether the machine was out of memory"
    )


# --- what the system refuses ---------------------------------------------------------------------------------------


def preloaded(folder, monkeypatch, name, code):
    """A module that changes the server that imports it."""
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    return [name]


NO_PIDFDS = f"""
import os
def refuse(pid, flags=0):
    raise OSError({errno.ENOSYS}, "Function not implemented")
os.pidfd_open = refuse
"""


def test_children_live_and_end_also_where_the_kernel_knows_no_pidfds(start, spawn, tmp_path, monkeypatch):
    """gVisor, and kernels before 5.3: Python has the call there as well."""
    server, child = spawn("idle", server=start(preloaded(tmp_path, monkeypatch, "no_pidfds", NO_PIDFDS)))
    assert child.control.receive(LIMIT_S) == Ready({"pid": child.pid})
    assert (child.pidfd, child.ended()) == (-1, False)
    assert child.kill()
    assert wait_for_end(server, child) == -signal.SIGKILL
    assert not child.kill()


NO_KILLS = """
import os
import headrace.ipc.server
def refuse(pid, number):
    raise PermissionError
os.kill = os.killpg = refuse
headrace.ipc.server._LEAVE_S = 0.1
"""


def test_a_process_that_may_not_be_killed_does_not_end_the_server(start, spawn, tmp_path, monkeypatch):
    """Of another user, by sudo or setuid: it is left, and everybody else is looked after."""
    server = start(preloaded(tmp_path, monkeypatch, "no_kills", NO_KILLS))
    _, child = spawn("starts_a_program", server=server)
    program = child.control.receive(LIMIT_S).facts["pid"]
    child.kill()
    assert wait_for_end(server, child) == -signal.SIGKILL
    _, other = spawn("idle", server=server, name="child-1")
    assert other.control.receive(LIMIT_S) == Ready({"pid": other.pid})
    server.close()
    assert server._process.returncode == 0
    wait_until_gone(other.pid)
    os.kill(program, signal.SIGKILL)
    wait_until_gone(program)


# --- deadlines of the server itself ------------------------------------------------------------------------------


def test_a_server_that_never_finishes_importing_misses_its_deadline(start, tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("import select\nselect.select([], [], [], 600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = start(preload=["never_imported"], start_timeout_s=0.2, advice=Advice(late="import less"))
    with pytest.raises(ComponentStalled, match=r"(?s)did not start child-0 within 0\.2 s.*fix: import less"):
        server.spawn("child-0", ZOO + "idle", None, {}, tmp_path / "0.log", tmp_path / "0.stacks")


def test_imports_that_take_longer_than_a_child_may_are_no_fault(start, tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("import select\nselect.select([], [], [], 0.4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = start(preload=["imported_late"], spawn_timeout_s=0.2)
    receive_all, held = server._link.receive_all, []

    def one_at_a_time():  # that it is awake arrives before the child does
        held.extend(receive_all())
        return [held.pop(0)] if held else []

    monkeypatch.setattr(server._link, "receive_all", one_at_a_time)
    child = server.spawn("child-0", ZOO + "idle", None, {}, tmp_path / "0.log", tmp_path / "0.stacks")
    child.close()


def test_a_child_that_comes_too_late_is_not_kept(start, spawn, tmp_path):
    server = start(spawn_timeout_s=1.0)
    _, first = spawn("idle", server=server)  # so that the server is awake
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(ComponentStalled, match="did not start child-1 within 1 s"):
        server.spawn("child-1", ZOO + "ignores_stop", None, {}, tmp_path / "1.log", tmp_path / "1.stacks")
    os.kill(server.pid, signal.SIGCONT)
    _, third = spawn("idle", server=server, name="child-2")
    assert third.control.receive(LIMIT_S) == Ready({"pid": third.pid})
    alive = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    wait_until_gone(*({int(pid) for pid in alive} - {first.pid, third.pid}))


def test_a_server_that_does_not_report_an_exit_is_given_up(spawn, monkeypatch):
    monkeypatch.setattr(forkserver, "_EXIT_REPORT_S", 0.1)
    server, child = spawn("ignores_stop")
    child.control.receive(LIMIT_S)
    os.kill(server.pid, signal.SIGSTOP)
    child.kill()
    deadline = Deadline(LIMIT_S)
    while child.exit_code is None and not deadline.passed:
        poll_fds(dict.fromkeys(server.fds(), select.POLLIN), 0.05)
        server.collect()
    assert child.exit_code == -signal.SIGKILL
    assert server.error is not None
    assert "did not report an exit within 0.1 s" in server.error.what


# --- stacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "stopped"), [("loops", False), ("stops_itself", True)])
def test_a_stuck_child_writes_down_where_it_is(spawn, tmp_path, fault, stopped):
    _, child = spawn(fault, Misbehaviour(after_ready=True))
    child.control.receive(LIMIT_S)
    deadline = Deadline(LIMIT_S)
    while stopped and not is_stopped(child.pid):
        assert not deadline.passed
    dump = take_dump(child, tmp_path)
    assert dump.was_stopped is stopped
    while not re.fullmatch(rf"faults\.py:\d+ in {fault}", dump.where() or ""):  # it may still be on its way there
        assert not deadline.passed, dump.where()
        dump = take_dump(child, tmp_path)


def take_dump(child, folder):
    dump = StackDump(child.send_signal, child.pid, folder / f"{child.id}.stacks", LIMIT_S)
    while not dump.finished():
        poll_fds({child.pidfd: select.POLLIN}, 0.01)
    assert dump.succeeded
    return dump


def test_a_dump_of_a_process_that_is_gone_is_over_at_once(spawn, tmp_path):
    server, child = spawn("exit_0")
    wait_for_end(server, child)
    dump = StackDump(child.send_signal, child.pid, tmp_path / "child-0.stacks", LIMIT_S)
    assert dump.finished()
    assert dump.where() is None


def test_the_current_thread_is_the_one_that_counts():
    dump = (
        "Thread 0x01 (most recent call first):\n"
        '  File "/a/threading.py", line 1 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/a/fire.py", line 88 in spread\n'
        '  File "/a/env.py", line 3 in step\n'
    )
    assert innermost_frame(dump) == "fire.py:88 in spread"
    assert innermost_frame("nothing of the sort") is None
    assert innermost_frames(dump) == ["threading.py:1 in wait", "fire.py:88 in spread"]
    assert innermost_frames("nothing of the sort") == []


def test_a_report_is_a_message_like_any_other(spawn):
    server, child = spawn("starts_a_program")
    assert isinstance(child.control.receive(LIMIT_S), Report)
    server.close()
    assert child.exit_code is not None


def test_a_fork_of_the_one_that_started_them_ends_nobody(start, spawn):
    server, child = spawn("idle")
    fork = os.fork()
    if fork == 0:
        try:
            server.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    _, other = spawn("idle", server=server, name="child-1")
    assert not [one.id for one in (child, other) if one.ended()]
    assert server.collect() == []
    assert server.error is None
