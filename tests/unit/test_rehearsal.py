"""The schedules in miniature: exact speeds of small cases that can be worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from headrace.lanes.rate_limiter import RateLimiter
from headrace.runtime.rehearsal import Rollout, Shape, Span, Timeline, Work, pace, stretched

FOREVER = 2**62
NOTHING = Span(0.0, 0.0)


def computes(seconds: float) -> Span:
    return Span(seconds, seconds)


def shape(*, groups=4, collectors=1, ratio: float | None = 0.1, slack=80, **further) -> Shape:
    """Chunks of ten steps; by default one update each."""
    limiter = RateLimiter(learning_starts=1, ratio=ratio, slack_steps=slack, target_steps=FOREVER)
    return Shape(groups=groups, chunk_steps=10, limiter=limiter, collectors=collectors, **further)


def work(*, chunk=1.0, update=0.5, commit=0.0, publish=0.0) -> Work:
    return Work(lambda _: computes(chunk), computes(commit), computes(update), computes(publish))


@pytest.mark.parametrize(
    ("schedule", "collectors", "cores", "seconds"),
    [
        ("inline", 1, 8, 4 * 1.0 + 4 * 0.5),
        # All chunks but the first are collected while there is something to learn; the last one's update follows it.
        ("lockstep", 1, 8, 4 * 1.0 + 0.5),
        ("lockstep", 2, 8, 1.0 + 4 * 0.5),  # two chunks each: at 1 and 2; learning goes on from 1 without a pause
        ("lockstep", 4, 8, 1.0 + 4 * 0.5),  # all at 1, then everything is learned: no better than with two
        ("async", 1, 8, 4 * 1.0),  # limited by the one who collects
        ("async", 2, 8, 4 * 0.5),  # both sides take two seconds a round
        ("async", 4, 8, 4 * 0.5),  # limited by who learns
        ("async", 2, 2, (4 * 1.0 + 4 * 0.5) / 2),  # three who compute all the time share two cores
        ("async", 4, 1, 4 * 1.0 + 4 * 0.5),  # one core: no better than inline
        ("inline", 1, 0.5, 2 * (4 * 1.0 + 4 * 0.5)),  # half a core
    ],
)
def test_rounds_take_what_they_take_by_hand(schedule, collectors, cores, seconds):
    found = pace(schedule, shape(collectors=collectors), work(), cores)
    assert found.steps_per_s == pytest.approx(40 / seconds, rel=0.02)
    assert found.updates_per_s == pytest.approx(4 / seconds, rel=0.02)


def test_in_rounds_a_policy_is_published_once_a_round():
    found = pace("inline", shape(), work(publish=2.0, commit=0.25), 8)
    assert found.steps_per_s == pytest.approx(40 / (4 * (1.0 + 0.25 + 0.5) + 2.0))


def test_asynchronously_a_policy_is_published_every_so_many_updates():
    assert pace("async", shape(collectors=4, publish_every=2), work(chunk=0.1, publish=0.5), 8).steps_per_s == (
        pytest.approx(40 / (4 * 0.5 + 2 * 0.5), rel=0.02)
    )


def test_ratio_of_updates():
    found = pace("async", shape(collectors=4, ratio=0.5), work(), 8)
    assert found.updates_per_s / found.steps_per_s == pytest.approx(0.5, rel=0.02)
    assert found.steps_per_s == pytest.approx(40 / (4 * 5 * 0.5), rel=0.02)


def test_free_running_collectors_wait_for_nobody_and_learning_goes_on_meanwhile():
    found = pace("async", shape(collectors=4, ratio=None), work(update=0.25), 8)
    assert found.steps_per_s == pytest.approx(40.0, rel=0.05)
    assert found.updates_per_s == pytest.approx(4.0, rel=0.05)


def test_waiting_leaves_the_core_to_others():
    """Four chunks that sleep on one core take what one takes; four that compute take four times as long."""
    sleeps = Work(lambda _: Span(1.0, 0.0), NOTHING, NOTHING, NOTHING)
    alone = Work(lambda _: computes(1.0), NOTHING, NOTHING, NOTHING)
    assert pace("lockstep", shape(collectors=4), sleeps, 1).steps_per_s == pytest.approx(40.0)
    assert pace("lockstep", shape(collectors=4), alone, 1).steps_per_s == pytest.approx(10.0)


def test_half_waiting_steps_are_held_up_where_they_compute():
    """Two that would use half a core each fit on one; four use all of it, and take their waiting and twice their computing."""
    half = Work(lambda _: Span(1.0, 0.5), NOTHING, NOTHING, NOTHING)
    assert pace("lockstep", shape(groups=2, collectors=2), half, 1).steps_per_s == pytest.approx(20.0)
    found = pace("lockstep", shape(collectors=4), half, 1)
    assert found.steps_per_s == pytest.approx(40 / (0.5 + 0.5 * 3.0))  # 4 * 0.5 / (0.5 + 0.5 s) = 1 at s = 3


def test_a_round_takes_as_long_as_its_slowest_chunk_where_others_do_not_wait():
    """Of four collectors one takes 4 s in each round, another one every time; learning costs nothing."""
    slow = itertools.cycle([4.0, 1.0, 1.0, 1.0])
    uneven = Work(lambda _: computes(next(slow)), NOTHING, computes(1e-6), NOTHING)
    assert pace("lockstep", shape(collectors=4), uneven, 8).steps_per_s == pytest.approx(40 / 4.0, rel=0.01)
    slow = itertools.cycle([4.0, 1.0, 1.0, 1.0])
    free = pace("async", shape(collectors=4, slack=4000, window_chunks=64), uneven, 8)
    assert free.steps_per_s > 1.5 * 40 / 4.0


def test_little_slack_lets_few_collect_at_a_time():
    """With a chunk of slack only one is under way, beside the one whose updates are being made."""
    tight = pace("async", shape(collectors=4, slack=10), work(update=0.01), 8)
    loose = pace("async", shape(collectors=4, slack=80), work(update=0.01), 8)
    assert loose.steps_per_s == pytest.approx(40.0, rel=0.05)
    assert tight.steps_per_s < 0.6 * loose.steps_per_s


@pytest.mark.parametrize(
    ("schedule", "lag", "seconds"),
    [
        ("inline", 0, 4 * 1.0 + 6 * 0.5),
        ("lockstep", 0, 2 * 1.0 + 6 * 0.5),  # two collectors with two chunks each, then the updates
        ("async", 0, 2 * 1.0 + 6 * 0.5),  # nothing may overlap
        ("async", 1, 6 * 0.5),  # the next round is collected meanwhile
    ],
)
def test_rounds_that_are_learned_from_once(schedule, lag, seconds):
    rollout = Rollout(updates=6, lag=lag)
    found = pace(schedule, shape(collectors=2, rollout=rollout), work(), 8)
    assert found.steps_per_s == pytest.approx(40 / seconds, rel=0.02)
    assert found.updates_per_s == pytest.approx(6 / seconds, rel=0.02)


def test_cores_are_shared_by_those_who_compute():
    assert stretched([computes(1.0)] * 3, 4) == 1.0
    assert stretched([computes(1.0), computes(9.0), computes(2.0)], 2) == 1.5
    assert stretched([Span(1.0, 0.0)] * 9, 1) == 1.0
    assert stretched([Span(1.0, 2.0)], 1) == pytest.approx(1.5)  # on two cores a second, on one two
    assert stretched([Span(1.0, 0.5)] * 4, 1) == pytest.approx(3.0)


def test_spans_that_end_together_end_together():
    ended = []

    def process(name, *spans):
        for span in spans:
            yield span
            ended.append((name, timeline.now_s))
        while True:
            yield computes(100.0)

    timeline = Timeline([process("a", computes(1.0), computes(1.0)), process("b", computes(2.0))], 2)
    timeline.step()
    timeline.step()
    assert ended == [("a", 1.0), ("a", 2.0), ("b", 2.0)]
