"""The queue of evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.runtime.history import History
from headrace.runtime.progress import EvaluationPoint
from headrace.runtime.scores import EvaluationQueue


def facts(version: int | None, mean: float = 1.0) -> dict[str, object]:
    steps = None if version is None else version * 100
    return {"version": version, "env_steps": steps, "mean_reward": mean, "interval": (0.0, 2.0), "episodes": 3}


def test_one_at_a_time_and_the_baseline_first():
    queue = EvaluationQueue(baseline=True, enabled=True)
    queue.order({"version": 1, "env_steps": 100, "updates": 7})
    assert queue.next() == {"version": None, "env_steps": None}
    assert queue.next() is None
    assert not queue.idle
    assert queue.finished(facts(None, -5.0)) is queue.random_baseline
    assert queue.next() == {"version": 1, "env_steps": 100}
    queue.finished(facts(1))
    assert queue.idle
    assert [(point.version, point.env_steps, point.mean_reward) for point in queue.points] == [(1, 100, 1.0)]


@pytest.mark.parametrize("ordered", [3, 4, 7])
def test_slow_evaluator_skips_the_oldest_but_one_and_always_plays_the_newest(ordered):
    queue = EvaluationQueue(baseline=False, enabled=True)
    for version in range(1, ordered + 1):
        queue.order({"version": version, "env_steps": version * 100})
    played = []
    while (order := queue.next()) is not None:
        played.append(order["version"])
        queue.finished(facts(order["version"]))
    assert played == [1, ordered - 1, ordered]
    assert queue.skipped == ordered - 3


def test_lost_evaluator_gets_its_order_again_before_the_others():
    queue = EvaluationQueue(baseline=False, enabled=True)
    queue.order({"version": 1, "env_steps": 100})
    queue.order({"version": 2, "env_steps": 200})
    first = queue.next()
    queue.lost()
    queue.lost()  # nothing is running any more
    assert queue.next() == first == {"version": 1, "env_steps": 100}


def test_without_an_evaluator_nothing_waits():
    queue = EvaluationQueue(baseline=True, enabled=False)
    queue.order({"version": 1, "env_steps": 100})
    assert queue.idle
    assert queue.next() is None


def test_what_earlier_sessions_evaluated_stands_and_random_actions_are_not_played_again():
    random, known = EvaluationPoint(-5.0, 3), EvaluationPoint(1.0, 3, 100, 1)
    history = History(evaluations=[known], random_baseline=random)
    queue = EvaluationQueue(baseline=True, enabled=True, history=history)
    assert queue.idle
    assert queue.random_baseline is random
    queue.order({"version": 2, "env_steps": 200})
    queue.next()
    queue.finished(facts(2))
    assert [point.version for point in queue.points] == [1, 2]
    assert history.evaluations == [known]


def left_over(*versions: int, known: tuple[int, ...] = ()) -> History:
    """Of a run that evaluated the ``known`` policies, and was to evaluate these as well."""
    orders = {version: {"version": version, "env_steps": version * 100} for version in versions}
    return History(evaluations=[EvaluationPoint.of(facts(version)) for version in known], unevaluated=orders)


def played(queue: EvaluationQueue, *, over: bool = False) -> list[int | None]:
    """What is evaluated, one after the other."""
    found = []
    while (order := queue.next(over=over)) is not None:
        found.append(order["version"])
        queue.finished(facts(order["version"]))
    return found


@pytest.mark.parametrize(
    ("history", "policies", "expected", "skipped"),
    [
        pytest.param(left_over(3), {3}, [3], 0, id="in the middle"),
        pytest.param(left_over(2, 5, known=(3,)), {2, 3, 5}, [5], 1, id="skipped before"),
        pytest.param(left_over(3), set(), [], 1, id="not on disk"),
        pytest.param(left_over(*range(1, 8)), set(range(1, 8)), [1, 6, 7], 4, id="more than there is room for"),
    ],
)
def test_what_earlier_sessions_did_not_come_to_is_evaluated_and_the_rest_counted(history, policies, expected, skipped):
    queue = EvaluationQueue(baseline=False, enabled=True, history=history, policies=policies)
    assert queue.skipped == skipped + len(expected)
    assert played(queue) == expected
    assert queue.skipped == skipped
    off = EvaluationQueue(baseline=True, enabled=False, history=history, policies=policies)
    assert (off.idle, off.skipped) == (True, len(history.unevaluated))


@pytest.mark.parametrize(
    ("versions", "known", "frozen", "during", "after", "skipped"),
    [
        pytest.param((3,), (), (), [], [3], 0, id="the newest of all"),
        pytest.param((3,), (), (5,), [5], [], 1, id="one that is newer comes to a result"),
        pytest.param((3, 4), (2,), (), [], [4], 1, id="two"),
    ],
)
def test_what_ended_an_earlier_session_is_tried_once_training_is_over_if_nothing_newer_is_known(
    versions, known, frozen, during, after, skipped
):
    history = replace(left_over(*versions, known=known), given_up=set(versions))
    queue = EvaluationQueue(baseline=False, enabled=True, history=history, policies=set(versions))
    for version in (*versions, *frozen):
        queue.order({"version": version, "env_steps": 100 * version})
    assert not queue.idle
    assert queue.skipped == len(versions) + len(frozen)
    assert played(queue) == during
    assert played(queue, over=True) == after
    assert (queue.idle, queue.skipped) == (True, skipped)


def test_what_waits_or_runs_at_the_end_counts_as_skipped_but_for_random_actions():
    queue = EvaluationQueue(baseline=True, enabled=True)
    queue.order({"version": 1, "env_steps": 100})
    assert queue.skipped == 1
    queue.next()
    assert queue.skipped == 1
    queue.finished(facts(None))
    queue.next()
    assert queue.skipped == 1


def test_policy_is_not_evaluated_twice():
    queue = EvaluationQueue(baseline=False, enabled=True, history=left_over(3, known=(2,)), policies={2, 3})
    for version in (2, 3, 4, 4):  # one that was frozen again where the run went on
        queue.order({"version": version, "env_steps": version * 100})
    assert played(queue) == [3, 4]


def test_random_actions_that_no_session_has_played_come_first():
    queue = EvaluationQueue(baseline=True, enabled=True, history=History(evaluations=[EvaluationPoint(1.0, 3, 100, 1)]))
    assert queue.next() == {"version": None, "env_steps": None}
