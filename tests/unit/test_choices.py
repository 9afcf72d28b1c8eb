"""What can be chosen, what is best of it, and how an observation says so."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.choices import Choices, Mask
from headrace.algorithms.configs import ActionsConfig
from headrace.algorithms.encoding import ObservationEncoder
from headrace.algorithms.exploration import RandomChoice
from headrace.core.errors import ObservationMismatch, UnsupportedSpace

FOUR = spaces.Discrete(4, start=-1)
CELLS = spaces.MultiBinary((2, 3))


def choices(space: spaces.Space, cells: int | None = None) -> Choices:
    return Choices(space, ActionsConfig(cells=cells))


def f32(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


# --- the best


def test_the_highest_value_is_chosen_and_of_equal_ones_the_first() -> None:
    q = f32([1, 5, 5, 0], [7, 0, 0, 7])
    actions = choices(FOUR).actions(choices(FOUR).best(q, None))
    assert (actions.tolist(), actions.dtype, actions.shape) == ([0, -1], np.int64, (2,))


def test_what_cannot_be_chosen_is_not_however_high_its_value() -> None:
    q = f32([9, 1, 2, 8], [9, -5, -6, -7])
    legal = np.array([[False, True, True, False], [False, True, True, True]])
    assert choices(FOUR).actions(choices(FOUR).best(q, legal)).tolist() == [1, 0]


def test_the_k_highest_cells_are_chosen() -> None:
    some = choices(CELLS, 2)
    chosen = some.best(f32([0, 3, 1, 2, 3, 3], [-1, -2, -3, -4, -5, -6]), None)
    actions = some.actions(chosen)
    assert actions.dtype == CELLS.dtype
    assert actions.tolist() == [[[0, 1, 0], [0, 1, 0]], [[1, 1, 0], [0, 0, 0]]]
    assert all(action in CELLS for action in actions)


@pytest.mark.parametrize(
    ("legal", "expected"), [([0, 1, 0, 0, 0, 1], [1, 5]), ([0, 0, 0, 1, 0, 0], [3]), ([0] * 6, [])]
)
def test_fewer_cells_are_chosen_where_fewer_can_be(legal: list[int], expected: list[int]) -> None:
    some = choices(CELLS, 3)
    actions = some.actions(some.best(f32([6, 5, 4, 3, 2, 1]), np.array([legal], bool)))
    assert np.flatnonzero(actions[0]).tolist() == expected


def test_no_action_at_all_is_an_error_where_one_is_needed() -> None:
    with pytest.raises(ObservationMismatch) as caught:
        choices(FOUR).actions(choices(FOUR).best(f32([1, 2, 3, 4], [1, 2, 3, 4]), np.array([[1] * 4, [0] * 4], bool)))
    assert str(caught.value) == (
        "[ENV-002] the mask in the observation leaves no action to choose\n"
        "  expected: at least one action that can be chosen in every observation an action follows\n"
        "  found: none\n"
        "  row: 1\n"
        "  fix: end the episode there, or correct the mask; algorithm.actions says where it is read"
    )


# --- at random


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(1, 6), st.integers(0, 99))
def test_random_cells_are_different_ones_that_can_be_chosen(legal: list[bool], k: int, seed: int) -> None:
    some = choices(CELLS, k)
    chosen = some.random(RandomChoice(np.random.default_rng(seed)), np.array(legal))
    found = chosen[chosen >= 0].tolist()
    assert len(found) == len(set(found)) == min(k, sum(legal))
    assert all(legal[cell] for cell in found)
    assert some.actions(chosen[None]).sum() == len(found)


def test_random_choices_are_all_alike() -> None:
    noise, some = RandomChoice(np.random.default_rng(0)), choices(CELLS, 2)
    counts = sum(some.actions(some.random(noise, None)[None])[0].ravel().astype(int) for _ in range(6000))
    np.testing.assert_allclose(counts, 2000, atol=150)
    legal = np.array([True, False, True, True])
    drawn = [int(choices(FOUR).random(noise, legal)[0]) for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=4), [1000, 0, 1000, 1000], atol=100)


# --- shares


def test_an_action_is_worth_the_mean_of_what_it_chose() -> None:
    q = f32([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    shares = np.full((3, 6), 9, np.float32)
    stored = np.array([[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]], np.int8)
    choices(CELLS, 2).shares(stored, shares)
    assert (q * shares).sum(1).tolist() == [3.5, 2.0, 0.0]
    shares = np.full((2, 4), 9, np.float32)
    choices(FOUR).shares(np.array([-1, 2]), shares)
    assert shares.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


# --- the mask

MAP = spaces.Box(0, 1, (3, 2, 3), np.float32)
WITH_MASK = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(4)})


def legal(space: spaces.Space, size: int, obs: dict[str, np.ndarray], **config: object) -> list | None:
    encoder = ObservationEncoder(space)
    x = np.zeros((len(next(iter(obs.values()))), encoder.size), np.float32)
    encoder.encode(obs, x)
    found = Mask(ActionsConfig(**config), encoder, size).legal(x)
    return None if found is None else found.tolist()


def test_without_a_mask_everything_can_be_chosen() -> None:
    assert legal(MAP, 6, {"obs": np.zeros((1, 3, 2, 3))}) is None


def test_a_mask_is_read_from_its_own_part_of_the_observation() -> None:
    obs = {"obs.at": np.zeros((2, 2)), "obs.action_mask": np.array([[1, 0, 1, 1], [0, 0, 0, 1]])}
    found = legal(WITH_MASK, 4, obs, mask_leaf="obs.action_mask")
    assert found == [[True, False, True, True], [False, False, False, True]]


def test_a_mask_is_read_from_a_channel_of_the_map() -> None:
    maps = np.random.default_rng(0).random((1, 3, 2, 3), np.float32)
    maps[0, 1] = [[0, 0.25, 0.5], [0.25, 1, 0.25]]
    found = legal(MAP, 6, {"obs": maps}, mask_leaf="obs", mask_channel=1, mask_value=0.25)
    assert found == [[True, False, True, False, True, False]]


def test_of_stacked_frames_the_newest_one_counts() -> None:
    stacked = spaces.Box(0, 1, (2, 3, 2, 3), np.float32)
    maps = np.zeros((1, 2, 3, 2, 3), np.float32)
    maps[0, 1, 2] = [[1, 0, 1], [1, 1, 0]]
    found = legal(stacked, 6, {"obs": maps}, mask_leaf="obs", mask_channel=2, mask_value=0.0)
    assert found == [[True, False, True, True, True, False]]
    space = spaces.Dict({"action_mask": spaces.MultiBinary((2, 4)), "at": spaces.Box(-1, 1, (2, 2))})
    obs = {"obs.action_mask": np.array([[[0, 0, 0, 0], [1, 0, 1, 0]]]), "obs.at": np.zeros((1, 2, 2))}
    assert legal(space, 4, obs, mask_leaf="obs.action_mask") == [[True, False, True, False]]


@pytest.mark.parametrize(
    ("space", "config"),
    [
        (MAP, {"mask_leaf": "obs.mask"}),
        (MAP, {"mask_leaf": "obs"}),
        (MAP, {"mask_leaf": "obs", "mask_channel": 3}),
        (spaces.Box(0, 1, (3, 2, 4), np.float32), {"mask_leaf": "obs", "mask_channel": 0}),
        (spaces.MultiDiscrete([2] * 6), {"mask_leaf": "obs"}),
        (WITH_MASK, {"mask_leaf": "obs.action_mask", "mask_channel": 0}),
    ],
)
def test_a_mask_that_is_not_there_is_refused(space: spaces.Space, config: dict[str, object]) -> None:
    with pytest.raises(UnsupportedSpace, match="the mask of actions cannot be read from this observation"):
        Mask(ActionsConfig(**config), ObservationEncoder(space), 6)


@pytest.mark.parametrize(
    ("space", "cells", "fix"),
    [
        (spaces.Box(0, 1, (2,)), None, "choose an algorithm for this action space"),
        (spaces.MultiBinary(4), None, "set algorithm.actions.cells"),
        (spaces.MultiBinary(4), 5, "set algorithm.actions.cells"),
        (spaces.Discrete(4), 2, "remove algorithm.actions.cells"),
    ],
)
def test_spaces_of_other_kinds_are_refused(space: spaces.Space, cells: int | None, fix: str) -> None:
    with pytest.raises(UnsupportedSpace, match="cannot be used by an algorithm that chooses") as caught:
        choices(space, cells)
    assert caught.value.fix.startswith(fix)
