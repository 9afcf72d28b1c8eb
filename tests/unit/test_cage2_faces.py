"""CAGE 2 as its users see it: as a single and as a vector environment."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from cage2_support import ACTIONS
from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs import registration
from headrace.envs.cage2 import CAGE2Env, CAGE2Vector, render
from headrace.envs.cage2.baselines import greedy_restore
from headrace.envs.contract import ObservationCheck

MIXED = {"red": ["b_line", "meander", "sleep"]}
FACES = [CAGE2Env, CAGE2Vector]


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_gymnasiums_own_checker_finds_nothing(mode):
    env = gymnasium.make(registration.CAGE2_ID, render_mode=mode, **MIXED)
    check_env(env.unwrapped)
    env.close()


def test_everything_returned_keeps_the_contract():
    env = CAGE2Env(**MIXED)
    check = ObservationCheck(env.observation_space, "CAGE2")
    check.check(env.reset(seed=0)[0], 0, 0)
    for step in range(100):
        seen, reward, terminated, truncated, info = env.step(step % 145)
        assert check.transition((seen, reward, terminated, truncated), 0, step)[0] is seen
        assert info == {}
        assert reward <= 0


@pytest.mark.parametrize("settings", [{"red": "b_line"}, {"red": "meander"}, MIXED | {"max_steps": 7}])
def test_copy_i_of_a_vector_seeded_s_is_a_single_environment_seeded_s_plus_i(settings):
    copies, seed = 5, 40
    vector, singles = CAGE2Vector(copies, **settings), [CAGE2Env(**settings) for _ in range(copies)]
    seen, infos = vector.reset(seed=seed)
    for copy, env in enumerate(singles):
        assert np.array_equal(env.reset(seed=seed + copy)[0], seen[copy])
    rng = np.random.default_rng(0)
    for _ in range(250):
        resets = vector.over
        actions = rng.integers(0, 145, copies)
        seen, rewards, terminations, truncations, infos = vector.step(actions)
        assert infos == {}
        assert not terminations.any()
        for copy, env in enumerate(singles):
            if resets:  # its actions are not used, its rewards are 0
                one = (env.reset()[0], 0.0, False, False, {})
            else:
                one = env.step(actions[copy])
            assert np.array_equal(one[0], seen[copy])
            assert one[1:4] == (rewards[copy], False, truncations[copy])
            assert env.red == vector.red[copy]
            assert env.compromised_types() == vector.compromised_types()[copy]
            assert np.array_equal(env.red_levels(), vector.red_levels()[copy])
            assert env.episode_return == vector.episode_returns[copy]


def test_a_list_of_seeds_has_one_for_each_copy():
    vector = CAGE2Vector(3, red="meander")
    seen = []
    for seeds in ([5, 6, 5], 5):
        vector.reset(seed=seeds)
        seen.append([vector.step(np.full(3, 2))[0] for _ in range(60)])
    together, counted = (np.array(steps) for steps in seen)
    assert np.array_equal(together[:, 0], together[:, 2])
    assert np.array_equal(together[:, :2], counted[:, :2])
    assert not np.array_equal(together[:, 2], counted[:, 2])


@pytest.mark.parametrize(("seed", "named"), [([1, 2], "2 seeds"), (-1, "-1"), ("x", "x"), ([1, 2.5, 3], "2.5")])
def test_seeds_that_are_none_are_refused(seed, named):
    with pytest.raises(ConfigError) as refused:
        CAGE2Vector(3).reset(seed=seed)
    assert named in str(refused.value)


def test_an_episode_goes_on_to_its_limit_and_is_truncated_there():
    env = CAGE2Env(red="b_line", max_steps=3)
    for _ in range(2):
        env.reset()
        ends = [env.step(0)[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]
        with pytest.raises(HeadraceError, match="no episode was in progress"):
            env.step(0)
    env.reset()
    env.step(0)
    env.reset()  # counts anew
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_the_limit_is_100_steps_unless_there_is_none():
    env = CAGE2Env()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(100)] == [False] * 99 + [True]
    endless = CAGE2Env(max_steps=None)
    endless.reset(seed=0)
    assert not any(endless.step(0)[2] or endless.step(0)[3] for _ in range(200))


def test_a_new_episode_forgets_the_last_one():
    """C9: without a reset the second episode would begin in a lost network."""
    env, fresh = CAGE2Env(red="b_line"), CAGE2Env(red="b_line")
    env.reset(seed=0)
    rewards = [env.step(0)[1] for _ in range(100)]
    assert rewards[-1] == -13.1
    seen, _ = env.reset(seed=7)
    again, _ = fresh.reset(seed=7)
    assert not seen.any()
    for action in range(100):
        assert [part.tolist() if isinstance(part, np.ndarray) else part for part in env.step(action)] == [
            part.tolist() if isinstance(part, np.ndarray) else part for part in fresh.step(action)
        ]
    assert np.array_equal(seen, again)


def test_seeds_are_used_once_and_episodes_go_on_with_the_stream():
    def openings(seed):
        env = CAGE2Env(red="meander")
        found = []
        for episode in range(4):
            env.reset(seed=seed if episode == 0 else None)
            for _ in range(12):
                env.step(0)
            found.append(env.step(0)[0].tolist() + env.red_levels().tolist())
        return found

    assert openings(1) == openings(1)
    assert openings(1) != openings(2)
    assert len({tuple(one) for one in openings(1)}) > 1


def test_observations_are_the_callers_own():
    env, vector = CAGE2Env(red="b_line"), CAGE2Vector(2, red="b_line")
    for one, actions in ((env, [0, 2]), (vector, [np.zeros(2, np.int64), np.full(2, 2)])):
        before, _ = one.reset(seed=0)
        kept = before.copy()
        after = one.step(actions[0])[0]
        assert np.array_equal(before, kept)
        after[:] = 9
        assert one.step(actions[1])[0].max() <= 1


def test_bits_of_the_observation_are_consistent():
    env = CAGE2Env(**MIXED)
    rng = np.random.default_rng(3)
    for _ in range(5):
        env.reset()
        for action in rng.integers(0, 145, 100):
            hosts = env.step(action)[0].reshape(13, 4)
            assert not (hosts[:, 1] & ~hosts[:, 0]).any()  # an exploit is activity
            assert hosts[:, 0].sum() <= 1  # red does one thing in a step
            exploited = hosts[:, 1] == 1
            assert (hosts[exploited, 3] == 1).all()  # and whoever saw one does not believe that nothing happened


def test_wrong_actions_are_refused_and_change_nothing():
    env, twin = CAGE2Env(red="meander"), CAGE2Env(red="meander")
    env.reset(seed=0)
    twin.reset(seed=0)
    for action in (145, -1, 1.0, "3", None, np.array([1, 2]), np.float64(2)):
        with pytest.raises(ConfigError, match="does not know this action"):
            env.step(action)
    assert [env.step(0)[1] for _ in range(99)] == [twin.step(0)[1] for _ in range(99)]


def test_wrong_actions_of_copies_are_refused_and_change_nothing():
    vector, twin = CAGE2Vector(3), CAGE2Vector(3)
    vector.reset(seed=0)
    twin.reset(seed=0)
    for actions in ([0, 1], [0, 1, 145], [0.0, 1.0, 2.0], [[0], [1], [2]], [-1, 0, 0]):
        with pytest.raises(ConfigError, match="cannot do these actions"):
            vector.step(np.array(actions))
    for _ in range(100):
        found, expected = (one.step(np.array([0, 2, 30])) for one in (vector, twin))
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])


def test_the_whole_text_of_a_refusal():
    vector = CAGE2Vector(4)
    vector.reset()
    with pytest.raises(ConfigError) as refused:
        vector.step(np.zeros(2, np.int64))
    assert str(refused.value) == (
        "[CFG-001] CAGE2Vector cannot do these actions\n"
        "  expected: 4 integers\n"
        "  found: int64 array of shape (2,)\n"
        "  fix: Pass an integer from 0 to 144; headrace.envs.cage2.network.ACTIONS says what each means."
    )


@pytest.mark.parametrize("face", FACES)
def test_settings_that_would_not_work_are_refused(face):
    for wrong in ({"red": "green"}, {"red": []}, {"max_steps": 0}, {"reds": "b_line"}, {"render_mode": "human"}):
        with pytest.raises(ConfigError):
            face(**wrong)


def test_there_are_no_options_and_no_copies_of_nothing():
    for face in FACES:
        with pytest.raises(ConfigError, match="no reset options"):
            face().reset(options={"x": 1})
    with pytest.raises(ConfigError, match="needs a copy"):
        CAGE2Vector(0)
    with pytest.raises(HeadraceError, match="before reset"):
        CAGE2Vector(1).step(np.zeros(1, np.int64))


def test_the_table_shows_what_is_and_what_is_seen():
    env = CAGE2Env(red="b_line", render_mode="ansi")
    with pytest.raises(HeadraceError, match="nothing to draw"):
        env.render()
    env.reset(seed=3)
    for _ in range(7):
        env.step(0)
    env.step(ACTIONS.index("DecoyApache Enterprise0"))
    lines = env.render().splitlines()
    assert lines[0] == f"step 8: blue DecoyApache Enterprise0, red {env.red_action}; return {env.episode_return:.1f}"
    assert len(lines) == 15
    assert lines[3].split() == ["Enterprise0", "-", "-", "no", "80"]
    assert lines[10].split() == ["User0", "privileged", "-", "no"]


def test_the_picture_changes_with_the_network():
    env = CAGE2Env(red="b_line", render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (render.HEIGHT, render.WIDTH, 3)
    assert first.dtype == np.uint8
    for _ in range(30):
        env.step(0)
    last = env.render()
    assert not np.array_equal(first, last)
    vector = CAGE2Vector(2, red="b_line", render_mode="rgb_array")
    vector.reset(seed=0)
    for _ in range(30):
        vector.step(np.zeros(2, np.int64))
    assert np.array_equal(vector.render()[0], last)
    for face in FACES:
        with pytest.raises(ConfigError, match="without a render_mode"):
            face().render()


def test_it_is_registered_once_with_both_faces():
    importlib.reload(registration)
    env = gymnasium.make(registration.CAGE2_ID, red="sleep")
    assert isinstance(env.unwrapped, CAGE2Env)
    vector = gymnasium.make_vec(registration.CAGE2_ID, 2, "vector_entry_point", red="sleep")
    assert isinstance(vector, CAGE2Vector)
    assert vector.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert vector.observation_space.shape == (2, 52)


def test_greedy_restore_takes_the_worst_host_but_never_the_foothold():
    seen = np.zeros((4, 13, 4), np.uint8)
    seen[1, [3, 5], 3] = 1  # two of user level
    seen[2, 3, 3] = 1
    seen[2, 9, 2:] = 1  # one of them privileged
    seen[3, 8, 2:] = 1  # User0
    names = [ACTIONS[action] for action in greedy_restore(seen.reshape(4, 52))]
    assert names == ["Sleep", "Restore Enterprise2", "Restore User1", "Sleep"]
