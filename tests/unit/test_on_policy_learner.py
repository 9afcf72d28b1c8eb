"""The on-policy learner, a commit and an update a call: what is due, what is counted, what is known again."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import DataLossError
from headrace.lanes.rate_limiter import RateLimiter
from headrace.learners.base import LearnerParts
from headrace.learners.on_policy import OnPolicyLearner
from headrace.telemetry.board import Board
from headrace.weights.snapshot import SnapshotLayout, Snapshots
from rollout_support import GROUPS, World

UPDATES = 3


class FakeAlgorithm:
    """Makes three updates of each rollout."""

    def __init__(self) -> None:
        self.updates = self.left = 0
        self.begun = []
        self.seen: list[int] = []

    @property
    def pending(self) -> bool:
        return self.left > 0

    def begin(self, rollout) -> None:
        assert not self.pending
        self.begun.append(rollout)
        self.left = UPDATES

    def update(self) -> None:
        assert self.pending
        self.updates += 1
        self.left -= 1

    def observe(self, obs, env_steps, policies=None) -> None:
        self.seen += obs["obs"][:, 0].astype(int).tolist()

    def policy_arrays(self):
        return {"bias": np.full(1, float(self.updates))}

    def state(self):
        return {"updates": np.array([self.updates])}

    def load_state(self, arrays) -> None:
        self.updates = int(arrays["updates"][0])


class Bench:
    """A learner over the lanes of a `World`, which writes them."""

    def __init__(self, board: Board, world: World | None = None) -> None:
        self.world = world or World(window=3)
        self.algorithm = FakeAlgorithm()
        layout = SnapshotLayout.of(self.algorithm.policy_arrays())
        parts = LearnerParts(
            replay=self.world.replay,
            snapshots=Snapshots(layout, memoryview(bytearray(layout.nbytes))),
            limiter=RateLimiter(learning_starts=1, ratio=1.0, slack_steps=8, target_steps=100),
            groups=GROUPS,
            slot=board.slot("learner"),
        )
        self.learner = OnPolicyLearner(parts, self.algorithm, self.world.rollouts)

    def commit(self, group: int, steps: str, version: int = 1) -> None:
        self.learner.commit(self.world.collect(group, steps, version))

    def die(self, group: int, steps: str) -> int:
        """A collector that dies after these steps of each lane, and another one in its place; what is salvaged."""
        self.world.begin_chunk(group)
        for lane in GROUPS[group]:
            self.world.write(lane, steps)
        found = self.learner.salvage(group)
        self.world.replaced(group)
        return found

    def train(self) -> int:
        """The updates of a rollout; how many there are."""
        before = self.learner.updates
        self.learner.round_over()
        while self.learner.due:
            self.learner.update()
        self.learner.publish()
        return self.learner.updates - before


@pytest.fixture
def board(tmp_path):
    with Board.create(tmp_path / "board", [("learner", "learner")]) as board:
        yield board


@pytest.fixture
def bench(board):
    return Bench(board)


def test_nothing_is_due_before_the_round_is_over(bench):
    learner = bench.learner
    learner.round_over()
    assert not learner.due  # nothing has arrived
    bench.commit(0, "....")
    bench.commit(1, "....")
    assert not learner.due
    assert not bench.algorithm.begun
    learner.round_over()
    assert learner.due
    assert learner.at_rest


def test_an_epoch_set_is_finished_one_update_a_call(bench):
    learner = bench.learner
    bench.commit(0, "....")
    learner.round_over()
    told = []
    for _ in range(UPDATES):
        learner.update()
        told.append((learner.updates, learner.due, learner.at_rest, len(learner.arrived)))
    assert told == [(1, True, False, 0), (2, True, False, 0), (3, False, True, 0)]
    assert (learner.first_update_at, learner.sampled, learner.asked_updates) == (8, 8, 3)


def test_what_arrives_in_an_epoch_set_waits_for_its_own_round(bench):
    learner = bench.learner
    bench.commit(0, "....")
    learner.round_over()
    learner.update()
    bench.commit(1, "....")
    learner.update()
    learner.update()
    assert not learner.due
    assert [one.group for one in learner.arrived] == [1]
    assert bench.train() == UPDATES
    assert [rollout.lanes.tolist() for rollout in bench.algorithm.begun] == [[0, 1], [2]]


def test_an_update_of_nothing_is_refused(bench):
    with pytest.raises(DataLossError, match="a rollout was asked for, and nothing has arrived"):
        bench.learner.update()


def test_a_rollout_without_a_step_makes_no_update_and_its_rows_leave(board):
    """Of the whole episodes that it is made of none is over."""
    bench = Bench(board, World(whole_episodes=True, kept_rows=20))
    bench.commit(1, "....")
    bench.learner.round_over()
    assert bench.learner.due
    bench.learner.update()
    assert (bench.learner.updates, bench.learner.due, len(bench.learner.arrived)) == (0, False, 0)
    assert bench.learner.first_update_at is None
    bench.commit(1, "t...")
    assert bench.train() == UPDATES
    assert bench.learner.sampled == 5


def test_lag_is_counted_for_each_transition_when_its_rollout_is_gathered(bench):
    learner = bench.learner
    learner.publish()
    for group, version in ((0, 1), (0, 1), (1, 1)):
        bench.commit(group, "..u.", version)
    assert learner.lag.transitions == 0  # how late they come is not known yet
    bench.train()
    assert (learner.lag.total, learner.lag.transitions, learner.lag.max) == (0, 12, 0)
    bench.commit(1, "..l.", version=2)
    bench.train()  # with 8 of version 1, and 3 of the newest
    assert (learner.version, learner.lag.total, learner.lag.transitions, learner.lag.max) == (3, 8, 23, 1)
    assert learner.sampled == 23


def test_what_is_salvaged_counts_as_a_chunk(bench):
    bench.commit(0, "....")
    assert bench.die(1, "...") == 3
    assert [(one.group, one.chunk, one.version) for one in bench.learner.arrived] == [(0, 0, 1), (1, 0, 1)]
    assert bench.train() == UPDATES
    (rollout,) = bench.algorithm.begun
    assert rollout.lanes.tolist() == [0, 1, 2]
    assert rollout.episode_ended.sum(axis=0).tolist() == [0, 0, 1]
    assert bench.die(1, "") == 0
    assert not bench.learner.arrived


def test_a_cut_without_a_step_stands_behind_the_chunk_whose_episode_it_ends(board):
    """Its rows end at a lap's beginning: a chunk that came before and is gathered after it would be nearly all of the ring."""
    world = World(window=3, order="arrival", whole_episodes=True, kept_rows=20)
    bench = Bench(board, world)
    ring = world.geometry.ring_rows
    for _ in range(ring // 5 - 1):
        bench.commit(1, "...t")
        bench.train()
    assert world.replay.books.row[2] == ring - 5
    bench.commit(0, "..t.")
    bench.commit(1, "....")
    assert bench.die(1, "") == 0
    bench.train()
    assert not bench.learner.arrived
    for rollout in bench.algorithm.begun:
        counts = dict(zip(rollout.lanes.tolist(), rollout.valid.sum(axis=0).tolist(), strict=True))
        world.check(rollout, world.take(counts))
    assert bench.algorithm.begun[-1].lanes.tolist() == [0, 1, 2]
    assert (world.replay.books.resident_from <= world.replay.books.row).all()
    world.check_books()


def test_a_cut_that_nothing_of_its_group_waits_for_is_as_old_as_the_episode_it_ends(board):
    bench = Bench(board, World(window=3, order="arrival", whole_episodes=True, kept_rows=20))
    bench.commit(1, "....", version=4)
    assert bench.train() == 0
    assert bench.die(1, "") == 0
    assert [one.version for one in bench.learner.arrived] == [4]
    assert bench.train() == UPDATES


def test_every_observation_that_was_acted_on_is_shown_once_when_it_arrives(bench):
    bench.commit(1, ".t..")
    bench.commit(1, "....")
    assert bench.algorithm.seen == [20001, 20002, 20004, 20005, 20006, 20007, 20008, 20009]


def test_a_restored_learner_goes_on_with_what_had_arrived(bench, board):
    bench.learner.publish()
    bench.commit(0, "....")
    bench.train()
    bench.commit(1, "....")
    bench.commit(0, "....")
    learner = bench.learner
    state = learner.state().copy()
    assert state.facts["arrived"] == [[1, 0, 1, [4]], [0, 1, 1, [8, 8]]]
    other = Bench(board, bench.world)
    bench.world.rollouts.load_state([])
    other.learner.restore(state, {"bias": np.full(1, 3.0)}, learner.running_from)
    assert [(one.group, one.chunk, one.stops) for one in other.learner.arrived] == [(1, 0, (4,)), (0, 1, (8, 8))]
    assert not other.learner.due
    for name in ("updates", "env_steps", "sampled", "lag", "version", "first_update_at"):
        assert getattr(other.learner, name) == getattr(learner, name), name
    assert [other.train(), other.train()] == [UPDATES, UPDATES]
    assert [rollout.lanes.tolist() for rollout in other.algorithm.begun] == [[2], [0, 1]]
