"""One group's loop, in this process: what it asks of environments, what it writes, what it refuses."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.algorithms.base import Actor
from headrace.algorithms.choices import nothing_to_choose
from headrace.algorithms.encoding import require_finite_actions
from headrace.collectors.collector import Collector
from headrace.collectors.stepping import Group, raised
from headrace.core import seeding
from headrace.core.errors import ConfigError, EnvironmentRaised, NonFiniteValue, ObservationMismatch
from headrace.core.specs import leaves
from headrace.lanes.derive import transitions
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import CUT, FINAL, INFO_KEYS, STEP, Geometry
from headrace.lanes.replay import Replay
from headrace.telemetry.board import Activity, Board
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from remote_support import FakeActor
from run_envs import Traced

LANES = 2


class Bench:
    """A collector of two lanes, with everything around it."""

    def __init__(self, tmp_path, *, random_steps: int = 0, frame_stack: int = 1, incarnation: int = 0, **env) -> None:
        self.envs = [Traced(**env), Traced(**{**env, "fault": None})]
        self.geometry = Geometry(
            lanes=LANES, capacity=400, observation=leaves(self.envs[0].observation_space, "obs"),
            action=leaves(self.envs[0].action_space, "action"), chunk_steps=8, window_chunks=2, frame_stack=frame_stack,
        )  # fmt: skip
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        layout = SnapshotLayout.of({"bias": np.zeros(1)})
        self.snapshots = Snapshots(layout, memoryview(bytearray(layout.nbytes)))
        self.snapshots.publish({"bias": np.ones(1)})
        self.board = Board.create(tmp_path / "board", [("collector-0", "collector")])
        self.actor = FakeActor()
        self.make(incarnation, random_steps)

    def make(self, incarnation: int = 0, random_steps: int = 0) -> None:
        actor: Actor = self.actor
        group = Group(0, (0, 1), 3, incarnation, random_steps, "park")
        self.collector = Collector(
            group, self.envs, self.block, actor, SnapshotReader(self.snapshots), self.board.slot("collector-0")
        )

    def rows(self, lane: int) -> np.ndarray:
        first = self.geometry.first_row
        return np.concatenate(self.block.pieces(lane, first, int(self.block.rows_written[lane])))

    def take(self, commit) -> None:
        for lane, part in enumerate(commit.lanes):
            self.replay.commit(lane, part)


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**settings) -> Bench:
        made.append(Bench(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.board.close()


def test_chunk_is_what_happened(bench):
    b = bench(limit=5)
    commit = b.collector.collect(0, 8)
    assert (commit.group, commit.chunk, commit.version, commit.last) == (0, 0, 1, False)
    assert [lane.transitions for lane in commit.lanes] == [8, 8]
    b.take(commit)
    for lane in range(LANES):
        rows = b.rows(lane)
        assert rows["kind"].tolist() == [STEP] * 5 + [FINAL] + [STEP] * 3
        assert rows["t"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
        assert rows["reward"].tolist() == [1, 2, 3, 4, 5, 0, 1, 2, 3]
        assert rows["obs"][:, 1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
        seeds = [seeding.integer(3, "environment", lane, episode) for episode in (0, 1)]
        assert rows["obs"][:, 0].tolist() == [seeds[0]] * 6 + [seeds[1]] * 3
        assert rows["truncated"].tolist() == [False] * 4 + [True] + [False] * 4
        np.testing.assert_allclose(rows["action"][:5, 0], [0, 0.01, 0.02, 0.03, 0.04], rtol=1e-6)
    assert b.actor.episodes == 2 * LANES


def test_an_observation_that_leaves_nothing_to_choose_is_its_lane_s(bench, monkeypatch):
    b = bench(limit=5)
    b.take(b.collector.collect(0, 7))

    def refuse(obs, noise=None):
        raise nothing_to_choose(1)

    monkeypatch.setattr(b.actor, "act", refuse)
    with pytest.raises(ObservationMismatch) as caught:
        b.collector.collect(1, 4)
    assert list(caught.value.facts.items())[:3] == [("environment", "park"), ("lane", 1), ("step", 7)]
    assert "row" not in caught.value.facts


def test_a_step_that_does_not_return_leaves_its_action_and_its_chunk(bench):
    b = bench(fault="fail", at=7)
    b.collector.collect(0, 4)
    with pytest.raises(EnvironmentRaised):
        b.collector.collect(1, 4)
    assert b.block.chunk_begun.tolist() == [[1, 4], [1, 4]]
    assert b.block.rows_written[0] == 6
    assert b.block.rows[0, 6]["action"] == np.float32(0.06)


def test_policy_is_asked_once_for_all_lanes_and_sees_stacked_frames(bench):
    b = bench(limit=3, frame_stack=3)
    b.collector.collect(0, 5)
    assert len(b.actor.seen) == 5
    seen = [obs[0, :, 1].tolist() for obs in b.actor.seen]  # lane 0, t of each frame
    assert seen == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]  # no frame of the episode before


def test_what_was_acted_on_is_what_is_trained_on(bench):
    """Over the ends of chunks and of episodes, bit for bit, as observation and as successor."""
    b = bench(limit=5, frame_stack=3)
    for chunk in range(4):
        b.take(b.collector.collect(chunk, 4))
    g = b.geometry
    for lane in range(LANES):
        places = np.array([b.replay.place(lane, row) for row in range(*b.replay.resident(lane))])
        places = places[b.replay.kinds(places) == STEP]
        batch = transitions(b.replay.windows(places), g.observation, g.action, g.frame_stack, 0.9)
        acted_on = np.stack([obs[lane] for obs in b.actor.seen])
        assert batch.obs["obs"].tolist() == acted_on.tolist()
        goes_on = acted_on[1:, -1, 1] > 0
        assert goes_on.sum() == 12
        assert batch.next_obs["obs"][:-1][goes_on].tolist() == acted_on[1:][goes_on].tolist()


def test_groups_and_chunks_draw_differently_from_the_global_generators(bench):
    """Of environments that use them: by group, chunk and incarnation, and the same in every run."""

    def drawn(group: int, chunk: int, incarnation: int) -> tuple[float, float]:
        b = bench()
        b.collector.group = Group(group, (0, 1), 3, incarnation)
        b.collector.collect(chunk, 0)
        return random.random(), float(np.random.random())  # noqa: NPY002 - what environments call

    keys = list(itertools.product((0, 1), (0, 1), (0, 1)))
    found = [drawn(*key) for key in keys]
    assert len({number for both in found for number in both}) == 2 * len(keys)
    assert found == [drawn(*key) for key in keys]


def test_new_policy_is_used_from_the_next_chunk_on(bench):
    b = bench()
    first = b.collector.collect(0, 4)
    b.snapshots.publish({"bias": np.full(1, 7.0)})
    second = b.collector.collect(1, 4)
    assert (first.version, second.version) == (1, 2)
    assert b.actor.loaded == [1.0, 7.0]
    assert b.rows(0)["version"].tolist() == [1] * 4 + [2] * 4


def test_first_steps_are_random_and_the_same_in_every_run(bench, tmp_path):
    b = bench(random_steps=3)
    b.collector.collect(0, 5)
    actions = b.rows(0)["action"][:, 0]
    np.testing.assert_allclose(actions[3:], [0.03, 0.04], rtol=1e-6)
    again = bench(random_steps=3)
    again.collector.collect(0, 5)
    assert again.rows(0)["action"][:, 0].tolist() == actions.tolist()
    assert len({*actions[:3].tolist(), *b.rows(1)["action"][:3, 0].tolist()}) == 6


def test_stopping_ends_a_chunk_between_two_steps(bench):
    b = bench()
    answers = iter([False, False, True])
    commit = b.collector.collect(0, 8, lambda: next(answers))
    assert [lane.transitions for lane in commit.lanes] == [2, 2]
    last = b.collector.collect(1, 0)
    assert [lane.transitions for lane in last.lanes] == [0, 0]
    b.take(commit)
    b.take(last)


def test_environment_that_raises(bench):
    b = bench(fault="fail", at=7)
    with pytest.raises(EnvironmentRaised) as caught:
        b.collector.collect(0, 8)
    assert str(caught.value) == (
        "[ENV-004] park in lane 0 raised ValueError in step()\n"
        "  error: ValueError: burn map corrupt, tile 7\n"
        "  lane: 0\n"
        "  step: 7\n"
        "  fix: see the traceback in the component's log; the environment must not raise in the middle of an episode"
    )
    view = b.board.read("collector-0")
    assert (view.activity, view.lane, view.step) == (Activity.ENV_STEP, 0, 6)
    stretch, cut = b.replay.salvage(0)
    assert cut
    kinds = np.concatenate(stretch.rows)["kind"].tolist()
    assert kinds == [STEP] * 6 + [CUT]


def test_replacement_goes_on_after_the_cut_with_other_random_streams(bench):
    b = bench(fault="fail", at=7)
    with pytest.raises(EnvironmentRaised):
        b.collector.collect(0, 8)
    for lane in range(LANES):
        b.replay.salvage(lane)
    b.make(incarnation=1)
    b.take(b.collector.collect(0, 4))
    rows = b.rows(0)
    assert rows["transitions"][rows["kind"] == STEP].tolist() == list(range(1, 11))
    assert rows["episode"].tolist() == [0] * 7 + [1] * 4
    assert rows["obs"][-1].tolist() == [seeding.integer(3, "environment", 0, 1), 3]


@pytest.mark.parametrize(
    ("fault", "at", "field", "call", "step"),
    [
        ("nan_reward", 5, "reward", "step", 5),
        ("nan_obs", 5, "obs", "step", 5),
        ("nan_obs", 8, "obs", "step", 8),
        ("nan_obs", 0, "obs", "reset", 0),
    ],
)
def test_value_that_is_not_finite_is_named_and_not_committed(bench, fault, at, field, call, step):
    b = bench(fault=fault, at=at)
    with pytest.raises(NonFiniteValue) as caught:
        b.collector.collect(0, 8)
    assert caught.value.what == f"park in lane 0 returned a value that is not finite from {call}()"
    assert {name: caught.value.facts[name] for name in ("field", "lane", "step")} == {
        "field": field, "lane": 0, "step": step,
    }  # fmt: skip
    assert b.replay.env_steps == 0


def test_an_action_that_is_no_number_reaches_no_environment_and_what_led_to_it_is_told(bench, monkeypatch):
    b = bench(fault="nan_obs", at=3)
    act, stepped = b.actor.act, []

    def refuse(obs, noise=None):
        actions = act(obs, noise)["action"]
        actions[np.isnan(obs["obs"]).any(axis=1)] = np.nan
        stepped.append(actions)
        require_finite_actions(actions)
        return {"action": actions}

    monkeypatch.setattr(b.actor, "act", refuse)
    with pytest.raises(NonFiniteValue, match="lane 0 returned a value that is not finite"):
        b.collector.collect(0, 8)
    assert len(stepped) == 4
    assert [len(b.rows(lane)) for lane in range(LANES)] == [3, 3]


def test_an_action_that_is_no_number_on_one_that_is_is_the_policy_s(bench, monkeypatch):
    b = bench()
    bad = np.array([[0.0], [np.inf]], np.float32)
    monkeypatch.setattr(b.actor, "act", lambda obs, noise=None: require_finite_actions(bad))
    with pytest.raises(NonFiniteValue, match="the policy chose an action that is not finite") as caught:
        b.collector.collect(0, 8)
    assert (caught.value.facts["lane"], caught.value.facts["environment"]) == (1, "park")


def test_first_bad_value_is_to_blame_not_what_it_led_to(bench):
    b = bench(fault="nan_obs", at=3)
    b.envs[1]._fault, b.envs[1]._at = "wrong_shape", 5
    with pytest.raises(NonFiniteValue, match="lane 0"):
        b.collector.collect(0, 8)


def test_observation_that_does_not_fit(bench):
    b = bench(fault="wrong_shape", at=4)
    with pytest.raises(ObservationMismatch) as caught:
        b.collector.collect(0, 8)
    assert {name: caught.value.facts[name] for name in ("environment", "lane", "step")} == {
        "environment": "park", "lane": 0, "step": 4,
    }  # fmt: skip


def test_steps_that_say_that_they_failed_are_counted_by_lane(bench):
    b = bench()
    step, said = b.envs[0].step, iter([{"error": "disk full"}, {"error": None, "timeout": True}, {}, {"note": 1}])
    b.envs[0].step = lambda action: (*step(action)[:4], next(said))
    b.collector.collect(0, 4)
    counts = dict(zip(INFO_KEYS, b.block.info_counts.T.tolist(), strict=True))
    assert counts == {key: [int(key in ("error", "timeout")), 0] for key in INFO_KEYS}


def test_error_of_ours_is_passed_on_as_it_is():
    ours = ConfigError("no such mode", fix="choose another")
    assert raised(ours, "reset", "park", 0, 0) is ours
    assert raised(KeyError("x"), "step", "park", -1, 3).what == "park in an evaluation raised KeyError in step()"


def test_closing_closes_every_environment(bench):
    b = bench()
    closed = []
    for number, env in enumerate(b.envs):
        env.close = lambda number=number: closed.append(number)
    b.collector.close()
    assert closed == [0, 1]
