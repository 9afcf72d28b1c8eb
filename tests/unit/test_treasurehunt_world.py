"""The treasure hunt's world: it agrees with a plain one, copies share nothing, and its odds are what they should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs.treasurehunt import Draws, Settings, World, views
from treasurehunt_support import NAMES, PlainWorld, Scripted, script

GEM, AGENT = NAMES.index("gem"), NAMES.index("agent")
VARIANTS = [
    {},
    {"food_spawn_prob": 0.1},
    {"bone_spawn_prob": 0.2, "bone_value": -3.5},
    {"food_spawn_prob": 0.05, "bone_spawn_prob": 0.05, "food_value": 4.25},
]


@st.composite
def asked(draw):
    """Settings of a small, busy world."""
    height, width = draw(st.integers(3, 7)), draw(st.integers(3, 7))
    return Settings(
        height=height,
        width=width,
        num_agents=draw(st.integers(1, min(4, (height - 2) * (width - 2)))),
        max_turns=draw(st.integers(1, 40)),
        random_order=draw(st.booleans()),
        vision_radius=draw(st.integers(1, 4)),
        spawn_prob=draw(st.sampled_from([0.0, 0.1, 0.5])),
        **draw(st.sampled_from(VARIANTS)),
    )


def real(chosen, *seeds):
    """A world with one copy for each seed, reset."""
    world = World(chosen, [Draws(chosen) for _ in seeds])
    world.reset(seeds=seeds)
    return world


def play(world, actions):
    """Rewards, maps and observations of every turn."""
    return [(world.step(chosen), world.maps, world.observe()) for chosen in actions]


def scripted(chosen, places, fields=None, orders=None):
    """One copy in which nothing grows but what ``fields`` says."""
    turns = chosen.max_turns + 64
    nothing = np.ones((turns, chosen.inner_cells))
    for turn, cells in (fields or {}).items():
        nothing[turn, cells] = 0.0
    orders = np.tile(np.arange(chosen.num_agents) if orders is None else orders, (turns, 1))
    world = World(chosen, [Scripted(chosen, [(places, nothing, orders)])])
    world.reset()
    return world


def acts(*actions):
    return np.array([actions])


# The rules


@pytest.mark.table
@given(chosen=asked(), copies=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=120)
def test_it_agrees_with_a_plain_world_turn_by_turn(chosen, copies, seed):
    rng = np.random.default_rng(seed)
    scripts = [script(chosen, rng, epochs=2) for _ in range(copies)]
    world = World(chosen, [Scripted(chosen, epochs) for epochs in scripts])
    for epoch in range(2):
        world.reset()
        plain = [PlainWorld(chosen, *epochs[epoch]) for epochs in scripts]
        for _ in range(chosen.max_turns):
            actions = rng.integers(0, 4, (copies, chosen.num_agents))
            rewards = world.step(actions)
            assert rewards.tolist() == [one.step(own) for one, own in zip(plain, actions, strict=True)]
            assert [[[NAMES[code] for code in row] for row in rows] for rows in world.maps] == [
                one.map() for one in plain
            ]
            assert world.places.tolist() == [[list(place) for place in one.places] for one in plain]
            assert world.observe().tolist() == [
                [one.observe(agent) for agent in range(chosen.num_agents)] for one in plain
            ]
        assert world.over


@given(actions=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30), order=st.booleans())
@settings(max_examples=40)
def test_whatever_the_agents_choose_nobody_leaves_the_map_or_enters_anothers_cell(actions, order):
    world = real(Settings(height=4, width=5, num_agents=3, random_order=order, spawn_prob=0.1), 7)
    for chosen in actions:
        rewards = world.step(acts(*chosen))
        places = world.places[0].tolist()
        assert len({tuple(place) for place in places}) == 3
        assert all(1 <= row <= 2 and 1 <= column <= 3 for row, column in places)
        assert (world.maps == AGENT).sum() == 3
        assert set(rewards.ravel()) <= {-1.0, 0.0, 10.0}


def test_walls_cost_one_and_do_not_give_way():
    world = scripted(Settings(height=3, width=3, num_agents=1), [0])
    for action in range(4):
        assert world.step(acts(action)).tolist() == [[-1.0]]
        assert world.places.tolist() == [[[1, 1]]]


@pytest.mark.parametrize(("action", "place"), [(0, [1, 2]), (1, [3, 2]), (2, [2, 1]), (3, [2, 3])])
def test_the_actions_are_up_down_left_right(action, place):
    world = scripted(Settings(height=5, width=5, num_agents=1), [4])
    assert world.step(acts(action)).tolist() == [[0.0]]
    assert world.places.tolist() == [[place]]


def test_another_agent_is_in_the_way_and_costs_nothing():
    world = scripted(Settings(height=3, width=4, num_agents=2), [0, 1])
    assert world.step(acts(3, 2)).tolist() == [[0.0, 0.0]]
    assert world.places.tolist() == [[[1, 1], [1, 2]]]


def test_who_acts_later_may_enter_a_cell_that_was_left_in_the_same_turn():
    world = scripted(Settings(height=3, width=5, num_agents=2), [1, 0])
    world.step(acts(3, 3))
    assert world.places.tolist() == [[[1, 3], [1, 2]]]


@pytest.mark.parametrize(("order", "rewards"), [([0, 1], [10.0, 0.0]), ([1, 0], [0.0, 10.0])])
def test_of_two_who_want_one_gem_the_first_in_order_gets_it(order, rewards):
    chosen = Settings(height=3, width=5, num_agents=2, random_order=True)
    world = scripted(chosen, [0, 2], {0: [1]}, order)
    assert world.step(acts(3, 2)).tolist() == [rewards]


def test_a_gem_can_be_taken_in_the_turn_in_which_it_appears_and_only_once():
    world = scripted(Settings(height=3, width=4, num_agents=1, gem_value=2.5), [0], {0: [1]})
    assert world.step(acts(3)).tolist() == [[2.5]]
    assert world.step(acts(2)).tolist() == [[0.0]]
    assert world.step(acts(3)).tolist() == [[0.0]]


def test_what_has_grown_stays_what_it_is_and_nothing_grows_under_an_agent():
    chosen = Settings(height=3, width=5, num_agents=1, spawn_prob=0.1, food_spawn_prob=0.9)
    everything_food = np.full((chosen.max_turns + 64, 3), 0.5)
    everything_food[0, 1] = 0.0
    world = World(chosen, [Scripted(chosen, [([0], everything_food, [])])])
    world.reset()
    world.step(acts(0))
    first = world.maps[0, 1, 1:4].tolist()
    world.step(acts(0))
    assert first == world.maps[0, 1, 1:4].tolist() == [AGENT, GEM, NAMES.index("food")]


@given(chosen=asked(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_gems_are_conserved(chosen, seed):
    rng = np.random.default_rng(seed)
    epochs = script(chosen, rng)
    world = World(chosen, [Scripted(chosen, epochs)])
    world.reset()
    for turn in range(chosen.max_turns):
        inner = world.maps[0, 1:-1, 1:-1].ravel()
        grown = (inner == 0) & (epochs[0][1][turn] < chosen.spawn_prob)
        rewards = world.step(rng.integers(0, 4, (1, chosen.num_agents)))
        taken = (rewards == chosen.gem_value).sum()
        assert (world.maps == GEM).sum() == (inner == GEM).sum() + grown.sum() - taken


# What an agent sees


def window(world, chosen, agent=0):
    """An observation by channel, as rows of 0 and 1."""
    seen = world.observe()[0, agent].reshape(views.window_shape(chosen))
    return dict(zip(views.channels(chosen), seen.tolist(), strict=True))


def test_outside_the_map_there_is_wall_as_far_as_one_sees():
    chosen = Settings(height=3, width=3, num_agents=1, vision_radius=3)
    seen = window(scripted(chosen, [0]), chosen)
    middle = [[int(row == column == 3) for column in range(7)] for row in range(7)]
    assert seen["agent"] == seen["sand"] == middle
    assert seen["wall"] == [[1 - cell for cell in row] for row in middle]
    assert not np.any(seen["empty"])
    assert not np.any(seen["gem"])


@pytest.mark.parametrize(
    ("place", "wall", "gem", "agent"),
    [
        (0, [[1, 1, 1], [1, 0, 0], [1, 0, 0]], [[0, 0, 0], [0, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 1, 0], [0, 0, 1]]),
        (2, [[1, 1, 1], [0, 0, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 0], [1, 0, 0]]),
        (6, [[1, 0, 0], [1, 0, 0], [1, 1, 1]], [[0, 1, 0], [0, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 1, 0], [0, 0, 0]]),
        (8, [[0, 0, 1], [0, 0, 1], [1, 1, 1]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 0]]),
    ],
)
def test_the_window_in_the_corners(place, wall, gem, agent):
    chosen = Settings(height=5, width=5, num_agents=2, vision_radius=1)
    world = scripted(chosen, [place, 5], {0: [3]})
    world.step(acts(0 if place < 3 else 1, 2))  # runs into the wall; the other goes to the middle, a gem to its left
    seen = window(world, chosen)
    assert (seen["wall"], seen["gem"], seen["agent"]) == (wall, gem, agent)
    assert seen["sand"] == [[1 - cell for cell in row] for row in wall]
    everything = np.array([seen[kind] for kind in ("empty", "wall", "gem", "agent")])
    assert np.all(everything.sum(axis=0) == 1)


def test_the_specified_sizes():
    assert views.window_shape(Settings()) == (5, 5, 5)
    assert views.channels(Settings()) == ["empty", "wall", "sand", "gem", "agent"]
    both = Settings(height=21, width=21, spawn_prob=0.005, food_spawn_prob=0.005, bone_spawn_prob=0.005)
    assert views.channels(both) == ["empty", "wall", "sand", "gem", "food", "bone", "agent"]
    assert real(both, 1).observe().shape == (1, 2, 175)


def test_an_observation_is_never_written_again():
    world = real(Settings(spawn_prob=0.3), 1, 2)
    kept = [world.observe()]
    copies = [kept[0].copy()]
    for _ in range(5):
        world.step(np.full((2, 2), 3))
        kept.append(world.observe())
        copies.append(kept[-1].copy())
    world.reset()
    assert all(np.array_equal(*pair) for pair in zip(kept, copies, strict=True))
    assert not any(np.shares_memory(kept[0], later) for later in kept[1:])
    assert kept[0].dtype == np.uint8


# Copies and seeds


@given(chosen=asked(), seeds=st.lists(st.integers(0, 2**63), min_size=2, max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_a_copy_is_bit_identical_to_one_alone(chosen, seeds, seed):
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 4, (2, chosen.max_turns, len(seeds), chosen.num_agents))
    together = real(chosen, *seeds)
    alone = [real(chosen, one) for one in seeds]
    for epoch in actions:
        for found in play(together, epoch):
            for copy, world in enumerate(alone):
                own = epoch[world.turns[0], copy : copy + 1]
                expected = play(world, [own])[0]
                assert all(np.array_equal(a[copy : copy + 1], b) for a, b in zip(found, expected, strict=True))
        together.reset()
        for world in alone:
            world.reset()


def test_copies_that_are_reset_by_themselves_do_not_disturb_the_others():
    chosen = Settings(max_turns=70, random_order=True, spawn_prob=0.1)
    actions = np.random.default_rng(0).integers(0, 4, (140, 3, 2))
    together, alone = real(chosen, 5, 6, 7), [real(chosen, seed) for seed in (5, 6, 7)]
    for turn, chosen_now in enumerate(actions):
        for copy, world in enumerate(alone):
            if turn and turn % (11 + 3 * copy) == 0:
                again = [turn] if copy == 1 else None
                together.reset([copy], again)
                world.reset(seeds=again)
        found = together.step(chosen_now)
        expected = [world.step(chosen_now[copy : copy + 1])[0] for copy, world in enumerate(alone)]
        assert found.tolist() == [list(row) for row in expected]
        assert np.array_equal(together.maps, np.concatenate([world.maps for world in alone]))
        assert together.turns.tolist() == [int(world.turns[0]) for world in alone]


def test_a_seed_decides_everything_and_no_seed_goes_on():
    chosen = Settings(random_order=True, spawn_prob=0.2)
    actions = np.random.default_rng(1).integers(0, 4, (20, 1, 2))

    def epochs(world, *seeds):
        played = []
        for seed in seeds:
            world.reset(seeds=[seed])
            played.append(play(world, actions))
        return [[[part.tolist() for part in turn] for turn in epoch] for epoch in played]

    first = epochs(real(chosen, 0), 3, None, 3, None)
    assert first[0] == first[2]
    assert first[1] == first[3]
    assert first[0] != first[1]
    assert epochs(real(chosen, 9), 3, None) == first[:2]


def test_copies_without_seeds_differ():
    chosen = Settings()
    world = World(chosen, [Draws(chosen) for _ in range(8)])
    world.reset()
    assert len({place.tobytes() for place in world.places}) > 1


def test_what_agents_do_does_not_change_what_is_drawn():
    chosen = Settings(num_agents=1, spawn_prob=0.1, max_turns=30)
    one, other = real(chosen, 4), real(chosen, 4)
    for _ in range(30):
        one.step(acts(0))
        other.step(acts(1))
    one.reset()
    other.reset()
    assert np.array_equal(one.maps, other.maps)


# Odds


def test_each_empty_cell_grows_by_itself_with_its_probability():
    chosen = Settings(num_agents=1, max_turns=1, spawn_prob=0.2, food_spawn_prob=0.1, bone_spawn_prob=0.05)
    copies, cells = 400, 64
    world = real(chosen, *range(copies))
    world._grow()
    inner = world.maps[:, 1:-1, 1:-1].reshape(copies, cells)
    empties = copies * (cells - 1)
    for kind, probability in (("gem", 0.2), ("food", 0.1), ("bone", 0.05)):
        grown = inner == NAMES.index(kind)
        deviation = (empties * probability * (1 - probability)) ** 0.5
        assert abs(grown.sum() - empties * probability) < 4 * deviation
        per_cell = grown.sum(axis=0)  # every cell alike
        assert np.all(np.abs(per_cell - copies * probability) < 5 * (copies * probability * (1 - probability)) ** 0.5)
        spread = grown.sum(axis=1).var() / ((cells - 1) * probability * (1 - probability))  # 1 if independent
        assert 0.7 < spread < 1.3


def test_turns_grow_independently():
    chosen = Settings(height=12, width=12, num_agents=1, max_turns=50, spawn_prob=0.5)
    draws = Draws(chosen, np.random.default_rng(0))
    fields = draws.fields(2000) < 0.5
    agreement = (fields[1:] == fields[:-1]).mean()
    assert abs(agreement - 0.5) < 4 * 0.5 / (1999 * 100) ** 0.5


def test_agents_begin_in_distinct_cells_all_alike():
    chosen = Settings(height=4, width=5, num_agents=2)
    world = real(chosen, *range(1200))
    assert not np.any(np.all(world.places[:, 0] == world.places[:, 1], axis=1))
    for agent in range(2):
        _, counts = np.unique(world.places[:, agent], axis=0, return_counts=True)
        assert len(counts) == 6
        assert np.all(np.abs(counts - 200) < 5 * (1200 / 6 * 5 / 6) ** 0.5)


def test_every_order_of_acting_is_as_likely():
    chosen = Settings(num_agents=3, random_order=True)
    orders, counts = np.unique(Draws(chosen, np.random.default_rng(0)).orders(1200), axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.all(np.abs(counts - 200) < 5 * (1200 / 6 * 5 / 6) ** 0.5)


@pytest.mark.parametrize(("probability", "gems"), [(0.0, 0), (1.0, 62)])
def test_the_extreme_probabilities(probability, gems):
    world = real(Settings(spawn_prob=probability), 3)
    world._grow()
    assert (world.maps == GEM).sum() == gems
