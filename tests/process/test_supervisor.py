"""The supervisor against real processes that die in real ways; nothing is left, and it never waits for a child."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.clock import MonotonicClock
from headrace.core.errors import ComponentDied, ComponentError, ConfigError, EnvironmentRaised, ObservationMismatch
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.forkserver import ForkServer
from headrace.supervision import evidence
from headrace.supervision.messages import Command, Done, Report
from headrace.supervision.spec import (
    BecameReady,
    ChildSpec,
    Exited,
    ForkServerLost,
    GiveUp,
    Nothing,
    Overdue,
    Reported,
    Restart,
    RestartBudget,
    Started,
)
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Activity, Board, State
from headrace.testing.faults import DiesWhenUnpickled, Misbehaviour, RefusesToPickle

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # bounds a failure; a success never waits for it, not even on a starved machine
BUDGET = RestartBudget(max_restarts=40, window_s=300.0, backoff_s=0.0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "stacks").mkdir()
    return tmp_path


def spec(fault, *, payload=None, child_id="c", **changes):
    if not callable(payload):
        value = payload
        payload = lambda _incarnation: value  # noqa: E731
    return ChildSpec(
        id=child_id, kind="zoo", target=f"headrace.testing.faults:{fault}", payload=payload, **({"stop_timeout_s": LIMIT_S} | changes)
    )  # fmt: skip


@contextmanager
def supervised(folder, *specs, budget=BUDGET):
    """A supervisor whose children have been started."""
    names = [(spec.id, spec.kind) for spec in specs]
    with Board.create(folder / "board", [("supervisor", "supervisor"), *names]) as board:
        server = ForkServer([], {}, folder / "logs" / "forkserver.log")
        with Supervisor(
            server, board, specs, budget, MonotonicClock(), folder / "logs", folder / "stacks"
        ) as supervisor:
            supervisor.start_all()
            yield supervisor


def until(supervisor, wanted, *, count=1):
    """Poll until ``count`` events of a kind have come; all events so far."""
    deadline = Deadline(LIMIT_S)
    events = []
    while sum(isinstance(event, wanted) for event in events) < count:
        assert not deadline.passed, events
        events += supervisor.poll(deadline.left_s())
    return events


def only(events, wanted):
    [event] = [event for event in events if isinstance(event, wanted)]
    return event


def wait_until_gone(pids):
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert poll_fds({pidfd: select.POLLIN}, LIMIT_S), f"process {pid} lives on"
        finally:
            os.close(pidfd)


# --- the crash table ---------------------------------------------------------------------------------------------

FAULTS = [
    ("exit_0", 0, None),
    ("exit_3", 3, None),
    ("raises", 1, ComponentDied),
    ("raises_environment_raised", 1, EnvironmentRaised),
    ("kills_itself", -signal.SIGKILL, None),
    ("crashes", -signal.SIGSEGV, None),
    ("chatters", 3, None),
]


@pytest.mark.thin(14)
@pytest.mark.parametrize("when", ["before", "ready"])
@pytest.mark.parametrize(("fault", "exit_code", "error"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_each_fault_is_told_once_and_decided(folder, fault, exit_code, error, when):
    was_ready = when == "ready"
    with supervised(folder, spec(fault, payload=Misbehaviour(after_ready=was_ready))) as supervisor:
        events = until(supervisor, Exited)
        assert isinstance(events[0], Started)
        assert sum(isinstance(event, BecameReady) for event in events) == was_ready
        exited = events[-1]
        assert (exited.id, exited.exit_code, exited.asked, exited.was_ready) == ("c", exit_code, False, was_ready)
        assert exited.pid == events[0].pid
        assert (exited.error and type(exited.error)) is error
        # Killed from outside, it could not tell why: another start may find the memory that was missing.
        hopeless = not was_ready and fault != "kills_itself"
        expected = GiveUp("c", "it has never become ready") if hopeless else Restart("c", 0.0)
        assert supervisor.decide(exited) == expected
        assert supervisor.alive() == []
        assert supervisor.poll(0.0) == []


def test_a_broken_contract_ends_the_run_at_once(folder):
    payload = Misbehaviour(after_ready=True)
    with supervised(folder, spec("raises_environment_fault", payload=payload)) as supervisor:
        exited = only(until(supervisor, Exited), Exited)
        assert supervisor.decide(exited) == GiveUp("c", "trying again would fail again")
        assert isinstance(exited.to_error(), ObservationMismatch)


def test_the_last_lines_of_a_childs_output_come_with_its_end(folder):
    with supervised(folder, spec("chatters", payload=Misbehaviour(after_ready=True))) as supervisor:
        first = only(until(supervisor, Exited), Exited)
        supervisor.decide(first)
        supervisor.restart("c")
        second = only(until(supervisor, Exited), Exited)
    for exited in (first, second):
        assert exited.log_tail[-1] == "the last line"
        assert exited.log_tail[-2] == f"004095 {'o' * 56}"
    assert (folder / "logs" / "c.log").read_text().count("the last line\n") == 2


def test_a_tail_does_not_quote_an_earlier_incarnation(folder):
    def payload(incarnation):
        return Misbehaviour(after_ready=True) if incarnation == 0 else DiesWhenUnpickled(10)

    with supervised(folder, spec("raises", payload=payload)) as supervisor:
        assert only(until(supervisor, Exited), Exited).log_tail[-1].startswith("ValueError")
        supervisor.restart("c")
        assert only(until(supervisor, Exited), Exited).log_tail == []


# --- restarts ----------------------------------------------------------------------------------------------------


def test_a_killed_child_is_replaced_by_a_new_incarnation(folder):
    with supervised(folder, spec("idle")) as supervisor:
        first = only(until(supervisor, BecameReady), Started)
        os.kill(first.pid, signal.SIGKILL)
        exited = only(until(supervisor, Exited), Exited)
        assert exited.how == "killed by SIGKILL (often the out-of-memory killer)"
        assert supervisor.decide(exited) == Restart("c", 0.0)
        supervisor.restart("c")
        events = until(supervisor, BecameReady)
        second = only(events, Started)
        assert (second.incarnation, only(events, BecameReady).incarnation) == (1, 1)
        assert second.pid != first.pid
        assert supervisor.alive() == ["c"]
        with Board.open(folder / "board") as board:
            view = board.read("c")
        assert (view.pid, view.incarnation) == (second.pid, 1)
        assert (view.counters["restarts"], view.counters["faults"]) == (1, 1)


def test_thirty_restarts_cost_no_descriptor(folder):
    def open_descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    with supervised(folder, spec("exit_3", payload=Misbehaviour(after_ready=True))) as supervisor:
        counts = []
        for _ in range(30):
            exited = only(until(supervisor, Exited), Exited)
            counts.append(open_descriptors())
            assert isinstance(supervisor.decide(exited), Restart)
            supervisor.restart("c")
    assert max(counts) == min(counts)
    # A page of evidence each, and no stacks: each ended by itself.
    pages = sorted((folder / "stacks").iterdir(), key=lambda path: int(path.name.split(".")[1]))
    assert len(pages) >= 30
    assert pages[29].read_text().startswith("== c, incarnation 29, pid ")
    assert ": exit code 3\n== resources: " in pages[29].read_text()


def test_a_pause_before_a_restart_blocks_nobody_and_stop_cancels_it(folder):
    budget = RestartBudget(max_restarts=1, window_s=300.0, backoff_s=LIMIT_S)
    specs = [spec("exit_3", payload=Misbehaviour(after_ready=True)), spec("idle", child_id="d")]
    with supervised(folder, *specs, budget=budget) as supervisor:
        exited = only(until(supervisor, Exited), Exited)
        assert supervisor.decide(exited) == Restart("c", LIMIT_S)
        supervisor.restart("c")
        assert supervisor.alive() == ["d"]
        with Board.open(folder / "board") as board:
            view = board.read("c")
            assert (view.state, view.activity, view.pid) == (State.STARTING, Activity.WAIT_RESTART, 0)
            assert view.deadline_s == pytest.approx(LIMIT_S, abs=1.0)
            supervisor.stop(["c"], "no longer needed")
            assert board.read("c").state is State.FAILED
        supervisor.restart("c")  # it has ended again, so this is allowed
        with pytest.raises(ComponentError, match="c cannot become delayed while it is delayed"):
            supervisor.restart("c")


def test_a_short_pause_is_kept_by_poll(folder):
    budget = RestartBudget(max_restarts=1, window_s=300.0, backoff_s=0.05)
    with supervised(folder, spec("exit_3", payload=Misbehaviour(after_ready=True)), budget=budget) as supervisor:
        assert supervisor.decide(only(until(supervisor, Exited), Exited)) == Restart("c", 0.05)
        supervisor.restart("c")
        assert supervisor.alive() == []
        assert only(until(supervisor, Exited), Started).incarnation == 1


def test_a_restart_that_cannot_be_carried_out_is_an_exit_with_a_reason(folder):
    def payload(incarnation):
        return Misbehaviour(after_ready=True) if incarnation == 0 else RefusesToPickle()

    with supervised(folder, spec("exit_3", payload=payload)) as supervisor:
        supervisor.decide(only(until(supervisor, Exited), Exited))
        supervisor.restart("c")
        exited = only(until(supervisor, Exited), Exited)
        assert isinstance(exited.error, ConfigError)
        assert supervisor.decide(exited) == GiveUp("c", "trying again would fail again")


# --- starting ----------------------------------------------------------------------------------------------------


def test_a_payload_that_kills_while_it_is_unpickled_blocks_nobody(folder):
    specs = [spec("idle", payload=DiesWhenUnpickled(5_000_000)), spec("idle", child_id="d")]
    with supervised(folder, *specs) as supervisor:
        events = until(supervisor, Exited)
        if not any(isinstance(event, BecameReady) for event in events):
            events += until(supervisor, BecameReady)
        exited = only(events, Exited)
        assert (exited.id, exited.exit_code, exited.was_ready) == ("c", -signal.SIGKILL, False)
        assert only(events, BecameReady).id == "d"


def test_a_payload_that_cannot_be_pickled_starts_nothing(folder):
    with pytest.raises(ConfigError, match="what c is to be started with cannot be pickled"):
        supervised(folder, spec("idle", payload=RefusesToPickle())).__enter__()
    with Board.open(folder / "board") as board:
        assert board.read("c").state is State.FAILED


def test_a_child_that_runs_is_not_started_twice(folder):
    with supervised(folder, spec("idle")) as supervisor:
        pid = supervisor.pid("c")
        with pytest.raises(ComponentError, match="c cannot become starting while it is starting"):
            supervisor.start("c")
        assert supervisor.pid("c") == pid
        assert supervisor.alive() == ["c"]


def test_ids_must_be_unique_and_have_slots(folder):
    server = ForkServer([], {}, folder / "logs" / "forkserver.log")
    with server, Board.create(folder / "board", [("c", "zoo")]) as board:
        args = (BUDGET, MonotonicClock(), folder, folder)
        with pytest.raises(ConfigError, match="the same id"):
            Supervisor(server, board, [spec("idle"), spec("idle")], *args)
        with pytest.raises(ConfigError, match="no component of this run is called 'd'"):
            Supervisor(server, board, [spec("idle", child_id="d")], *args)


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.thin(3)
@pytest.mark.parametrize("fault", ["stops_itself", "loops", "holds_the_lock"])
def test_a_stuck_child_is_dumped_killed_and_told_with_the_place(folder, fault):
    payload = Misbehaviour(after_ready=True, board=str(folder / "board"))
    limits = {Activity.ENV_STEP: 0.2}
    with supervised(folder, spec(fault, payload=payload, deadlines=limits)) as supervisor:
        events = until(supervisor, Exited)
        late, exited = only(events, Overdue), events[-1]
        assert (late.activity, late.limit_s, late.lane, late.step) == ("env.step", 0.2, 2, 7)
        assert 0.2 < late.for_s < LIMIT_S
        assert events.index(late) < events.index(exited)
        assert exited.exit_code == -signal.SIGKILL
        assert exited.how == "killed by the supervisor because it missed a deadline"
        stopped = "; its process had been stopped by a signal" if fault == "stops_itself" else ""
        assert exited.stalled == f"{late}{stopped}"
        assert exited.stalled.startswith("env.step for 0.")
        assert "(limit 0.2 s), lane 2, step 7" in exited.stalled
        assert exited.stacks == folder / "stacks" / "c.0.txt"
        assert f" in {fault}\n" in exited.stacks.read_text()
        assert exited.stuck_in.endswith(f" in {fault}")
        assert (exited.call, exited.lane, exited.step) == ("step", 2, 7)
        page = exited.stacks.read_text()
        assert page.startswith(f"== c, incarnation 0, pid {exited.pid}: {late}\n== resources: ")
        assert f"{exited.used.rss_bytes / 1e6:,.0f} MB resident" in page
        if fault == "holds_the_lock":
            assert exited.used.state == "running"
            assert page.index("== the last 1 lines it printed\ngoing down\n") < page.index("(most recent call first)")
        assert supervisor.decide(exited) == Restart("c", 0.0)


@pytest.mark.parametrize(
    "script", ["echo \"$@\"; echo 'Permission denied: try again as root' >&2; exit 1", "exec sleep 600"]
)
def test_native_stacks_are_added_where_py_spy_is_installed_and_never_waited_for(folder, monkeypatch, script):
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    if "sleep" in script:
        monkeypatch.setattr(evidence, "NATIVE_S", 0.05)
    payload = Misbehaviour(after_ready=True, board=str(folder / "board"))
    with supervised(folder, spec("loops", payload=payload, deadlines={Activity.ENV_STEP: 0.2})) as supervisor:
        exited = only(until(supervisor, Exited), Exited)
    page = exited.stacks.read_text()
    assert exited.stuck_in.endswith(" in loops")
    assert page.index(" in loops\n") < page.index("== native stacks, by py-spy\n")
    if "echo" in script:
        assert page.endswith(f"dump --native --pid {exited.pid}\nPermission denied: try again as root\n")


def test_what_everybody_uses_is_on_the_board(folder):
    with supervised(folder, spec("idle")) as supervisor, Board.open(folder / "board") as board:
        until(supervisor, BecameReady)
        supervisor.poll(0.0)
        sizes = {name: board.read(name).counters["rss_bytes"] for name in ("c", "supervisor")}
        assert all(1e6 < size < 4e9 for size in sizes.values()), sizes
        os.kill(supervisor.pid("c"), signal.SIGKILL)
        exited = only(until(supervisor, Exited), Exited)
        assert exited.used.rss_bytes == sizes["c"]
        assert exited.used.open_files > 3
        assert board.read("c").counters["rss_bytes"] == 0


def test_starting_has_a_deadline_of_its_own(folder):
    with supervised(folder, spec("loops", deadlines={Activity.START: 0.2})) as supervisor:
        exited = only(until(supervisor, Exited), Exited)
        assert exited.stalled.startswith("start for ")  # how long, hangs on the fork server's imports as well
        assert exited.stalled.endswith(" s (limit 0.2 s)")
        assert supervisor.decide(exited) == GiveUp("c", "it has never become ready")


def test_a_child_that_ignores_stop_is_killed_after_its_limit(folder):
    with supervised(folder, spec("ignores_stop", stop_timeout_s=0.2)) as supervisor:
        until(supervisor, BecameReady)
        supervisor.stop(["c"], "the test is over")
        exited = only(until(supervisor, Exited), Exited)
        assert exited.asked
        assert exited.stalled.startswith("stop for 0.")
        assert supervisor.decide(exited) == Nothing("c")


# --- talking -----------------------------------------------------------------------------------------------------


def test_a_well_behaved_child_answers_and_leaves_when_asked(folder):
    with supervised(folder, spec("idle")) as supervisor:
        ready = only(until(supervisor, BecameReady), BecameReady)
        assert ready.facts == {"pid": supervisor.pid("c")}
        assert supervisor.send("c", Command("echo", {"nonce": 17}))
        answer = only(until(supervisor, Reported), Reported)
        assert answer.message == Report("echo", {"nonce": 17, "pid": supervisor.pid("c")})
        supervisor.stop(["c"], "enough")
        events = until(supervisor, Exited)
        assert only(events, Reported).message == Done({})
        exited = only(events, Exited)
        assert (exited.exit_code, exited.asked, exited.done, exited.stalled) == (0, True, True, None)
        assert supervisor.decide(exited) == Nothing("c")
        assert not supervisor.send("c", Command("echo"))


def test_a_child_that_does_not_read_blocks_nobody_and_loses_nothing(folder):
    with supervised(folder, spec("idle")) as supervisor:
        until(supervisor, BecameReady)
        os.kill(supervisor.pid("c"), signal.SIGSTOP)
        filling = bytes(100_000)
        for number in range(50):  # 5 MB, far more than a socket holds
            assert supervisor.send("c", Command(str(number), {"filling": filling}))
        os.kill(supervisor.pid("c"), signal.SIGCONT)
        events = until(supervisor, Reported, count=50)
        names = [event.message.kind for event in events if isinstance(event, Reported)]
        assert names == [str(number) for number in range(50)]


def test_what_was_said_before_the_end_is_told_before_it(folder):
    with supervised(folder, spec("kills_itself", payload=Misbehaviour(after_ready=True))) as supervisor:
        kinds = [type(event) for event in until(supervisor, Exited)]
    assert kinds == [Started, BecameReady, Exited]


def test_the_last_words_of_a_child_are_told_also_if_it_could_not_be_sent_something_first(folder):
    with supervised(folder, spec("raises")) as supervisor:
        process = supervisor._children["c"]._child
        assert poll_fds({process.pidfd: select.POLLIN}, LIMIT_S), "it is still alive"
        supervisor.send("c", Command("too late"))  # finds the channel closed, with a message still waiting in it
        assert isinstance(only(until(supervisor, Exited), Exited).error, ComponentDied)


def test_an_unknown_child_is_named_with_the_known_ones(folder):
    with supervised(folder, spec("idle")) as supervisor, pytest.raises(ConfigError, match="called 'nobody'"):
        supervisor.send("nobody", Command("echo"))


# --- leaving -----------------------------------------------------------------------------------------------------


def test_leaving_ends_the_willing_the_stubborn_the_stopped_and_their_programs(folder):
    specs = [
        spec("idle", child_id="willing"),
        spec("ignores_stop", child_id="stubborn", stop_timeout_s=0.2),
        spec("ignores_stop", child_id="stopped", stop_timeout_s=0.2),
        spec("starts_a_program", child_id="parent"),
    ]
    with supervised(folder, *specs) as supervisor:
        events = until(supervisor, BecameReady, count=4)
        program = only(events, Reported).message.facts["pid"]
        pids = [supervisor.pid(child.id) for child in specs]
        os.kill(supervisor.pid("stopped"), signal.SIGSTOP)
    for pid in [*pids, program]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with Board.open(folder / "board") as board:
        assert {view.state for view in board.read_all()[1:]} == {State.ENDED}


def test_an_exception_leaves_nothing_either(folder):
    pids = []

    def fail_inside():
        with supervised(folder, spec("ignores_stop", stop_timeout_s=0.1)) as supervisor:
            pids.append(supervisor.pid("c"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    [pid] = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_killing_all_counts_as_asked(folder):
    with supervised(folder, spec("ignores_stop"), spec("idle", child_id="d")) as supervisor:
        supervisor.kill_all()
        events = until(supervisor, Exited, count=2)
        exits = [event for event in events if isinstance(event, Exited)]
        assert {(exited.id, exited.exit_code, exited.asked) for exited in exits} == {
            ("c", -signal.SIGKILL, True),
            ("d", -signal.SIGKILL, True),
        }


def test_a_dead_fork_server_is_told_and_ends_the_run(folder):
    with supervised(folder, spec("idle"), spec("ignores_stop", child_id="d")) as supervisor:
        until(supervisor, BecameReady, count=2)
        os.kill(supervisor._fork_server.pid, signal.SIGKILL)
        events = until(supervisor, Exited, count=2)
        lost = only(events, ForkServerLost)
        assert lost.error.what == "the fork server is gone: it ended"
        for exited in (event for event in events if isinstance(event, Exited)):
            assert events.index(lost) < events.index(exited)
            assert supervisor.decide(exited) == GiveUp(
                exited.id, "the fork server is gone, so nothing can be started again"
            )


PARENT = """
import json, sys
from pathlib import Path
from headrace.core.clock import MonotonicClock
from headrace.ipc.forkserver import ForkServer
from headrace.supervision.spec import BecameReady, ChildSpec, Reported, RestartBudget
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Board

folder = Path(sys.argv[1])
specs = [ChildSpec(id=name, kind="zoo", target="headrace.testing.faults:" + name, payload=lambda _: None)
         for name in ("idle", "ignores_stop", "starts_a_program")]
board = Board.create(folder / "board", [(spec.id, spec.kind) for spec in specs])
server = ForkServer([], {}, folder / "forkserver.log")
with Supervisor(server, board, specs, RestartBudget(), MonotonicClock(), folder / "logs", folder / "stacks") as supervisor:
    supervisor.start_all()
    events = []
    while sum(isinstance(event, BecameReady) for event in events) < 3:
        events += supervisor.poll(1.0)
    pids = [supervisor.pid(spec.id) for spec in specs] + [server.pid]
    pids += [event.message.facts["pid"] for event in events if isinstance(event, Reported)]
    print(json.dumps(pids), flush=True)
    while True:
        supervisor.poll(1.0)
"""


def test_when_the_parent_is_killed_everything_goes(folder):
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 5
        parent.kill()
        parent.wait(timeout=LIMIT_S)
    wait_until_gone(pids)
