"""The board: what is written is what is read, whoever died in the middle."""

from __future__ import annotations

import os
import struct
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.telemetry import board as board_module
from headrace.telemetry.board import COUNTERS, Activity, Board, State, process_start

COMPONENTS = [("learner", "learner"), ("collector-0", "collector"), ("collector-1", "collector")]
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def board(tmp_path):
    with Board.create(tmp_path / "board", COMPONENTS, run_id="run-7") as board:
        yield board


def test_a_fresh_board_names_everybody_and_nobody_is_busy(board):
    assert [(view.id, view.kind, view.index) for view in board.read_all()] == [
        ("learner", "learner", 0),
        ("collector-0", "collector", 1),
        ("collector-1", "collector", 2),
    ]
    view = board.read("learner")
    assert (view.state, view.activity, view.pid, view.waits_on) == (State.EMPTY, Activity.NONE, 0, None)
    assert set(view.counters.values()) == {0}


def test_the_header_tells_whose_board_it_is(board):
    assert (board.header.run_id, board.header.slots, board.header.supervisor_pid) == ("run-7", 3, os.getpid())
    assert board.supervisor_alive()
    assert board.header.here
    assert abs(board.header.created_unix_s - board.path.stat().st_mtime) < 60


def test_times_and_process_numbers_of_another_machine_are_known_as_such(board, monkeypatch):
    monkeypatch.setattr("headrace.telemetry.header.this_machine", lambda: "another boot")
    with Board.open(board.path) as copied:
        assert not copied.header.here
        assert not copied.supervisor_alive()  # although a process of that number runs, and began at that tick


def test_a_process_is_on_the_board_with_its_start_so_that_a_later_one_of_its_number_is_told_apart(board):
    slot = board.slot("learner")
    slot.set_pid(os.getpid())
    assert board.read("learner").pid_start == process_start(os.getpid())
    slot.begin(1)
    assert (board.read("learner").pid, board.read("learner").pid_start) == (0, 0)


def test_an_outsider_sees_what_a_component_writes(board):
    slot = board.slot("collector-1")
    slot.begin(2)
    slot.set_pid(41)
    slot.set_state(State.RUNNING)
    before_ns = time.monotonic_ns()
    slot.enter(Activity.ENV_STEP, lane=3, step=17)
    slot.count("env_steps", 1234)
    with Board.open(board.path) as outsider:
        view = outsider.read("collector-1")
        neighbour = outsider.read("collector-0")
    assert (view.pid, view.incarnation, view.state, view.activity) == (41, 2, State.RUNNING, Activity.ENV_STEP)
    assert (view.lane, view.step, view.counters["env_steps"]) == (3, 17, 1234)
    assert before_ns <= view.since_ns <= time.monotonic_ns()
    assert (neighbour.activity, neighbour.pid) == (Activity.NONE, 0)


def test_a_wait_names_whom_how_much_and_how_long(board):
    slot = board.slot("learner")
    slot.set_state(State.RUNNING)
    slot.waiting(Activity.WAIT_ROWS, deadline_s=1e12)
    assert board.read(slot.id).deadline_s > 1e9  # as much as a word holds
    slot.waiting(Activity.WAIT_ROWS, on="collector-1", need=64, have=12, deadline_s=2.5)
    view = board.read("learner")
    assert (view.state, view.activity, view.waits_on) == (State.WAITING, Activity.WAIT_ROWS, "collector-1")
    assert (view.need, view.have, view.deadline_s) == (64, 12, 2.5)
    slot.enter(Activity.UPDATE)
    view = board.read("learner")
    assert (view.state, view.waits_on, view.need, view.deadline_s) == (State.RUNNING, None, 0, 0.0)


@pytest.mark.parametrize("state", [State.STARTING, State.STOPPING])
def test_waiting_does_not_hide_that_a_component_starts_or_stops(board, state):
    slot = board.slot("learner")
    slot.set_state(state)
    slot.waiting(Activity.WAIT_COMMANDS)
    assert board.read("learner").state is state


def test_counters_go_on_where_an_earlier_incarnation_left_them(board):
    first = board.slot("collector-0")
    first.add("episodes", 3)
    with Board.attach(board.path) as attached:
        attached.slot("collector-0").begin(1)
        attached.slot("collector-0").add("episodes")
    assert board.read("collector-0").counters["episodes"] == 4


@given(values=st.dictionaries(st.sampled_from(COUNTERS), INT64), lane=INT64, step=INT64)
def test_every_field_keeps_its_own_value(tmp_path_factory, values, lane, step):
    with Board.create(tmp_path_factory.mktemp("run") / "board", COMPONENTS) as board:
        slot = board.slot("collector-0")
        for name, value in values.items():
            slot.count(name, value)
        slot.enter(Activity.COMMIT, lane, step)
        view = board.read("collector-0")
        assert view.counters == dict.fromkeys(COUNTERS, 0) | values
        assert (view.activity, view.lane, view.step) == (Activity.COMMIT, lane, step)
        assert board.read("collector-1").counters == dict.fromkeys(COUNTERS, 0)


def test_a_writer_that_died_inside_a_status_makes_nobody_overdue(board):
    slot = board.slot("collector-0")
    slot.enter(Activity.ENV_STEP)
    # What struct leaves while it packs: everything cleared, the beginning (the last word) not written yet.
    at = board_module._slot_at(1) + board_module._STATUS_AT
    board.memory[at : at + board_module._STATUS.size] = struct.pack("@9q", 3, Activity.ENV_STEP, 0, 0, 0, 0, 0, 0, 0)
    view = board.read("collector-0")
    assert view.activity is Activity.ENV_STEP
    assert view.age_s(time.monotonic_ns()) < 60.0


def test_every_activity_has_a_label_of_its_own():
    labels = {activity.label for activity in Activity}
    assert len(labels) == len(Activity)
    assert {"env.step", "wait.credit", "policy", "load weights"} <= labels


def test_the_words_fit_into_a_slot_and_are_aligned():
    end = board_module._COUNTERS_AT + 8 * len(COUNTERS)
    assert board_module._STATUS_AT + board_module._STATUS.size <= board_module._COUNTERS_AT
    assert end <= board_module._SLOT_BYTES
    assert board_module._STATUS_AT % 8 == board_module._COUNTERS_AT % 8 == board_module._SLOT_BYTES % 8 == 0


def test_reading_only_means_reading_only(board):
    with Board.open(board.path) as outsider:
        with pytest.raises(ConfigError, match="reading only"):
            outsider.slot("learner")
        with pytest.raises(TypeError):
            outsider.words[0] = 1


def test_a_board_is_replaced_not_overwritten(board):
    board.slot("learner").set_pid(9)
    with Board.create(board.path, [("solo", "learner")]) as newer:
        assert newer.ids == ["solo"]
    assert board.read("learner").pid == 9  # who had the old one open still has all of it


def test_an_unknown_component_or_counter_is_named_with_the_known_ones(board):
    with pytest.raises(ConfigError) as caught:
        board.read("colector-0")
    assert str(caught.value) == (
        "[CFG-001] no component of this run is called 'colector-0'\n"
        "  components: learner, collector-0, collector-1\n"
        "  fix: use one of these ids"
    )
    with pytest.raises(ConfigError, match="no counter of the board is called 'epsiodes'"):
        board.slot("learner").add("epsiodes")


@pytest.mark.parametrize("ids", [["a", "a"], [""], ["x" * 64], ["a\0b"]])
def test_unusable_ids_are_refused(tmp_path, ids):
    with pytest.raises(ConfigError, match="ids of a run's components"):
        Board.create(tmp_path / "board", [(name, "kind") for name in ids])


def damage(at: int, data: bytes):
    return lambda content: content[:at] + data + content[at + len(data) :]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _: b"short", "it has 5 bytes, less than a header"),
        (damage(0, b"PK\3\4"), "it does not begin like a board"),
        (damage(8, struct.pack("q", 99)), "its layout version is 99, this Headrace reads 2"),
        (damage(16, struct.pack("q", 10**6)), "it says 1000000 slots, and 8192 bytes cannot hold them"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_the_reason(board, tmp_path, change, problem):
    path = tmp_path / "damaged"
    path.write_bytes(change(board.path.read_bytes()))
    with pytest.raises(RunDirectoryError) as caught:
        Board.open(path)
    assert caught.value.facts["problem"] == problem


@pytest.mark.parametrize("content", [None, b""])
def test_a_missing_or_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "board"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="no board"):
        Board.open(path)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        Board.create(tmp_path / "missing" / "board", COMPONENTS)


def test_a_process_is_known_by_its_start_and_an_ended_one_has_none():
    ended = subprocess.Popen(["true"])
    ended.wait(timeout=60)
    assert process_start(ended.pid) == 0
    assert process_start(os.getpid()) == process_start(os.getpid()) != 0
