"""One commit a call, one update a call: what is counted, and when something is due."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core import seeding
from headrace.core.errors import DataLossError
from headrace.core.specs import Leaf
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import UniformSampler
from headrace.learners.base import LearnerParts, PolicyLag
from headrace.learners.learner import Learner
from headrace.telemetry.board import Board
from headrace.weights.snapshot import SnapshotLayout, Snapshots


class FakeAlgorithm:
    def __init__(self) -> None:
        self.updates = 0
        self.batches = []
        self.observed: list[tuple[list[float], int]] = []

    def update(self, batch) -> None:
        self.updates += 1
        self.batches.append(batch)

    def observe(self, obs, env_steps, policies=None) -> None:
        self.observed.append((obs["obs"][:, 0].tolist(), env_steps))

    def policy_arrays(self):
        return {"bias": np.full(1, float(self.updates))}


class Bench:
    """A learner of two groups with one lane each."""

    def __init__(self, board: Board) -> None:
        obs, action = (Leaf(name, np.dtype(np.float32), (1,)) for name in ("obs", "action"))
        geometry = Geometry(2, 100, (obs,), (action,), 8, 2)
        self.block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        self.block.begin()
        self.writers = [LaneWriter(self.block, lane) for lane in (0, 1)]
        self.algorithm = FakeAlgorithm()
        layout = SnapshotLayout.of(self.algorithm.policy_arrays())
        replay = Replay(self.block)
        self.board, self.slot = board, board.slot("learner")
        self.learner = Learner(
            LearnerParts(
                replay=replay,
                snapshots=Snapshots(layout, memoryview(bytearray(layout.nbytes))),
                limiter=RateLimiter(learning_starts=6, ratio=0.5, slack_steps=8, target_steps=100),
                groups=((0,), (1,)),
                slot=self.slot,
            ),
            self.algorithm,
            UniformSampler(replay, seeding.generator(0, "sampling")),
            batch_size=4,
            gamma=0.9,
        )

    def write(self, lane: int, steps: int) -> int:
        """Steps of a lane whose observations count up; the row they began at."""
        writer = self.writers[lane]
        start = writer.row
        if writer.t == 0:
            writer.begin_episode([np.zeros(1, np.float32)])
        for _ in range(steps):
            obs = np.full(1, writer.t + 1, np.float32)
            writer.step([np.zeros(1, np.float32)], 1.0, (False, False), [obs], 1)
        return start

    def end(self, lane: int) -> None:
        """Begin another episode in a lane, after one that has just ended."""
        writer = self.writers[lane]
        writer.step([np.zeros(1, np.float32)], 1.0, (True, False), [np.zeros(1, np.float32)], 1)
        writer.begin_episode([np.zeros(1, np.float32)])

    def commit(
        self, lane: int, steps: int, *, version: int = 1, start: int | None = None, running: bool = True
    ) -> None:
        begun, transitions = self.write(lane, steps), self.writers[lane].transitions
        start = begun if start is None else start
        row = self.writers[lane].row
        made = transitions - self.learner.replay.books.transitions_before(lane, start)
        part = LaneCommit(row, made, self.block.checksum(lane, start, row), running)
        self.learner.commit(Commit(0, lane, 0, version, last=False, lanes=(part,)))


@pytest.fixture
def bench(tmp_path):
    with Board.create(tmp_path / "board", [("learner", "learner")]) as board:
        yield Bench(board)


def test_first_update_is_due_when_enough_is_stored_and_others_follow_the_ratio(bench):
    learner = bench.learner
    bench.commit(0, 5)
    assert not learner.due
    bench.commit(1, 5)
    made = 0
    while learner.due:
        learner.update()
        made += 1
    assert made == 1 + (10 - 6) // 2
    assert (learner.first_update_at, learner.sampled, learner.env_steps) == (10, 12, 10)


def test_algorithm_sees_every_observation_that_was_acted_on_once(bench):
    bench.commit(0, 3)
    bench.commit(0, 2)
    assert bench.algorithm.observed == [([0.0, 1.0, 2.0], 3), ([3.0, 4.0], 5)]


def test_salvaged_transitions_count_like_committed_ones(bench):
    bench.commit(1, 4)
    bench.write(1, 3)
    assert bench.learner.salvage(1) == 3
    assert bench.learner.env_steps == 7
    assert bench.learner.episodes.cut == 1
    assert bench.algorithm.observed[-1] == ([4.0, 5.0, 6.0], 7)


def test_rows_that_are_not_those_that_were_committed_are_refused(bench):
    bench.write(0, 3)
    with pytest.raises(DataLossError, match="the rows of lane 0 differ from what its collector committed"):
        bench.learner.commit(Commit(0, 0, 0, 1, last=False, lanes=(LaneCommit(3, 3, 12345),)))
    assert bench.learner.env_steps == 0


def test_where_an_episode_began_is_known_when_its_first_rows_are_gone(bench):
    learner = bench.learner
    assert learner.running_from == [-1, -1]
    bench.commit(0, 5)
    start = bench.write(0, 1)
    bench.end(0)  # seven steps, and the row that ends the episode
    bench.commit(0, 2, start=start)
    assert learner.running_from == [8, -1]
    for _ in range(3 * bench.block.geometry.ring_rows // 8):
        bench.commit(0, 8)
    assert learner.running_from == [8, -1]
    learner.salvage(0)
    assert learner.running_from == [-1, -1]


def test_whether_an_episode_is_running_is_for_its_collector_to_say(bench):
    """Of many agents the next ones may come in the step in which all others end, and have no row yet."""
    bench.commit(0, 5)
    bench.commit(1, 5)
    bench.commit(0, 0, running=False)
    assert bench.learner.running_from == [-1, 0]
    bench.commit(0, 0)
    assert bench.learner.running_from == [0, 0]


def test_policy_is_published_once_per_state(bench):
    assert [bench.learner.publish(), bench.learner.publish()] == [1, 1]
    bench.commit(0, 8)
    bench.learner.update()
    assert bench.learner.publish() == 2


def test_a_successor_tells_its_own_updates_not_those_that_died_with_the_other_learner(bench):
    bench.slot.count("updates", 150)
    bench.learner.resume(None)
    assert bench.board.read("learner").counters["updates"] == 0


def test_lag_is_weighted_by_transitions(bench):
    bench.learner.publish()
    bench.commit(0, 6)
    bench.learner.update()
    bench.learner.publish()
    bench.commit(1, 2, version=1)
    assert (bench.learner.lag.mean, bench.learner.lag.max) == (2 / 8, 1)
    assert PolicyLag().mean is None
