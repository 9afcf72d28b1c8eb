"""Uniform sampling: every transition of every lane alike, and nothing else."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataLossError
from headrace.lanes import samplers
from headrace.lanes.credits import LaneCommit
from headrace.lanes.samplers import UniformSampler
from sampling_support import Filled


def sampler(filled: Filled, seed: int = 1) -> UniformSampler:
    return UniformSampler(filled.replay, np.random.default_rng(seed))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, 2, 10]),
)
def test_numbers_below_the_total_are_the_resident_rows_each_once(
    lanes: list[tuple[int, int]], capacity: int, frame_stack: int, n_step: int, bits: int
) -> None:
    filled = Filled(len(lanes), capacity, frame_stack=frame_stack, n_step=n_step)
    for lane, (steps, length) in enumerate(lanes):
        filled.add(lane, steps, length)
    drawing, replay = sampler(filled), filled.replay
    expected = [replay.place(lane, row) for lane in range(len(lanes)) for row in range(*replay.resident(lane))]
    with mock.patch.object(samplers, "_BUCKET_BITS", bits):  # few rows to a bucket, several pieces to one
        assert drawing.rows == len(expected)
    if expected:
        assert drawing._places(np.arange(drawing.rows)).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(20, 100),
    st.integers(0, 2**32 - 1),
)
def test_only_transitions_that_are_resident_are_drawn(lanes: list[tuple[int, int]], capacity: int, seed: int) -> None:
    filled = Filled(len(lanes), capacity)
    for lane, (steps, length) in enumerate(lanes):
        filled.add(lane, steps, length)
    assert set(filled.drawn(sampler(filled, seed), 3, 50).tolist()) <= filled.transitions()


@pytest.mark.parametrize("wrapped", [False, True], ids=["part-filled", "wrapped"])
def test_all_transitions_are_equally_likely_whatever_their_lane_and_its_ends(*, wrapped: bool) -> None:
    filled = Filled(4, 240)
    for lane, (steps, length) in enumerate([(57, 1), (23, 2), (9, 9), (41, 50)]):
        filled.add(lane, steps + 160 * wrapped * (lane % 2), length)
    transitions = sorted(filled.transitions())
    draws = filled.drawn(sampler(filled), 400, 256)
    place = np.searchsorted(transitions, draws)
    counts = np.bincount(place, minlength=len(transitions))
    expected = len(draws) / len(transitions)
    chi_square, freedom = float(((counts - expected) ** 2 / expected).sum()), len(transitions) - 1
    # Mean and variance of the distribution are freedom and twice that. Four standard deviations either way: too
    # even would be as wrong as too uneven.
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_lanes_are_weighed_by_their_transitions_not_by_their_number() -> None:
    filled = Filled(2, 4000)
    filled.add(0, 900, 1000)
    filled.add(1, 100, 1000)
    draws = filled.drawn(sampler(filled), 100, 256)
    assert np.mean(draws < 901) == pytest.approx(0.9, abs=4 * np.sqrt(0.9 * 0.1 / len(draws)))


def test_batches_do_not_repeat() -> None:
    filled = Filled(1, 1000)
    filled.add(0, 900, 1000)
    drawing = sampler(filled)
    batches = [tuple(filled.drawn(drawing, 1, 32)) for _ in range(50)]
    assert len(set(batches)) == 50


def test_the_same_stream_gives_the_same_batches() -> None:
    filled = Filled(3, 300)
    for lane in range(3):
        filled.add(lane, 50, 7)
    one, two = sampler(filled), sampler(filled)
    assert filled.drawn(one, 20, 32).tolist() == filled.drawn(two, 20, 32).tolist()


def test_new_rows_are_drawn_at_once_and_evicted_ones_no_more() -> None:
    filled = Filled(1, 16)
    filled.add(0, 8, 100)
    drawing = sampler(filled)
    filled.drawn(drawing, 1, 8)  # more batches have been drawn ahead
    filled.add(0, 40, 100)
    assert set(filled.drawn(drawing, 8, 64).tolist()) == filled.transitions()
    assert min(filled.transitions()) > 8


def test_another_batch_size_is_heeded_at_once() -> None:
    filled = Filled(1, 100)
    filled.add(0, 50, 100)
    drawing = sampler(filled)
    assert [len(drawing.sample(size)) for size in (3, 5, 3)] == [3, 5, 3]


def test_one_transition_among_many_other_rows_is_found() -> None:
    filled = Filled(64, 64)  # one row a lane, and the newest is that of an episode's end
    for lane in range(64):
        filled.add(lane, 1, 1)
    filled.writers[7].begin_episode([np.float64(4711)])
    row = filled.writers[7].row
    filled.writers[7].step([np.float64(0)], 0.0, (False, False), [np.float64(0)], 0)
    filled.replay.commit(7, LaneCommit(row + 1, 1, filled.block.checksum(7, row, row + 1)))
    assert filled.drawn(sampler(filled), 2, 32).tolist() == [4711.0] * 64


def test_rows_without_a_transition_are_reported() -> None:
    filled = Filled(2, 2)
    filled.add(0, 1, 1)
    with pytest.raises(DataLossError) as caught:
        sampler(filled).sample(4)
    assert str(caught.value) == (
        "[DAT-001] there is nothing to sample: no row of the replay holds a transition\n"
        "  rows: 1\n"
        "  fix: collect before sampling"
    )


def test_an_empty_replay_is_reported() -> None:
    with pytest.raises(DataLossError, match="the replay is empty"):
        sampler(Filled(2, 10)).sample(4)
