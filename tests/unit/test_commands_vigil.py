"""When a process counts as ready, quiet, stalled; time is handed in."""

from __future__ import annotations

import pytest

from headrace.commands.vigil import Judgement, Limits, Vigil


def watched(**limits):
    return Vigil(Limits(start_s=10.0, **limits), 100.0)


def test_it_is_late_without_its_sign():
    vigil = watched(progress_s=5.0)

    assert vigil.judge(109.9) is Judgement.STARTING
    assert vigil.judge(110.0) is Judgement.LATE
    assert vigil.in_words(Judgement.LATE, 110.5) == "is not ready after 10.5 s (limit 10 s)"


def test_having_lived_long_enough_can_be_the_sign():
    vigil = watched(alive_s=2.0)

    assert vigil.judge(101.9) is Judgement.STARTING
    assert vigil.judge(102.0) is Judgement.WELL
    assert vigil.ready_s == 102.0
    assert vigil.judge(9999.0) is Judgement.WELL  # nothing more is expected


def test_progress_is_counted_from_readiness_on():
    vigil = watched(progress_s=30.0)
    vigil.note_ready(109.0)
    vigil.note_ready(120.0)  # a second sign changes nothing

    assert vigil.judge(118.9) is Judgement.WELL
    assert vigil.judge(119.0) is Judgement.QUIET
    assert vigil.judge(138.9) is Judgement.QUIET
    vigil.note_progress(138.9)
    assert vigil.judge(139.0) is Judgement.WELL
    assert vigil.judge(168.9) is Judgement.STALLED
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
    assert vigil.judge(105.9) is Judgement.WELL
    vigil.note_stopped(106.0, stopped=False)
    vigil.note_stopped(107.0, stopped=True)
    assert vigil.judge(110.9) is Judgement.WELL
    assert vigil.judge(111.0) is Judgement.FROZEN
    assert vigil.in_words(Judgement.FROZEN, 111.0) == "is stopped by a signal for 4 s (limit 4 s)"


def test_one_that_nobody_wants_anything_of_is_not_silent():
    vigil = watched(progress_s=30.0)
    vigil.note_ready(101.0)
    vigil.note_idle(130.9)

    assert vigil.judge(135.0) is Judgement.WELL
    assert vigil.judge(160.9) is Judgement.STALLED
    assert vigil.signs == 0
