"""The replay against a slow model of it: lists of rows, one per lane, and the definitions written out."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataLossError
from headrace.core.specs import leaves
from headrace.lanes.credits import LaneCommit
from headrace.lanes.derive import transitions
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import CUT, FINAL, STEP, Geometry
from headrace.lanes.replay import Replay, balanced

PLAIN = (spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(1000, start=-3))
NESTED = (
    spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "clock": spaces.Box(-np.inf, np.inf, (), np.float64)}),
    spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(1000))),
)
RUNNING, TERMINATED, TRUNCATED = (False, False), (True, False), (False, True)
GAMMA = 0.9


def numbered(space: spaces.Space[Any], prefix: str, number: int) -> list[Any]:
    """A value of a space, per leaf, that no other number below 65,536 has."""
    found = []
    for leaf in leaves(space, prefix):
        if leaf.dtype == np.uint8:
            found.append(np.array([[number % 256, number // 256], [0, 255]], np.uint8))
        elif leaf.shape == (3,):  # the action's bits; its other leaf holds the number
            found.append(np.array([number & 1, number >> 1 & 1, number >> 2 & 1], leaf.dtype))
        else:
            found.append(np.full(leaf.shape, number, leaf.dtype))
    return found


@dataclass
class Row:
    """One row of the model. ``obs`` is a number, see `numbered`."""

    kind: int
    obs: int
    t: int
    reward: float = 0.0
    ended: tuple[bool, bool] = RUNNING


@dataclass
class ModelLane:
    """One lane as a list that never forgets."""

    rows: list[Row] = field(default_factory=list)
    pending: int | None = None
    """The observation after the newest row; None between episodes."""
    t: int = 0
    committed_rows: int = 0
    committed: int = 0
    salvaged: int = 0

    def count(self, start: int, stop: int) -> int:
        return sum(row.kind == STEP for row in self.rows[start:stop])

    def observation(self, at: int) -> int:
        if at == len(self.rows):
            assert self.pending is not None
            return self.pending
        return self.rows[at].obs

    def stack(self, at: int, t: int, depth: int) -> list[int]:
        return [self.observation(at - min(back, t)) for back in range(depth - 1, -1, -1)]

    def transition(self, at: int, n_step: int, depth: int) -> tuple[list[int], float, float, list[int]]:
        """Stack, n-step reward, discount, next stack of the transition at a row."""
        reward, discount, last = 0.0, 1.0, at
        for last in range(at, at + n_step):
            reward += discount * self.rows[last].reward
            discount *= GAMMA
            if last + 1 < len(self.rows) and self.rows[last + 1].kind != STEP:
                break
        if self.rows[last].ended[0]:
            discount = 0.0
        first = self.rows[at]
        return (
            self.stack(at, first.t, depth), reward, discount, self.stack(last + 1, self.rows[last].t + 1, depth),
        )  # fmt: skip


class Pair:
    """The real thing and the model, given the same."""

    def __init__(self, geometry: Geometry, both: tuple[spaces.Space[Any], spaces.Space[Any]] = PLAIN) -> None:
        self.g = geometry
        self.spaces = both
        self.block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        self.writers = [LaneWriter(self.block, lane) for lane in range(geometry.lanes)]
        self.models = [ModelLane() for _ in range(geometry.lanes)]
        self.number = 0

    def _next(self) -> int:
        self.number += 1
        return self.number

    def step(self, lane: int, ended: tuple[bool, bool] = RUNNING, reward: float | None = None) -> None:
        model, writer = self.models[lane], self.writers[lane]
        observation, action = self.spaces
        if model.pending is None:
            model.pending, model.t = self._next(), 0
            writer.begin_episode(numbered(observation, "obs", model.pending))
        obs = self._next()
        reward = float(obs % 7 - 3) if reward is None else reward
        writer.step(
            numbered(action, "action", model.pending % 997), reward, ended, numbered(observation, "obs", obs), 5
        )
        model.rows.append(Row(STEP, model.pending, model.t, reward, ended))
        model.pending, model.t = obs, model.t + 1
        if ended != RUNNING:
            model.rows.append(Row(FINAL, obs, model.t))
            model.pending = None

    def commit(self, lane: int) -> None:
        model, writer = self.models[lane], self.writers[lane]
        start = int(self.replay.books.row[lane])
        checksum = self.block.checksum(lane, start, writer.row)
        new = model.count(model.committed_rows, len(model.rows))
        self.replay.commit(lane, LaneCommit(writer.row, new, checksum))
        model.committed_rows = len(model.rows)
        model.committed += new

    def kill(self, lane: int) -> None:
        """The writer is gone, its rows are salvaged, another takes its place."""
        model = self.models[lane]
        stretch, cut = self.replay.salvage(lane)
        assert cut == bool(model.rows and model.rows[-1].kind == STEP)
        model.salvaged += model.count(model.committed_rows, len(model.rows))
        if cut:
            assert model.pending is not None
            model.rows.append(Row(CUT, model.pending, model.t))
        assert sum(len(rows) for rows in stretch.rows) == len(model.rows) - model.committed_rows
        model.committed_rows = len(model.rows)
        model.pending = None
        self.writers[lane] = LaneWriter(self.block, lane)

    def sampleable(self, lane: int) -> list[int]:
        """Model rows that may be sampled: resident, with n steps known, and with a transition in them."""
        model = self.models[lane]
        first = max(0, model.committed_rows - self.g.resident_rows)
        stop = model.committed_rows - self.g.n_step + 1
        return [at for at in range(first, stop) if model.rows[at].kind == STEP]

    def check(self) -> None:
        for lane in range(self.g.lanes):
            self._check_books(lane)
            self._check_mirror(lane)
            self._check_transitions(lane)

    def _check_books(self, lane: int) -> None:
        model, books = self.models[lane], self.replay.books.lane(lane)
        evicted = model.count(0, max(0, model.committed_rows - self.g.resident_rows))
        stored = model.committed + model.salvaged
        assert books == {
            "produced": model.count(0, len(model.rows)), "committed": model.committed, "salvaged": model.salvaged,
            "rejected": 0, "evicted": evicted, "resident": stored - evicted,
            "in_flight": model.count(model.committed_rows, len(model.rows)),
        }  # fmt: skip
        assert balanced(books)

    def _check_mirror(self, lane: int) -> None:
        g, rows = self.g, self.block.rows[lane]
        assert rows[: g.mirror_rows].tobytes() == rows[g.ring_rows :].tobytes()

    def _check_transitions(self, lane: int) -> None:
        g, model, replay = self.g, self.models[lane], self.replay
        start, stop = replay.resident(lane)
        places = np.array([replay.place(lane, row) for row in range(start, stop)], np.int64)
        places = places[replay.kinds(places) == STEP]
        expected = self.sampleable(lane)
        assert places.tolist() == [replay.place(lane, at + g.first_row) for at in expected]
        if not expected:
            return
        batch = transitions(replay.windows(places), g.observation, g.action, g.frame_stack, GAMMA)
        for place, at in enumerate(expected):
            stack, reward, discount, after = model.transition(at, g.n_step, g.frame_stack)
            assert self._frames(batch.obs, place) == self._expected(stack)
            assert self._frames(batch.next_obs, place) == self._expected(after)
            assert batch.reward[place] == pytest.approx(reward)
            assert batch.discount[place] == pytest.approx(discount)
            action = numbered(self.spaces[1], "action", stack[-1] % 997)
            for leaf, value in zip(g.action, action, strict=True):
                assert batch.action[leaf.path][place].tolist() == value.tolist()
                assert batch.action[leaf.path].dtype == leaf.dtype

    def _frames(self, obs: Any, place: int) -> list[Any]:
        return [obs[leaf.path][place].tolist() for leaf in self.g.observation]

    def _expected(self, stack: Sequence[int]) -> list[Any]:
        frames = [numbered(self.spaces[0], "obs", number) for number in stack]
        per_leaf = [np.stack(parts) if len(stack) > 1 else parts[0] for parts in zip(*frames, strict=True)]
        return [part.tolist() for part in per_leaf]


def pair(
    *, lanes: int = 1, capacity: int = 10, n_step: int = 1, frame_stack: int = 1, chunk: int = 4, window: int = 2,
    both: tuple[spaces.Space[Any], spaces.Space[Any]] = PLAIN,
) -> Pair:  # fmt: skip
    observation, action = leaves(both[0], "obs"), leaves(both[1], "action")
    return Pair(Geometry(lanes, capacity, observation, action, chunk, window, frame_stack, n_step), both)


GEOMETRIES = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 3), "capacity": st.integers(1, 40), "n_step": st.integers(1, 4),
        "frame_stack": st.integers(1, 4), "chunk": st.integers(1, 5), "window": st.integers(1, 3),
        "both": st.sampled_from([PLAIN, NESTED]),
    }
)  # fmt: skip
ENDS = st.sampled_from([RUNNING, RUNNING, RUNNING, TERMINATED, TRUNCATED])


@settings(max_examples=80, deadline=None)
@given(GEOMETRIES, st.data())
def test_every_sampleable_window_equals_the_model(sizes: dict[str, Any], data: st.DataObject) -> None:
    real = pair(**sizes)
    ahead = [0] * real.g.lanes  # chunks written and not committed
    for _ in range(data.draw(st.integers(1, 25), label="events")):
        lane = data.draw(st.integers(0, real.g.lanes - 1), label="lane")
        event = data.draw(st.sampled_from(["chunk", "chunk", "commit", "kill"]), label="event")
        if event == "chunk" and ahead[lane] < real.g.window_chunks:
            for ended in data.draw(st.lists(ENDS, min_size=real.g.chunk_steps, max_size=real.g.chunk_steps)):
                real.step(lane, ended)
            ahead[lane] += 1
        elif event == "kill":
            real.kill(lane)
            ahead[lane] = 0
        else:
            real.commit(lane)
            ahead[lane] = 0
        real.check()


@pytest.mark.table
@settings(max_examples=80, deadline=None)
@given(GEOMETRIES, st.integers(0, 60), st.booleans())
def test_a_collector_with_full_credits_changes_nothing_that_may_be_sampled(
    sizes: dict[str, Any], before: int, begun: bool
) -> None:
    real = pair(**sizes)
    for _ in range(before):
        for _ in range(real.g.chunk_steps):
            real.step(0, TERMINATED)
        real.commit(0)
    if begun:
        real.step(0)
        real.commit(0)
    for _ in range(real.g.window_chunks * real.g.chunk_steps):
        real.step(0, TERMINATED)  # two rows a step, the most there can be
        real.check()


def test_a_chunk_that_wraps_has_the_same_checksum_on_both_sides() -> None:
    real = pair(capacity=4, chunk=2, window=1)
    wrapped = 0
    for _ in range(40):
        real.step(0)
        real.step(0, TERMINATED)
        span = int(real.replay.books.row[0]), real.writers[0].row
        pieces = real.block.pieces(0, *span)
        assert real.block.checksum(0, *span) == zlib.crc32(b"".join(piece.tobytes() for piece in pieces))
        wrapped += len(pieces) == 2
        real.commit(0)
    assert wrapped > 3


def test_a_changed_byte_is_noticed_and_nothing_is_taken_over() -> None:
    real = pair()
    real.step(0)
    commit = LaneCommit(real.writers[0].row, 1, real.block.checksum(0, 0, 1))
    real.block.rows[0, 0]["obs"][1] += 1
    with pytest.raises(DataLossError) as caught:
        real.replay.commit(0, commit)
    found = real.block.checksum(0, 0, 1)
    assert str(caught.value) == (
        "[DAT-001] the rows of lane 0 differ from what its collector committed\n"
        "  rows: 0 to 1\n"
        f"  expected: 1 transitions, checksum {commit.checksum:08x}\n"
        f"  found: 1 transitions, checksum {found:08x}\n"
        "  fix: keep the run directory and file a bug: this is never the user's fault"
    )
    assert real.replay.env_steps == 0


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_count_of_transitions_is_noticed(change: int) -> None:
    real = pair()
    real.step(0)
    with pytest.raises(DataLossError, match=f"expected: {1 + change} transitions"):
        real.replay.commit(0, LaneCommit(1, 1 + change, real.block.checksum(0, 0, 1)))


def test_a_commit_delivered_twice_is_noticed() -> None:
    real = pair()
    real.step(0)
    commit = LaneCommit(1, 1, real.block.checksum(0, 0, 1))
    real.replay.commit(0, commit)
    with pytest.raises(DataLossError):
        real.replay.commit(0, commit)


def test_salvage_marks_a_cut_once() -> None:
    real = pair()
    real.step(0)
    real.kill(0)
    real.kill(0)
    assert [row.kind for row in real.models[0].rows] == [STEP, CUT]
    real.check()


def test_salvage_keeps_what_is_sound_and_counts_the_rest_as_rejected() -> None:
    real = pair()
    for _ in range(2):
        real.step(0)
    nan = [np.array([np.nan, 0], np.float32)]
    real.writers[0].step([np.int64(0)], 1.0, RUNNING, nan, 5)  # row 2 leads to it
    real.writers[0].step([np.int64(0)], 1.0, TERMINATED, nan, 5)

    stretch, cut = real.replay.salvage(0)

    assert cut
    assert [int(kind) for rows in stretch.rows for kind in rows["kind"]] == [STEP, STEP, CUT]
    assert real.block.rows[0, 2]["obs"].tolist() == [3.0, 3.0]  # the last sound observation
    books = real.replay.books.lane(0)
    assert (books["produced"], books["salvaged"], books["rejected"]) == (4, 2, 2)
    assert balanced(books)
    real.writers[0] = LaneWriter(real.block, 0)
    real.models[0].pending = None
    real.step(0)
    assert real.replay.books.lane(0)["produced"] == 5


@pytest.mark.parametrize("field", ["reward", "obs"])
def test_an_episode_that_is_unsound_from_its_first_row_leaves_no_cut(field: str) -> None:
    real = pair()
    obs = np.array([np.inf if field == "obs" else 0, 0], np.float32)
    real.writers[0].begin_episode([obs])
    real.writers[0].step([np.int64(0)], np.nan if field == "reward" else 0.0, RUNNING, [obs], 5)
    stretch, cut = real.replay.salvage(0)
    assert not cut
    assert [len(rows) for rows in stretch.rows] == [0]
    assert real.replay.books.lane(0)["rejected"] == 1
    assert balanced(real.replay.books.lane(0))


# Public reports, by their number


def batch(real: Pair, row: int) -> Any:
    windows = real.replay.windows(np.array([real.replay.place(0, row + real.g.first_row)]))
    return transitions(windows, real.g.observation, real.g.action, real.g.frame_stack, GAMMA)


def numbers(real: Pair) -> list[int]:
    """Rows that may be sampled, counted from the lane's first."""
    start, stop = real.replay.resident(0)
    return [
        row - real.g.first_row
        for row in range(start, stop)
        if real.replay.kinds(np.array([real.replay.place(0, row)]))[0] == STEP
    ]


def counter_episode(real: Pair, values: Sequence[float], end: tuple[bool, bool], rewards: Sequence[float] = ()) -> None:
    """An episode whose observations are ``values``."""
    writer = real.writers[0]
    writer.begin_episode([np.full(2, values[0], np.float32)])
    rewards = rewards or [1.0] * (len(values) - 1)
    for place, value in enumerate(values[1:]):
        ended = end if place == len(values) - 2 else RUNNING
        writer.step([np.int64(place)], rewards[place], ended, [np.full(2, value, np.float32)], 0)


def take(real: Pair) -> None:
    start, writer = int(real.replay.books.row[0]), real.writers[0]
    count = writer.transitions - real.replay.books.transitions_before(0, start)
    real.replay.commit(0, LaneCommit(writer.row, count, real.block.checksum(0, start, writer.row)))


def test_e062_e067_a_timeout_leads_to_its_own_last_observation() -> None:
    real = pair()
    counter_episode(real, [0, 1, 2, 3], TRUNCATED)
    counter_episode(real, [0, 1], RUNNING)
    take(real)
    pairs = [(float(batch(real, row).obs["obs"][0, 0]), float(batch(real, row).next_obs["obs"][0, 0]))
             for row in numbers(real)]  # fmt: skip
    assert pairs == [(0, 1), (1, 2), (2, 3), (0, 1)]
    assert batch(real, 2).discount == [GAMMA]


def test_e064_a_timeout_bootstraps_from_the_terminal_observation() -> None:
    real = pair()
    counter_episode(real, [2, 5], TRUNCATED)  # a value function that is the observation itself
    take(real)
    found = batch(real, 0)
    assert found.reward + found.discount * found.next_obs["obs"][:, 0] == pytest.approx([5.5])


def test_e066_a_reset_is_no_transition() -> None:
    real = pair()
    counter_episode(real, [0, 1, 2], TERMINATED)
    counter_episode(real, [0, 1], RUNNING)
    take(real)
    assert numbers(real) == [0, 1, 3]
    assert real.replay.env_steps == 3
    assert batch(real, 1).discount == [0.0]


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
def test_f082_a_stack_holds_no_frame_of_the_episode_before(end: tuple[bool, bool]) -> None:
    real = pair(frame_stack=4)
    counter_episode(real, [1, 2, 3, 4, 5, 6], end)
    counter_episode(real, [100, 101, 102], RUNNING)
    take(real)
    found = batch(real, 6)
    assert found.obs["obs"][0, :, 0].tolist() == [100, 100, 100, 100]
    assert found.next_obs["obs"][0, :, 0].tolist() == [100, 100, 100, 101]
    assert batch(real, 4).next_obs["obs"][0, :, 0].tolist() == [3, 4, 5, 6]


def test_f085_stacks_hold_consecutive_frames_also_behind_the_write_head() -> None:
    real = pair(capacity=10, frame_stack=4, chunk=1, window=1)
    real.writers[0].begin_episode([np.full(2, 0, np.float32)])
    for value in range(1, 40):
        real.writers[0].step([np.int64(0)], 0.0, RUNNING, [np.full(2, value, np.float32)], 0)
        take(real)
        for row in numbers(real):
            assert batch(real, row).obs["obs"][0, :, 0].tolist() == [max(0, row - back) for back in (3, 2, 1, 0)]


def test_g091_nothing_is_sampled_that_was_not_stored_and_the_newest_rows_stay() -> None:
    real = pair(capacity=5)
    counter_episode(real, [1, 2, 3, 4, 5], RUNNING)
    take(real)
    assert [float(batch(real, row).obs["obs"][0, 0]) for row in numbers(real)] == [1, 2, 3, 4]
    for value in (6, 7, 8):  # one batch of 5, 6, 7: their observations and where they lead to
        real.writers[0].step([np.int64(0)], 1.0, RUNNING, [np.full(2, value, np.float32)], 0)
    take(real)
    assert [float(batch(real, row).obs["obs"][0, 0]) for row in numbers(real)] == [3, 4, 5, 6, 7]


def test_g092_the_newest_row_has_its_successor_and_rows_without_one_are_left_out() -> None:
    real = pair(capacity=10, n_step=2)
    counter_episode(real, [0, 1, 2, 3, 4], RUNNING)
    take(real)
    assert numbers(real) == [0, 1, 2]  # of row 3 the second step is not known
    assert batch(real, 2).next_obs["obs"][0, 0] == 4
    for value in range(5, 13):
        real.writers[0].step([np.int64(0)], 1.0, RUNNING, [np.full(2, value, np.float32)], 0)
    take(real)
    assert numbers(real) == list(range(2, 11))  # twelve rows written, ten kept, all but the newest


def test_g093_an_n_step_return_ends_where_the_data_ends() -> None:
    real = pair(capacity=10, n_step=3)
    counter_episode(real, [0, 1, 2, 3, 4], RUNNING, [1, 2, 3, 4])
    take(real)
    assert numbers(real) == [0, 1]  # row 2 waits for its third step
    _, cut = real.replay.salvage(0)
    assert cut
    assert numbers(real) == [0, 1, 2]
    windows = real.replay.windows(np.array([real.replay.place(0, 2)]))
    assert transitions(windows, real.g.observation, real.g.action, 1, 1.0).reward == [7]


def test_g094_an_n_step_return_stops_at_a_truncated_end_and_bootstraps_there() -> None:
    real = pair(capacity=20, n_step=3, chunk=8)
    counter_episode(real, [0, 0, 0, 10], TRUNCATED, [1, 1, 1])
    counter_episode(real, [0, 0, 0], RUNNING, [5, 5])
    take(real)
    for row in range(3):
        found = batch(real, row)
        assert found.reward + found.discount * found.next_obs["obs"][:, 0] == pytest.approx([10.0])


def test_g095_the_last_samples_of_a_fragment_are_discounted_by_the_steps_they_have() -> None:
    real = pair(capacity=20, n_step=3, chunk=8)
    counter_episode(real, [0, 10], RUNNING, [1])
    real.replay.salvage(0)
    real.writers[0] = LaneWriter(real.block, 0)
    counter_episode(real, [0, 0], RUNNING, [1])
    take(real)
    found = batch(real, 0)
    assert found.discount == [GAMMA]
    assert found.reward + found.discount * found.next_obs["obs"][:, 0] == pytest.approx([10.0])


def test_g096_lanes_do_not_mix_in_an_n_step_return() -> None:
    real = pair(lanes=2, capacity=20, n_step=3)
    for _ in range(3):
        real.step(0, reward=1.0)
        real.step(1, reward=10.0)
    real.commit(0)
    real.commit(1)
    places = np.array([real.replay.place(lane, 0) for lane in (0, 1)])
    found = transitions(real.replay.windows(places), real.g.observation, real.g.action, 1, 1.0)
    assert found.reward.tolist() == [3.0, 30.0]


def test_g099_four_lanes_keep_a_thousand_transitions_in_all() -> None:
    real = pair(lanes=4, capacity=1000, chunk=64, window=1)
    for lane in range(4):
        for _ in range(8):
            for _ in range(64):
                real.step(lane)
            real.commit(lane)
    assert sum(real.replay.books.lane(lane)["resident"] for lane in range(4)) == 1000


def test_k139_an_environment_that_reuses_its_array_changes_nothing_that_is_stored() -> None:
    real = pair()
    shared = np.zeros(2, np.float32)
    real.writers[0].begin_episode([shared])
    for value in (1, 2, 3):
        shared[:] = value
        real.writers[0].step([np.int64(0)], 0.0, RUNNING, [shared], 0)
    take(real)
    pairs = [(float(batch(real, row).obs["obs"][0, 0]), float(batch(real, row).next_obs["obs"][0, 0]))
             for row in numbers(real)]  # fmt: skip
    assert pairs == [(0, 1), (1, 2), (2, 3)]
