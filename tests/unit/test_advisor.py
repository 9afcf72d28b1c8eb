"""What measured costs come to under each plan, and which plan is recommended; speeds are worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.runtime.advisor import (
    PARTS,
    Costs,
    Judged,
    Plan,
    Prediction,
    candidates,
    configured,
    limiting,
    predict,
    recommended,
    scaled,
    worth_checking,
)
from headrace.runtime.config import load_config
from headrace.runtime.rehearsal import Pace

INLINE, LOCKSTEP, ASYNC = (Plan(name) for name in ("inline", "lockstep", "async"))


def config(**settings):
    """Four groups of two lanes, chunks of five steps: ten transitions a chunk, one update for each ten."""
    base = {
        "env.factory": "headrace.envs.toy:target", "env.lanes": 8, "env.group_size": 2, "collect.chunk_steps": 5,
        "replay.ratio": 0.1, "replay.learning_starts": 100, "collect.random_steps": 0, "learn.publish_every": 1000,
    }  # fmt: skip
    return load_config(None, base | {key.replace("__", "."): value for key, value in settings.items()})


def costs(**changes) -> Costs:
    """A chunk takes 10 x 0.1 s to step, 5 x 0.04 s to act, 10 x 0.01 s to write and 0.2 s beside: 1.5 s; an update 0.5 s."""
    known = {
        "step_s": (0.1,), "step_cpu_s": 0.1, "act_s": 0.04, "row_s": 0.01, "chunk_s": 0.2, "update_s": 0.5,
        "update_cpu_s": 0.5,
    }  # fmt: skip
    return Costs(**(known | changes))


def test_inline_takes_the_sum_of_everything():
    found = predict(config(), INLINE, costs(), 2)
    assert found.pace.steps_per_s == pytest.approx(10 / 2.0)
    assert found.pace.updates_per_s == pytest.approx(0.5)
    assert found.limits == pytest.approx(
        {"environment": 0.5, "policy": 0.1, "rows": 0.15, "learner": 0.25, "waiting": 0.0}, abs=1e-9
    )


def test_resets_count_as_often_as_they_come():
    """One in ten steps, and as long as ten of them: the environment takes twice as long."""
    found = predict(config(), INLINE, costs(resets_per_step=0.1, reset_s=1.0, reset_cpu_s=1.0), 2)
    assert found.pace.steps_per_s == pytest.approx(10 / 3.0)
    assert found.limits["environment"] == pytest.approx(2 / 3)


def test_commits_and_publications_are_the_learners():
    """4 x (1.5 + 0.25 + 0.5) + 1 seconds a round."""
    found = predict(config(), INLINE, costs(commit_s=0.25, publish_s=1.0), 2)
    assert found.pace.steps_per_s == pytest.approx(40 / 10.0)
    assert found.limits["learner"] == pytest.approx(0.4)


def test_who_overlaps_with_something_longer_weighs_nothing():
    found = predict(config(), ASYNC, costs(), 8)
    assert found.pace.steps_per_s == pytest.approx(10 / 1.5, rel=0.02)
    assert found.limits["learner"] == pytest.approx(0.0, abs=0.02)
    assert found.limits["environment"] == pytest.approx(1.0 / 1.5, abs=0.03)
    learns = predict(config(), ASYNC, costs(update_s=3.0, update_cpu_s=3.0), 8)
    assert learns.pace.steps_per_s == pytest.approx(10 / 3.0, rel=0.02)
    assert learns.limits["learner"] == pytest.approx(1.0, abs=0.02)


def test_three_who_compute_wait_for_two_cores():
    """2 x 1.5 s of collecting and 4 x 0.5 s of learning in turn: (6 + 2) / 2 s a round instead of 3 s."""
    plan = Plan("async", 2)
    apart, shared = predict(config(), plan, costs(), 8), predict(config(), plan, costs(), 2)
    assert apart.pace.steps_per_s == pytest.approx(40 / 3.0, rel=0.02)
    assert shared.pace.steps_per_s == pytest.approx(40 / 4.0, rel=0.02)
    assert apart.limits["waiting"] == pytest.approx(0.0, abs=0.02)
    assert shared.limits["waiting"] == pytest.approx(0.25, abs=0.02)
    assert shared.for_cores == pytest.approx(shared.limits["waiting"], abs=0.02)


def test_steps_that_wait_need_no_cores():
    """The same steps, asleep: eight collectors' worth of them on two cores."""
    sleeps = costs(step_cpu_s=0.0, act_s=0.0, row_s=0.0, chunk_s=0.0, update_s=0.1, update_cpu_s=0.1)
    assert sleeps.waits == 1.0
    found = predict(config(), Plan("lockstep", 4), sleeps, 1)
    assert found.pace.steps_per_s == pytest.approx(40 / (1.0 + 4 * 0.1))


def test_the_slowest_holds_a_round_up():
    """A step in ten takes ten times as long: the mean stays, and rounds wait for whoever had more of those."""
    uneven = costs(step_s=(0.01,) * 9 + (0.91,), act_s=0.0, row_s=0.0, chunk_s=0.0, update_s=1e-6, update_cpu_s=1e-6)
    assert uneven.mean_step_s == pytest.approx(0.1)
    even = dataclasses.replace(uneven, step_s=(0.1,))
    assert predict(config(), Plan("lockstep", 4), even, 8).pace.steps_per_s == pytest.approx(40.0, rel=1e-3)
    found = predict(config(), Plan("lockstep", 4), uneven, 8)
    assert 15.0 < found.pace.steps_per_s < 25.0  # expected maximum of four sums of ten: about 2.0 s
    assert found.limits["waiting"] == pytest.approx(1.0 - found.pace.steps_per_s / 40.0, abs=0.02)
    assert found.for_cores == pytest.approx(0.0, abs=0.02)
    free = predict(config(replay__slack_steps=800, collect__window_chunks=16), Plan("async", 4), uneven, 8)
    assert free.pace.steps_per_s > 1.4 * found.pace.steps_per_s
    assert predict(config(), INLINE, uneven, 8).pace.steps_per_s == pytest.approx(10.0, rel=0.1)


def test_predictions_are_the_same_every_time():
    uneven = costs(step_s=(0.01,) * 9 + (0.91,))
    assert predict(config(), Plan("async", 2), uneven, 2) == predict(config(), Plan("async", 2), uneven, 2)


def test_workers_step_the_lanes_of_a_group_at_once():
    """Inline, two workers for two lanes: 0.1 s a step instead of 0.2, and while they do, another group acts."""
    plain = costs(act_s=0.0, row_s=0.0, chunk_s=0.0, update_s=1e-6, update_cpu_s=1e-6)
    one = predict(config(env__lanes=2, run__schedule="inline"), INLINE, plain, 8)
    two = predict(config(env__lanes=2, env__workers=2, run__schedule="inline"), INLINE, plain, 8)
    assert two.pace.steps_per_s == pytest.approx(2 * one.pace.steps_per_s)
    uneven = dataclasses.replace(plain, step_s=(0.0, 0.2))
    slowest = predict(config(env__lanes=2, env__workers=2, run__schedule="inline"), INLINE, uneven, 8)
    assert slowest.pace.steps_per_s == pytest.approx(2 / 0.15, rel=0.1)  # of two, one is slow in three of four steps


def test_agents_of_a_copy_step_at_once():
    """Two agents are one environment: half as many calls."""
    several = config(agents__count=2, env__factory="headrace.envs.toy:target")
    found = predict(several, INLINE, costs(act_s=0.0, row_s=0.0, chunk_s=0.0, update_s=1e-9, update_cpu_s=1e-9), 2)
    assert found.pace.steps_per_s == pytest.approx(20.0)


def test_rounds_learned_from_once_overlap_where_a_lag_is_allowed():
    """Three updates a round of 40 steps: epochs, each of them one minibatch."""
    base = {
        "env.factory": "headrace.envs.toy:target", "env.lanes": 8, "env.group_size": 2, "collect.chunk_steps": 5,
        "algorithm.name": "ppo", "algorithm.epochs": 3, "algorithm.batch_size": 64,
    }  # fmt: skip
    turns = predict(load_config(None, base), Plan("async", 4), costs(), 8)
    ahead = predict(load_config(None, {**base, "rollout.max_policy_lag": 1}), Plan("async", 4), costs(), 8)
    assert turns.pace.steps_per_s == pytest.approx(40 / 3.0, rel=0.01)
    assert ahead.pace.steps_per_s == pytest.approx(40 / 1.5, rel=0.03)


@pytest.mark.parametrize("plan", [INLINE, Plan("lockstep", 3), Plan("async", 3)])
def test_limits_are_shares(plan):
    for cores in (1, 2, 8):
        limits = predict(config(), plan, costs(step_s=(0.05, 0.15)), cores).limits
        assert set(limits) == {*PARTS, "waiting"}
        assert sum(limits.values()) == pytest.approx(1.0)
        assert min(limits.values()) >= 0.0


def test_every_cost_belongs_to_one_part():
    """What no part scales would limit nothing, whatever it takes."""
    whole = costs(resets_per_step=0.5, reset_s=1.0, reset_cpu_s=1.0, commit_s=1.0, publish_s=1.0)
    for part in PARTS:
        whole = scaled(whole, part, 2.0)
    before = costs(resets_per_step=0.5, reset_s=1.0, reset_cpu_s=1.0, commit_s=1.0, publish_s=1.0)
    for field in dataclasses.fields(Costs):
        was, now = getattr(before, field.name), getattr(whole, field.name)
        if field.name == "step_s":
            assert now == (0.2,)
        else:
            assert now == (was if field.name == "resets_per_step" else 2.0 * was), field.name


def test_barrier_is_the_expected_slowest():
    assert costs(step_s=(1.0, 3.0)).barrier(1) == pytest.approx(1.0)
    assert costs(step_s=(3.0, 1.0)).barrier(2) == pytest.approx((0.25 * 1 + 0.75 * 3) / 2)
    assert costs(step_s=(2.0,)).barrier(9) == pytest.approx(1.0)


def test_candidates_go_up_to_cores_and_groups():
    def counts(cores, found_costs, **settings):
        plans = candidates(config(**settings), found_costs, cores)
        assert plans[0] == INLINE
        return [plan.collectors for plan in plans if plan.schedule == "async"]

    assert counts(2, costs()) == [1, 2]
    assert counts(64, costs()) == [1, 2, 3, 4]  # groups
    assert counts(2, costs(step_cpu_s=0.05)) == [1, 2, 3, 4]  # half asleep
    assert counts(10, costs(), env__lanes=128) == [1, 2, 3, 4, 6, 8, 10]
    assert counts(1, costs(), run__schedule="lockstep", run__collectors=3) == [1, 3]


def test_only_plans_that_the_configuration_allows():
    assert configured(config(env__workers=4, run__schedule="inline"), Plan("async", 4)) is None
    plans = candidates(config(env__workers=4, run__schedule="inline"), costs(), 8)
    assert [plan for plan in plans if plan.collectors > 2] == []  # each collector needs four lanes for its workers
    free = candidates(config(replay__free_running=True, run__schedule="async"), costs(), 2)
    assert {plan.schedule for plan in free} == {"async"}
    slack = configured(config(replay__slack_steps=500, run__schedule="async"), INLINE)
    assert slack is not None
    assert slack.replay.slack_steps is None


def judged(plan: Plan, predicted: float, measured: float | None = None) -> Judged:
    prediction = Prediction(plan, Pace(predicted, 1.0), {"learner": 1.0}, 0.0)
    return Judged(prediction, None if measured is None else Pace(measured, 1.0))


def test_what_was_measured_decides():
    found = [
        judged(INLINE, 100, 100),
        judged(LOCKSTEP, 500),
        judged(ASYNC, 400, 130),
        judged(Plan("async", 2), 200, 160),
    ]
    assert recommended(found).plan == Plan("async", 2)
    assert found[2].error == pytest.approx(400 / 130 - 1)
    assert found[1].error is None


def test_of_plans_that_are_as_good_the_simplest():
    found = [judged(INLINE, 1, 97), judged(LOCKSTEP, 1, 99), judged(ASYNC, 1, 100)]
    assert recommended(found).plan == INLINE
    assert recommended(found[1:]).plan == LOCKSTEP
    assert recommended([judged(ASYNC, 100), judged(Plan("async", 2), 104), judged(Plan("async", 3), 120)]).plan == (
        Plan("async", 3)
    )


def test_what_is_checked():
    predictions = [
        one.prediction
        for one in (
            judged(INLINE, 100), judged(LOCKSTEP, 110), judged(Plan("lockstep", 2), 150), judged(ASYNC, 160),
            judged(Plan("async", 2), 200), judged(Plan("async", 3), 201), judged(Plan("async", 4), 120),
        )
    ]  # fmt: skip
    own = config(run__schedule="async", run__collectors=4)
    assert worth_checking(own, predictions, 4) == [INLINE, Plan("async", 4), Plan("async", 2), Plan("lockstep", 2)]
    assert worth_checking(own, predictions, 1) == [INLINE]
    assert worth_checking(config(run__schedule="inline"), predictions, 9)[:4] == [
        INLINE, Plan("async", 2), Plan("lockstep", 2), Plan("async", 3),
    ]  # fmt: skip
    assert worth_checking(own, predictions[3:5], 4) == [Plan("async", 2), ASYNC]


def test_plans_say_how_they_are_run():
    assert (str(INLINE), INLINE.flags) == ("inline", "--schedule inline")
    assert (str(ASYNC), str(Plan("async", 2))) == ("async with 1 collector", "async with 2 collectors")
    assert Plan("async", 2).flags == "--schedule async --collectors 2"
    assert limiting({"learner": 0.2, "waiting": 0.5, "policy": 0.3}) == "waiting"
