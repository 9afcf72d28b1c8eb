"""The writer of a lane: what it stores, in what order, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.errors import DataLossError, ObservationMismatch
from headrace.core.specs import Leaf, leaves
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import FINAL, LOST, STEP, Geometry, row_dtype

OBS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LOGPROB = Leaf("logprob", np.dtype(np.float32), ())
RUNNING = (False, False)
ENDED = (True, False)


def block(
    *, lanes: int = 1, obs: spaces.Space[Any] = OBS, frame_stack: int = 1, n_step: int = 1, told: tuple[Leaf, ...] = ()
) -> LaneBlock:
    action = leaves(spaces.Discrete(9), "action")
    geometry = Geometry(lanes, 6, leaves(obs, "obs"), action, 2, 1, frame_stack, n_step, told=told)
    made = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    made.begin()
    return made


def value(number: float) -> list[Any]:
    return [np.full(2, number, np.float32)]


def write(writer: LaneWriter, episodes: list[int], first: int = 0) -> None:
    """Episodes of the given lengths, each ended; observations count up from ``first``."""
    for length in episodes:
        writer.begin_episode(value(first))
        for step in range(length):
            first += 1
            writer.step([np.int64(first % 9)], first, (step == length - 1, False), value(first), 7)
        first += 1


def test_an_episode_is_its_steps_and_one_final_row() -> None:
    lanes = block()
    writer = LaneWriter(lanes, 0)
    write(writer, [2])
    rows = lanes.rows[0, :3]
    assert rows["kind"].tolist() == [STEP, STEP, FINAL]
    assert rows["t"].tolist() == [0, 1, 2]
    assert rows["obs"][:, 0].tolist() == [0, 1, 2]
    assert rows["terminated"].tolist() == [False, True, False]
    assert rows["transitions"].tolist() == [1, 2, 2]
    assert rows["version"].tolist() == [7, 7, 7]
    assert (lanes.rows_written[0], lanes.episodes_begun[0]) == (3, 1)


def test_a_final_row_holds_no_action_of_a_lap_ago() -> None:
    lanes = block()
    ring = lanes.geometry.ring_rows
    writer = LaneWriter(lanes, 0)
    write(writer, [2 * ring + 1])
    slot = writer.row % ring
    lanes.rows["action"][0] = 8
    write(writer, [1])
    assert lanes.rows["kind"][0, (slot + 1) % ring] == FINAL
    assert lanes.rows["action"][0, (slot + 1) % ring] == 0


def test_a_lost_step_ends_an_episode_where_it_stands() -> None:
    lanes = block()
    ring = lanes.geometry.ring_rows
    writer = LaneWriter(lanes, 0)
    write(writer, [ring - 1])
    writer.begin_episode(value(50))
    writer.step([np.int64(4)], 1.0, RUNNING, value(51), 7)
    writer.intend([np.int64(8)])
    writer.lose(9)
    writer.begin_episode(value(60))
    writer.intend([np.int64(8)])
    writer.lose(9)
    writer.begin_episode(value(70))
    step, lost, at_once = (lanes.rows[0, place] for place in range(3))
    assert [int(row["kind"]) for row in (step, lost, at_once)] == [STEP, LOST, LOST]
    assert [(int(row["t"]), int(row["episode"])) for row in (step, lost, at_once)] == [(0, 1), (1, 1), (0, 2)]
    assert [float(row["obs"][0]) for row in (step, lost, at_once)] == [50, 51, 60]
    assert [int(row["transitions"]) for row in (step, lost, at_once)] == [ring] * 3
    for row in (lost, at_once):
        assert (int(row["action"]), float(row["reward"]), int(row["version"])) == (0, 0.0, 9)
        assert not row["terminated"]
        assert not row["truncated"]
    assert (lanes.rows_written[0], lanes.episodes_begun[0], writer.episode) == (ring + 3, 4, 3)


def test_a_lost_step_is_mirrored() -> None:
    lanes = block(frame_stack=3)
    ring, mirror = lanes.geometry.ring_rows, lanes.geometry.mirror_rows
    writer = LaneWriter(lanes, 0)
    write(writer, [ring - 3])  # its final row is the ring's last
    assert writer.row % ring == 0
    writer.begin_episode(value(50))
    writer.lose(9)
    assert lanes.rows[0, 0]["kind"] == LOST
    assert lanes.rows[0, ring : ring + 1].tobytes() == lanes.rows[0, :1].tobytes()
    assert mirror >= 1


def test_lanes_are_apart() -> None:
    lanes = block(lanes=3)
    write(LaneWriter(lanes, 1), [5])
    assert lanes.rows["kind"][[0, 2]].sum() == 0
    assert lanes.rows_written.tolist() == [0, 6, 0]


@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (4, 1), (1, 3), (3, 3)])
def test_the_mirror_repeats_the_first_rows_after_every_step(frame_stack: int, n_step: int) -> None:
    lanes = block(frame_stack=frame_stack, n_step=n_step)
    g = lanes.geometry
    writer = LaneWriter(lanes, 0)
    for number in range(5 * g.ring_rows):
        if number % 3 == 0:
            writer.begin_episode(value(number))
        writer.step([np.int64(1)], 1.0, (number % 3 == 2, False), value(number + 0.5), 0)
        rows = lanes.rows[0]
        assert rows[: g.mirror_rows].tobytes() == rows[g.ring_rows :].tobytes()


def test_the_observation_behind_the_rings_end_is_also_at_its_beginning() -> None:
    lanes = block()
    ring = lanes.geometry.ring_rows
    writer = LaneWriter(lanes, 0)
    writer.begin_episode(value(0))
    for number in range(1, ring + 1):
        writer.step([np.int64(1)], 1.0, RUNNING, value(number), 0)
    assert lanes.rows[0, 0]["obs"].tolist() == [ring, ring]
    assert lanes.rows[0, 1]["obs"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("space", "good", "bad", "found"),
    [
        (spaces.Discrete(3), np.int64(2), np.int32(2), "4 bytes"),
        (OBS, np.zeros(2, np.float32), np.zeros(2, np.float64), "16 bytes"),
        (OBS, np.zeros(2, np.float32), np.zeros(1, np.float32), "4 bytes"),
    ],
)
def test_what_has_not_the_size_of_its_field_is_refused_and_changes_nothing(
    space: spaces.Space[Any], good: Any, bad: Any, found: str
) -> None:
    lanes = block(obs=space)
    writer = LaneWriter(lanes, 0)
    writer.begin_episode([good])
    before = bytes(lanes.buffer)
    with pytest.raises(ObservationMismatch, match=f"obs has not the size its space declares\n.*\n  found: {found}"):
        writer.step([np.int64(1)], 1.0, RUNNING, [bad], 0)
    assert (bytes(lanes.buffer), writer.row, writer.transitions, writer.t) == (before, 0, 0, 0)


def test_an_action_that_would_be_cut_is_refused() -> None:
    writer = LaneWriter(block(), 0)
    writer.begin_episode(value(0))
    with pytest.raises(ObservationMismatch) as caught:
        writer.step([np.zeros(2)], 1.0, RUNNING, value(1), 0)
    assert str(caught.value) == (
        "[ENV-002] action has not the size its space declares\n"
        "  expected: int64 of shape (), 8 bytes\n"
        "  found: 16 bytes\n"
        "  fix: return values of the space's own dtype and shape"
    )


def test_a_missing_part_of_an_observation_is_refused() -> None:
    writer = LaneWriter(block(obs=spaces.Tuple((OBS, OBS))), 0)
    writer.begin_episode(value(0) * 2)
    with pytest.raises(ObservationMismatch, match=r"expected: obs.0, obs.1\n  found: 1 parts"):
        writer.step([np.int64(1)], 1.0, RUNNING, value(1), 0)


def test_a_beginning_with_a_missing_part_is_refused() -> None:
    writer = LaneWriter(block(obs=spaces.Tuple((OBS, OBS))), 0)
    with pytest.raises(ObservationMismatch, match=r"expected: obs.0, obs.1\n  found: 1 parts"):
        writer.begin_episode(value(0))
    assert writer.episode == -1


def test_an_episode_does_not_begin_inside_another() -> None:
    writer = LaneWriter(block(), 0)
    writer.begin_episode(value(0))
    writer.step([np.int64(1)], 1.0, RUNNING, value(1), 0)
    with pytest.raises(DataLossError, match="neither ended nor been cut"):
        writer.begin_episode(value(2))


def test_an_episode_without_a_step_may_be_begun_anew() -> None:
    lanes = block()
    writer = LaneWriter(lanes, 0)
    writer.begin_episode(value(0))
    writer.begin_episode(value(4))
    writer.step([np.int64(1)], 1.0, ENDED, value(5), 0)
    assert lanes.rows[0, :2]["obs"][:, 0].tolist() == [4, 5]


def test_a_lane_that_was_not_salvaged_gets_no_second_writer() -> None:
    lanes = block()
    writer = LaneWriter(lanes, 0)
    writer.begin_episode(value(0))
    writer.step([np.int64(1)], 1.0, RUNNING, value(1), 0)
    with pytest.raises(DataLossError, match="salvage the lane"):
        LaneWriter(lanes, 0)


def test_a_second_writer_goes_on_where_the_first_ended() -> None:
    lanes = block()
    write(LaneWriter(lanes, 0), [2, 3])
    writer = LaneWriter(lanes, 0)
    assert (writer.row, writer.transitions, writer.episode) == (7, 5, 1)
    write(writer, [1])
    assert lanes.rows[0, 7 % lanes.geometry.ring_rows]["episode"] == 2


def test_released_views_let_the_memory_go() -> None:
    lanes = block()
    memory = lanes.buffer.obj
    writer = LaneWriter(lanes, 0)
    write(writer, [3])
    writer.release()
    lanes.buffer.release()
    lanes.release()
    memory.append(0)  # refused while anything looks at the memory


def test_rows_that_somebody_holds_keep_the_memory() -> None:
    lanes = block()
    memory = lanes.buffer.obj
    write(LaneWriter(lanes, 0), [3])
    [rows] = lanes.pieces(0, 0, 3)
    window = lanes.windows(2)[1:2]
    lanes.buffer.release()
    lanes.release()
    with pytest.raises(BufferError):
        memory.append(0)
    assert rows["obs"][:, 0].tolist() == [0, 1, 2]
    assert window.view(row_dtype(leaves(OBS, "obs"), leaves(spaces.Discrete(9), "action")))["obs"][:, 0].tolist() == [
        1,
        2,
    ]


@pytest.mark.parametrize("told", [(), (LOGPROB,)], ids=["alone", "told"])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_short_way_for_an_observation_of_one_array_stores_the_same_bytes(
    frame_stack: int, told: tuple[Leaf, ...]
) -> None:
    """Over wraps of the ring, mirrored rows and ends of episodes."""
    stored = []
    for short in (True, False):
        lanes = block(frame_stack=frame_stack, told=told)
        writer = LaneWriter(lanes, 0)
        assert writer.one_array
        for number in range(4 * lanes.geometry.ring_rows):
            if number % 4 == 0:
                writer.begin_episode(value(-number))
            ended = (number % 8 == 3, number % 8 == 7)
            did = [np.int64(number % 3), *(np.float32(-number) for _ in told)]
            if number % 3:
                writer.intend(did)
            if short:
                writer.step_array(did, 0.5 * number, ended, value(number)[0], number)
            else:
                writer.step(did, 0.5 * number, ended, value(number), number)
        stored.append((bytes(lanes.buffer), writer.row, writer.transitions, writer.t, writer.episode))
    assert stored[0] == stored[1]


def test_the_short_way_refuses_a_wrong_size_too() -> None:
    writer = LaneWriter(block(), 0)
    writer.begin_episode(value(0))
    for steps in range(3):  # the first one goes the long way, because its row is mirrored
        with pytest.raises(ObservationMismatch, match="obs has not the size"):
            writer.step_array([np.int64(1)], 0.0, RUNNING, np.zeros(3, np.float32), 0)
        with pytest.raises(ObservationMismatch, match="action has not the size"):
            writer.step_array([np.int32(1)], 0.0, RUNNING, value(1)[0], 0)
        assert writer.transitions == steps
        writer.step_array([np.int64(1)], 0.0, RUNNING, value(1)[0], 0)


def test_what_is_told_of_an_action_is_refused_where_it_has_another_size() -> None:
    writer = LaneWriter(block(told=(LOGPROB,)), 0)
    writer.begin_episode(value(0))
    for did, found in (([np.int64(1), np.float64(0)], "8 bytes"), ([np.int64(1)], "1 parts")):
        for write_it in (writer.intend, lambda did: writer.step_array(did, 0.0, RUNNING, value(1)[0], 0)):
            with pytest.raises(ObservationMismatch, match=f"found: {found}"):
                write_it(did)
    assert writer.transitions == 0


class Watched:
    """A lane's header that remembers what the whole lane held whenever its row number moved."""

    def __init__(self, header: memoryview, rows: np.ndarray[Any, Any]) -> None:
        self._header, self._rows = header, rows
        self.held: list[bytes] = []

    def __getitem__(self, place: int) -> int:
        return int(self._header[place])

    def __setitem__(self, place: int, number: int) -> None:
        self._header[place] = number
        if place == 0:
            self.held.append(self._rows.tobytes())


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_row_number_moves_last(frame_stack: int, *, short: bool) -> None:
    """There is no lock: whoever sees the number sees all that it stands for, also the mirror and the ends of episodes."""
    lanes = block(frame_stack=frame_stack)
    writer = LaneWriter(lanes, 0)
    header = writer._number
    writer._number = watched = Watched(header, lanes.rows[0])  # type: ignore[assignment]
    for number in range(4 * lanes.geometry.ring_rows):
        if number % 4 == 0:
            writer.begin_episode(value(-number))
        assert watched.held == [], "an observation an episode begins with is no complete row"
        ended = (number % 8 == 3, number % 16 == 7)
        if number % 16 == 15:
            writer.lose(number)
        elif short:
            writer.step_array([np.int64(number % 3)], 0.5 * number, ended, value(number)[0], number)
        else:
            writer.step([np.int64(number % 3)], 0.5 * number, ended, value(number), number)
        whole = [lanes.rows[0].tobytes()]
        assert watched.held == whole, "the row number moved before the row was whole"
        watched.held.clear()
    writer._number = header


def test_what_is_intended_is_there_before_it_is_done_and_makes_no_row() -> None:
    lanes = block()
    writer = LaneWriter(lanes, 0)
    writer.begin_episode(value(0))
    writer.intend([np.int64(5)])
    assert lanes.rows[0, 0]["action"] == 5
    assert (lanes.rows_written[0], writer.row, writer.t) == (0, 0, 0)
    writer.step([np.int64(3)], 1.0, RUNNING, value(1), 7)
    writer.intend([np.int64(6)])
    assert lanes.rows[0, :2]["action"].tolist() == [3, 6]
    assert lanes.rows[0, :2]["kind"].tolist() == [STEP, 0]


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(
    "space", [spaces.Box(-9, 9, (2,)), spaces.MultiDiscrete([9, 9]), spaces.Dict({"a": spaces.Box(-9, 9, (2,))})]
)
def test_what_is_stored_is_what_was_intended_whatever_is_made_of_it_since(space: spaces.Space, short: bool) -> None:
    """Over wraps of the ring, mirrored rows and ends of episodes: environments write into the arrays they are given."""
    action = leaves(space, "action")
    geometry = Geometry(1, 6, leaves(OBS, "obs"), action, 2, 1)
    lanes = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    lanes.begin()
    writer = LaneWriter(lanes, 0)
    for number in range(3 * geometry.ring_rows):
        if number % 4 == 0:
            writer.begin_episode(value(-number))
        does = [np.full(2, number % 9, action[0].dtype)]
        row = writer.row
        writer.intend(does)
        does[0].fill(1)
        ended = (number % 8 == 3, number % 8 == 7)
        if short:
            writer.step_array(does, 0.0, ended, value(number)[0], 0)
        else:
            writer.step(does, 0.0, ended, value(number), 0)
        assert lanes.rows[0, row % geometry.ring_rows][action[0].path].tolist() == [number % 9] * 2


def test_an_intention_of_many_leaves_and_of_a_wrong_size() -> None:
    action = leaves(spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)}), "action")
    geometry = Geometry(1, 6, leaves(OBS, "obs"), action, 2, 1)
    lanes = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    lanes.begin()
    writer = LaneWriter(lanes, 0)
    writer.begin_episode(value(0))
    writer.intend([np.ones(2, np.float32), np.int64(2)])
    assert (lanes.rows[0, 0]["action.a"].tolist(), lanes.rows[0, 0]["action.b"]) == ([1.0, 1.0], 2)
    with pytest.raises(ObservationMismatch, match="has not the size"):
        writer.intend([np.ones(3, np.float32), np.int64(1)])
    assert lanes.rows[0, 0]["action.b"] == 2
    single = LaneWriter(block(), 0)
    with pytest.raises(ObservationMismatch, match="has not the size"):
        single.intend([np.int32(5)])
