"""Environments in workers, in this process: what a collector asks of them, and what becomes of those that are lost."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import numpy as np
import pytest

from headrace.collectors.collector import Collector, followed
from headrace.collectors.remote import RemoteEnvs
from headrace.collectors.stepping import Group
from headrace.core import seeding
from headrace.core.errors import ComponentError, EnvironmentLost, EnvironmentNotBuilt, EnvironmentRaised
from headrace.core.specs import leaves
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import FINAL, LOST, STEP, Geometry
from headrace.lanes.replay import Replay
from headrace.lanes.unread import next_unread
from headrace.telemetry.board import Activity, Board
from headrace.vector import losses
from headrace.vector.faults import Fault, FaultKind, from_exception
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots
from remote_support import FakeActor, FakeVector
from run_envs import Follower, Traced

LANES = 4
SEED = 3


class Bench:
    """Two collectors of two lanes each, over one vector environment; or over environments of their own."""

    def __init__(self, tmp_path, *, planned=None, local=False, order=0, limit=5, tell=True, frame_stack=1) -> None:
        self.factory = lambda: Follower(limit=limit)
        space = self.factory()
        self.geometry = Geometry(
            lanes=LANES, capacity=400, observation=leaves(space.observation_space, "obs"),
            action=leaves(space.action_space, "action"), chunk_steps=8, window_chunks=2, frame_stack=frame_stack,
        )  # fmt: skip
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        layout = SnapshotLayout.of({"bias": np.zeros(1)})
        self.snapshots = Snapshots(layout, memoryview(bytearray(layout.nbytes)))
        self.snapshots.publish({"bias": np.ones(1)})
        self.board = Board.create(tmp_path / f"board-{os.urandom(4).hex()}", [("collector-0", "collector")])
        self.slot = self.board.slot("collector-0")
        self.actors = [FakeActor(), FakeActor()]
        self.told: list[dict[str, object]] = []
        self.built: list[int] = []
        self.vector = FakeVector([self.factory] * LANES, planned, order)
        self.remote = RemoteEnvs(self.vector, range(LANES), space.observation_space, space.action_space, self.slot)
        self.collectors = [self._collector(number, local, tell) for number in (0, 1)]

    def _collector(self, number: int, local: bool, tell: bool) -> Collector:
        lanes = (2 * number, 2 * number + 1)
        envs = [self.factory() if local else self.remote.env(lane) for lane in lanes]
        group = Group(number, lanes, SEED, random_steps=3, environment="park")
        found = Collector(group, envs, self.block, self.actors[number], SnapshotReader(self.snapshots), self.slot)
        found.on_lost = (lambda error: self.told.append(error.facts)) if tell else None
        found.rebuild = self._rebuild
        return found

    def _rebuild(self, lane: int) -> Traced:
        self.built.append(lane)
        return self.factory()

    def chunk(self, number: int, steps: int = 8):
        commits = followed([(one, one.course(number, steps)) for one in self.collectors])
        for commit in commits:
            for lane, part in zip(self.collectors[commit.group].group.lanes, commit.lanes, strict=True):
                self.replay.commit(lane, part)
        return commits

    def rows(self, lane: int) -> np.ndarray:
        first = self.geometry.first_row
        return np.concatenate(self.block.pieces(lane, first, int(self.block.rows_written[lane])))


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**settings) -> Bench:
        made.append(Bench(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.board.close()


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_rows_are_those_of_environments_that_are_here(bench, order, frame_stack):
    here, there = bench(local=True, frame_stack=frame_stack), bench(order=order, frame_stack=frame_stack)
    for number in range(3):
        mine = [one.collect(number, 8) for one in here.collectors]
        assert there.chunk(number) == mine
    for lane in range(LANES):
        assert there.rows(lane).tobytes() == here.rows(lane).tobytes()


def test_one_message_for_all_environments_of_a_group(bench):
    b = bench()
    b.chunk(0, steps=2)
    assert sorted(b.vector.sent) == sorted(
        [("reset", lanes) for lanes in ((0, 1), (2, 3))] + [("step", (0, 1)), ("step", (2, 3))] * 2
    )


def test_nobody_is_woken_before_a_group_can_go_on(bench):
    b = bench()
    b.chunk(0, steps=4)
    assert set(b.vector.asked) <= {1, 2}
    assert b.vector.asked[0] == 2


def test_the_smallest_group_that_is_waited_for_decides(bench):
    b = bench()
    b.chunk(0, steps=1)
    courses = [one.course(1, 1) for one in b.collectors]
    for course in courses:
        next(course)
    b.remote.env(1).take((np.zeros(2), 0.0, False, False, {}))  # of the first group one is left
    b.vector.asked.clear()
    b.remote.wait([one.awaited for one in b.collectors])
    assert b.vector.asked == [1]


LOSSES = {(1, 4): "hung", (2, 2): "died"}
"""Lane 1 in its third step; lane 2 in its first."""


def test_a_lost_environment_costs_its_lane_an_episode_and_the_others_nothing(bench):
    b = bench(planned=LOSSES)
    commits = b.chunk(0)
    assert [part.transitions for commit in commits for part in commit.lanes] == [8, 7, 7, 8]
    rows = b.rows(1)
    assert rows["kind"].tolist() == [STEP, STEP, LOST, STEP, STEP, STEP, STEP, STEP, FINAL]
    assert rows["t"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    seeds = [seeding.integer(SEED, "environment", 1, episode) for episode in (0, 1)]
    assert rows["obs"][:, 0].tolist() == [seeds[0]] * 3 + [seeds[1]] * 6
    assert rows["obs"][:, 1].tolist() == rows["t"].tolist()
    assert rows["transitions"].tolist() == [1, 2, 2, 3, 4, 5, 6, 7, 7]
    assert not rows["action"][2].any()
    assert not rows["truncated"][2]
    assert rows["version"].tolist() == [1] * 9
    assert b.rows(2)["kind"][:3].tolist() == [LOST, STEP, STEP]  # nothing but a reset came before it
    assert b.rows(0)["kind"].tolist() == [STEP] * 5 + [FINAL] + [STEP] * 3
    assert [len(actor.seen) for actor in b.actors] == [8, 8]  # one policy call a step, for all lanes of the group


def test_who_was_lost_is_told_with_its_place_while_its_lane_is_as_it_was(bench):
    b = bench(planned=LOSSES)
    kinds = []
    for one in b.collectors:
        one.on_lost = lambda error: kinds.append((error, b.block.rows_written.tolist()))
    b.chunk(0)
    found = {error.facts["lane"]: (error, written) for error, written in kinds}
    error, written = found[1]
    assert isinstance(error, EnvironmentLost)
    assert error.what == "the environment of lane 1 hung in step()"
    assert {name: error.facts[name] for name in ("lane", "step", "call", "kind")} == {
        "lane": 1, "step": 3, "call": "step", "kind": "hung",
    }  # fmt: skip
    assert error.facts["error"] == "ValueError: tile 7"
    assert written[1] == 2
    assert found[2][0].what == "the environment of lane 2 took its process down in step()"


def test_facts_of_an_error_that_are_named_as_ours_are_not_in_the_way(bench):
    env = bench().collectors[0].remote.env(1)
    error = EnvironmentNotBuilt(
        "environment 1 has no model", problem="no file", kind="odd", file="m.bin", fix="copy it"
    )
    found = env.lost(Fault(1, FaultKind.RAISED, "construct", 0, error))
    assert found.what == "the environment of lane 1 raised in its factory"
    assert found.facts == {
        "kind": "raised", "problem": "the environment of lane 1 has no model", "file": "m.bin", "phase": "construct",
    }  # fmt: skip


def test_an_environment_that_has_a_lane_gets_no_other_number(bench):
    error = EnvironmentNotBuilt("building the environment of lane 7 raised OSError", fix="build it alone")
    told = from_exception(error, "construct").of(1, 0)
    assert told.error.what == "building the environment of lane 7 raised OSError"


def test_a_reset_that_fails_is_asked_of_the_replacement(bench):
    b, sound = bench(planned={(1, 1): "raised", (1, 2): "raised"}), bench()
    b.chunk(0)
    sound.chunk(0)
    assert b.rows(1).tobytes() == sound.rows(1).tobytes()
    assert [(facts["call"], facts["step"]) for facts in b.told] == [("reset", 0)] * 2
    assert b.vector.calls[1] == b.vector.calls[0] + 2


def test_without_anybody_to_tell_the_first_loss_ends_the_collector(bench):
    b = bench(planned=LOSSES, tell=False)
    with pytest.raises(EnvironmentLost):
        b.chunk(0)


def test_whoever_is_told_may_end_the_collector(bench):
    b = bench(planned=LOSSES)

    def refuse(error):
        raise error

    b.collectors[0].on_lost = refuse
    with pytest.raises(EnvironmentLost):
        b.chunk(0)
    assert b.block.rows_written[1] == 2  # the lane is as it was: salvage cuts it


def test_the_same_losses_again_without_asking(bench):
    """As a replay does."""
    b, again = bench(planned=LOSSES), bench(local=True)
    told = b.chunk(0)
    made = [one.collect(0, 8, None, lost) for one, lost in zip(again.collectors, ({(1, 2)}, {(2, 0)}), strict=True)]
    assert made == told
    assert again.built == [1, 2]
    for lane in range(LANES):
        assert again.rows(lane).tobytes() == b.rows(lane).tobytes()


def test_part_of_a_chunk_again_with_its_losses(bench):
    """Of a collector that was killed between the two lanes of its sixth step."""
    b, again = bench(planned=LOSSES), bench(local=True)
    b.chunk(0)
    again.collectors[0].repeat(0, [6, 5], {(1, 2)})
    for lane, rows in ((0, 7), (1, 5)):  # one lane with the end of an episode, the other with a loss
        assert again.rows(lane).tobytes() == b.rows(lane)[:rows].tobytes()


def test_an_observation_that_does_not_fit_is_a_loss_too(bench):
    b, receive, rest = bench(), None, iter((False, False, False, True))
    receive = b.vector.receive

    def receive_and_break(*args):
        answers = receive(*args)
        if next(rest, False):  # the second step of the first group
            return replace(answers, observations=answers.observations.astype(np.float32))
        return answers

    b.vector.receive = receive_and_break
    b.collectors[0].collect(0, 4)
    assert [facts["call"] for facts in b.told] == ["step"] * len(b.told)
    assert "float32 array" in str(b.told[0]["found"])
    assert LOST in b.rows(int(b.told[0]["lane"]))["kind"]


def test_the_board_names_who_is_waited_for_and_since_when(bench):
    b = bench()
    b.chunk(0, steps=3)
    course = b.collectors[1].course(1, 1)
    next(course)
    seen = []
    receive = b.vector.receive

    def receive_and_look(*args):
        seen.append(b.board.read("collector-0"))
        return receive(*args)

    b.vector.receive = receive_and_look
    b.remote.wait([b.collectors[1].awaited])
    (view,) = seen
    assert (view.activity, view.lane, view.step) == (Activity.WAIT_ENV, 2, 3)
    assert view.activity.label == "wait.env"


def test_a_call_is_completed_before_the_next_and_only_as_what_it_is(bench):
    b = bench()
    env = b.remote.env(2)
    env.send_reset(5)
    with pytest.raises(ComponentError, match="lane 2"):
        env.send_step(np.zeros(1, np.float32))
    with pytest.raises(ComponentError, match="lane 2"):
        env.step(np.zeros(1, np.float32))
    assert env.reset()[0].tolist() == [5, 0]
    obs, reward, *ends, info = env.step(np.full(1, 0.5, np.float32))
    assert (obs.tolist(), reward, ends, info) == ([5, 1], 0.5, [False, False], {})


def test_what_an_environment_says_beside_a_step_is_counted(bench):
    b = bench()
    step = b.vector.envs[1].step
    b.vector.envs[1].step = lambda action: (*step(action)[:4], {"error": 2.0, "other": 1})
    b.chunk(0, steps=3)
    assert b.block.info_counts[:, 0].tolist() == [0, 3, 0, 0]


def test_chunks_nobody_took_over_are_found_whatever_was_lost_in_them(bench):
    planned = {(0, 9): "hung", (0, 12): "hung", (1, 4): "hung", (1, 12): "died", (1, 14): "hung"}
    b = bench(planned=planned)  # lane 0 loses the first step of the second chunk, in the middle of an episode
    made = []
    for number in range(3):
        made += [one.collect(number, 8) for one in b.collectors[:1]]
    for commit in made[:-1]:  # the newest is left to be salvaged
        lanes = tuple(replace(part, running=False) for part in commit.lanes)  # what the dead collector ran is over
        assert next_unread(b.replay, 0, (0, 1)) == replace(commit, lanes=lanes)
        for lane, part in enumerate(commit.lanes):
            b.replay.commit(lane, part)
    assert next_unread(b.replay, 0, (0, 1)) is None


def test_every_worker_is_ended(bench):
    b = bench()
    for one in b.collectors:
        one.close()
    assert not b.vector.closed
    b.remote.close()
    assert b.vector.closed


def test_every_fault_of_one_process_is_told_once(tmp_path):
    """One environment was interrupted in it, and the next one killed it: two errors, and the others belong to the second."""
    bench = Bench(tmp_path)
    envs = [bench.remote.env(lane) for lane in range(LANES)]
    for env in envs:
        env.send_reset(seed=env.lane)
    bench.remote.flush()
    kinds = ("hung", "died", "lost-with-worker", "lost-with-worker")
    faults = [
        Fault(place, FaultKind(kind), "step", 1, EnvironmentRaised(kind, pid=7, fix="mend it"))
        for place, kind in enumerate(kinds)
    ]
    bench.vector.faults = faults
    bench.vector._errors = [faults[1].error, faults[0].error]
    bench.remote.wait([envs])
    assert [env.busy for env in envs] == [False, True, True, True]
    bench.remote.wait([envs])
    assert [env.busy for env in envs] == [False] * LANES
    for env, kind in zip(envs, kinds, strict=True):
        with pytest.raises(EnvironmentLost, match=f"kind: {kind}"):
            env.reset()


def test_every_number_of_an_environment_is_told_as_that_of_a_lane():
    remote = RemoteEnvs(None, (4, 5, 6, 7), Follower().observation_space, Follower().action_space, None)  # type: ignore[arg-type]
    end = losses.End("worker-0", 77, -9)
    for suspects, told in (({0, 1}, "one of the environments of lanes 4, 5 "), ({3}, "the environment of lane 7 ")):
        error = losses.lost_with(end, suspects).error
        error.place(also_lost="environments 1, 2")
        text = str(remote.env(6).lost(Fault(2, FaultKind.LOST_WITH_WORKER, "step", 3, error)))
        assert told in text
        assert "the environments of lanes 5, 6" in text
        assert not re.findall(r"environments? \d", text)
    assert remote.in_lanes("environments 0 to 3") == "the environments of lanes 4 to 7"
