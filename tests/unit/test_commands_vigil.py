"""When a process counts as ready, quiet, stalled; time is handed in."""

from __future__ import annotations

import pytest

from headrace.commands.vigil import Judgement, Limits, Vigil


def watched(**limits):
    return Vigil(Limits(start_s=10.0, **limits), 100.0)


def judged(vigil: Vigil, now_s: float) -> Judgement:
    """As whoever keeps it asks, again and again; the last answer."""
    second = 100.0
    while second < now_s:
        vigil.judge(second)
        second += 1.0
    return vigil.judge(now_s)


def test_it_is_late_without_its_sign():
    vigil = watched(progress_s=5.0)

    assert judged(vigil, 109.9) is Judgement.STARTING
    assert judged(vigil, 110.0) is Judgement.LATE
    assert vigil.in_words(Judgement.LATE, 110.5) == "is not ready after 10.5 s (limit 10 s)"


def test_having_lived_long_enough_can_be_the_sign():
    vigil = watched(alive_s=2.0)

    assert judged(vigil, 101.9) is Judgement.STARTING
    assert judged(vigil, 102.0) is Judgement.WELL
    assert vigil.ready_s == 102.0
    assert judged(vigil, 9999.0) is Judgement.WELL  # nothing more is expected


def test_progress_is_counted_from_readiness_on():
    vigil = watched(progress_s=30.0)
    vigil.note_ready(109.0)
    vigil.note_ready(120.0)  # a second sign changes nothing

    assert judged(vigil, 118.9) is Judgement.WELL
    assert judged(vigil, 119.0) is Judgement.QUIET
    assert judged(vigil, 138.9) is Judgement.QUIET
    vigil.note_progress(138.9)
    assert judged(vigil, 139.0) is Judgement.WELL
    assert judged(vigil, 168.9) is Judgement.STALLED
    assert vigil.in_words(Judgement.STALLED, 170.9) == "makes no progress for 32 s (limit 30 s)"


@pytest.mark.parametrize(
    ("numbers", "signs"),
    [([5], 0), ([5, 5, 5], 0), ([5, 6, 6, 7], 2), ([5, 6, 0, 0], 1), ([5, 6, 0, 1], 2), ([0.5, 0.25], 0)],
    ids=["first", "same", "grows", "falls", "begins anew", "shrinks"],
)
def test_a_number_has_to_grow(numbers, signs):
    vigil = watched(progress_s=30.0)
    vigil.note_ready(101.0)
    for at_s, number in enumerate(numbers, 102):
        vigil.note_number(number, at_s)

    assert vigil.signs == signs


def test_a_stopped_process_is_frozen_after_its_limit_only():
    vigil = watched(progress_s=300.0, stopped_s=4.0)
    vigil.note_ready(101.0)
    vigil.note_stopped(102.0, stopped=True)
    vigil.note_stopped(105.9, stopped=True)
    assert judged(vigil, 105.9) is Judgement.WELL
    vigil.note_stopped(106.0, stopped=False)
    vigil.note_stopped(107.0, stopped=True)
    assert judged(vigil, 110.9) is Judgement.WELL
    assert judged(vigil, 111.0) is Judgement.FROZEN
    assert vigil.in_words(Judgement.FROZEN, 111.0) == "is stopped by a signal for 4 s (limit 4 s)"


def test_one_that_nobody_wants_anything_of_is_not_silent():
    vigil = watched(progress_s=30.0)
    vigil.note_ready(101.0)
    vigil.note_idle(130.9)

    assert judged(vigil, 135.0) is Judgement.WELL
    assert judged(vigil, 160.9) is Judgement.STALLED
    assert vigil.signs == 0


@pytest.mark.parametrize("ready", [False, True])
def test_time_in_which_nobody_watched_counts_against_no_limit(ready):
    vigil = watched(progress_s=10.0)
    if ready:
        vigil.note_ready(100.0)
    well, late = (Judgement.WELL, Judgement.STALLED) if ready else (Judgement.STARTING, Judgement.LATE)
    assert vigil.judge(101.0) is well
    vigil.note_stopped(101.0, stopped=True)
    assert vigil.judge(5_000.0) is well  # all was frozen, its keeper too
    vigil.note_stopped(5_000.0, stopped=False)
    found = [vigil.judge(float(second)) for second in range(5_001, 5_020)]
    assert found.index(late) + 5_001 == 5_007


def test_what_comes_after_such_a_time_is_judged_from_then_on():
    vigil = watched(progress_s=10.0)
    vigil.note_ready(100.0)
    vigil.judge(101.0)
    vigil.note_progress(5_000.0)  # read before it is judged
    vigil.note_stopped(5_000.0, stopped=True)
    assert vigil.judge(5_000.0) is Judgement.WELL
    vigil.note_stopped(5_001.0, stopped=False)
    found = [vigil.judge(float(second)) for second in range(5_001, 5_020)]
    assert found.index(Judgement.STALLED) + 5_001 == 5_010


def test_time_in_which_whoever_judges_was_at_work_counts():
    vigil = Vigil(Limits(start_s=10.0, progress_s=10.0), 100.0, worked_s=7.0)
    found = [vigil.judge(100.0 + turn * 4.0, 7.0 + turn * 3.0) for turn in (1, 2, 3)]
    assert found == [Judgement.STARTING, Judgement.STARTING, Judgement.LATE]
