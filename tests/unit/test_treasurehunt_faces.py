"""The treasure hunt as its users see it: as a parallel, a vector and a single environment."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs import registration
from headrace.envs.treasurehunt import TreasureHuntEnv, TreasureHuntParallel, TreasureHuntVector, render
from treasurehunt_support import NAMES

BUSY = {"spawn_prob": 0.2, "food_spawn_prob": 0.1, "bone_spawn_prob": 0.1, "random_order": True}
FACES = [TreasureHuntParallel, TreasureHuntEnv, TreasureHuntVector]


def chosen(agents, *actions):
    return dict(zip(agents, actions, strict=True))


# Many agents


@pytest.mark.parametrize("settings", [{}, {**BUSY, "num_agents": 5, "max_turns": 7}, {"num_agents": 1}])
def test_pettingzoos_own_tests_find_nothing(settings):
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a game that they import
        from pettingzoo.test import parallel_api_test, parallel_seed_test
    parallel_api_test(TreasureHuntParallel(**settings), num_cycles=120)
    parallel_seed_test(lambda: TreasureHuntParallel(**settings), num_cycles=120)


@pytest.mark.process
def test_pettingzoo_is_not_needed():
    check = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "from headrace.envs.treasurehunt import TreasureHuntParallel\n"
        "env = TreasureHuntParallel(); env.reset(seed=0); env.step({'agent_0': 0, 'agent_1': 1})"
    )
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_an_epoch_is_truncated_once_for_every_agent():
    env = TreasureHuntParallel(num_agents=3, max_turns=4)
    ends = dict.fromkeys(env.possible_agents, 0)
    for _ in range(2):
        env.reset()
        assert env.agents == env.possible_agents == ["agent_0", "agent_1", "agent_2"]
        for turn in range(4):
            assert env.num_agents == 3
            _, _, terminated, truncated, infos = env.step(dict.fromkeys(env.agents, 0))
            assert terminated == dict.fromkeys(env.possible_agents, False)
            assert truncated == dict.fromkeys(env.possible_agents, turn == 3)
            assert infos == {agent: {} for agent in env.possible_agents}
            ends = {agent: ends[agent] + truncated[agent] for agent in ends}
        assert env.agents == []
        assert (env.num_agents, env.max_num_agents) == (0, 3)
    assert set(ends.values()) == {2}


def test_the_parallel_environment_returns_what_its_spaces_say():
    env = TreasureHuntParallel(**BUSY, num_agents=4)
    observations, _ = env.reset(seed=0)
    assert set(observations) == set(env.possible_agents)
    for _ in range(20):
        for agent, seen in observations.items():
            assert env.observation_space(agent).contains(seen)
            assert seen.shape == (175,)
            assert seen.dtype == np.uint8
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        observations, rewards, *_ = env.step(actions)
        assert {type(reward) for reward in rewards.values()} == {float}


def test_no_observation_is_a_buffer_of_another_turn_or_agent():
    env = TreasureHuntParallel()
    before, _ = env.reset(seed=0)
    kept = {agent: seen.copy() for agent, seen in before.items()}
    after = env.step(chosen(env.agents, 1, 2))[0]
    after["agent_0"][:] = 7
    assert not np.any(after["agent_1"] == 7)
    assert all(np.array_equal(before[agent], kept[agent]) for agent in kept)
    assert env.step(chosen(env.agents, 1, 2))[0]["agent_0"].max() == 1


def test_two_environments_share_nothing():
    alone, one, other = (TreasureHuntParallel(**BUSY) for _ in range(3))
    alone.reset(seed=1)
    one.reset(seed=1)
    other.reset(seed=2)
    for turn in range(30):
        expected = alone.step(chosen(alone.agents, turn % 4, 1))
        other.step(chosen(other.agents, 3, turn % 3))
        found = one.step(chosen(one.agents, turn % 4, 1))
        assert all(np.array_equal(found[0][agent], expected[0][agent]) for agent in one.agents)
        assert found[1:] == expected[1:]


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        ({"agent_0": 0}, "missing: ['agent_1']"),
        ({"agent_0": 0, "agent_1": 0, "agent_2": 0}, "unknown: ['agent_2']"),
        ({"agent_0": 0, "agent1": 0}, "nearest: agent_1"),
        ({"agent_0": 0, "agent_1": 4}, "found: 4"),
        ({"agent_0": -1, "agent_1": 0}, "found: -1"),
        ({"agent_0": 1.0, "agent_1": 0}, "found: 1.0"),
        ({"agent_0": np.array([1, 2]), "agent_1": 0}, "found: array([1, 2])"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(actions, named):
    env, twin = TreasureHuntParallel(), TreasureHuntParallel()
    env.reset(seed=0)
    twin.reset(seed=0)
    with pytest.raises(ConfigError) as refused:
        env.step(actions)
    assert named in str(refused.value)
    found, expected = (one.step(chosen(one.agents, 1, 2)) for one in (env, twin))
    assert all(np.array_equal(found[0][agent], expected[0][agent]) for agent in expected[0])
    assert found[1:] == expected[1:]


def test_the_whole_text_of_a_refusal():
    env = TreasureHuntParallel()
    env.reset()
    with pytest.raises(ConfigError) as refused:
        env.step({"agent_0": 0, "agent1": 0})
    assert str(refused.value) == (
        "[CFG-001] TreasureHuntParallel.step() takes one action of every agent\n"
        "  missing: ['agent_1']\n"
        "  unknown: ['agent1']\n"
        "  nearest: agent_1\n"
        "  allowed: agent_0, agent_1\n"
        "  fix: Pass a dict with exactly these agents."
    )


def test_numpys_integers_are_actions_too():
    env = TreasureHuntParallel()
    env.reset()
    env.step({"agent_0": np.int64(3), "agent_1": np.array(2)})
    assert len(env.agents) == 2


# One agent


@pytest.mark.parametrize("settings", [{}, BUSY])
def test_gymnasiums_own_checker_finds_nothing(settings):
    env = gymnasium.make(registration.TREASUREHUNT_ID, render_mode="rgb_array", **settings)
    check_env(env.unwrapped)
    env.close()


def test_one_agent_plays_the_same_in_both_environments():
    single, parallel = TreasureHuntEnv(**BUSY), TreasureHuntParallel(**BUSY, num_agents=1)
    actions = np.random.default_rng(0).integers(0, 4, (2, 50))
    for seed, epoch in zip((5, None), actions, strict=True):
        seen, infos = parallel.reset(seed=seed)
        first, info = single.reset(seed=seed)
        assert np.array_equal(first, seen["agent_0"])
        assert (info, infos) == ({}, {"agent_0": {}})
        for action in epoch:
            found = single.step(action)
            expected = [part["agent_0"] for part in parallel.step({"agent_0": action})]
            assert np.array_equal(found[0], expected[0])
            assert list(found[1:]) == expected[1:]
        assert found[2:4] == (False, True)


def test_a_generator_that_is_handed_in_is_used():
    one, other = TreasureHuntEnv(), TreasureHuntEnv()
    one.np_random = np.random.default_rng(8)
    assert np.array_equal(one.reset()[0], other.reset(seed=8)[0])


def test_more_agents_are_sent_elsewhere():
    with pytest.raises(ConfigError) as refused:
        gymnasium.make(registration.TREASUREHUNT_ID, num_agents=2)
    assert str(refused.value) == (
        "[CFG-001] TreasureHuntEnv is for one agent\n"
        "  num agents: 2\n"
        "  fix: Set agents.count in the configuration of a run, or build a TreasureHuntParallel."
    )


# Many copies


@pytest.mark.parametrize("agents", [1, 3])
def test_a_vector_is_its_copies_side_by_side(agents):
    settings = {**BUSY, "num_agents": agents, "max_turns": 35}
    copies = 4
    vector = gymnasium.make_vec(
        registration.TREASUREHUNT_ID, num_envs=copies * agents, vectorization_mode="vector_entry_point", **settings
    )
    alone = [TreasureHuntParallel(**settings) for _ in range(copies)]
    found = vector.reset(seed=9)[0]
    expected = [env.reset(seed=9 + copy)[0] for copy, env in enumerate(alone)]
    assert np.array_equal(found, [seen for one in expected for seen in one.values()])
    rng = np.random.default_rng(0)
    for step in range(80):
        actions = rng.integers(0, 4, copies * agents)
        found = vector.step(actions)
        assert found[4] == {}
        if step in (35, 71):  # the step after the last turn resets
            expected = [env.reset()[0] for env in alone]
            assert np.array_equal(found[0], [seen for one in expected for seen in one.values()])
            assert not any(part.any() for part in found[1:4])
            continue
        for copy, env in enumerate(alone):
            own = actions[copy * agents : (copy + 1) * agents]
            expected = env.step(chosen(env.possible_agents, *own))
            for agent, name in enumerate(env.possible_agents):
                place = copy * agents + agent
                assert np.array_equal(found[0][place], expected[0][name])
                assert [part[place] for part in found[1:4]] == [part[name] for part in expected[1:4]]
    vector.close()


def test_the_vector_environment_declares_itself():
    vector = gymnasium.make_vec(registration.TREASUREHUNT_ID, num_envs=6, num_agents=2)
    assert isinstance(vector, TreasureHuntVector)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vector.num_envs == 6
    assert vector.single_observation_space == gymnasium.spaces.Box(0, 1, (125,), np.uint8)
    assert vector.single_action_space == gymnasium.spaces.Discrete(4)
    observations, _ = vector.reset()
    assert vector.observation_space.contains(observations)
    returned = vector.step(vector.action_space.sample())
    assert vector.observation_space.contains(returned[0])
    assert [(part.shape, part.dtype) for part in returned[1:4]] == [((6,), np.float64), ((6,), bool), ((6,), bool)]


def test_copies_of_a_vector_have_streams_of_their_own():
    vector = TreasureHuntVector(16, num_agents=2, spawn_prob=0.5)
    for seed in (None, 3):
        vector.reset(seed=seed)
        first = vector.step(np.zeros(16, np.int64))[0].reshape(8, -1)
        assert len({row.tobytes() for row in first}) == 8


def test_a_vector_takes_a_seed_for_each_copy():
    vector = TreasureHuntVector(4, num_agents=2)
    found = vector.reset(seed=[7, 3])[0]
    for copy, seed in enumerate((7, 3)):
        expected = TreasureHuntParallel().reset(seed=seed)[0]
        assert np.array_equal(found[2 * copy : 2 * copy + 2], list(expected.values()))
    with pytest.raises(ConfigError, match="one seed for each copy"):
        vector.reset(seed=[1, 2, 3, 4])


@pytest.mark.parametrize("num_envs", [0, 3, -2])
def test_environments_that_fill_no_whole_copy_are_refused(num_envs):
    with pytest.raises(ConfigError, match="whole copies"):
        TreasureHuntVector(num_envs, num_agents=2)


@pytest.mark.parametrize(
    "actions", [np.zeros(3, np.int64), np.zeros((4, 1), np.int64), np.zeros(4), np.full(4, 4), np.full(4, -1), None]
)
def test_a_vector_refuses_wrong_actions(actions):
    vector = TreasureHuntVector(4)
    vector.reset()
    with pytest.raises(ConfigError, match="cannot do these actions"):
        vector.step(actions)


# What all of them keep


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"spawn_probability": 0.1}, "nearest: spawn_prob"),
        ({"hight": 5}, "nearest: height"),
        ({"height": 2}, "height"),
        ({"spawn_prob": 1.5}, "spawn_prob"),
        ({"gem_value": float("nan")}, "gem_value"),
        ({"max_turns": 0}, "max_turns"),
        ({"random_order": "no"}, "random_order"),
        ({"spawn_prob": 0.7, "food_spawn_prob": 0.4}, "probabilities exceed 1"),
        ({"food_value": 3.0}, "would ignore food_value"),
        ({"height": 3, "width": 3, "num_agents": 2}, "not enough cells"),
        ({"render_mode": "human"}, "render_mode 'human'"),
    ],
)
def test_bad_settings_are_refused(face, settings, named):
    with pytest.raises(ConfigError) as refused:
        face(**settings)
    assert named in str(refused.value)


def any_action(env):
    return dict.fromkeys(env.possible_agents, 0) if isinstance(env, TreasureHuntParallel) else env.action_space.sample()


@pytest.mark.parametrize("face", FACES)
def test_nothing_works_before_the_first_reset(face):
    env = face(render_mode="rgb_array")
    for call in (lambda: env.step(any_action(env)), env.render):
        with pytest.raises(HeadraceError, match=r"reset|draw"):
            call()


@pytest.mark.parametrize("face", [TreasureHuntParallel, TreasureHuntEnv])
def test_no_step_is_taken_after_the_end(face):
    env = face(max_turns=1)
    env.reset()
    env.step(any_action(env))
    with pytest.raises(HeadraceError, match="no epoch was in progress"):
        env.step(any_action(env))


@pytest.mark.parametrize("face", [TreasureHuntEnv, TreasureHuntVector])
def test_unknown_reset_options_are_refused(face):
    with pytest.raises(ConfigError, match="no reset options"):
        face().reset(options={"gems": 3})


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1"])
def test_a_seed_that_is_none_is_refused(seed):
    for face in (TreasureHuntParallel, TreasureHuntVector):
        with pytest.raises(ConfigError):
            face().reset(seed=seed)


def test_the_ids_lead_to_the_environments():
    module, _, name = registration.PARALLEL_ENTRY_POINTS[registration.TREASUREHUNT_ID].partition(":")
    assert getattr(importlib.import_module(module), name) is TreasureHuntParallel
    spec = gymnasium.registry[registration.TREASUREHUNT_ID]
    assert spec.max_episode_steps is None
    env = gymnasium.make("headrace.envs.registration:headrace/TreasureHunt-v0", height=7)
    assert isinstance(env.unwrapped, TreasureHuntEnv)
    env.close()


# Pictures


def test_everything_in_a_picture_can_be_told_apart():
    codes = np.arange(len(NAMES) - 1, dtype=np.uint8)[None]
    picture = render.draw(np.concatenate([codes, codes]), np.array([[1, 0], [1, 1], [1, 2]]))
    tiles = picture.reshape(2, 24, -1, 24, 3).swapaxes(1, 2).reshape(-1, 24, 24, 3)
    shown = [*tiles[:5], *tiles[5:8]]  # empty, gem, food, bone, wall; three agents
    for place, one in enumerate(shown):
        for other in shown[:place]:
            assert np.abs(one.astype(int) - other.astype(int)).sum(axis=-1).max() > 100
    assert np.array_equal(tiles[3], tiles[8])


@pytest.mark.parametrize("face", FACES)
def test_pictures_show_the_map_and_are_new_each_time(face):
    env = face(height=6, width=9, render_mode="rgb_array", **({"num_envs": 2} if face is TreasureHuntVector else {}))
    env.reset(seed=0)
    pictures = [env.render(), env.render()]
    if face is TreasureHuntVector:
        assert len(pictures[0]) == 2
        assert not np.array_equal(*pictures[0])
        pictures = [each[0] for each in pictures]
    assert (pictures[0].shape, pictures[0].dtype) == ((144, 216, 3), np.uint8)
    assert np.array_equal(*pictures)
    pictures[0][:] = 0
    again = env.render()
    assert np.array_equal(again[0] if face is TreasureHuntVector else again, pictures[1])


@pytest.mark.parametrize("face", FACES)
def test_a_picture_needs_a_render_mode(face):
    env = face()
    env.reset()
    with pytest.raises(ConfigError, match="without a render_mode"):
        env.render()
