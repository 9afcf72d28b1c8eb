"""A group whose lanes are agents: what is written while they come and go, and how a copy is brought back."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms.configs import PriorityConfig
from headrace.collectors.collector import Collector
from headrace.collectors.copies import stand_in
from headrace.collectors.restoring import Episodes
from headrace.collectors.stepping import Group
from headrace.core import seeding
from headrace.core.errors import EnvironmentRaised, EpisodeNotRestored, NonFiniteValue, ObservationMismatch
from headrace.core.specs import leaves
from headrace.envs.agents import ParallelCopy, Seat
from headrace.lanes.derive import transitions
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import ABSENT, CUT, FINAL, STEP, Geometry, steps_among
from headrace.lanes.prioritised import PrioritisedSampler
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import UniformSampler
from headrace.lanes.several import SeveralSamplers
from headrace.learners.episodes import EpisodeBooks
from headrace.telemetry.board import Board
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import agent_envs

AGENTS, COPIES = 3, 2
LANES = AGENTS * COPIES


class Noise:
    """Exploration that only counts; the action it gives is of the lane and the step."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.carry = np.zeros(0, np.float32)
        self.generator = generator

    def begin_episode(self) -> None:
        pass


class Chooser:
    """An actor that draws one action per lane from the lane's own stream, and remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[np.ndarray] = []

    def load(self, arrays) -> None:
        pass

    def noise(self, generator):
        return Noise(generator)

    def act(self, obs, noise=None):
        self.shown.append(obs["obs"].copy())
        return {"action": np.array([lane.generator.integers(3) for lane in noise], np.int64)}


class Bench:
    """A collector of two copies of three agents, and all it needs."""

    def __init__(self, tmp_path, make=agent_envs.comers, *, frame_stack: int = 1, random_steps: int = 0) -> None:
        self.make = make
        self.geometry = Geometry(
            lanes=LANES, capacity=6000, observation=leaves(agent_envs.OBSERVATION, "obs"),
            action=leaves(agent_envs.ACTION, "action"), chunk_steps=8, window_chunks=2, frame_stack=frame_stack,
        )  # fmt: skip
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        layout = SnapshotLayout.of({"bias": np.zeros(1)})
        self.snapshots = Snapshots(layout, memoryview(bytearray(layout.nbytes)))
        self.snapshots.publish({"bias": np.ones(1)})
        self.board = Board.create(tmp_path / "board", [("collector-0", "collector")])
        self.random_steps = random_steps
        self.running: list[bool] = []
        """Of each lane, what its newest commit says."""
        self.begin()

    def begin(self, *, resume: bool = False) -> None:
        self.envs = [self.make() for _ in range(COPIES)]
        copies = [ParallelCopy(env, "park") for env in self.envs]
        group = Group(0, tuple(range(LANES)), 3, 0, self.random_steps, "park")
        self.actor = Chooser()
        self.collector = Collector(
            group, [Seat(copy, agent) for copy in copies for agent in range(AGENTS)], self.block, self.actor,
            SnapshotReader(self.snapshots), self.board.slot("collector-0"), resume=resume,
        )  # fmt: skip

    def collect(self, chunk: int, steps: int = 8):
        commit = self.collector.collect(chunk, steps)
        for lane, part in enumerate(commit.lanes):
            self.replay.check(lane, part)
            self.replay.take_over(lane, part)
        self.running = [part.running for part in commit.lanes]
        return commit

    def rows(self, lane: int) -> np.ndarray:
        first = self.geometry.first_row
        return np.concatenate(self.block.pieces(lane, first, int(self.block.rows_written[lane])))

    def stored(self, copy: int) -> list[tuple]:
        """What the lanes of a copy hold, as `Comers.log` tells it, by agent."""
        found = []
        for agent, name in enumerate("abc"):
            lane = copy * AGENTS + agent
            number = int(self.block.rows_written[lane])
            rows = np.concatenate(self.block.pieces(lane, self.geometry.first_row, number + 1))
            for at in np.flatnonzero(rows["kind"][:-1] == STEP):
                row, after = rows[at], rows[at + 1]
                ends = bool(row["terminated"]), bool(row["truncated"])
                found.append((name, row["obs"], int(row["action"]), row["reward"], *ends, after["obs"]))
        return found


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(*args, **settings) -> Bench:
        made.append(Bench(tmp_path, *args, **settings))
        return made[-1]

    yield make
    for one in made:
        one.board.close()


def plain(log) -> list[tuple]:
    return [(name, *map(float, obs), action, reward, *ends, *map(float, after))
            for name, obs, action, reward, *ends, after in log]  # fmt: skip


def test_every_transition_of_every_agent_is_stored_and_no_other(bench):
    b = bench()
    for chunk in range(25):
        b.collect(chunk)
    for copy, env in enumerate(b.envs):
        assert len(env.seeds) > 10
        by_agent = sorted(env.log, key=lambda one: one[0])  # stable: each agent's in order
        assert plain(b.stored(copy)) == plain(by_agent)
        assert len(by_agent) > 150


def test_lanes_of_a_copy_have_as_many_steps_as_one_another(bench):
    b = bench()
    for chunk in range(20):
        b.collect(chunk)
    for lane in range(LANES):
        kinds = b.rows(lane)["kind"]
        assert steps_among(kinds).sum() == 160
        assert {STEP, FINAL, ABSENT} == set(kinds.tolist())
        away = b.rows(lane)[kinds == ABSENT]
        assert not away["obs"].any()
        assert not away["reward"].any()
        assert not away["t"].any()


def test_episodes_are_numbered_together_and_seeded_by_their_number(bench):
    b = bench()
    for chunk in range(20):
        b.collect(chunk)
    for copy, env in enumerate(b.envs):
        first = copy * AGENTS
        assert env.seeds == [seeding.integer(3, "environment", first, number) for number in range(len(env.seeds))]
        steps = [b.rows(first + agent) for agent in range(AGENTS)]
        numbers = [rows["episode"][steps_among(rows["kind"])].tolist() for rows in steps]
        assert numbers[0] == numbers[1] == numbers[2]
        assert b.block.episodes_begun[first : first + AGENTS].tolist() == [len(env.seeds)] * AGENTS


def test_agents_that_leave_and_end_at_different_times(bench):
    b = bench(agent_envs.leavers)
    b.collect(0, 5)
    transitions_of = [[5, 2, 4][lane % AGENTS] for lane in range(LANES)]
    assert [int((b.rows(lane)["kind"] == STEP).sum()) for lane in range(LANES)] == transitions_of
    returns = [b.rows(lane)["reward"].sum() for lane in range(LANES)]
    assert returns == [14.0, -4.0, 4.0] * COPIES
    assert b.replay.env_steps == 22
    books = EpisodeBooks(LANES, ["a", "b", "c"])
    for lane in range(LANES):
        for stretch in [type("S", (), {"lane": lane, "rows": [b.rows(lane)]})()]:
            books.add(stretch)
    assert (books.terminated, books.truncated, books.cut) == (4, 2, 0)
    assert books.by_agent()["b"] == {"episodes": 2, "mean_return": -4.0, "mean_length": 2.0}
    sampler = UniformSampler(b.replay, np.random.default_rng(0))
    seen = transitions(sampler.sample(512), b.geometry.observation, b.geometry.action, 1, 0.5)
    ends = seen.discount == 0.0
    assert set(seen.obs["obs"][ends, 0].tolist()) == {0.0, 1.0}  # a and b terminate; c may be bootstrapped from
    assert set(zip(seen.obs["obs"][:, 0].tolist(), seen.obs["obs"][:, 1].tolist(), strict=True)) == {
        *((0.0, float(t)) for t in range(5)), *((1.0, float(t)) for t in range(2)), *((2.0, float(t)) for t in range(4)),
    }  # fmt: skip


def test_stacks_never_reach_into_a_life_before(bench):
    b = bench(frame_stack=4)
    for chunk in range(20):
        b.collect(chunk)
    sampler = UniformSampler(b.replay, np.random.default_rng(0))
    seen = transitions(sampler.sample(2000), b.geometry.observation, b.geometry.action, 4, 0.5)
    for obs in (seen.obs["obs"], seen.next_obs["obs"]):  # [B, 4, 4]
        assert (obs[:, :, 0] == obs[:, :1, 0]).all()
        assert (obs[:, :, 2] == obs[:, :1, 2]).all()
        assert (np.diff(obs[:, :, 1], axis=1) >= 0).all()
        assert (np.diff(obs[:, :, 1], axis=1) <= 1).all()


def test_policies_see_one_whole_batch_in_which_someone_stands_in_for_those_that_are_away(bench):
    b = bench()
    for chunk in range(5):
        b.collect(chunk)
    shown = np.stack(b.actor.shown)
    assert shown.shape == (40, LANES, 4)
    kinds = np.stack([b.rows(lane)["kind"][steps_among(b.rows(lane)["kind"])] for lane in range(LANES)], axis=1)
    first = (kinds == STEP).argmax(axis=1)
    for step in range(40):
        for lane in np.flatnonzero(kinds[step] == ABSENT):
            assert (shown[step, lane] == shown[step, first[step]]).all()


def test_stand_in_leaves_an_empty_group_alone():
    shown = np.arange(4.0)
    stand_in([0, 1, 2, 3], shown)
    assert shown.tolist() == [0, 1, 2, 3]
    stand_in([0, 3], shown)
    assert shown.tolist() == [1, 1, 2, 1]


def test_batches_for_several_policies_hold_rows_of_their_own_lanes_alone(bench):
    b = bench()
    for chunk in range(10):
        b.collect(chunk)
    generator = np.random.default_rng(0)
    samplers = [UniformSampler(b.replay, generator, [lane, lane + AGENTS]) for lane in range(AGENTS)]
    several = SeveralSamplers(samplers)
    windows = several.sample(100)
    assert windows["obs"][:, 0, 0].tolist() == [0.0] * 100 + [1.0] * 100 + [2.0] * 100
    assert (b.replay.windows(several.places)["obs"] == windows["obs"]).all()
    assert several.rows == min(sampler.rows for sampler in samplers)
    state = {name: array.copy() for name, array in several.state().items()}
    where = generator.bit_generator.state
    after = [several.sample(100).tobytes() for _ in range(40)]
    generator.bit_generator.state = where
    again = SeveralSamplers([UniformSampler(b.replay, generator, [lane, lane + AGENTS]) for lane in range(AGENTS)])
    again.load_state(state, same_rows=True)
    assert [again.sample(100).tobytes() for _ in range(40)] == after


def test_a_sampler_is_ready_when_its_own_lanes_hold_a_transition(bench):
    b = bench(agent_envs.absentee)
    generator = np.random.default_rng(0)
    of_c, of_a = (UniformSampler(b.replay, generator, [lane, lane + AGENTS]) for lane in (2, 0))
    by_priority = [
        PrioritisedSampler(b.replay, generator, PriorityConfig(enabled=True), lanes) for lanes in ([2, 5], [0, 3])
    ]
    assert not of_a.ready
    b.collect(0)
    assert (of_a.ready, of_c.ready) == (True, False)
    assert of_c.rows == 2 * 8
    assert [sampler.ready for sampler in by_priority] == [False, True]
    assert SeveralSamplers([of_a, of_c]).wanting == [1]
    assert not SeveralSamplers([of_a, of_c]).ready
    drawn = by_priority[1].sample(64)
    assert set(drawn["obs"][:, 0, 0].tolist()) == {0.0}


@pytest.mark.table
def test_errors_of_each_policy_are_priorities_of_its_own_lanes(bench):
    b = bench()
    for chunk in range(10):
        b.collect(chunk)
    config, generator = PriorityConfig(enabled=True, alpha=1.0, floor=0.5), np.random.default_rng(0)
    samplers = [PrioritisedSampler(b.replay, generator, config, [lane, lane + AGENTS]) for lane in range(AGENTS)]
    several = SeveralSamplers(samplers)
    for _ in range(3):
        windows = several.sample(20)
        assert windows["obs"][:, 0, 0].tolist() == [0.0] * 20 + [1.0] * 20 + [2.0] * 20
        drawn = [sampler.drawn for sampler in samplers]
        several.learned(np.repeat([1.0, 20.0, 300.0], 20))
        for sampler, (lanes, rows), error in zip(samplers, drawn, (1.0, 20.0, 300.0), strict=True):
            np.testing.assert_array_equal(sampler.priorities(lanes, rows), error + 0.5)
    weights = several.weights(0)
    assert weights.shape == (60,)
    assert [part.max() for part in np.split(weights, 3)] == [1.0] * 3


@pytest.mark.parametrize(
    ("how", "error"), [("raises", EnvironmentRaised), ("ghost", ObservationMismatch), ("shape", ObservationMismatch)]
)
def test_a_fault_is_told_with_its_lane_and_nothing_of_its_step_is_kept(bench, how, error):
    b = bench(lambda: agent_envs.broken(how))
    with pytest.raises(error) as caught:
        b.collector.collect(0, 8)
    assert int(caught.value.facts["lane"]) == 0
    for lane in range(LANES):
        b.replay.salvage(lane)
    assert [(b.rows(lane)["kind"] == STEP).sum() for lane in range(LANES)] == [1] * LANES
    assert [int(b.rows(lane)["kind"][-1]) for lane in range(LANES)] == [CUT] * LANES
    b.make = agent_envs.leavers
    b.begin()  # another collector begins the next episode in every copy
    b.collect(1)
    for lane in range(LANES):
        rows = b.rows(lane)
        assert (
            rows["episode"][rows["kind"] == STEP].tolist()
            == [0] + [1] * [5, 2, 4][lane % 3] + [2] * [3, 2, 3][lane % 3]
        )


def test_a_number_that_is_not_finite_is_found_with_its_lane(bench):
    b = bench(lambda: agent_envs.broken("nan"))
    with pytest.raises(NonFiniteValue) as caught:
        b.collector.collect(0, 8)
    assert (int(caught.value.facts["lane"]), int(caught.value.facts["step"])) == (0, 2)
    for lane in range(LANES):
        b.replay.salvage(lane)
    for lane in range(LANES):
        assert np.isfinite(b.rows(lane)["reward"]).all()


def test_a_chunk_that_was_cut_short_between_two_lanes_is_made_again_as_it_was(bench, tmp_path):
    b = bench()
    b.collect(0)
    b.collector.collect(1, 5)
    want = [b.rows(lane).tobytes() for lane in range(LANES)]
    (tmp_path / "again").mkdir()
    other = Bench(tmp_path / "again")
    try:
        other.collect(0)
        other.collector.repeat(1, [5, 5, 4, 4, 4, 4])
        for lane, whole in enumerate([True, True, False, False, False, False]):
            rows = other.rows(lane).tobytes()
            assert rows == want[lane] if whole else want[lane].startswith(rows)
            assert steps_among(other.rows(lane)["kind"]).sum() == (13 if whole else 12)
    finally:
        other.board.close()


def episodes_in(b: Bench) -> Episodes:
    """As `refill` has them: of an agent that has just come the observation is not on record."""
    found = {}
    for lane in np.flatnonzero(b.running).tolist():
        rows = b.rows(lane)
        own = rows[rows["episode"] == rows["episode"][-1]]
        after = b.block.rows[lane, int(b.block.rows_written[lane]) % b.geometry.ring_rows]
        found[lane] = np.concatenate([own, [after if rows["kind"][-1] == STEP else np.zeros_like(after)]])
    return found


@pytest.mark.parametrize("make", [agent_envs.comers, agent_envs.relay], ids=["comers", "relay"])
@pytest.mark.parametrize("chunks", range(1, 12))
def test_a_copy_is_brought_back_into_its_episode_whoever_is_there(bench, tmp_path, chunks, make):
    whole = bench(make)
    for chunk in range(chunks + 6):
        whole.collect(chunk, 3)
    (tmp_path / "half").mkdir()
    half = Bench(tmp_path / "half", make)
    try:
        for chunk in range(chunks):
            half.collect(chunk, 3)
        episodes = episodes_in(half)
        for lane in range(LANES):  # what no committed row holds is not there after a resume
            last = half.rows(lane)["kind"][-1]
            if last != STEP:
                half.block.rows["obs"][lane, int(half.block.rows_written[lane]) % half.geometry.ring_rows] = 77.0
        half.begin(resume=True)
        half.collector.restore(episodes, lambda: False)
        for chunk in range(chunks, chunks + 6):
            half.collect(chunk, 3)
        for lane in range(LANES):
            assert half.rows(lane).tobytes() == whole.rows(lane).tobytes()
    finally:
        half.board.close()


def test_a_copy_that_does_something_else_is_not_brought_back(bench):
    b = bench()
    chunk = 0
    b.collect(chunk, 3)
    while not (episodes := episodes_in(b)):
        chunk += 1
        b.collect(chunk, 3)
    b.make = lambda: agent_envs.comers(length=2)
    b.begin(resume=True)
    with pytest.raises(EpisodeNotRestored):
        b.collector.restore(episodes, lambda: False)
    b.begin(resume=True)
    with pytest.raises(EpisodeNotRestored, match="no longer kept"):
        b.collector.restore({}, lambda: False)


def test_a_copy_in_which_all_end_as_others_come_goes_on(bench):
    """Its rows look like those of one that is over; what is running is told beside them."""
    b = bench(agent_envs.relay)
    b.collect(0, 4)
    assert [int(b.rows(lane)["kind"][-1]) for lane in range(LANES)] == [FINAL, ABSENT, ABSENT] * COPIES
    assert b.running == [True] * LANES
    episodes = episodes_in(b)
    b.begin(resume=True)
    with pytest.raises(EpisodeNotRestored, match="no longer kept"):
        b.collector.restore({lane: rows[:0] for lane, rows in episodes.items()}, lambda: False)
    b.make = lambda: agent_envs.relay(length=4)
    b.begin(resume=True)
    with pytest.raises(EpisodeNotRestored):
        b.collector.restore(episodes, lambda: False)
    b.make = ending_when_the_next_should_come
    b.begin(resume=True)
    with pytest.raises(EpisodeNotRestored, match="could not be brought back") as raised:
        b.collector.restore(episodes, lambda: False)
    assert raised.value.facts["problem"] == "its environment says that the episode is over"


def ending_when_the_next_should_come() -> agent_envs.Relay:
    env = agent_envs.relay()
    step = env.step

    def lonely(actions):
        found = step(actions)
        if env.turn == 4:
            env.agents = []
        return found

    env.step = lonely
    return env


def test_a_copy_that_is_over_is_not_brought_back(bench):
    b = bench(agent_envs.relay)
    b.collect(0, 12)
    assert b.running == [False] * LANES
    b.begin(resume=True)
    b.collector.restore(episodes_in(b), lambda: False)
    b.collect(1, 1)
    assert [len(env.seeds) for env in b.envs] == [1] * COPIES
    assert b.running == [True] * LANES


def test_random_steps_are_counted_by_lane(bench):
    b = bench(random_steps=10)
    for chunk in range(8):
        b.collect(chunk)
    for copy, env in enumerate(b.envs):
        assert plain(b.stored(copy)) == plain(sorted(env.log, key=lambda one: one[0]))
