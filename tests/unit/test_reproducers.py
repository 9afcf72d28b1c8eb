"""What is read out of a lane after its worker is gone: no process, only its memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.core import seeding
from headrace.core.errors import EnvironmentRaised, NonFiniteValue
from headrace.core.specs import Leaf
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.lanes.replay import LaneBooks
from headrace.runtime.config import load_config
from headrace.runtime.payloads import Basics
from headrace.runtime.reproducers import reproducer, write_reproducer
from headrace.supervision.spec import Exited
from headrace.testing.reproduce import read_reproducer

CHUNK = 4


class Lane:
    """Lane 1 of two, written as a collector writes it; its ring holds sixteen rows and more."""

    def __init__(self, group_size: int = 1) -> None:
        leaf = np.dtype(np.float32)
        action = (Leaf("action.a", leaf, (2,), ("a",)), Leaf("action.b", np.dtype(np.int64), (), ("b",)))
        self.geometry = Geometry(2, 32, (Leaf("obs", leaf, (1,)),), action, CHUNK, 2)
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.books = LaneBooks(self.block)
        self.writer = LaneWriter(self.block, 1)
        settings = {"env.id": "Pendulum-v1", "env.lanes": 2, "env.group_size": group_size, "run.seed": 5}
        config = load_config(None, {**settings, "run.collectors": 1, "collect.chunk_steps": CHUNK})
        self.basics = Basics(config, Path("board"))

    def obs(self) -> list[np.ndarray]:
        return [np.zeros(1, np.float32)]

    def action(self, number: int) -> list[np.ndarray]:
        return [np.full(2, number / 8, np.float32), np.int64(number)]

    def steps(self, count: int, *, ends: bool = False) -> None:
        """So many steps, numbered in the lane; a chunk begins with every fourth."""
        for step in range(count):
            if self.writer.transitions % CHUNK == 0:
                self.block.chunk_begun[1] = self.writer.transitions // CHUNK, self.writer.row
            number = self.writer.transitions + 1
            self.writer.intend(self.action(number))
            self.writer.step(self.action(number), 0.0, (ends and step == count - 1, False), self.obs(), 1)

    def found(self, streams=0, **facts):
        how = {"id": "collector-0", "exit_code": -9, "how": "killed by SIGKILL", "call": "step", "lane": 1, "step": 0}
        return reproducer(Exited(**how | facts), self.basics, self.block, self.books, streams)


def test_actions_of_the_running_episode_and_the_one_that_never_returned():
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    lane.steps(5, ends=True)
    lane.writer.begin_episode(lane.obs())
    lane.steps(2)
    lane.writer.intend(lane.action(8))
    found = lane.found(streams=2, incarnation=1)
    assert found.actions == {"action.a": [[n / 8, n / 8] for n in (6, 7, 8)], "action.b": [6, 7, 8]}
    assert (found.episode, found.steps, found.complete, found.kind) == (1, 3, True, "signal")
    assert found.seed == seeding.integer(5, "environment", 1, 1)
    assert found.incarnation == 1, "of the process; where a session goes on, the streams have another one"
    assert found.construct_seed == seeding.integer(5, "construct-global", 1, 2)
    # The episode began at the second step of chunk 1, and has seen no other.
    assert found.global_seeds == [(-1, seeding.integer(5, "global", 1, 2, 1))]
    assert not found.exact


def test_seeds_of_every_chunk_of_an_episode_that_began_with_one():
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    lane.steps(4, ends=True)
    lane.block.chunk_begun[1] = 1, lane.writer.row
    lane.writer.begin_episode(lane.obs())
    lane.steps(9)
    lane.writer.intend(lane.action(14))
    found = lane.found()
    assert [t for t, _ in found.global_seeds] == [-1, 4, 8]
    assert [seed for _, seed in found.global_seeds] == [
        seeding.integer(5, "global", 1, 0, chunk) for chunk in (1, 2, 3)
    ]
    assert found.exact


def test_lanes_of_a_group_share_their_generators():
    lane = Lane(group_size=2)
    lane.writer.begin_episode(lane.obs())
    lane.writer.intend(lane.action(1))
    found = lane.found()
    assert found.global_seeds == [(-1, seeding.integer(5, "global", 0, 0, 0))]
    assert not found.exact


def test_an_episode_that_wraps_around_the_ring_and_one_that_no_longer_fits():
    lane = Lane()
    ring = lane.geometry.ring_rows
    lane.writer.begin_episode(lane.obs())
    lane.steps(7, ends=True)
    lane.writer.begin_episode(lane.obs())
    lane.steps(ring - 2)
    lane.writer.intend(lane.action(7 + ring - 1))
    assert lane.found().actions["action.b"] == list(range(8, 7 + ring))
    assert lane.found().complete
    lane.steps(5)
    lane.writer.intend(lane.action(7 + ring + 4))
    found = lane.found()
    assert found.actions["action.b"] == list(range(7 + 5, 7 + ring + 5))
    assert not found.complete


def test_a_reset_has_a_seed_and_no_actions():
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    lane.steps(4, ends=True)
    found = lane.found(call="reset")
    assert (found.episode, found.steps, found.complete) == (1, 0, True)
    assert found.seed == seeding.integer(5, "environment", 1, 1)


@pytest.mark.parametrize(
    ("step", "facts", "call"), [(5, {}, "step"), (4, {}, "reset"), (4, {"phase": "construct"}, "construct")]
)
def test_what_was_raised_tells_in_which_call(step, facts, call):
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    lane.steps(4)
    lane.writer.intend(lane.action(5))
    error = EnvironmentRaised("it raised ValueError", error="ValueError: tile 7", **facts, fix="mend it")
    found = lane.found(call="raised", step=step, error=error, exit_code=1)
    assert (found.call, found.kind, found.error) == (call, "raised", "ValueError: tile 7")


@pytest.mark.parametrize(
    "facts",
    [
        {"call": None},
        {"call": "close"},
        {"lane": -1},
        {"lane": 2},
        {"call": "raised", "step": 1, "error": NonFiniteValue("reward is nan", fix="mend it")},
    ],
)
def test_where_no_call_is_to_blame_nothing_is_kept(facts):
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    assert lane.found(**facts) is None


def test_file_reads_back_the_same(tmp_path):
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    lane.steps(3)
    lane.writer.intend(lane.action(4))
    found = lane.found(stalled="env.step for 31 s (limit 30 s), lane 1, step 3")
    path = write_reproducer(tmp_path / "reproducers", found)
    assert path == tmp_path / "reproducers" / "collector-0-lane-1-0.json"
    assert json.loads(path.read_text())["actions"] == found.actions
    again = read_reproducer(path)
    assert (again.kind, again.env["id"], again.actions) == ("hang", "Pendulum-v1", found.actions)


def test_a_disk_that_refuses_costs_the_file_alone(tmp_path):
    lane = Lane()
    lane.writer.begin_episode(lane.obs())
    (tmp_path / "reproducers").write_text("no folder")
    assert write_reproducer(tmp_path / "reproducers", lane.found()) is None
