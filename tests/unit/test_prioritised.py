"""Sampling by priority: who is drawn how often, what becomes of rows that go, and that it can be done again bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.configs import PriorityConfig
from headrace.core.errors import DataLossError
from headrace.lanes.layout import STEP
from headrace.lanes.prioritised import PrioritisedSampler, SumTree
from sampling_support import Filled

CONFIG = PriorityConfig(enabled=True)


def sampler(filled: Filled, seed: int = 1, **changes: Any) -> PrioritisedSampler:
    return PrioritisedSampler(filled.replay, np.random.default_rng(seed), CONFIG.model_copy(update=changes))


def one(lane: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([lane]), np.array([row])


def all_priorities(drawing: PrioritisedSampler) -> dict[tuple[int, int], float]:
    """Of every row that may be sampled, by lane and row."""
    replay, found = drawing._replay, {}
    for lane in range(replay.geometry.lanes):
        rows = np.arange(*replay.resident(lane))
        found |= {
            (lane, int(row)): float(p) for row, p in zip(rows, drawing.priorities(rows * 0 + lane, rows), strict=True)
        }
    return found


# --- the tree


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=70), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_mark_finds_the_number_whose_part_of_the_sum_it_lies_in(numbers: list[float], marks: list[float]) -> None:
    tree = SumTree(len(numbers))
    tree.set(np.arange(len(numbers)), np.array(numbers))
    assert tree.total == pytest.approx(sum(numbers))
    if not tree.total:
        return
    at = np.array(marks) * tree.total
    found = tree.find(at)
    ends = np.cumsum(numbers)
    slack = 1e-9 * tree.total
    for mark, place in zip(at, found, strict=True):
        assert numbers[place] > 0.0
        assert ends[place] - numbers[place] - slack <= mark <= ends[place] + slack


@pytest.mark.parametrize("mark", [0.0, 0.5, 1.0, 2.0])
def test_what_has_priority_zero_is_never_found_not_even_at_the_very_ends(mark: float) -> None:
    tree = SumTree(4)
    tree.set(np.array([2]), 1.0)
    assert tree.find(np.array([mark])).tolist() == [2]


def test_sums_hang_on_the_numbers_alone_and_not_on_the_order_they_came_in() -> None:
    rng = np.random.default_rng(0)
    one_by_one, at_once = SumTree(1000), SumTree(1000)
    for _ in range(400):
        places = rng.integers(0, 1000, 8)
        one_by_one.set(places, rng.random(8) * 10.0 ** rng.integers(-6, 6))
    at_once.set(np.arange(1000), one_by_one.numbers)
    assert one_by_one._sums.tobytes() == at_once._sums.tobytes()


def test_of_a_place_that_is_set_twice_the_last_number_counts() -> None:
    tree = SumTree(64)
    tree.set(np.array([5, 5]), np.array([3.0, 1.0]))
    assert (tree.numbers[5], tree.total) == (1.0, 1.0)


# --- who is drawn


def test_transitions_are_drawn_in_proportion_to_their_priorities() -> None:
    filled = Filled(2, 200)
    filled.add(0, 20, 7)
    filled.add(1, 12, 5)
    drawing = sampler(filled, alpha=0.5, floor=1e-9)
    wanted = all_priorities(drawing)
    steps = [key for key, priority in wanted.items() if priority > 0]
    assert len(steps) == 32
    errors = np.random.default_rng(3).uniform(0, 4, len(steps))
    drawing.reprioritise(*(np.array(part) for part in zip(*steps, strict=True)), errors)
    counts = dict.fromkeys(steps, 0)
    for _ in range(300):
        drawing.sample(64)
        for key in zip(*(part.tolist() for part in drawing.drawn), strict=True):
            counts[key] += 1
    share = np.sqrt(errors) / np.sqrt(errors).sum()
    np.testing.assert_allclose([counts[key] / (300 * 64) for key in steps], share, atol=0.004)


def test_draws_are_stratified() -> None:
    filled = Filled(1, 100)
    filled.add(0, 64, 64)
    drawing = sampler(filled)
    drawing.sample(64)
    assert sorted(drawing.drawn[1].tolist()) == drawing.drawn[1].tolist()
    assert len(set(drawing.drawn[1].tolist())) == 64


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(20, 120),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_only_resident_transitions_are_drawn_and_their_places_are_theirs(
    lanes: list[tuple[int, int]], capacity: int, frame_stack: int, n_step: int, seed: int
) -> None:
    filled = Filled(len(lanes), capacity, frame_stack=frame_stack, n_step=n_step)
    drawing = sampler(filled, seed)
    for _ in range(2):  # before and after more has come
        for lane, (steps, length) in enumerate(lanes):
            filled.add(lane, steps, length)
        transitions = filled.transitions()
        found = all_priorities(drawing)
        assert sum(priority > 0 for priority in found.values()) == len(transitions)
        assert drawing.rows == len(found)
        if not transitions:
            with pytest.raises(DataLossError):
                drawing.sample(4)
            continue
        windows = drawing.sample(40)
        rows = windows[:, frame_stack - 1]
        assert set(rows["obs"].tolist()) <= transitions
        assert (rows["kind"] == STEP).all()
        assert drawing.places.tolist() == [filled.replay.place(*key) for key in zip(*drawing.drawn, strict=True)]
        g = filled.replay.geometry
        stored = [filled.block.rows[lane, row % g.ring_rows]["obs"] for lane, row in zip(*drawing.drawn, strict=True)]
        assert rows["obs"].tolist() == [float(value) for value in stored]
        drawing.learned(np.random.default_rng(seed).standard_normal(40).astype(np.float32))


def test_nothing_to_sample_is_told() -> None:
    with pytest.raises(DataLossError, match="the replay is empty"):
        sampler(Filled(2, 10)).sample(4)
    filled = Filled(1, 1)
    filled.add(0, 3, 1)  # the one row that is left is an episode's last observation
    with pytest.raises(DataLossError, match="no row of the replay holds a transition"):
        sampler(filled).sample(4)


# --- what becomes of priorities


def test_a_priority_is_the_size_of_the_error_and_the_floor_to_the_power_of_alpha() -> None:
    filled = Filled(1, 100)
    filled.add(0, 10, 20)
    drawing = sampler(filled, alpha=0.6, floor=0.01)
    drawing.reprioritise(np.zeros(2, np.int64), np.array([3, 4]), np.array([-2.0, 0.0], np.float32))
    np.testing.assert_allclose(drawing.priorities(np.zeros(2, np.int64), np.array([3, 4])), [2.01**0.6, 0.01**0.6])


def test_new_transitions_have_the_highest_priority_there_has_been() -> None:
    filled = Filled(1, 100)
    filled.add(0, 4, 20)
    drawing = sampler(filled)
    assert set(all_priorities(drawing).values()) == {1.0, 0.0}  # the last row is the terminal observation
    drawing.reprioritise(*one(0, 1), np.array([50.0]))
    drawing.reprioritise(*one(0, 1), np.array([0.5]))
    highest = (50.0 + CONFIG.floor) ** CONFIG.alpha
    filled.add(0, 1, 20)
    assert drawing.priorities(*one(0, 5)).tolist() == [highest]
    assert drawing.priorities(*one(0, 0)).tolist() == [1.0]


def test_a_priority_that_comes_too_late_does_not_land_on_the_row_that_lies_there_now() -> None:
    """Case G097."""
    filled = Filled(1, 4)
    g = filled.replay.geometry
    filled.add(0, 3, 1000)
    drawing = sampler(filled)
    drawing.sample(4)
    old = int(drawing.drawn[1][0])
    before = drawing.drawn
    while filled.replay.resident(0)[0] <= old + g.ring_rows - 4:  # until another row lies in its place
        filled.add(0, 3, 1000)
    successor = old + g.ring_rows
    assert drawing._leaf(*one(0, old)).tolist() == drawing._leaf(*one(0, successor)).tolist()
    if filled.replay.resident(0)[1] <= successor:
        filled.add(0, 1, 1000)
    kept = all_priorities(drawing)
    assert (0, successor) in kept
    drawing.reprioritise(*before, np.full(4, 0.001))
    assert all_priorities(drawing) == kept
    assert drawing.dropped == 4
    assert drawing.priorities(*one(0, old)).tolist() == [0.0]


def test_evicted_rows_lose_their_priority() -> None:
    filled = Filled(2, 20)
    filled.add(0, 60, 9)
    filled.add(1, 8, 9)
    drawing = sampler(filled)
    total = sum(all_priorities(drawing).values())
    assert drawing._tree.total == total == len(filled.transitions())
    filled.add(0, 30, 4)
    assert sum(all_priorities(drawing).values()) == drawing._tree.total == len(filled.transitions())


def test_weights_correct_for_what_is_drawn_more_often() -> None:
    filled = Filled(1, 100)
    filled.add(0, 8, 20)
    drawing = sampler(filled, alpha=1.0, beta=0.5, beta_updates=100, floor=1e-12)
    drawing.reprioritise(np.zeros(8, np.int64), np.arange(8), np.array([1, 1, 1, 1, 4, 4, 4, 4.0]))
    drawing.sample(20)
    large = drawing.drawn[1] >= 4
    assert large.sum() == 16
    for updates, beta in ((0, 0.5), (50, 0.75), (100, 1.0), (10_000, 1.0)):
        np.testing.assert_allclose(drawing.weights(updates), np.where(large, 0.25**beta, 1.0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=12, max_size=12),
    st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    st.floats(0, 1),
    st.integers(0, 150),
)
def test_every_weight_is_that_of_the_formula(errors: list[float], alpha: float, beta: float, updates: int) -> None:
    """``(1 / (N P(i))) ** beta`` over the largest of the batch (section 3.4), worked out row by row."""
    filled = Filled(1, 100)
    filled.add(0, 12, 20)
    drawing = sampler(filled, alpha=alpha, beta=beta, beta_updates=100, floor=0.01)
    drawing.reprioritise(np.zeros(12, np.int64), np.arange(12), np.array(errors))
    drawing.sample(30)
    priorities = [(abs(error) + 0.01) ** alpha for error in errors]
    exponent = beta + (1 - beta) * min(1, updates / 100)
    raw = [(1 / (12 * priorities[row] / sum(priorities))) ** exponent for row in drawing.drawn[1].tolist()]
    np.testing.assert_allclose(drawing.weights(updates), np.array(raw) / max(raw), rtol=1e-9)


# --- the same again


def test_the_same_stream_and_errors_draw_the_same() -> None:
    def places(seed: int) -> list[int]:
        filled = Filled(2, 60)
        drawing, found = sampler(filled, seed), []
        for step in range(6):
            filled.add(step % 2, 12, 5)
            drawing.sample(16)
            drawing.learned(np.sin(drawing.places).astype(np.float32))
            found += drawing.places.tolist()
        return found

    assert places(1) == places(1)
    assert places(1) != places(2)


@pytest.mark.parametrize("more", [0, 5, 200], ids=["same rows", "some have come", "all are others"])
def test_a_state_goes_on_where_it_was_taken(*, more: int) -> None:
    filled = Filled(2, 60)
    filled.add(0, 40, 7)
    filled.add(1, 25, 30)
    first = sampler(filled)
    for _ in range(5):
        first.sample(16)
        first.learned(np.cos(first.places).astype(np.float32) * 3)
    saved = {name: array.copy() for name, array in first.state().items()}
    generator = first.generator.bit_generator.state
    if more:
        filled.add(0, more, 6)
    second = sampler(filled, 99)
    second.sample(4)
    second.load_state(saved, same_rows=not more)
    second.generator.bit_generator.state = generator
    assert all_priorities(second) == all_priorities(first)
    for drawing in (first, second):
        drawing.sample(16)
        drawing.learned(np.cos(drawing.places).astype(np.float32))
    assert first.places.tolist() == second.places.tolist()
    assert first.weights(7).tobytes() == second.weights(7).tobytes()
    assert all(first.state()[name].tobytes() == second.state()[name].tobytes() for name in saved)


def test_a_state_is_not_changed_by_who_goes_on_from_it() -> None:
    filled = Filled(1, 60)
    filled.add(0, 20, 7)
    drawing = sampler(filled)
    drawing.sample(8)
    drawing.learned(np.ones(8, np.float32))
    saved = {name: array.copy() for name, array in drawing.state().items()}
    kept = {name: array.copy() for name, array in saved.items()}
    drawing.load_state(saved, same_rows=True)
    drawing.sample(8)
    drawing.learned(np.full(8, 9, np.float32))
    assert all(np.array_equal(saved[name], kept[name]) for name in saved)
