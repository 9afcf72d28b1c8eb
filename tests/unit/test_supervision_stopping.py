"""What a child that was told to stop may finish, and how long it has for that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.supervision.child import SupervisedChild
from headrace.supervision.policy import Phase
from headrace.supervision.spec import ChildSpec
from headrace.supervision.watchdog import LOOK_S, Watchdog
from headrace.telemetry.board import Activity, Board

STOP_S, CHECKPOINT_S = 20.0, 120.0


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with Board.create(tmp_path / "board", [("c", "trainer")]) as made:
        yield made


@pytest.fixture
def stopping(tmp_path: Path, board: Board) -> SupervisedChild:
    """Told to stop now, while it writes a checkpoint."""
    spec = ChildSpec(
        id="c",
        kind="trainer",
        target="m:f",
        payload=lambda _: None,
        deadlines={Activity.CHECKPOINT: CHECKPOINT_S, Activity.UPDATE: 1.0},
        stop_timeout_s=STOP_S,
        finishes=frozenset({Activity.CHECKPOINT}),
    )
    child = SupervisedChild(spec, board.slot("c"), tmp_path, tmp_path)
    for phase in (Phase.STARTING, Phase.READY, Phase.STOPPING):
        child.life.move(phase)
    child.slot.enter(Activity.CHECKPOINT)
    child.due_s = time.monotonic() + STOP_S
    return child


def test_the_time_to_leave_counts_from_the_end_of_what_is_finished(stopping: SupervisedChild) -> None:
    now_s = time.monotonic()
    assert stopping.late(now_s + 3 * STOP_S) is None
    stopping.slot.enter(Activity.IDLE)
    assert stopping.late(now_s + 3.9 * STOP_S) is None
    late = stopping.late(now_s + 4.1 * STOP_S)
    assert late is not None
    assert late.activity == "stop"


def test_what_is_finished_has_its_own_limit(stopping: SupervisedChild, board: Board) -> None:
    dog, now_s = Watchdog({"c": stopping}, board), board.read("c").since_ns / 1e9
    looks = [dog.look(now_s + look * LOOK_S) for look in range(int(1.1 * CHECKPOINT_S / LOOK_S))]
    ((at, late),) = [(look, late) for look, found in enumerate(looks) for late in found]
    assert (late.activity, late.limit_s) == ("checkpoint", CHECKPOINT_S)
    assert at * LOOK_S >= CHECKPOINT_S


def test_other_work_is_not_waited_for(stopping: SupervisedChild, board: Board) -> None:
    stopping.slot.enter(Activity.UPDATE)
    (late,) = Watchdog({"c": stopping}, board).look(time.monotonic() + 1.1 * STOP_S)
    assert late.activity == "stop"
