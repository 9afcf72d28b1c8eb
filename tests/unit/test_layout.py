"""How rows and blocks lie in memory, and that a learner's windows keep clear of its collectors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.specs import leaves
from headrace.lanes.layout import ALIGNMENT, HEAD, STEP, Geometry, end_word, place_word, row_dtype, step_struct

BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "vector": BOX,
    "scalar": spaces.Box(-1, 1, (), np.float64),
    "image": spaces.Box(0, 255, (5, 7, 3), np.uint8),
    "flags": spaces.Box(0, 1, (3,), np.bool_),
    "discrete": spaces.Discrete(5, start=-2),
    "several": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict({"camera": spaces.Box(0, 255, (3,), np.uint8), "pose": spaces.Dict({"x": BOX})}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float16))),
}
GEOMETRIES = st.builds(
    Geometry,
    lanes=st.integers(1, 3), capacity=st.integers(1, 20),
    observation=st.just(leaves(BOX, "obs")), action=st.just(leaves(BOX, "action")),
    chunk_steps=st.integers(1, 4), window_chunks=st.integers(1, 3),
    frame_stack=st.integers(1, 4), n_step=st.integers(1, 4),
)  # fmt: skip


@pytest.mark.parametrize("observation", SPACES)
@pytest.mark.parametrize("action", ["vector", "discrete", "tuple"])
def test_fields_are_aligned_and_share_no_byte(observation: str, action: str) -> None:
    dtype = row_dtype(leaves(SPACES[observation], "obs"), leaves(SPACES[action], "action"))
    assert dtype.fields is not None
    taken = np.zeros(dtype.itemsize, int)
    for kind, offset in (field[:2] for field in dtype.fields.values()):
        taken[offset : offset + kind.itemsize] += 1
        assert offset % kind.base.alignment == 0
    assert taken.max() == 1
    assert dtype.itemsize % ALIGNMENT == 0


@pytest.mark.parametrize("observation", SPACES)
@pytest.mark.parametrize("action", ["vector", "discrete", "tuple"])
def test_one_call_fills_a_row_and_the_observation_of_the_next(observation: str, action: str) -> None:
    seen, did = leaves(SPACES[observation], "obs"), leaves(SPACES[action], "action")
    geometry = Geometry(1, 4, seen, did, 1, 1)
    SPACES[observation].seed(1)
    SPACES[action].seed(2)
    obs, act = SPACES[observation].sample(), SPACES[action].sample()
    rows = np.zeros(2, geometry.dtype)
    before = rows["obs" if observation not in ("dict", "tuple") else seen[0].path][0].copy()

    step_struct(geometry.dtype, did, seen).pack_into(
        memoryview(rows).cast("B"), geometry.head_offset,
        -1.5, 2**40, 2**41, place_word(2**31 + 1, 2**31 + 2), end_word(STEP, terminated=True),
        *(np.asarray(leaf.of(act), leaf.dtype).tobytes() for leaf in did),
        *(np.asarray(leaf.of(obs), leaf.dtype).tobytes() for leaf in seen),
    )  # fmt: skip

    head = ("reward", "version", "transitions", "episode", "t", "kind", "terminated", "truncated")
    assert rows[0][list(head)].item() == (-1.5, 2**40, 2**41, 2**31 + 1, 2**31 + 2, STEP, True, False)
    for leaf in did:
        np.testing.assert_array_equal(rows[0][leaf.path], leaf.of(act))
    for leaf in seen:
        np.testing.assert_array_equal(rows[1][leaf.path], leaf.of(obs))
    np.testing.assert_array_equal(rows[seen[0].path][0], before)


def test_a_head_has_no_hidden_padding_before_its_end() -> None:
    assert HEAD.size == 40
    assert HEAD.size % 8 == 0


@given(GEOMETRIES)
def test_a_geometry_travels_to_other_processes(geometry: Geometry) -> None:
    again = pickle.loads(pickle.dumps(geometry))
    assert again == geometry
    assert again.dtype == geometry.dtype


@given(GEOMETRIES)
def test_lanes_and_headers_fill_the_block_exactly(geometry: Geometry) -> None:
    g = geometry
    assert g.rows_offset % ALIGNMENT == 0
    assert g.rows_offset + g.lanes * g.stride_rows * g.dtype.itemsize == g.nbytes
    assert g.lanes * g.resident_rows >= g.capacity > g.lanes * (g.resident_rows - 1)


@pytest.mark.parametrize("name", ["lanes", "capacity", "chunk_steps", "window_chunks", "frame_stack", "n_step"])
def test_a_size_of_zero_is_refused_by_name(name: str) -> None:
    sizes = {"lanes": 1, "capacity": 8, "chunk_steps": 1, "window_chunks": 1, "frame_stack": 1, "n_step": 1, name: 0}
    with pytest.raises(ConfigError, match=f"{name.replace('_', ' ')}: 0"):
        Geometry(observation=leaves(BOX, "obs"), action=leaves(BOX, "action"), **sizes)


@pytest.mark.parametrize("lanes", [1, 64])
def test_a_million_frames_are_kept_once_whatever_is_stacked(lanes: int) -> None:
    frame = leaves(spaces.Box(0, 255, (84, 84), np.uint8), "obs")
    geometry = Geometry(lanes, 1_000_000, frame, leaves(spaces.Discrete(6), "action"), 32, 2, frame_stack=4, n_step=3)
    assert 1_000_000 * 84 * 84 < geometry.nbytes < 1.02 * 1_000_000 * 84 * 84


def test_g099_a_thousand_rows_over_four_lanes_are_a_thousand_rows() -> None:
    geometry = Geometry(4, 1000, leaves(BOX, "obs"), leaves(BOX, "action"), 8, 2)
    assert geometry.lanes * geometry.resident_rows == 1000


def collisions(geometry: Geometry, newest: int) -> set[int]:
    """Ring slots that a learner may read while a collector with full credits may write them.

    Everything is taken to its limit: every step ends an episode, the whole window of chunks is used, the replay is
    full. The observation of row ``newest`` is read and was written before; a collector leaves it alone.
    """
    g = geometry
    written = range(newest + 1, newest + 2 * g.window_chunks * g.chunk_steps + 1)
    oldest = max(g.first_row, newest - g.resident_rows)
    read = [oldest - 1, *range(oldest - (g.frame_stack - 1), newest)]  # the books read one row before the oldest
    return {row % g.ring_rows for row in written} & {row % g.ring_rows for row in read if row >= 0}


@given(GEOMETRIES, st.integers(0, 100))
def test_no_window_holds_a_row_that_may_be_written(geometry: Geometry, rows: int) -> None:
    assert collisions(geometry, geometry.first_row + rows) == set()


class NoGuard(Geometry):
    """A mutant: the ring is as long as what may be sampled."""

    guard_rows = 0  # type: ignore[assignment]


class OneRowShort(Geometry):
    """A mutant: the guard is one row too short."""

    @property
    def guard_rows(self) -> int:
        return super().guard_rows - 1


@pytest.mark.parametrize("mutant", [NoGuard, OneRowShort])
def test_a_shorter_guard_would_be_noticed(mutant: type[Geometry]) -> None:
    geometry = mutant(1, 8, leaves(BOX, "obs"), leaves(BOX, "action"), 2, 2)
    assert collisions(geometry, geometry.first_row + 100) != set()
