"""A twin report: which runs there are, and what made-up summaries come to."""

from __future__ import annotations

import dataclasses
import math

import pytest

from headrace.core.errors import ConfigError
from headrace.runtime.comparing import Curve, Finding
from headrace.runtime.config import load_config
from headrace.runtime.twin import (
    TwinRun,
    Twins,
    band_at,
    bands,
    evaluation_marks,
    exact_schedules,
    first_other_evaluation,
    learning_share,
    plan_twins,
    possible_speedup,
    time_of,
)
from headrace.telemetry.timeuse import Spent

ALL = ("inline", "lockstep", "async")


def config(**settings):
    given = {"env.id": "Pendulum-v1", "run.steps": 4_000, "replay.learning_starts": 500, "collect.random_steps": 500}
    return load_config(None, given | {name.replace("__", "."): value for name, value in settings.items()})


def run(schedule="inline", seed=0, score=100.0, speed=500.0, weights="aa", spent=()):
    summary = {
        "schedule": schedule, "seed": seed, "weights_sha256": weights, "throughput": {"env_steps_per_s": speed},
        "evaluations": [{"env_steps": 4_000, "mean_reward": score}], "random_baseline": {"mean_reward": 0.0},
    }  # fmt: skip
    return TwinRun(schedule, seed, summary, spent)


def twins(*runs, steps=4_000):
    return Twins(steps, runs, share=0.1, collectors=2, cores=2)


def test_runs_follow_seed_by_seed():
    planned = plan_twins(config(run__seed=5), ("async", "inline", "lockstep"), seeds=2, lockstep_seeds=1)
    assert [one.name for one in planned] == ["inline-5", "lockstep-5", "async-5", "inline-6", "async-6"]
    assert [(one.config.run.schedule, one.config.run.seed) for one in planned[2:4]] == [("async", 5), ("inline", 6)]


def test_what_would_end_one_run_earlier_is_taken_out():
    for one in plan_twins(config(evaluation__target=9.0, replay__slack_steps=512), ALL, 1, 1):
        assert one.config.evaluation.target is None
        assert one.config.replay.slack_steps == (512 if one.schedule == "async" else None)


@pytest.mark.parametrize(
    ("settings", "schedules", "what"),
    [
        ({}, ("inline",), "there is nothing to compare in the schedules inline"),
        ({}, ("lockstep", "async"), "there is nothing to compare in the schedules lockstep, async"),
        ({}, ("inline", "asinc"), "there is nothing to compare in the schedules inline, asinc"),
        ({}, (), "there is nothing to compare in the schedules named"),
        ({"run__run_duration_s": 60.0}, ALL, "the twins would end after different numbers of steps"),
        ({"replay__free_running": True}, ALL, "the twins would learn different amounts"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, schedules, what):
    with pytest.raises(ConfigError) as refused:
        plan_twins(config(**settings), schedules, 1, 1)
    assert refused.value.what.startswith(what)


def test_more_seeds_under_lockstep_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="there are no 3 seeds to run under lockstep"):
        plan_twins(config(), ALL, seeds=2, lockstep_seeds=3)


def test_weights_are_compared_seed_by_seed():
    found = twins(
        run(weights="aa"), run("lockstep", weights="ab"), run(seed=1, weights="b"), run("lockstep", 1, weights="b")
    )
    assert [(one.seed, one.equal) for one in found.identities] == [(0, False), (1, True)]
    assert (found.learning, found.speed) == (None, None)


def test_equal_weights_of_async_count_only_where_they_have_to_be_equal():
    runs = run(), run("async", weights="aa"), run(seed=1), run("async", 1, weights="aa")
    assert not twins(*runs).proved
    exact = dataclasses.replace(twins(*runs), exact=("lockstep", "async"))
    assert exact.proved
    assert exact.learning.finding is Finding.SAME
    other = dataclasses.replace(exact, runs=(*runs[:3], run("async", 1, weights="ab")))
    assert [(one.schedule, one.seed, one.equal) for one in other.identities] == [
        ("async", 0, True),
        ("async", 1, False),
    ]
    assert not other.proved


@pytest.mark.parametrize(
    ("preset", "settings", "exact"),
    [
        ("pendulum-td3", {}, ("lockstep",)),
        ("cartpole-ppo", {}, ("lockstep", "async")),
        ("cartpole-ppo", {"rollout.max_policy_lag": 1}, ("lockstep",)),
        ("cartpole-ppo", {"rollout.order": "arrival"}, ("lockstep",)),
    ],
)
def test_what_learns_strictly_on_policy_is_the_same_under_every_schedule(preset, settings, exact):
    assert exact_schedules(load_config(preset, settings)) == exact


def test_learning_is_compared_by_seed_whatever_the_order():
    runs = [run("async", 1, 201.0), run(seed=0), run("async", 0, 101.0), run(seed=1, score=200.0)]
    assert twins(*runs).learning.finding is Finding.SAME
    assert twins(*runs).learning.difference.mean == 1.0


def test_speed_is_told_beside_what_was_possible():
    spent = (Spent("learner", "learner", {"update": 60, "env.step": 30, "policy": 10}, 0.9),)
    found = twins(run(speed=400.0, spent=spent), run("async", speed=500.0)).speed
    assert (found.ratio, found.learning) == (1.25, 0.6)
    assert found.possible == pytest.approx(1 / 0.6)
    assert twins(run(speed=None), run("async")).speed is None
    assert twins(run(), run("async")).speed.possible is None


@pytest.mark.parametrize(
    ("learning", "cpu", "disturbed"),
    [(90, 0.9, None), (90, 0.73, None), (90, 0.7, 0.7), (20, 0.2, None), (20, 0.1, 0.1), (90, None, None)],
)
def test_a_core_that_somebody_else_had_is_noticed(learning, cpu, disturbed):
    """What waits in an environment needs no core."""
    spent = (Spent("learner", "learner", {"update": learning, "env.step": 100 - learning}, cpu),)
    assert twins(run(spent=spent), run("async")).speed.disturbed == disturbed


def test_what_overlapping_can_bring():
    assert possible_speedup(0.9, 2, 8) == pytest.approx(1 / 0.9)
    assert possible_speedup(0.1, 2, 8) == pytest.approx(1 / 0.45)
    assert possible_speedup(0.1, 6, 2) == 2.0
    assert possible_speedup(None, 2, 2) is None
    assert learning_share([run()]) is None


def test_the_time_of_a_kind_is_that_of_all_of_it():
    spent = (
        Spent("collector-0", "collector", {"env.step": 6, "wait.credit": 4}, 0.5),
        Spent("collector-1", "collector", {"wait.credit": 10}, 0.1),
        Spent("learner", "learner", {"update": 10}, None),
    )
    assert time_of([run(spent=spent)], "collector") == ({"wait.credit": 0.7, "env.step": 0.3}, 0.3)
    assert time_of([run(spent=spent)], "learner") == ({"update": 1.0}, None)
    assert time_of([], "learner") == ({}, None)


def test_marks_are_those_of_the_evaluations():
    assert evaluation_marks(config(evaluation__every_steps=1_500)) == [1_500, 3_000, 4_000]
    assert evaluation_marks(config(evaluation__every_steps=2_000)) == [2_000, 4_000]
    assert evaluation_marks(config(evaluation__every_steps=0)) == [4_000]


def test_a_band_needs_every_run():
    one, two = Curve("async", 0, ((100, 1.0), (200, 3.0))), Curve("async", 1, ((100, 5.0), (200, math.nan)))
    assert band_at([one, two], 100, 10) == (3.0, 1.0, 5.0)
    assert band_at([one, two], 200, 10) is None
    assert band_at([], 100, 10) is None
    assert list(bands([one, two], [100, 200])) == [(100, 3.0, 1.0, 5.0)]
    assert list(bands([one], [200])) == [(200, 3.0, 3.0, 3.0)]


def test_the_first_evaluation_that_differs():
    def curve(*values):
        return Curve("inline", 0, tuple(zip(range(100, 600, 100), values, strict=False)))

    assert first_other_evaluation(curve(1.0, math.nan, 2.0), curve(1.0, math.nan, 3.0)) == 300
    assert first_other_evaluation(curve(1.0, 2.0), curve(1.0, 2.0, 3.0)) is None
    assert first_other_evaluation(curve(math.nan), curve(1.0)) == 100
