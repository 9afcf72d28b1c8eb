"""Collectors and lanes that cannot be kept: the run goes on without them, says so, and keeps what provokes it again."""

from __future__ import annotations

import json

import pytest

from headrace.supervision.child import SupervisedChild
from headrace.telemetry.board import Board, State
from run_support import Runs, assert_books, assert_gapless, events

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

DEGRADE = {"supervision__when_spent": "degrade", "supervision__backoff_s": 0.0}


@pytest.mark.thin(2)
@pytest.mark.parametrize("schedule", ["async", "lockstep"])
@pytest.mark.parametrize("fault", ["kill", "fail"])
def test_a_poisonous_lane_is_left_out_alone(runs: Runs, schedule, fault):
    run = runs.train(
        "poison_envs:make",
        kwargs={"fault": fault, "at": 3, "lanes": [3]},
        run__schedule=schedule,
        run__steps=1000,
        **DEGRADE,
    )
    assert run.completed, run.summary["error"]
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=run.summary["restarts"])
    assert run.summary["env_steps"] >= 1000
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(1.0, abs=0.05)
    reason = "the environment of lane 3 failed 3 times within 300 s"
    assert run.summary["degraded"] == {"lanes": [3], "collectors": [], "reason": reason}
    assert run.summary["restarts"] == 3
    (event,) = events(run, "degraded")
    assert (event["component"], event["lanes"], event["groups"]) == ("collector-1", [3], [3])
    assert event["text"] == f"the run goes on without lane 3: {reason}"
    produced = [lane["produced"] for lane in run.summary["books"]["lanes"]]
    assert produced[3] == 6  # two steps of each of three incarnations
    assert min(produced[:3] + produced[4:]) > 20  # its neighbours in the same collector went on
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["headrace/lanes_lost"] == 1.0
    assert max(line.get("headrace/rss_bytes/learner", 0.0) for line in lines) > 1e6  # the last one may be after its end


@pytest.mark.table
@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_a_collector_whose_budget_is_spent_is_left_out(runs: Runs, schedule):
    run = runs.train(
        "poison_envs:make", kwargs={"fault": "leave", "at": 3, "lanes": [1, 3, 5]}, run__schedule=schedule,
        supervision__max_restarts=2, run__steps=1000, **DEGRADE,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert_books(run)
    assert run.summary["env_steps"] >= 1000
    assert run.summary["degraded"]["collectors"] == ["collector-1"]
    assert run.summary["degraded"]["lanes"] == [1, 3, 5]
    with Board.open(run.path / "board") as board:
        assert board.read("collector-1").state is State.FAILED
        assert board.read("collector-0").state is State.ENDED


@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_a_collector_that_holds_too_much_memory_is_replaced_between_two_chunks(runs: Runs, monkeypatch, schedule):
    sample = SupervisedChild.sample

    def sampled(child: SupervisedChild) -> None:
        sample(child)
        if child.spec.id == "collector-1" and child.life.incarnation == 0:
            child.slot.count("rss_bytes", 2**43)

    monkeypatch.setattr(SupervisedChild, "sample", sampled)
    run = runs.train(
        "run_envs:make", kwargs={"step_s": 0.001}, run__schedule=schedule, run__steps=1000, supervision__max_rss_mib=2.0**22
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=run.summary["restarts"])
    assert (run.summary["faults"], run.summary["restarts"]) == ({"recycled": 1}, 1)
    assert run.summary["books"]["salvaged"] == 0  # it had committed everything
    (restarted,) = events(run, "restarted")
    assert restarted["component"] == "collector-1"
    assert min(lane["produced"] for lane in run.summary["books"]["lanes"]) > 20
    assert run.summary["degraded"] is None
