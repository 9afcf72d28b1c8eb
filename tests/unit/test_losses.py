"""Which lanes a run goes on without: four groups of two lanes, dealt out to two collectors."""

from __future__ import annotations

import pytest

from headrace.supervision.losses import Losses

OWNED = {"collector-0": (0, 2), "collector-1": (1, 3)}
LANES = [(0, 1), (2, 3), (4, 5), (6, 7)]


def losses(lane_faults: int | None = 2) -> Losses:
    return Losses(OWNED, LANES, lane_faults, window_s=60.0)


def fail(kept: Losses, component: str, lane: int, now_s: float = 0.0):
    kept.note(lane, now_s)
    return kept.leave_out_if_due(component, lane)


def test_nothing_is_left_out_before_the_limit():
    kept = losses(3)
    assert [fail(kept, "collector-0", 5) for _ in range(2)] == [None, None]
    assert (kept.summary(), kept.lanes_lost, kept.nobody_left) == (None, 0, False)


def test_group_of_the_lane_is_left_out_and_the_collector_keeps_its_other_one():
    kept = losses()
    fail(kept, "collector-0", 5)
    loss = fail(kept, "collector-0", 5)
    assert loss is not None
    assert (loss.groups, loss.lanes, loss.whole) == ((2,), (4, 5), False)
    assert str(loss) == (
        "the run goes on without lanes 4, 5: the environment of lane 5 failed 2 times within 60 s"
    )  # fmt: skip
    assert kept.lanes_lost == 2


def test_faults_of_another_lane_do_not_count():
    kept = losses()
    assert [fail(kept, "collector-0", lane) for lane in (0, 1, 4, 5)] == [None] * 4


def test_old_faults_are_forgiven():
    kept = losses()
    assert [fail(kept, "collector-1", 2, at_s) for at_s in (0.0, 60.0, 120.0)] == [None] * 3
    assert fail(kept, "collector-1", 2, 179.9) is not None


def test_last_group_of_a_collector_takes_the_collector_with_it():
    kept = losses(1)
    first, second = fail(kept, "collector-1", 2), fail(kept, "collector-1", 6)
    assert (first.whole, second.whole, kept.nobody_left) == (False, True, False)
    assert str(second).startswith("the run goes on without collector-1 and its lanes 6, 7: the environment of lane 6 ")
    assert kept.summary() == {
        "lanes": [2, 3, 6, 7],
        "collectors": ["collector-1"],
        "reason": "the environment of lane 2 failed once within 60 s; the environment of lane 6 failed once within 60 s",
    }


def test_a_dropped_collector_loses_what_it_still_has_and_nothing_twice():
    kept = losses(1)
    fail(kept, "collector-0", 0)
    loss = kept.drop("collector-0", "it may not be started again")
    assert (loss.groups, loss.whole) == ((2,), True)
    kept.drop("collector-1", "it ended")
    assert kept.nobody_left
    assert kept.lanes_lost == 8


@pytest.mark.parametrize("lane", [-1, 2, 99])
def test_a_fault_outside_its_own_environments_is_no_lanes(lane):
    kept = losses(1)
    assert fail(kept, "collector-0", lane) is None


def test_without_a_limit_faults_are_only_counted():
    kept = losses(None)
    assert [fail(kept, "collector-0", 5) for _ in range(5)] == [None] * 5
    assert (kept.faults(5), kept.faults(4), kept.faults(-1)) == (5, 0, 0)
