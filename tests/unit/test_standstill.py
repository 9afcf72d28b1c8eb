"""A run in which nothing gets on, although nobody misses a deadline."""

from __future__ import annotations

import time

import pytest

from headrace.core.errors import ComponentStalled
from headrace.runtime.config import load_config
from headrace.runtime.standstill import StandstillWatch, plan
from headrace.telemetry.board import Activity, Board, State

SHORT = {f"deadlines.{name}": 1.0 for name in ("start_s", "reset_s", "step_s", "update_s", "evaluate_s", "credit_s")}


class Scene:
    def __init__(self, board: Board, config) -> None:
        self.board = board
        self.start_ns = self.now_ns = time.monotonic_ns()
        self.watch = StandstillWatch(config.deadlines.stall_limit_s, plan(config), board.read_all, lambda: self.now_ns)

    def after(self, seconds: float) -> ComponentStalled | None:
        self.now_ns = self.start_ns + int(seconds * 1e9)
        return self.watch.look()


@pytest.fixture
def scene(tmp_path):
    config = load_config("pendulum-td3", {**SHORT, "deadlines.rows_s": 2.0, "deadlines.stall_s": 10.0})
    with Board.create(tmp_path / "board", [("learner", "learner"), ("collector-0", "collector")]) as board:
        for name, activity, on in (
            ("learner", Activity.WAIT_ROWS, "collector-0"),
            ("collector-0", Activity.WAIT_CREDIT, "learner"),
        ):
            slot = board.slot(name)
            slot.set_pid(1)
            slot.set_state(State.RUNNING)
            slot.waiting(activity, on=on, need=1, deadline_s=5.0)
        yield Scene(board, config)


def test_a_run_that_gets_on_is_left_alone(scene):
    for second in range(40):
        scene.board.slot("collector-0").count("env_steps", second // 8)
        assert scene.after(second) is None


def test_a_run_that_stands_still_is_given_up_with_the_sentence_of_the_doctor(scene):
    assert scene.after(0) is None
    assert scene.after(9.9) is None
    error = scene.after(11)
    assert isinstance(error, ComponentStalled)
    assert error.exit_code == 3
    assert error.what == (
        "learner has waited 11.0 s for rows of collector-0 (0 of 1 are there), and collector-0 has waited 11.0 s for "
        "credit of learner (0 of 1 are there): neither can go on; nothing was collected, learned or evaluated for 11 s"
    )


def test_the_limit_is_never_shorter_than_twice_the_longest_activity(scene):
    config = load_config("pendulum-td3", {"deadlines.step_s": 1000.0, "deadlines.stall_s": 10.0})
    assert config.deadlines.stall_limit_s == 4000.0  # the learner's wait for such a step lasts twice as long


def test_a_run_that_was_frozen_as_a_whole_gets_time_to_move_on(scene):
    for second in range(4):
        assert scene.after(second) is None
    assert scene.after(5_000) is None
    for second in range(5_001, 5_007):
        assert scene.after(second) is None
    assert isinstance([scene.after(second) for second in range(5_007, 5_013)][-1], ComponentStalled)
