"""Actions made again from stored rows: equal to the collector's bit for bit, and what it takes to be so."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from acting_support import Drift, SmallRun, configuration
from headrace.algorithms.registry import build_actor
from headrace.core.errors import EnvironmentRaised
from headrace.lanes.layout import FINAL, LOST, STEP
from headrace.runtime.reacting import (
    GroupChunk,
    Hindsight,
    LaneChunk,
    Setting,
    act_again,
    needs_policy,
    sight,
    steps_of,
)


@pytest.fixture
def small(tmp_path):
    made = []

    def make(**settings) -> SmallRun:
        made.append(SmallRun(tmp_path / f"run-{len(made)}", configuration(**settings)))
        made[-1].publish()
        return made[-1]

    yield make
    for run in made:
        run.end()


def chunk_of(run: SmallRun, group: int = 0, steps: int | None = None) -> GroupChunk:
    """Collect a chunk, and take it from the lanes."""
    lanes, block = run.groups[group], run.block
    starts = [int(run.replay.books.row[lane]) for lane in lanes]
    number = run.chunks[group]
    slot = (number - 1) % run.geometry.carry_slots
    carries = [block.carry[lane, slot].copy() if number else None for lane in lanes]
    run.collect(group, steps)
    stops = [int(run.replay.books.row[lane]) for lane in lanes]
    whole = zip(lanes, starts, stops, carries, strict=True)
    return GroupChunk(0, number, tuple(LaneChunk.in_block(block, *one) for one in whole))


def actor_of(run: SmallRun):
    actor = build_actor(run.policy)
    actor.load({name: array.copy() for name, array in run.arrays.items()})
    return actor


def setting_of(run: SmallRun) -> Setting:
    return Setting.of(run.config, run.spaces)


def assert_same(run: SmallRun, chunk: GroupChunk) -> None:
    made = act_again(actor_of(run), setting_of(run), chunk)
    assert list(made) == [lane.lane for lane in chunk.lanes]
    for lane in chunk.lanes:
        assert made[lane.lane].tobytes() == lane.rows[run.geometry.frame_stack - 1 :].tobytes()


@pytest.mark.parametrize("kind", ["gaussian", "ornstein-uhlenbeck", "none"])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("normalize", [False, True])
def test_actions_are_made_again_bit_for_bit(small, kind, frame_stack, group_size, normalize):
    run = small(
        algorithm__exploration__kind=kind, env__frame_stack=frame_stack, env__group_size=group_size,
        algorithm__normalize_observations=normalize,
    )  # fmt: skip
    kinds = set()
    for steps in (8, 2, 7, 1):  # shorter than the stack, too
        chunk = chunk_of(run, steps=steps)
        assert_same(run, chunk)
        kinds |= {int(kind) for lane in chunk.lanes for kind in lane.rows["kind"]}
    assert {STEP, FINAL} <= kinds


def test_random_actions_come_first_and_the_policy_follows_within_a_chunk(small):
    run = small(collect__random_steps=22, env__group_size=2)  # 11 a lane; chunks of 8
    setting = setting_of(run)
    first, second, third = (chunk_of(run) for _ in range(3))
    assert [needs_policy(setting, chunk) for chunk in (first, second, third)] == [False, True, True]
    for chunk in (first, second, third):
        assert_same(run, chunk)
    made = act_again(build_actor(run.policy), setting, first)  # no policy was ever loaded
    assert made[0].tobytes() == first.lane(0).rows.tobytes()


@pytest.mark.parametrize("kind", ["gaussian", "ornstein-uhlenbeck"])
def test_steps_in_which_an_environment_was_lost_are_made_again_too(small, kind):
    """Numbers were drawn for them, whether for a random action or for the policy's, and none is stored."""
    run = small(
        algorithm__exploration__kind=kind, env__frame_stack=3, env__group_size=2, collect__random_steps=22,
        collect__chunk_steps=8,
    )  # fmt: skip
    collector = run.make(0)
    collector.rebuild = lambda lane: Drift()
    collect = collector.collect
    for lost in ({(0, 2), (1, 0)}, {(1, 3), (1, 4)}, {(0, 7), (1, 2)}):
        collector.collect = partial(collect, lost=lost)
        chunk = chunk_of(run)
        assert sum(int((lane.rows["kind"] == LOST).sum()) for lane in chunk.lanes) >= 2  # a stack reaches back to more
        assert [len(steps_of(setting_of(run), lane)) for lane in chunk.lanes] == [8, 8]
        assert_same(run, chunk)


def test_network_of_the_users_own_acts_again_in_torch(small):
    run = small(
        algorithm__actor__factory="acting_support:network", algorithm__actor__hidden=[256, 256], env__group_size=2
    )
    assert_same(run, chunk_of(run))


def test_policy_is_asked_once_a_step_for_all_lanes_as_the_collector_does(small, monkeypatch):
    run = small(env__group_size=2)
    chunk, actor = chunk_of(run, steps=5), actor_of(run)
    asked, act = [], actor.act
    monkeypatch.setattr(
        actor, "act", lambda obs, noise: (asked.append((len(obs["obs"]), len(noise))), act(obs, noise))[1]
    )
    act_again(actor, setting_of(run), chunk)
    assert asked == [(2, 2)] * 5


def test_stored_rows_are_left_alone_and_only_actions_are_made(small):
    run = small(env__group_size=2)
    chunk = chunk_of(run)
    wrong = tuple(LaneChunk(lane.lane, lane.rows.copy(), lane.carry) for lane in chunk.lanes)
    for lane in wrong:
        lane.rows["action"] = 7.0
    made = act_again(actor_of(run), setting_of(run), GroupChunk(0, 0, wrong))
    for lane, before in zip(chunk.lanes, wrong, strict=True):
        steps = lane.rows["kind"] == STEP
        assert made[lane.lane][steps].tobytes() == lane.rows[steps].tobytes()
        assert (before.rows["action"] == 7.0).all()
        assert (made[lane.lane]["action"][~steps] == 7.0).all()  # left over in a row without a transition


@pytest.mark.parametrize("missing", ["carry", "incarnation", "number", "seed"])
def test_every_part_of_the_exploration_counts(small, missing):
    run = small(algorithm__exploration__kind="ornstein-uhlenbeck")
    chunk_of(run, steps=3)
    chunk, setting = chunk_of(run, steps=1), setting_of(run)
    assert_same(run, chunk)
    (lane,) = chunk.lanes
    assert lane.rows["t"][0] > 0  # else the carry would be forgotten at once
    other = {
        "carry": GroupChunk(0, 1, (LaneChunk(0, lane.rows, None),)),
        "incarnation": GroupChunk(1, 1, chunk.lanes),
        "number": GroupChunk(0, 2, chunk.lanes),
        "seed": chunk,
    }[missing]
    if missing == "seed":
        setting = Setting(setting.geometry, setting.action_space, 12, setting.random_steps)
    made = act_again(actor_of(run), setting, other)[0]
    assert made["action"].tobytes() != lane.rows["action"].tobytes()


def test_part_of_a_chunk_that_was_salvaged_is_made_again(small, monkeypatch):
    run = small(env__group_size=2)
    collector = run.make(0)
    env = collector._lanes[1].env
    step, calls = env.step, []

    def dies(action):
        calls.append(action)
        if len(calls) == 6:
            raise RuntimeError("out of memory")
        return step(action)

    monkeypatch.setattr(env, "step", dies)
    with pytest.raises(EnvironmentRaised):
        run.collect(0)
    lanes = tuple(LaneChunk.in_block(run.block, lane, 0, int(run.block.rows_written[lane]), None) for lane in (0, 1))
    setting = setting_of(run)
    assert [len(steps_of(setting, lane)) for lane in lanes] == [6, 5]
    assert_same(run, GroupChunk(0, 0, lanes))


def test_lane_that_had_made_nothing_does_not_disturb_the_others(small):
    run = small(env__group_size=2)
    chunk = chunk_of(run, steps=1)
    empty = LaneChunk(1, chunk.lane(1).rows[:0], None)
    made = act_again(actor_of(run), setting_of(run), GroupChunk(0, 0, (chunk.lane(0), empty)))
    assert made[0].tobytes() == chunk.lane(0).rows.tobytes()
    assert not len(made[1])


def test_shifted_sight_stays_inside_the_episode(small):
    run = small(env__frame_stack=2)
    (lane,) = chunk_of(run, steps=30).lanes
    setting = setting_of(run)
    rows = lane.rows[1:]
    places = steps_of(setting, lane)
    own, before, after = (sight(setting, lane, shift) for shift in (0, -1, 1))
    assert not own.moved.any()
    assert own.windows["obs"][:, -1].tobytes() == rows["obs"][places].tobytes()
    assert own.windows["obs"][1:, 0].tobytes() == lane.rows["obs"][places[1:]].tobytes()
    assert before.moved.tolist() == (rows["t"][places] > 0).tolist()
    assert before.t.tolist() == np.maximum(rows["t"][places].astype(int) - 1, 0).tolist()
    later = np.minimum(places + 1, len(rows) - 1)
    assert after.moved[:-1].all()
    assert after.windows["obs"][:-1, -1].tobytes() == rows["obs"][later[:-1]].tobytes()
    assert len(set(rows["episode"].tolist())) > 2


def test_what_the_policy_is_shown_can_be_another_lanes(small):
    run = small(env__group_size=2, algorithm__exploration__kind="none")
    chunk, setting, actor = chunk_of(run, steps=6), setting_of(run), actor_of(run)
    own = act_again(actor, setting, chunk)
    swapped = act_again(actor, setting, chunk, sights={0: sight(setting, chunk.lane(1))})
    first, second = (rows[rows["kind"] == STEP]["action"] for rows in (swapped[0], own[1]))
    assert first.tobytes() == second.tobytes()
    assert swapped[1].tobytes() == own[1].tobytes()


def test_exploration_can_be_another_lanes_or_none(small):
    run = small(env__group_size=2, algorithm__exploration__scale=0.01)
    chunk, setting, actor = chunk_of(run), setting_of(run), actor_of(run)
    noise = {}
    greedy = act_again(actor, setting, chunk, explore=False)
    for name, streams in (("own", None), ("other", {0: 1})):
        made = act_again(actor, setting, chunk, streams=streams)
        noise[name] = [(made[lane]["action"] - greedy[lane]["action"])[made[lane]["kind"] == STEP] for lane in (0, 1)]
    np.testing.assert_allclose(noise["other"][0], noise["own"][1], atol=1e-6)
    np.testing.assert_array_equal(noise["other"][1], noise["own"][1])
    assert np.abs(noise["own"][0] - noise["own"][1]).max() > 1e-3


def test_exploration_of_another_lane_is_forgotten_where_that_lanes_episodes_begin(small):
    run = small(
        env__group_size=2, algorithm__exploration__kind="ornstein-uhlenbeck", algorithm__exploration__scale=0.01
    )
    chunk, setting, actor = chunk_of(run, steps=30), setting_of(run), actor_of(run)
    begins = [np.flatnonzero(lane.rows["t"][lane.rows["kind"] == STEP] == 0) for lane in chunk.lanes]
    assert begins[0].tolist() != begins[1].tolist()
    greedy, own, given = (
        act_again(actor, setting, chunk, **how) for how in ({"explore": False}, {}, {"streams": {0: 1}})
    )
    noise = [
        (made[lane]["action"] - greedy[lane]["action"])[made[lane]["kind"] == STEP]
        for made, lane in ((own, 1), (given, 0))
    ]
    inside = [
        np.abs(made[lane]["action"])[made[lane]["kind"] == STEP] < (1, 2) for made, lane in ((own, 1), (given, 0))
    ]
    both = inside[0] & inside[1]
    assert both.sum() > 20
    np.testing.assert_allclose(noise[0][both], noise[1][both], atol=1e-6)


def test_hindsight_answers_what_clues_ask(small):
    run = small(env__group_size=2)
    kept = {1: {name: array.copy() for name, array in run.arrays.items()}}
    chunk = chunk_of(run)
    run.publish()
    kept[2] = {name: array.copy() for name, array in run.arrays.items()}
    hindsight = Hindsight(build_actor(run.policy), setting_of(run), chunk, 0, 1, kept.get)
    assert hindsight.acts(2)["action"].tobytes() != chunk.lane(0).rows["action"].tobytes()
    assert hindsight.acts(1).tobytes() == chunk.lane(0).rows.tobytes()  # loads what it needs, whatever was there
    assert hindsight.acts(3) is None
    seen = hindsight.acts_seeing(1)
    assert seen["action"].tobytes() != chunk.lane(0).rows["action"].tobytes()
    assert Hindsight(build_actor(run.policy), setting_of(run), chunk, 0, 3, kept.get).acts_seeing(1) is None
