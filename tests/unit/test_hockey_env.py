"""The hockey environment as a user sees it: spaces, rewards, ends, resets, settings, pictures."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from headrace.core.errors import ConfigError, HeadraceError, NonFiniteValue
from headrace.envs import registration
from headrace.envs.hockey import BasicOpponent, HockeyEnv

NOTHING = np.zeros(4, np.float32)


def play(env, *, seed, actions_seed=None, options=None):
    """Every step's result of one episode, with random actions or none."""
    rng = np.random.default_rng(actions_seed)
    steps = [env.reset(seed=seed, options=options)]
    while True:
        action = NOTHING if actions_seed is None else rng.uniform(-1, 1, 4).astype(np.float32)
        steps.append(env.step(action))
        if steps[-1][2] or steps[-1][3]:
            return steps


def observations(steps):
    return np.stack([step[0] for step in steps])


@pytest.mark.filterwarnings("ignore:.*Box observation space (min|max)imum value is.*:UserWarning")
@pytest.mark.parametrize("discrete", [False, True])
def test_gymnasiums_own_checker_finds_nothing(discrete):
    env = gymnasium.make(registration.HOCKEY_ID, discrete_actions=discrete, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.close()


def test_registering_twice_changes_nothing():
    spec = gymnasium.registry[registration.HOCKEY_ID]
    registration.register()
    assert gymnasium.registry[registration.HOCKEY_ID] is spec
    assert spec.max_episode_steps is None


@pytest.mark.process
def test_registering_does_not_load_box2d():
    check = "import sys, headrace.envs.registration; sys.exit('Box2D' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_gymnasium_make_passes_the_keywords_on():
    env = gymnasium.make(
        "headrace.envs.registration:headrace/Hockey-v0", mode="TRAIN_DEFENSE", opponent="idle", keep_mode=False
    )
    assert env.observation_space.shape == (16,)
    assert env.action_space.shape == (3,)
    env.close()


@pytest.mark.parametrize(
    ("keywords", "observations_size", "action_space"),
    [
        ({}, 18, gymnasium.spaces.Box(-1, 1, (4,), np.float32)),
        ({"keep_mode": False}, 16, gymnasium.spaces.Box(-1, 1, (3,), np.float32)),
        ({"opponent": None}, 18, gymnasium.spaces.Box(-1, 1, (8,), np.float32)),
        ({"opponent": "none", "keep_mode": False}, 16, gymnasium.spaces.Box(-1, 1, (6,), np.float32)),
        ({"discrete_actions": True}, 18, gymnasium.spaces.Discrete(8)),
        ({"discrete_actions": True, "keep_mode": False}, 16, gymnasium.spaces.Discrete(7)),
        ({"discrete_actions": True, "compat": "2.6"}, 18, gymnasium.spaces.Discrete(7)),
    ],
)
def test_spaces(keywords, observations_size, action_space):
    env = HockeyEnv(**keywords)
    assert env.action_space == action_space
    assert env.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (observations_size,), np.float32)
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    following = env.step(env.action_space.sample())[0]
    for array in (observation, following):
        assert array.shape == (observations_size,)
        assert array.dtype == (np.float32 if "compat" not in keywords else np.float64)


@pytest.mark.parametrize(("mode", "limit"), [("NORMAL", 250), ("TRAIN_SHOOTING", 80), ("TRAIN_DEFENSE", 80)])
def test_an_episode_without_a_goal_is_truncated_after_exactly_its_limit(mode, limit):
    env = HockeyEnv(mode=mode, opponent="idle")
    seed = next(seed for seed in range(50) if play(env, seed=seed)[-1][4]["winner"] == 0)
    steps = play(env, seed=seed)
    assert len(steps) - 1 == limit
    assert [step[2:4] for step in steps[1:-1]] == [(False, False)] * (limit - 1)
    assert steps[-1][2:4] == (False, True)
    assert steps[-1][1] == steps[-1][4]["reward_closeness_to_puck"]


def test_the_limit_can_be_set_and_scales_the_proxies():
    env = HockeyEnv(opponent="idle", max_episode_steps=5)
    steps = play(env, seed=1, options={"starter": 1})
    assert len(steps) - 1 == 5
    standard = HockeyEnv(opponent="idle").reset(seed=1, options={"starter": 1})[1]
    assert steps[0][1]["reward_closeness_to_puck"] == pytest.approx(standard["reward_closeness_to_puck"] * 50)


def test_a_goal_terminates_and_pays_ten_either_way():
    env = HockeyEnv(mode="TRAIN_DEFENSE", opponent="strong")
    winners = set()
    for seed in range(60):
        steps = play(env, seed=seed, actions_seed=seed)
        for _, reward, terminated, _, info in steps[1:]:
            assert terminated == (info["winner"] != 0)
            assert reward == pytest.approx(10.0 * info["winner"] + info["reward_closeness_to_puck"])
        winners.add(steps[-1][4]["winner"])
        assert steps[-1][2] != steps[-1][3]
    assert winners == {-1, 0, 1}


def test_the_proxies_follow_from_the_observation():
    env = HockeyEnv()
    for observation, _, _, _, info in play(env, seed=3, actions_seed=3)[1:]:
        x, y, puck_x, puck_y, puck_vx = observation[[0, 1, 12, 13, 14]].tolist()
        close = -30.0 * np.hypot(x - puck_x, y - puck_y) / ((250 / 60) * 125) if puck_x < 0 and puck_vx <= 0 else 0.0
        assert info["reward_closeness_to_puck"] == pytest.approx(close, rel=1e-4, abs=1e-6)
        assert info["reward_puck_direction"] == pytest.approx(puck_vx / (250 * 25), rel=1e-4, abs=1e-6)
        assert info["reward_touch_puck"] == float(observation[16] == 15)


@pytest.mark.parametrize("mode", ["NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"])
def test_trajectories_depend_on_seed_and_actions_alone(mode):
    used = HockeyEnv(mode=mode)
    expected = observations(play(used, seed=7, actions_seed=7))
    for other in range(4):
        play(used, seed=other, actions_seed=other)
    used.reset()
    used.step(NOTHING)
    for env in (used, HockeyEnv(mode=mode)):
        again = observations(play(env, seed=7, actions_seed=7))
        assert again.tobytes() == expected.tobytes()


def test_episodes_after_a_seed_repeat_whatever_happens_in_them():
    first, second = HockeyEnv(), HockeyEnv()
    first.reset(seed=5)
    second.reset(seed=5)
    for _ in range(30):
        second.step(NOTHING)
    assert first.reset()[0].tobytes() == second.reset()[0].tobytes()
    assert first.reset()[0].tobytes() != HockeyEnv().reset(seed=5)[0].tobytes()


def test_global_generators_are_left_alone():
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002 - the legacy generator is what is meant
    play(HockeyEnv(), seed=1, actions_seed=1)
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002


def test_both_sides_start_and_the_option_decides():
    env = HockeyEnv()
    drawn = [env.reset(seed=seed)[0] for seed in range(200)]
    left = sum(observation[12] < 0 for observation in drawn)
    assert 70 < left < 130
    for observation, seed in zip(drawn, range(200), strict=True):
        one, two = (env.reset(seed=seed, options={"starter": starter})[0] for starter in (1, 2))
        assert one[12] < 0 < two[12]
        assert one[12] == pytest.approx(-two[12], abs=1e-6)
        assert observation[12] in (one[12], two[12])
        assert one[13] == two[13] == observation[13]


def test_the_mode_option_is_for_one_episode():
    env = HockeyEnv(opponent="idle")
    assert len(play(env, seed=1, options={"mode": "TRAIN_SHOOTING"})) - 1 == 80
    assert len(play(env, seed=1)) - 1 == 250


@pytest.mark.parametrize("mode", ["NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"])
def test_starts_lie_inside_their_ranges_and_fill_them(mode):
    env = HockeyEnv(mode=mode, keep_mode=False)
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(1000)])
    assert np.all(starts[:, [0, 1]] == [-3.0, 0.0])
    assert np.all(starts[:, [2, 3, 4, 5, 8, 9, 10, 11, 14, 15]] == 0.0)
    if mode == "NORMAL":
        assert np.all(starts[:, [6, 7]] == [3.0, 0.0])
    else:
        fills(starts[:, 6], 3.0 - 10 / 3, 3.0 + 10 / 6)
        fills(starts[:, 7], -2.0, 2.0)
    if mode == "TRAIN_DEFENSE":
        fills(starts[:, 12], 0.0, 10 / 3)
        fills(starts[:, 13], -3.2, 3.2)
    else:
        assert mode == "NORMAL" or np.all(starts[:, 12] < 0)
        fills(np.abs(starts[:, 12]), 1.0, 2.0)
        fills(starts[:, 13], -1.0, 1.0)


def fills(values, low, high):
    margin = 0.02 * (high - low)
    assert low - 1e-5 <= values.min() < low + margin
    assert high - margin < values.max() <= high + 1e-5


def test_in_defense_the_puck_is_shot_at_the_own_goal():
    env = HockeyEnv(mode="TRAIN_DEFENSE", opponent="idle")
    targets = []
    for seed in range(300):
        x, y = env.reset(seed=seed)[0][12:14].tolist()
        vx, vy = env.step(NOTHING)[0][14:16].tolist()
        if vx < -30 and np.hypot(vx, vy) == pytest.approx(60.0, abs=0.1):  # else it hit player two or a bar at once
            targets.append(y + vy / vx * (-5.0 - x))
    assert len(targets) > 200
    fills(np.array(targets), -0.6 * 1.25, 0.6 * 1.25)


def test_the_second_view_is_the_mirror_of_the_first():
    env = HockeyEnv(opponent=None)
    env.reset(seed=2)
    rng = np.random.default_rng(2)
    for _ in range(60):
        observation, _, _, _, info = env.step(rng.uniform(-1, 1, 8))
    second = env.observe_two()
    assert np.array_equal(second[[0, 1, 3, 4, 6, 7, 9, 10]], -observation[[6, 7, 9, 10, 0, 1, 3, 4]])
    assert np.array_equal(second[[2, 5, 8, 11]], observation[[8, 11, 2, 5]])
    assert np.array_equal(second[12:16], -observation[12:16])
    assert np.array_equal(second[16:], observation[[17, 16]])
    assert env.info_two()["reward_puck_direction"] == -info["reward_puck_direction"]
    assert env.info_two()["winner"] == -info["winner"]


def test_two_players_played_by_hand_equal_the_built_in_opponent():
    alone, both = HockeyEnv(opponent="idle"), HockeyEnv(opponent=None)
    rng = np.random.default_rng(0)
    assert alone.reset(seed=9)[0].tobytes() == both.reset(seed=9)[0].tobytes()
    for _ in range(80):
        action = rng.uniform(-1, 1, 4)
        one = alone.step(action)
        assert one[0].tobytes() == both.step(np.concatenate([action, np.zeros(4)]))[0].tobytes()
        if one[2]:
            break


def test_rewards_of_the_two_players_mirror_a_goal():
    env = HockeyEnv(mode="TRAIN_DEFENSE", opponent=None)
    for seed in range(30):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, reward, terminated, truncated, info = env.step(np.zeros(8))
            ended = terminated or truncated
        if terminated:
            assert info["winner"] == -1
            assert reward < -9.9
            assert env.reward_two() == pytest.approx(10.0)
            return
    pytest.fail("no goal in 30 shots at an idle player")


@pytest.mark.parametrize("member", range(8))
def test_a_discrete_action_is_its_vector(member):
    vectors = [[0, 0, 0, 0], *([s * (i == axis) for i in range(4)] for axis in range(3) for s in (-1, 1)), [0, 0, 0, 1]]
    discrete, continuous = HockeyEnv(discrete_actions=True), HockeyEnv()
    discrete.reset(seed=4)
    continuous.reset(seed=4)
    for _ in range(20):
        observation = discrete.step(np.int64(member))[0]
        assert observation.tobytes() == continuous.step(vectors[member])[0].tobytes()


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("mode", "PLAY"),
        ("mode", 0),
        ("opponent", "medium"),
        ("keep_mode", "False"),
        ("keep_mode", 1),
        ("discrete_actions", None),
        ("max_episode_steps", 0),
        ("max_episode_steps", True),
        ("max_episode_steps", 10.0),
        ("compat", "2.5"),
        ("render_mode", "human"),
    ],
)
def test_an_unknown_value_is_refused_by_name(keyword, value):
    with pytest.raises(ConfigError) as caught:
        HockeyEnv(**{keyword: value})
    assert caught.value.facts["keyword"] == keyword
    assert caught.value.facts["value"] == repr(value)
    assert caught.value.facts["allowed"]


def test_the_refusal_in_full():
    with pytest.raises(ConfigError) as caught:
        HockeyEnv(opponent="medium")
    assert str(caught.value) == (
        "[CFG-001] HockeyEnv does not know opponent 'medium'\n"
        "  keyword: opponent\n"
        "  value: 'medium'\n"
        "  allowed: 'weak', 'strong', 'idle', 'none'\n"
        "  fix: Set opponent to one of the allowed values."
    )


def test_a_discrete_set_for_two_players_is_refused():
    with pytest.raises(ConfigError, match="no discrete action set for two players"):
        HockeyEnv(opponent=None, discrete_actions=True)


@pytest.mark.parametrize(
    "options",
    [{"starter": 3}, {"starter": True}, {"mode": "PLAY"}, {"start": 1}, {"mode": "TRAIN_DEFENSE", "starter": 1}],
)
def test_bad_reset_options_are_refused_and_change_nothing(options):
    env, twin = HockeyEnv(), HockeyEnv()
    for each in (env, twin):
        each.reset(seed=1)
    with pytest.raises(ConfigError):
        env.reset(seed=2, options=options)
    assert env.step(NOTHING)[0].tobytes() == twin.step(NOTHING)[0].tobytes()


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (np.zeros(3), ConfigError),
        (np.zeros((1, 4)), ConfigError),
        (0, ConfigError),
        ([[0.0], [0.0, 1.0]], ConfigError),
        (["a", "b", "c", "d"], ConfigError),
        (np.array([0.0, np.nan, 0.0, 0.0], np.float32), NonFiniteValue),
        ([0.0, float("inf"), 0.0, 0.0], NonFiniteValue),
    ],
)
def test_a_bad_action_is_refused_and_moves_nothing(action, error):
    env, twin = HockeyEnv(), HockeyEnv()
    for each in (env, twin):
        each.reset(seed=1)
    with pytest.raises(error):
        env.step(action)
    assert env.step(NOTHING)[0].tobytes() == twin.step(NOTHING)[0].tobytes()


@pytest.mark.parametrize("action", [8, -1, 1.0, True, np.zeros(4), None])
def test_a_bad_discrete_action_is_refused(action):
    env = HockeyEnv(discrete_actions=True)
    env.reset(seed=1)
    with pytest.raises(ConfigError, match="not in its action space"):
        env.step(action)


def test_actions_beyond_one_are_clipped():
    env, twin = HockeyEnv(), HockeyEnv()
    for each in (env, twin):
        each.reset(seed=1)
    assert env.step([5.0, -7.0, 2.0, 0.0])[0].tobytes() == twin.step([1.0, -1.0, 1.0, 0.0])[0].tobytes()


def test_stepping_outside_an_episode_is_refused():
    env = HockeyEnv(max_episode_steps=1)
    for _ in range(2):
        with pytest.raises(HeadraceError, match="no episode was in progress"):
            env.step(NOTHING)
        env.reset(seed=0)
        env.step(NOTHING)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(NOTHING)
    assert env.reset(seed=0)[0].shape == (18,)


def test_a_picture_is_drawn_without_a_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    env = HockeyEnv(render_mode="rgb_array", opponent="idle")
    with pytest.raises(HeadraceError, match="no state to show"):
        env.render()
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (480, 600, 3)
    assert first.dtype == np.uint8
    assert first.min() == 0
    assert first.max() == 255
    assert first[240, 120].tolist() == [235, 98, 53]  # player one, at (2, 4)
    assert first[240, 480].tolist() == [93, 158, 199]  # player two, at (8, 4)
    x, y = env.reset(seed=0)[0][12:14].tolist()
    assert first[round(240 - 60 * y), round(300 + 60 * x)].tolist() == [0, 0, 0]  # the puck
    for _ in range(10):
        env.step([1.0, 1.0, 0.0, 0.0])
    assert not np.array_equal(first, env.render())


def test_render_without_a_render_mode_is_refused():
    env = HockeyEnv()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="without a render_mode"):
        env.render()


def test_compat_ends_one_step_late_and_calls_it_terminated():
    steps = play(HockeyEnv(opponent="idle", compat="2.6"), seed=1)
    assert len(steps) - 1 == 251
    assert steps[-1][2:4] == (True, False)
    assert steps[-1][4]["winner"] == 0
    assert len(play(HockeyEnv(mode="TRAIN_SHOOTING", opponent="idle", compat="2.6"), seed=1)) - 1 == 81


def test_compat_alternates_the_starter_so_that_a_seed_is_not_enough():
    env = HockeyEnv(compat="2.6")
    first, second = (env.reset(seed=5)[0] for _ in range(2))
    assert first.dtype == np.float64
    assert env.observation_space.dtype == np.float32
    assert first[12] == pytest.approx(1.805, abs=5e-4)  # the values measured on the original
    assert second[12] == pytest.approx(-1.805, abs=5e-4)
    assert env.reset(seed=5, options={"starter": 1})[0][12] < 0


def test_compat_carries_a_caught_puck_into_the_next_episode():
    counters = {}
    for compat in (None, "2.6"):
        env = HockeyEnv(opponent="idle", compat=compat)
        observation, _ = env.reset(seed=0, options={"starter": 1})
        player = BasicOpponent(weak=False, rng=np.random.default_rng(0))
        while observation[16] == 0:
            observation = env.step([*player.act(observation)[:3], 0.0])[0]
        counters[compat] = env.reset(seed=0)[0][16]
    assert counters == {None: 0, "2.6": 15}
