"""What a session knows of those before it, from the events they have left."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.history import History, history_for, read_history
from headrace.runtime.resume import ResumePoint
from headrace.runtime.scores import EvaluationQueue
from headrace.telemetry.events import EventLog, read_events


def event(kind: str, component: str = "supervisor", **facts: object) -> dict[str, Any]:
    return {"t_s": 1.0, "kind": kind, "component": component, "pid": 1, "text": kind} | facts


def evaluated(version: int | None, mean: float | None = 1.0) -> dict[str, Any]:
    steps = None if version is None else 100 * version
    return event(
        "evaluated", "evaluator", version=version, env_steps=steps, mean_reward=mean, interval=[0.0, 2.0], episodes=3
    )  # fmt: skip


def resumed(version: int, lost: int = 0) -> dict[str, Any]:
    return event(
        "resumed", version=version, env_steps=100 * version, updates=40 * version, lost_env_steps=lost,
        lost_updates=lost // 2, session=1, problems=[],
    )  # fmt: skip


def point(version: int, **more: Any) -> ResumePoint:
    return ResumePoint(Path("checkpoints") / str(version), version, 100 * version, 40 * version, {}, **more)


def versions(history: History) -> list[int | None]:
    return [found.version for found in history.evaluations]


def test_evaluations_of_policies_after_the_checkpoint_are_forgotten_and_those_made_anew_stand():
    events = [
        evaluated(None, -9.0),
        evaluated(1),
        evaluated(3),
        evaluated(5),
        resumed(3),
        evaluated(4),
        evaluated(5, 7.0),
    ]
    history = read_history(events)
    assert versions(history) == [1, 3, 4, 5]
    assert history.evaluations[-1].mean_reward == 7.0
    assert history.evaluations[0].interval == (0.0, 2.0)
    history.begin(point(4))
    assert versions(history) == [1, 3, 4]
    assert history.random_baseline is not None
    assert history.random_baseline.mean_reward == -9.0


def frozen(version: int) -> dict[str, Any]:
    return event("policy", "learner", version=version, env_steps=100 * version, updates=40 * version)


def test_policies_that_were_to_be_evaluated_and_are_not():
    begins = [event("started", "supervisor"), event("started", "evaluator")]
    first = [*begins, frozen(1), frozen(2), frozen(3), evaluated(1), frozen(5)]
    orders = {version: {"version": version, "env_steps": 100 * version} for version in (2, 3, 4, 5)}
    history = read_history(first)
    assert history.unevaluated == {version: orders[version] for version in (2, 3, 5)}
    # The next one has no evaluator, and what it freezes is not meant for one; policy 5 is of a past that is forgotten.
    second = [resumed(3), frozen(4)]
    assert list(read_history([*first, *second]).unevaluated) == [2, 3]
    third = [resumed(4), *begins, evaluated(2), frozen(5)]
    history = read_history([*first, *second, *third])
    assert history.unevaluated == {3: orders[3], 5: orders[5]}
    history.begin(point(4))
    assert history.unevaluated == {3: orders[3]}


def test_policies_whose_evaluation_ended_a_session():
    begins = [event("started", "supervisor"), event("started", "evaluator")]
    first = [*begins, frozen(1), evaluated(1), frozen(3), event("not_evaluated", "evaluator", version=3), frozen(5)]
    assert read_history(first).given_up == {3}
    history = read_history([*first, resumed(4), *begins, frozen(5), evaluated(3)])
    assert (history.given_up, list(history.unevaluated)) == (set(), [5])


def test_policy_that_was_evaluated_and_is_frozen_again_is_not_to_be_evaluated():
    begins = [event("started", "supervisor"), event("started", "evaluator")]
    history = read_history([*begins, frozen(3), evaluated(3), resumed(3), *begins, frozen(3)])
    assert history.unevaluated == {}


def test_evaluation_that_was_not_finite_stays_one():
    (found,) = read_history([evaluated(1, None)]).evaluations
    assert math.isnan(found.mean_reward)


def test_faults_and_restarts_of_all_sessions_are_counted():
    events = [
        event("started", "collector-0"),
        event("fault", "collector-0"),
        event("restarted", "collector-0"),
        event("stacks", "collector-0"),
        event("fault", "collector-0"),
        event("restarted", "collector-0"),
        event("fault", "collector-0"),
        event("stacks", "collector-1"),  # it was slow to leave, and nothing more
        resumed(1),
        event("started", "collector-1"),
        event("fault", "collector-1"),
        event("recycled", "collector-1"),
        event("restarted", "collector-1"),
        event("fault", "supervisor"),  # says why the run ended
        event("fault", "environment of lane 3", how="hung"),
        event("fault", "environment of lane 4", how="lost-with-worker"),
    ]
    assert read_history(events).faults == {
        "died": 3, "stalled": 1, "restarts": 3, "recycled": 1, "environment_hung": 1, "environment_lost_with_worker": 1,
    }  # fmt: skip


def test_resumes_are_listed_with_what_was_lost():
    history = read_history([resumed(1, lost=10), event("resumed", "learner", updates=5), resumed(2)])
    history.begin(point(4, lost_env_steps=7, lost_updates=2))
    assert history.resumes == [
        {"env_steps": 100, "updates": 40, "lost_env_steps": 10, "lost_updates": 5},
        {"env_steps": 200, "updates": 80, "lost_env_steps": 0, "lost_updates": 0},
        {"env_steps": 400, "updates": 160, "lost_env_steps": 7, "lost_updates": 2},
    ]


@pytest.mark.parametrize(
    ("lanes", "told"),
    [([4], "lane 4, left out before, is tried again"), ([3, 4], "lanes 3, 4, left out before, are tried again")],
)
def test_lanes_that_were_left_out_are_tried_again_and_it_is_said(lanes, told):
    history = read_history([event("degraded", "collector-1", lanes=[0]), resumed(1), event("degraded", lanes=lanes)])
    assert history.resumes[0]["lanes_tried_again"] == [0]
    assert history.lanes_left_out == tuple(lanes)
    history.begin(point(2, session=2, problems=("checkpoint 3 is bad",)))
    text, facts = history.told()
    assert text == f"goes on at 200 steps and 80 updates; nothing is lost; checkpoint 3 is bad; {told}"
    assert facts == {
        "version": 2, "env_steps": 200, "updates": 80, "lost_env_steps": 0, "lost_updates": 0, "session": 2,
        "problems": ["checkpoint 3 is bad"], "lanes_tried_again": lanes,
    }  # fmt: skip


def test_what_was_told_is_what_the_next_session_reads(tmp_path):
    history = history_for(tmp_path / "e", point(4, lost_env_steps=7, lost_updates=2))
    text, facts = history.told()
    with EventLog(tmp_path / "e") as log:
        log.emit("resumed", "supervisor", text, **facts)
    assert history_for(tmp_path / "e", point(5)).resumes[0] == history.resumes[0]


def test_time_goes_on_from_the_last_event(tmp_path):
    assert read_history([event("a") | {"t_s": 3.5}, {"kind": "unreadable", "component": "events.jsonl"}]).last_s == 3.5
    assert history_for(tmp_path / "none", point(1)).last_s == 0.0


LIVES = [
    event("started", "supervisor"),
    event("started", "evaluator"),
    evaluated(None),
    frozen(1),
    evaluated(1) | {"agents": {"a": 1.0}},
    frozen(3),
    event("not_evaluated", "evaluator", version=3),
    event("stacks", "collector-0"),
    event("fault", "collector-0"),
    event("restarted", "collector-0"),
    event("fault", "environment of lane 3", how="hung", lane=3),
    event("degraded", "collector-1", lanes=[4, 15]),
    resumed(2, lost=10),
    evaluated(4, None),
]


@pytest.mark.parametrize("one", LIVES, ids=lambda one: f"{one['kind']}-{one['component']}")
def test_no_bit_of_a_key_ends_a_resume(tmp_path, one):
    """Whatever a disk makes of one byte of an event costs it, which is told, or what it says."""
    file, damaged = tmp_path / "events.jsonl", set()
    before, line, after = (json.dumps(event).encode() + b"\n" for event in (LIVES[1], one, frozen(4)))
    places = [range(match.start(), match.end()) for match in re.finditer(rb'"\w+": ', line)]
    for at, bit in itertools.product(itertools.chain(*places), range(8)):
        struck = bytearray(line)
        struck[at] ^= 1 << bit
        file.write_bytes(before + struck + after)
        found = read_history(read_events(file))
        damaged.update(found.damaged)
        found.begin(point(5))
        json.dumps(found.told())
        EvaluationQueue(baseline=True, enabled=True, history=found, policies=list(found.unevaluated))
        assert 0.0 <= found.last_s <= 1.0
    assert damaged == {2}


@pytest.mark.parametrize("one", LIVES, ids=lambda one: f"{one['kind']}-{one['component']}")
def test_an_event_without_what_its_kind_has_counts_for_nothing(one):
    others = [event("started", "evaluator"), evaluated(1)]
    without = read_history(others)
    needed = (
        "version",
        "env_steps",
        "updates",
        "lost_env_steps",
        "lost_updates",
        "mean_reward",
        "interval",
        "episodes",
    )
    keys = ["t_s", "kind", "component", *(key for key in (*needed, "lanes") if key in one)]
    for key in keys:
        if one["kind"] == "policy" and key == "updates":
            continue  # nobody asks it for that
        gone = {(f"{name}_" if name == key else name): value for name, value in one.items()}
        for struck in (gone, one | {key: ["text"]}, one | {key: {}}, one | {key: "text"}, one | {key: True}):
            if key in ("kind", "component") and isinstance(struck.get(key), str):
                continue  # another one
            history = read_history([*others, struck])
            assert history.damaged == [3], struck
            history.damaged.clear()
            assert history == without, struck


def test_new_run_has_no_history(tmp_path):
    with EventLog(tmp_path / "e") as log:
        log.emit("restarted", "collector-0", "")
    assert history_for(tmp_path / "e", None) == History()
