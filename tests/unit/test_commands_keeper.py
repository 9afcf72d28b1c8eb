"""A keeper whose program is over, or gets on, while nobody listens; and what is left of a program."""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from headrace.commands import keeper as module
from headrace.commands.chronicle import Chronicle
from headrace.commands.config import ProcessConfig, load
from headrace.commands.keeper import Keeper
from headrace.commands.launcher import Launch, Places
from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentDied
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.supervision.messages import Done, Failed, Ready, Report
from headrace.supervision.spec import Exited, Reported
from headrace.telemetry.board import Board, State
from headrace.telemetry.events import EventLog
from supervise_support import Watched


class Program:
    """Stands in for a tree of processes."""

    pid, pidfd = 1, -1

    def __init__(self, *_args, **_more):
        self.output_fd, self._writer = os.pipe()
        os.set_blocking(self.output_fd, False)
        self.left = []

    def kill(self, _within_s):
        return not self.left

    def in_words(self):
        return []

    def in_words_left(self):
        return self.left

    def close(self):
        os.close(self.output_fd)
        os.close(self._writer)


class Supervisor:
    """The other end of a channel: it is suspended, and then reads."""

    def __init__(self, channel):
        self._channel = channel
        self.read = []

    def wake(self):
        self.read += [message for message in self._channel.receive_all() if message != "filling"]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A keeper, and the supervisor at the other end of a channel that is full."""
    monkeypatch.setattr(module, "Tree", Program)
    opened = []

    def of(**process):
        ours, theirs = Channel.pair()
        board = Board.create(tmp_path / "board", [("p", "command")])
        context = ChildContext("p", None, {}, ours, os.getpid())
        found = Keeper(context, ProcessConfig(command=["p"], cwd=str(tmp_path), **process), board)
        found.__enter__()
        opened.extend((ours, theirs, board, found))
        while ours.try_send("filling"):
            pass
        supervisor = Supervisor(theirs)
        # Called while there is no room: nobody has to be woken by the clock.
        monkeypatch.setattr(found._display, "leaving", supervisor.wake)
        return found, supervisor

    yield of
    for each in reversed(opened):
        each.__exit__(None, None, None)


def test_readiness_that_finds_no_room_is_told_when_there_is(make):
    keeper, supervisor = make()
    keeper._vigil.note_ready(keeper._vigil.started_s + 2.0)
    keeper._say_ready()
    supervisor.wake()
    assert supervisor.read == []
    for _ in range(2):  # once
        keeper._say_ready()
        supervisor.wake()
    assert supervisor.read == [Ready({"after_s": 2.0})]


def test_work_that_is_done_is_told_whenever_somebody_listens(make):
    keeper, supervisor = make(lifetime="until-done")
    keeper._vigil.note_ready(keeper._vigil.started_s)
    keeper._on_end(0)
    supervisor.wake()
    assert supervisor.read == [Ready({"after_s": 0.0}), Done({"lines": 0})]


def test_why_a_program_failed_is_told_whenever_somebody_listens(make):
    keeper, supervisor = make()
    with pytest.raises(SystemExit):
        keeper._on_end(3)
    supervisor.wake()
    [failed] = supervisor.read
    assert isinstance(failed, Failed)
    assert failed.error.what == "p exited with code 3"


def test_a_keeper_that_nobody_will_hear_any_more_leaves(make, monkeypatch):
    keeper, supervisor = make(lifetime="until-done")
    monkeypatch.setattr(keeper._display, "leaving", supervisor._channel.close)
    keeper._on_end(0)
    assert not keeper._control.peer_alive()


def test_a_file_that_is_there_at_the_end_is_readiness_whatever_the_code(make, tmp_path):
    keeper, supervisor = make(ready={"file": "made"})
    (tmp_path / "made").touch()
    with pytest.raises(SystemExit):
        keeper._on_end(1)
    supervisor.wake()
    assert [type(message) for message in supervisor.read] == [Ready, Failed]


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    ("code", "what"),
    [
        (0, "p exited with code 0 and has failed: a line matches its fail_pattern"),
        (-9, "p was killed by SIGKILL (often the out-of-memory killer)"),
    ],
)
def test_a_line_that_says_that_it_has_failed_counts_in_the_last_moment(make, code, what, end):
    keeper, supervisor = make(lifetime="until-done", fail_pattern="out of memory")
    os.write(keeper._tree._writer, b"up\nCUDA out of memory" + end)
    with pytest.raises(SystemExit):
        keeper._on_end(code)
    supervisor.wake()
    [failed] = [message for message in supervisor.read if not isinstance(message, Report)]
    assert isinstance(failed, Failed)
    assert (failed.error.what, failed.error.facts["line"]) == (what, "CUDA out of memory")


def test_reading_a_flood_for_long_is_no_absence(make, monkeypatch):
    keeper, supervisor = make(progress={"log": "step", "progress_s": 10.0})
    begun_s, worked_s = keeper._vigil.started_s, keeper._vigil._worked_s
    keeper._vigil.note_ready(begun_s)
    keeper._display.starting()

    def read_until(later_s):
        clocks = {"monotonic": lambda: begun_s + later_s, "thread_time": lambda: worked_s + later_s}
        monkeypatch.setattr(module, "time", SimpleNamespace(**clocks))

    for later_s in (3.0, 6.0, 9.0):
        read_until(later_s)
        keeper._judge()
    read_until(12.0)
    with pytest.raises(SystemExit):
        keeper._judge()
    supervisor.wake()
    assert supervisor.read[-1].error.what == "p makes no progress for 12 s (limit 10 s)"


def test_a_first_look_that_raises_is_no_answer(monkeypatch):
    def raises(*_):
        raise RecursionError("brackets")

    monkeypatch.setattr(module, "look_ready", raises)
    assert module._seen_before("p", ProcessConfig(command=["p"], ready={"http": "http://127.0.0.1:9/"})) == frozenset()


def test_processes_that_could_not_be_killed_are_told_of(make):
    keeper, supervisor = make(lifetime="until-done")
    keeper._tree.left = ["pid 7: sleeping: sudo make"]
    keeper._on_end(0)
    supervisor.wake()
    facts = {"reason": "it has ended", "heeded": True, "alive": ["pid 7: sleeping: sudo make"]}
    assert supervisor.read == [Report("left", facts), Done({"lines": 0})]


@contextmanager
def launched(folder):
    """A run of one program that is not started; its board, and who is told."""
    (folder / "run.toml").write_text('[process.p]\ncommand = "true"\n')
    places = Places(*(folder / name for name in ("board", "events", "logs", "stacks")))
    clock, watched = FakeClock(), Watched()
    with Board.create(places.board, [("p", "command")]) as board, EventLog(places.events, clock) as events:
        yield Launch(load(folder / "run.toml"), places, board, Chronicle(events, watched, clock), clock), board, watched


def test_the_run_says_who_lives_on(tmp_path):
    with launched(tmp_path) as (launch, _, watched):
        launch._on(
            Reported("p", Report("left", {"reason": "enough", "heeded": True, "alive": ["pid 7: sleeping: sudo"]}))
        )
    assert watched.said == ["p leaves processes that could not be killed: pid 7: sleeping: sudo"]


def test_what_failed_in_the_moment_in_which_it_was_told_to_stop_was_stopped(tmp_path):
    with launched(tmp_path) as (launch, board, watched):
        board.slot("p").set_state(State.FAILED)  # as whoever looks after all children sees it
        board.slot("p").add("faults")
        error = ComponentDied("p exited with code 3", fix="read its log")
        launch._on(Exited(id="p", exit_code=1, how="exit code 1", error=error, asked=True, was_ready=True))
        view, [told] = board.read("p"), launch.summary()["processes"].values()
    assert watched.said[0] == "p has left, but not in order: exited with code 3"
    assert (view.state, view.counters["faults"]) == (State.ENDED, 0)
    assert (told["stage"], told["trouble"], told["faults"]) == ("stopped", "exited with code 3", 0)
