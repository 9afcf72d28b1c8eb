"""Observations into float32 vectors, actions to and from [-1, 1], running moments."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.algorithms.encoding import (
    OBSERVATION_CLIP,
    ActionBox,
    ObservationEncoder,
    RunningMoments,
    normalize,
)
from headrace.core.arrays import aligned
from headrace.core.errors import UnsupportedSpace


def encode(space, obs):
    encoder = ObservationEncoder(space)
    out = np.full((len(next(iter(obs.values()))), encoder.size), np.nan, np.float32)
    encoder.encode(obs, out)
    return out.tolist()


def test_box_is_flattened_row_major():
    obs = np.arange(12, dtype=np.float64).reshape(2, 2, 3)
    assert encode(spaces.Box(-1, 1, (2, 3)), {"obs": obs}) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_box_without_dimension_and_of_integers():
    assert encode(spaces.Box(0, 255, (), np.uint8), {"obs": np.array([7, 255], np.uint8)}) == [[7.0], [255.0]]


@pytest.mark.parametrize("start", [0, 5, -1])
def test_discrete_is_one_hot_from_any_start(start):
    obs = np.array([start, start + 2])
    assert encode(spaces.Discrete(3, start=start), {"obs": obs}) == [[1, 0, 0], [0, 0, 1]]


def test_multidiscrete_is_one_hot_per_component():
    assert encode(spaces.MultiDiscrete([2, 3]), {"obs": np.array([[1, 0], [0, 2]])}) == [
        [0, 1, 1, 0, 0],
        [1, 0, 0, 0, 1],
    ]


def test_multidiscrete_of_higher_rank_with_starts():
    space = spaces.MultiDiscrete(np.array([[2], [2]]), start=np.array([[10], [-1]]))
    assert encode(space, {"obs": np.array([[[11], [-1]]])}) == [[0, 1, 1, 0]]


def test_multibinary_is_copied():
    assert encode(spaces.MultiBinary(3), {"obs": np.array([[1, 0, 1]], np.int8)}) == [[1, 0, 1]]


def test_nested_leaves_follow_each_other():
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.MultiBinary(1)])})
    obs = {"obs.a.0": np.array([[0.5]]), "obs.a.1": np.array([[1]]), "obs.b": np.array([1])}
    assert encode(space, obs) == [[0.5, 1, 0, 1]]


def test_rows_of_a_structured_block_need_not_be_contiguous():
    rows = np.zeros(4, np.dtype([("obs", np.float32, (3,)), ("reward", np.float64)]))
    rows["obs"] = np.arange(12).reshape(4, 3)
    rows.flags.writeable = False
    assert encode(spaces.Box(-1, 1, (3,)), {"obs": rows["obs"][::2]}) == [[0, 1, 2], [6, 7, 8]]


@pytest.mark.parametrize(
    ("space", "field"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Dict({"x": spaces.Sequence(spaces.Discrete(2))}), "obs.x"),
        (spaces.Dict(), "obs"),
    ],
)
def test_observation_spaces_without_arrays_are_refused(space, field):
    with pytest.raises(UnsupportedSpace) as caught:
        ObservationEncoder(space)
    assert field in str(caught.value)


BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def test_action_range_maps_to_one_and_back():
    box, out = ActionBox(BOX), np.empty((3, 2), np.float32)
    actions = np.array([[-2, 0], [0, 5], [1, 10]], np.float32)
    box.normalize(actions, out)
    assert out.tolist() == [[-1, -1], [0, 0], [0.5, 1]]
    back = box.denormalize(out)
    assert back.tolist() == actions.tolist()
    assert back.dtype == np.float32


def test_actions_keep_the_shape_and_dtype_of_their_space():
    box = ActionBox(spaces.Box(-1, 3, (2, 2), np.float64))
    back = box.denormalize(np.zeros((5, 4), np.float32))
    assert (back.shape, back.dtype) == ((5, 2, 2), np.float64)
    assert back.tolist() == np.ones((5, 2, 2)).tolist()


def test_denormalised_actions_are_new_arrays():
    box = ActionBox(BOX)
    first = box.denormalize(np.zeros((1, 2), np.float32))
    box.denormalize(np.ones((1, 2), np.float32))
    assert first.tolist() == [[0.0, 5.0]]


@given(
    low=st.floats(-1e6, 1e6, width=32),
    width=st.floats(0, 1e6, width=32),
    x=st.floats(-1, 1, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_no_action_ever_leaves_its_space(low, width, x, dtype):
    assume(dtype(low + width) > low)
    space = spaces.Box(low, dtype(low + width), (1,), dtype)
    box, out = ActionBox(space), np.empty((1, 1), np.float32)
    for value in (x, 1.0, -1.0):
        action = box.denormalize(np.array([[value]], np.float32))
        assert space.contains(action[0])
        box.normalize(action, out)
        assert -1 <= out[0, 0] <= 1


@pytest.mark.parametrize(("low", "high", "x"), [(1.4, 2.8, -1.0), (-0.3, 0.1, 1.0), (1.4, 2.8, -3.0), (-0.3, 0.1, 3.0)])
def test_what_leaves_the_range_by_rounding_or_noise_is_clipped(low, high, x):
    space = spaces.Box(low, high, (1,), np.float64)  # middle -/+ half range rounds to just outside
    action = ActionBox(space).denormalize(np.array([[x]], np.float32))
    assert action.tolist() == [[low if x < 0 else high]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_action_with_a_number_that_cannot_move_is_refused(dtype):
    """Stored it would be one number, proposed by an actor any: critics would value what they have never seen."""
    low, high = np.array([[-1, 3], [0, 2]], dtype), np.array([[1, 3], [1, 2]], dtype)
    with pytest.raises(UnsupportedSpace) as caught:
        ActionBox(spaces.Box(low, high, dtype=dtype))
    assert "found: low = high in number 1, 3 of 4 (from 0)\n" in str(caught.value)
    assert "fix: wrap the environment so that its actions leave out what cannot move" in str(caught.value)


def test_refused_action_space_says_what_was_expected_and_found():
    with pytest.raises(UnsupportedSpace) as caught:
        ActionBox(spaces.Discrete(4))
    assert str(caught.value) == (
        "[ENV-005] action space cannot be used by an algorithm for continuous actions\n"
        "  field: action\n"
        "  expected: one Box of floating-point numbers with finite low and high, low below high\n"
        "  found: Discrete: Discrete(4)\n"
        "  fix: choose an algorithm for this action space, or wrap it"
    )


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (spaces.Dict({"a": BOX}), "found: Dict"),
        (spaces.MultiBinary(3), "found: MultiBinary"),
        (spaces.Box(-np.inf, 1, (2,)), "found: Box from -inf to 1.0"),
        (spaces.Box(np.array([0, 0], np.float32), np.array([1, np.inf], np.float32)), "found: Box from 0.0 to inf"),
        (spaces.Box(0, 5, (2,), np.int64), "found: Box of int64"),
        (spaces.Box(0, 5, (0,)), "found: Box of shape (0,)"),
    ],
)
def test_other_action_spaces_are_refused(space, found):
    with pytest.raises(UnsupportedSpace) as caught:
        ActionBox(space)
    assert found in str(caught.value)


def test_moments_merged_in_pieces_equal_moments_of_the_whole():
    rows = np.random.default_rng(0).normal(1e4, [1.0, 0.1], (1000, 2)).astype(np.float32)
    moments = RunningMoments(2)
    for piece in np.split(rows, [1, 1, 7, 500]):
        moments.add(piece)
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(moments.mean32, exact.mean(0), rtol=1e-7)
    np.testing.assert_allclose(moments.std32, exact.std(0), rtol=1e-5)
    assert moments.count.tolist() == [1000]


def test_before_the_first_row_normalising_changes_nothing():
    moments, x = RunningMoments(2), np.array([[3.0, -4.0]], np.float32)
    normalize(x, moments.mean32, moments.std32)
    assert x.tolist() == [[3.0, -4.0]]


def test_normalised_observations_are_clipped():
    moments = RunningMoments(2)
    moments.add(np.array([[1.0, 0.0], [1.0, 2.0]]))
    x = np.array([[2.0, 2.0], [0.0, 1.0]], np.float32)
    normalize(x, moments.mean32, moments.std32)
    np.testing.assert_allclose(x, [[OBSERVATION_CLIP, 1.0], [-OBSERVATION_CLIP, 0.0]])


def test_published_moments_are_updated_in_place():
    moments = RunningMoments(1)
    mean, std = moments.mean32, moments.std32
    moments.add(np.array([[2.0], [4.0]]))
    assert (mean.tolist(), std.tolist()) == ([3.0], [1.0])


def test_aligned_buffers_are_aligned_zero_and_of_their_shape():
    for shape in ((1, 3), (7, 5), ()):
        buffer = aligned(shape, np.float64)
        assert buffer.ctypes.data % 64 == 0
        assert buffer.shape == shape
        assert not buffer.any()
