"""Sampling by priority: who is drawn how often, what becomes of rows that go, and that it can be done again bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.configs import PriorityConfig
from headrace.core.errors import ConfigError, DataLossError
from headrace.lanes.layout import STEP
from headrace.lanes.prioritised import PrioritisedSampler
from headrace.lanes.sumtree import NumpyLoops, fastest_loops
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


@pytest.mark.table
def test_a_priority_is_the_size_of_the_error_and_the_floor_to_the_power_of_alpha() -> None:
    filled = Filled(1, 100)
    filled.add(0, 10, 20)
    drawing = sampler(filled, alpha=0.6, floor=0.01)
    drawing.reprioritise(np.zeros(2, np.int64), np.array([3, 4]), np.array([-2.0, 0.0], np.float32))
    np.testing.assert_allclose(drawing.priorities(np.zeros(2, np.int64), np.array([3, 4])), [2.01**0.6, 0.01**0.6])


@pytest.mark.parametrize("alpha", [0.0, 4.0])
@pytest.mark.parametrize("floor", [1e-30, 1e6])
def test_no_error_makes_a_priority_of_0_or_a_sum_that_is_not_finite(alpha: float, floor: float) -> None:
    filled = Filled(1, 100)
    filled.add(0, 10, 20)
    config = PriorityConfig(enabled=True, alpha=alpha, floor=floor)
    drawing, rows = sampler(filled, **config.model_dump()), np.arange(2)
    drawing.reprioritise(rows * 0, rows, np.array([0.0, np.finfo(np.float32).max], np.float32))
    priorities = drawing.priorities(rows * 0, rows)
    assert (priorities > 0.0).all()
    assert np.isfinite(priorities * 2.0**40).all(), "of very many rows"
    drawing.sample(8)
    assert np.isfinite(drawing.weights(0)).all()


@pytest.mark.parametrize("beyond", [{"alpha": 4.5}, {"floor": 1e-31}, {"floor": 1e7}])
def test_exponents_and_floors_that_could_are_refused(beyond: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(beyond))} must be"):
        PriorityConfig(enabled=True, **beyond)


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


def test_with_and_without_numba_the_same_is_drawn() -> None:
    def history(loops: Any) -> bytes:
        filled = Filled(3, 90, frame_stack=2)
        drawing = PrioritisedSampler(filled.replay, np.random.default_rng(4), CONFIG, loops=loops)
        found = b""
        for step in range(20):
            filled.add(step % 3, 3 + 7 * step % 40, 6)
            drawing.sample(32)
            drawing.learned(np.sin(drawing.places).astype(np.float32))
            found += drawing.places.tobytes() + drawing.weights(step).tobytes()
        return found + b"".join(array.tobytes() for array in drawing.state().values())

    assert not isinstance(fastest_loops(), NumpyLoops), "numba is installed for development"
    assert history(fastest_loops()) == history(NumpyLoops())


def test_what_was_learned_after_rows_came_and_went_is_dropped_though_somebody_has_asked_meanwhile() -> None:
    filled = Filled(1, 8)
    filled.add(0, 8, 1000)
    drawing = sampler(filled)
    drawing.sample(4)
    filled.add(0, 60, 1000)
    before = all_priorities(drawing)  # asks, so the sampler knows the new rows
    drawing.learned(np.full(4, 9.0, np.float32))
    assert drawing.dropped == 4
    assert all_priorities(drawing) == before


@pytest.mark.parametrize("lanes", [1, 5])
def test_all_lanes_at_once_are_taken_in_as_one_after_the_other(lanes: int) -> None:
    at_once, one_by_one = Filled(lanes, 40), Filled(lanes, 40)
    drawings = [sampler(at_once), sampler(one_by_one)]
    for step in range(12):
        for lane in range(lanes):
            for filled in (at_once, one_by_one):
                filled.add(lane, 1 + (step * 5 + lane * 3) % 30, 7)
            assert drawings[1].rows
        assert drawings[0].rows == drawings[1].rows
        assert all_priorities(drawings[0]) == all_priorities(drawings[1])
        for drawing in drawings:
            drawing.sample(8)
            drawing.learned(np.cos(drawing.places).astype(np.float32))
    assert drawings[0]._tree._nodes.tobytes() == drawings[1]._tree._nodes.tobytes()


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
