"""Rollouts against a slow model of them: every step once, with what it really led to, and no row is lost or given twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.base import Rollout
from headrace.algorithms.on_policy import OnPolicy
from headrace.core.errors import DataLossError
from headrace.lanes.credits import Commit
from headrace.lanes.rollouts import Arrived
from on_policy_support import learner
from rollout_support import GROUPS, World

CHUNK = 4
chunks = st.text("..tul", min_size=CHUNK, max_size=CHUNK)
"""What becomes of the steps of one lane in one chunk."""


def arrays(rollout: Rollout) -> dict[str, np.ndarray]:
    named = {name: getattr(rollout, name) for name in Rollout.__slots__}
    flat = {name: array for name, array in named.items() if isinstance(array, np.ndarray)}
    return flat | {path: array for name in ("obs", "action", "told") for path, array in named[name].items()}


def same(one: Rollout, other: Rollout) -> None:
    found, expected = arrays(one), arrays(other)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        assert array.tobytes() == expected[name].tobytes(), name


# One rollout


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_each_step_has_what_it_was_taken_on_and_what_it_led_to(frame_stack):
    world = World(frame_stack=frame_stack)
    world.commit(0, ["..t.", "u..."])
    world.commit(1, "tt..")
    rollout = world.gather({0: 4, 1: 4, 2: 4})
    # Of lane 0 four steps, the end of one episode, and the observation that the fourth led to.
    assert len(next(iter(rollout.obs.values()))) == 6 + 6 + 7
    world.check_books()


def test_what_a_rollout_ends_with_leads_to_a_row_beyond_the_commit():
    """Which holds nothing else yet, or already what its collector did next."""
    world = World()
    commit = world.collect(1, "....")
    world.take_over(commit)
    world.write(2, "..")  # goes on meanwhile
    rollout = world.gather({2: 4})
    assert rollout.obs["obs"][:, 0].tolist() == [20001.0, 20002.0, 20003.0, 20004.0, 20005.0]
    assert not rollout.episode_ended.any()
    assert rollout.ended[:, 0].tolist() == [False, False, False, True]


def test_a_cut_ends_an_episode_with_the_observation_it_was_cut_at():
    world = World()
    world.write(2, "..")
    assert world.salvage(1) == 2
    world.write(2, ".")
    rollout = world.gather({2: 2})
    assert rollout.episode_ended[:, 0].tolist() == [False, True]
    assert not rollout.terminated.any()
    assert rollout.obs["obs"][rollout.then[-1, 0], 0] == 20003.0


def test_a_mark_of_a_cut_without_a_step_goes_with_the_next():
    world = World()
    world.commit(1, "...")
    world.gather({2: 3})
    assert world.salvage(1) == 0
    assert not world.rollouts.arrived
    world.commit(1, "..")
    world.gather({2: 2})
    world.check_books()


def test_a_lost_environment_makes_no_step_and_ends_the_episode_before_it():
    world = World()
    world.commit(0, [".l..", "ll.."])
    rollout = world.gather({0: 3, 1: 2})
    assert rollout.episode_ended.T.tolist() == [[True, False, False], [False, False, False]]
    assert rollout.valid.T.tolist() == [[True, True, True], [True, True, False]]
    world.check_books()


def test_a_lane_without_a_step_is_no_stream():
    world = World()
    world.commit(0, ["llll", "...."])
    assert world.gather({0: 0, 1: 4}).lanes.tolist() == [1]
    world.check_books()


def test_a_rollout_without_a_step_is_none_and_its_rows_leave():
    world = World()
    world.commit(1, "llll")
    assert world.rollouts.gather() is None
    assert not world.rollouts.arrived
    assert world.replay.books.resident_from[2] == world.replay.books.row[2]


def test_a_rollout_of_nothing_is_refused():
    with pytest.raises(DataLossError, match="a rollout was asked for, and nothing has arrived"):
        World().rollouts.gather()


def test_a_rollout_is_a_copy():
    world = World()
    world.commit(1, "....")
    rollout = world.gather({2: 4})
    before = {name: array.copy() for name, array in arrays(rollout).items()}
    world.block.rows.view(np.uint8)[...] = 255
    for name, array in arrays(rollout).items():
        assert array.tobytes() == before[name].tobytes(), name


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_ring_that_wraps_loses_nothing(frame_stack):
    """Each chunk has as many rows as there can be: every episode is one step long."""
    world = World(frame_stack=frame_stack)
    for laps in range(12):
        world.commit(0, ["tutu", "tttt"])
        world.commit(1, "...." if laps % 2 else "uuuu")
        world.gather({0: 4, 1: 4, 2: 4})
        world.check_books()
    assert world.writers[0].row > 2 * world.geometry.ring_rows


def test_more_than_there_is_room_for_is_refused_and_nothing_is_overwritten():
    world = World(whole_episodes=True, kept_rows=6)
    for _ in range(3):
        world.commit(1, "....")
        assert world.rollouts.gather() is None
    with pytest.raises(DataLossError) as caught:
        world.commit(1, "....")
    assert str(caught.value) == (
        "[DAT-001] lane 2 holds more rows that were not trained on than there is room for\n"
        "  rows: 16\n"
        "  room: 14\n"
        "  fix: raise rollout.kept_rows above the length of the longest episode, or set rollout.whole_episodes = false"
    )
    assert world.replay.books.lane(2)["resident"] == 12


# Which rows


def test_chunks_of_the_lowest_number_are_taken_first_whoever_came_first():
    world = World(window=3)
    for group, version in ((1, 1), (1, 2), (0, 1), (1, 3), (0, 2)):
        world.commit(group, ".u..", version)
    assert [(one.group, one.chunk) for one in world.rollouts.arrived] == [(1, 0), (1, 1), (0, 0), (1, 2), (0, 1)]
    world.gather({0: 4, 1: 4, 2: 4})
    world.gather({0: 4, 1: 4, 2: 4})
    assert [(one.group, one.chunk) for one in world.rollouts.arrived] == [(1, 2)]
    world.gather({2: 4})


def test_by_arrival_the_oldest_policies_come_first_and_of_those_the_first_that_came():
    world = World(window=4, order="arrival")
    for group, version in ((1, 1), (1, 2), (1, 2), (0, 1), (0, 2)):
        world.commit(group, "....", version)
    world.gather({2: 4, 0: 4, 1: 4})
    assert [(one.group, one.chunk, one.version) for one in world.rollouts.arrived] == [(1, 1, 2), (1, 2, 2), (0, 1, 2)]
    world.gather({2: 8})
    world.gather({0: 4, 1: 4})
    world.check_books()


@pytest.mark.parametrize(("order", "waiting"), [("chunk", [5, 2, 0]), ("arrival", [10, 0])])
def test_steps_that_wait_for_later_rollouts_are_counted(order, waiting):
    """Rows are more: where an episode ends there is one that is no step."""
    world = World(window=4, order=order)
    for group, steps, version in ((0, "..t.", 3), (1, "....", 1), (1, ".t.", 2), (1, "..", 3)):
        world.commit(group, steps, version)
    found = []
    while world.rollouts.arrived:
        found.append(world.rollouts.gather().waiting)
    assert found == waiting


@pytest.mark.parametrize("order", ["chunk", "arrival"])
def test_what_waits_is_what_no_rollout_had(order):
    """Steps of an episode that is kept back as well: else the schedule's place would depend on whose turn it is."""
    world = World(window=4, order=order, whole_episodes=True, kept_rows=20)
    committed = had = 0
    for brought in ([(1, "t.."), (0, "..t")], [(0, "t.t"), (0, "..."), (1, "..t")], [(1, "...")], [(0, "t"), (1, "t")]):
        for group, steps in brought:
            world.commit(group, steps)
            committed += len(steps) * len(world.groups[group])
        rollout = world.rollouts.gather()
        if rollout is not None:
            had += int(rollout.valid.sum())
            assert rollout.waiting == committed - had


def test_what_a_group_brings_later_never_goes_before_what_it_brought():
    """Whatever version or chunk it says: its rows end where the lane's do."""
    world = World(window=3, order="arrival")
    world.commit(1, "....", 3)
    world.commit(1, "....", 4)
    world.commit(0, "....", 2)
    world.rollouts.add(Arrived(1, 0, 0, (8,)))
    told = [(one.group, one.chunk, one.version) for one in world.rollouts.arrived]
    assert told == [(1, 0, 3), (1, 1, 4), (0, 0, 2), (1, 1, 4)]
    world.gather({0: 4, 1: 4, 2: 4})
    world.gather({2: 4})
    world.check_books()


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_rows_that_were_taken_already_are_not_taken_again(whole_episodes):
    """As an older version of us may have kept them in a checkpoint; here they end at a lap's beginning."""
    world = World(window=3, order="arrival", whole_episodes=whole_episodes)
    for _ in range(world.geometry.ring_rows // 5 - 2):
        world.commit(1, "...t")
        world.gather({2: 4})
    world.commit(1, "...t")
    world.commit(1, "...t")
    assert world.replay.books.row[2] == world.geometry.ring_rows
    first, second = world.rollouts.state()
    world.rollouts.load_state([second])
    world.gather({2: 8})
    world.rollouts.load_state([first])
    assert world.rollouts.gather() is None
    assert world.replay.books.resident_from[2] == world.replay.books.row[2]
    world.check_books()


def test_whole_episodes_are_kept_until_they_are_over():
    world = World(whole_episodes=True, kept_rows=20)
    world.commit(1, "....")
    assert world.rollouts.gather() is None
    world.commit(1, ".t..")
    rollout = world.gather({2: 6})
    assert rollout.ended[:, 0].tolist() == [False] * 5 + [True]
    world.commit(1, "uul.")
    world.gather({2: 4})
    assert world.replay.books.lane(2)["resident"] == 1
    world.check_books()


def test_of_whole_episodes_each_lane_is_taken_as_far_as_its_own_are_over():
    world = World(whole_episodes=True, kept_rows=20)
    world.commit(0, ["..t.", "...."])
    world.gather({0: 3})
    world.commit(0, ["...t", "t..."])
    world.gather({0: 5, 1: 5})


def test_what_had_arrived_is_known_again():
    world = World(window=2)
    for group in (0, 1, 1):
        world.commit(group, "....")
    state = world.rollouts.state()
    assert state == [[0, 0, 1, [4, 4]], [1, 0, 1, [4]], [1, 1, 1, [8]]]
    world.rollouts.load_state([])
    assert not world.rollouts.arrived
    world.rollouts.load_state(state)
    assert world.rollouts.arrived[2] == Arrived(1, 1, 1, (8,))
    world.gather({0: 4, 1: 4, 2: 4})


# Whatever happens


@given(data=st.data(), frame_stack=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_in_whatever_order_commits_arrive_rollouts_are_the_same(data, frame_stack):
    groups = ((0, 1), (2,), (3,))
    rounds = 3
    told = {(group, chunk): [data.draw(chunks) for _ in groups[group]] for chunk in range(rounds) for group in range(3)}
    ordered, shuffled = (World(groups, window=rounds, frame_stack=frame_stack) for _ in range(2))
    commits = [ordered.collect(group, steps, 1 + chunk) for (group, chunk), steps in told.items()]
    found = _interleaved(commits, data)
    for (group, chunk), steps in told.items():
        shuffled.collect(group, steps, 1 + chunk)
    for commit in commits:
        ordered.take_over(commit)
    for commit in found:
        shuffled.take_over(commit)
    for _ in range(rounds):
        one, other = ordered.rollouts.gather(), shuffled.rollouts.gather()
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            same(one, other)


def _interleaved(commits: list[Commit], data: st.DataObject) -> list[Commit]:
    """Those of each group in their order."""
    order = data.draw(st.permutations([commit.group for commit in commits]))
    left = {group: iter([commit for commit in commits if commit.group == group]) for group in set(order)}
    return [next(left[group]) for group in order]


@pytest.mark.parametrize("order", ["chunk", "arrival"])
@pytest.mark.parametrize("whole_episodes", [False, True])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_each_transition_is_in_exactly_one_rollout(order, whole_episodes, data):
    window = 4
    world = World(window=window, order=order, whole_episodes=whole_episodes, kept_rows=400, frame_stack=2)
    seen, version = list[float](), 1
    for _ in range(data.draw(st.integers(1, 14))):
        group = data.draw(st.integers(0, len(GROUPS) - 1))
        own = sum(one.group == group for one in world.rollouts.arrived)
        does = data.draw(st.sampled_from(["commit", "commit", "gather", "die"]))
        if does == "commit" and own < window:
            world.commit(group, [data.draw(chunks) for _ in GROUPS[group]], version)
            version += data.draw(st.integers(0, 1))
        elif does == "die" and own < window:
            world.write(GROUPS[group][0], data.draw(st.text(".tul", max_size=CHUNK - 1)), version)
            world.salvage(group, version)
        elif world.rollouts.arrived:
            _gather(world, seen)
    while world.rollouts.arrived:
        _gather(world, seen)
    for group in range(len(GROUPS)):  # what goes on ends
        world.commit(group, "t")
        _gather(world, seen)
    assert sorted(seen) == sorted(step.number for lane in world.lanes for step in lane.steps)


def _gather(world: World, seen: list[float]) -> None:
    """A rollout, of which every number is looked at."""
    rollout = world.rollouts.gather()
    if rollout is None:
        return
    counts = dict(zip(rollout.lanes.tolist(), rollout.valid.sum(axis=0).tolist(), strict=True))
    steps = world.take(counts)
    world.check(rollout, steps)
    world.check_books()
    seen += [step.number for own in steps.values() for step in own]


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_when_episodes_are_over_changes_no_target(data):
    """Whole episodes, told in chunks of other lengths and in another order: advantages and values pulled to are the same."""
    lanes = 3
    told = [data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)) for _ in range(lanes)]
    steps = ["".join("." * (length - 1) + data.draw(st.sampled_from("tu")) for length in own) for own in told]
    algorithm = learner()
    first, second = (_targets(algorithm, steps, data) for _ in range(2))
    assert first.keys() == second.keys()
    assert len(first) == sum(map(len, steps))
    for number, numbers in first.items():
        np.testing.assert_allclose(second[number], numbers, rtol=1e-4, atol=1e-5)


def _targets(algorithm: OnPolicy, steps: list[str], data: st.DataObject) -> dict[float, np.ndarray]:
    """Logprob, advantage, target and value by the observation acted on."""
    world = World(
        [(lane,) for lane in range(len(steps))], window=20, whole_episodes=True, order="arrival", kept_rows=99
    )
    left, found = list(steps), dict[float, np.ndarray]()
    while any(left):
        lane = data.draw(st.sampled_from([lane for lane, own in enumerate(left) if own]))
        length = data.draw(st.integers(1, CHUNK))
        world.commit(lane, left[lane][:length])
        left[lane] = left[lane][length:]
        if data.draw(st.booleans()) or not any(left):
            found |= _begun(algorithm, world)
    while world.rollouts.arrived:
        found |= _begun(algorithm, world)
    return found


def _begun(algorithm: OnPolicy, world: World) -> dict[float, np.ndarray]:
    rollout = world.rollouts.gather()
    if rollout is None:
        return {}
    rollout.obs = {"obs": rollout.obs["obs"] / 10_000}
    rows = algorithm._rows_of(rollout)
    numbers = np.round(rows.obs[rows.at][:, 0].double().numpy() * 10_000)
    return dict(zip(numbers.tolist(), rows.numbers.T, strict=True))
