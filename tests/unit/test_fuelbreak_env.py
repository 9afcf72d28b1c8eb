"""The fuel-break environment as a user sees it: spaces, cuts, budget, ends, resets, rewards, errors, pictures."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from fuelbreak_support import layers
from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs import registration
from headrace.envs.fuelbreak import Burn, FuelBreakEnv, Landscape, Raster, RasterSet, Weather, evaluate_plan
from headrace.envs.fuelbreak import env as module
from headrace.envs.fuelbreak.observation import CHANNELS, view
from headrace.envs.fuelbreak.rasters import LAYERS
from headrace.envs.fuelbreak.rewards import Outcome, reward

SIZE, CELLS = 10, 100  # budget 8, one cell a step

FUEL = CHANNELS.index("fuel_model")


def small(**settings):
    return FuelBreakEnv(**{"size": SIZE, "num_simulations": 4, **settings})


def at(*cells, size=SIZE):
    """The action that chooses these cells."""
    action = np.zeros(size * size, np.int8)
    action[list(cells)] = 1
    return action


def play(env, seed, actions=None):
    """Every step's result; random actions unless given."""
    rng = np.random.default_rng(seed)
    steps = [env.reset(seed=seed)]
    while True:
        action = next(actions) if actions else (rng.random(env.task.cells) < 0.1).astype(np.int8)
        steps.append(env.step(action))
        if steps[-1][2] or steps[-1][3]:
            return steps


def like(one, other):
    """Whether two episodes are the same, bit for bit."""
    return len(one) == len(other) and all(
        np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(one, other, strict=True)
    )


# Spaces


@pytest.mark.parametrize("reward_version", [1, 2])
def test_gymnasiums_own_checker_finds_nothing(reward_version):
    env = gymnasium.make(
        registration.FUELBREAK_ID, size=8, num_simulations=2, reward_version=reward_version, render_mode="rgb_array"
    )
    check_env(env.unwrapped)
    env.close()


def test_the_specified_size_is_the_default():
    env = FuelBreakEnv()
    assert env.observation_space == gymnasium.spaces.Box(0, 1, (8, 50, 50), np.float32)
    assert env.action_space == gymnasium.spaces.MultiBinary(2500)
    assert (env.task.total_budget, env.task.cells_per_step, env.task.steps) == (200, 10, 40)


def test_the_registered_environment_ends_its_episodes_itself():
    spec = gymnasium.registry[registration.FUELBREAK_ID]
    assert spec.max_episode_steps is None
    env = gymnasium.make("headrace.envs.registration:headrace/FuelBreak-v0", size=8, budget=3)
    assert env.action_space == gymnasium.spaces.MultiBinary(64)
    env.close()


@given(seed=st.integers(0, 2**31), wind=st.floats(0, 100), common=st.booleans())
@settings(max_examples=25)
def test_every_observation_is_in_its_space(seed, wind, common):
    env = small(wind_kmh=wind, common_ignitions=common, rasters=10_000, num_simulations=1)
    for step in play(env, seed):
        assert env.observation_space.contains(step[0])


def test_the_channels_show_the_landscape():
    maps = layers(9, 102, slope=0.1, aspect=90.0, canopy_cover=0.25, canopy_height=10.0, canopy_base_height=8.0)
    maps["fuel_model"][0, 0], maps["fuel_model"][0, 1] = 98, 204
    landscape = Landscape(Raster.of("here", maps), Weather(wind_kmh=5.0))
    seen = view(landscape)
    assert seen.dtype == np.float32
    assert seen[:4, 5, 5] == pytest.approx([np.arctan(0.1) * 2 / np.pi, 0.25, 0.25, 15 / 53])
    assert seen[FUEL, 0, :2].tolist() == [0.0, 1.0]
    for place in range(4):
        shown = np.log1p(landscape.intensity[place]) / np.log1p(100_000)
        assert seen[4 + place] == pytest.approx(shown, rel=1e-5)
    assert seen[4:, 5, 5].argmax() == 1  # wind from the east drives it west, which is uphill
    assert not seen[4:, 0, 0].any()


# Cuts


def test_cut_cells_are_seen_as_cut_and_nothing_else_changes():
    env = small(break_step=2, budget=8)
    before = env.reset(seed=0)[0]
    after = env.step(at(13, 57))[0]
    assert not after[:, [1, 5], [3, 7]].any()
    others = np.ones((SIZE, SIZE), np.bool_)
    others[[1, 5], [3, 7]] = False
    assert np.array_equal(before[:, others], after[:, others])
    assert np.array_equal(env.plan, ~others)


@pytest.mark.parametrize(
    ("chosen", "cut", "repeated", "over_limit"),
    [((90, 5, 40), [5, 40], 0, 1), ((3,), [3], 0, 0), ((), [], 0, 0), ((0, 1, 2, 3), [2, 3], 2, 0), ((0, 1), [], 2, 0)],
)
def test_the_first_cells_that_are_not_cut_yet_are_cut_and_the_others_are_told(chosen, cut, repeated, over_limit):
    env = small(break_step=2)
    env.reset(seed=0)
    env.step(at(0, 1))
    info = env.step(at(*chosen))[4]
    assert np.flatnonzero(env.plan).tolist() == [0, 1, *cut]
    assert (info["new_cells"], info["ignored_repeated"], info["ignored_over_limit"]) == (len(cut), repeated, over_limit)
    assert info["budget_left"] == 8 - 2 - len(cut)


def test_the_budget_is_never_overdrawn():
    env = small(budget=5, break_step=3)
    env.reset(seed=0)
    env.step(at(*range(10)))
    _, _, terminated, truncated, info = env.step(at(*range(10)))
    assert (terminated, truncated) == (True, False)
    assert (info["new_cells"], info["ignored_repeated"], info["ignored_over_limit"]) == (2, 3, 5)
    assert env.plan.sum() == 5


@given(data=st.data(), seed=st.integers(0, 1000), break_step=st.integers(1, 8))
@settings(max_examples=25)
def test_every_episode_ends_whatever_is_chosen(data, seed, break_step):
    env = small(break_step=break_step, num_simulations=1)
    env.reset(seed=seed)
    cells = st.lists(st.integers(0, CELLS - 1), max_size=6)
    for _ in range(env.task.steps - 1):
        _, _, terminated, truncated, info = env.step(at(*data.draw(cells)))
        assert terminated == (env.plan.sum() == 8) == (info["budget_left"] == 0)
        assert not truncated
        if terminated:
            return
    assert any(env.step(at(*data.draw(cells)))[2:4])


@pytest.mark.parametrize(("settings", "limit"), [({}, 16), ({"break_step": 3}, 6), ({"step_limit": 5}, 5)])
def test_a_step_that_cuts_nothing_costs_time(settings, limit):
    env = small(**settings)
    steps = play(env, 0, iter([at()] * 100))
    assert len(steps) - 1 == limit
    assert [step[2:4] for step in steps[1:]] == [(False, False)] * (limit - 1) + [(False, True)]
    assert {step[1] for step in steps[1:]} == {0.0}


def test_using_up_the_budget_in_the_last_step_terminates_and_does_not_truncate():
    env = small(budget=2, break_step=1, step_limit=2)
    assert play(env, 0, iter([at(0), at(1)]))[-1][2:4] == (True, False)


# Rewards and what is measured


def test_the_initial_burn_is_measured_before_the_first_cut_of_each_episode():
    env = small(rasters=1)
    for seed in (1, 2, 1):
        steps = play(env, seed)
        initial = steps[0][1]["initial_burned"]
        fires = env.fires
        assert steps[0][1]["burned"] == initial == Burn(env.landscape, fires).burned.mean()
        assert {step[-1]["initial_burned"] for step in steps[1:]} == {initial}
    assert play(env, 1)[0][1]["initial_burned"] != play(env, 2)[0][1]["initial_burned"]


def test_what_a_step_reports_is_what_its_fires_burn():
    env = small(break_step=4, num_simulations=7)
    steps = play(env, 3)
    score = evaluate_plan(env.landscape.raster, env.plan, env.fires, env.weather)
    last = steps[-1][4]
    assert last["burned"] == score.mean_burned
    assert last["reduction_percentage"] == pytest.approx(100 * score.reduction)
    assert sum(step[1] for step in steps[1:]) == pytest.approx((score.uncut.mean() - last["burned"]) / CELLS)


def test_the_second_reward_is_paid_from_the_episodes_own_numbers():
    env = small(reward_version=2, num_simulations=1, rasters=1, budget=2)
    env.reset(seed=4)
    ignition = int(env.fires.cells[0])
    first = env.step(at(99 if ignition != 99 else 98))[4]
    initial, before = first["initial_burned"], first["burned"]
    _, value, terminated, _, info = env.step(at(ignition))  # no fire at all
    assert terminated
    assert info["burned"] == 0
    saved = (0.4 * before + 0.5 * initial + 0.2 * before) / CELLS
    assert value == pytest.approx(saved + 0.3 + 0.1 + 2.0 + 1.0)


def test_a_record_is_the_best_of_the_whole_episode():
    env = small(reward_version=2, common_ignitions=False, budget=40, break_step=4)
    steps = play(env, 0)
    burned = [step[-1]["burned"] for step in steps]
    assert any(burned[t] < burned[t - 1] and burned[t] > min(burned[:t]) for t in range(1, len(burned))), (
        "choose a seed"
    )
    for t, (_, value, terminated, _, info) in enumerate(steps[1:], start=1):
        now = Outcome(
            initial=burned[0],
            previous=burned[t - 1],
            best=min(burned[:t]),
            burned=burned[t],
            coverage=(40 - info["budget_left"]) / CELLS,
            cells=CELLS,
            finished=terminated,
        )
        assert value == reward(now, 2)


def test_a_second_of_two_equal_cuts_is_worth_nothing_when_the_fires_are_the_same():
    env = small()
    env.reset(seed=0)
    env.step(at(50))
    assert [env.step(at(50))[1] for _ in range(3)] == [0.0] * 3


def test_other_fires_in_every_step_can_be_asked_for():
    env = small(common_ignitions=False)
    env.reset(seed=0)
    fires = [env.fires]
    for _ in range(3):
        env.step(at(50))
        fires.append(env.fires)
    assert len({tuple(one.cells.tolist()) for one in fires}) == 4
    assert env.step(at())[4]["burned"] == evaluate_plan(env.landscape.raster, env.plan, env.fires).mean_burned


# Resets


@pytest.mark.parametrize("settings", [{}, {"common_ignitions": False}, {"reward_version": 2}])
def test_an_episode_is_a_function_of_its_seed_and_actions(settings):
    env = small(**settings)
    first = play(env, 5)
    play(env, 6)
    assert like(play(env, 5), first)
    assert like(play(small(**settings), 5), first)
    assert not like(play(env, 6), first)


def test_without_a_seed_the_next_episode_is_another_one_but_follows_from_the_seed_before():
    episodes = []
    for _ in range(2):
        env = small()
        env.reset(seed=1)
        env.reset()
        episodes.append((env._number, env.fires.cells.tolist()))
    assert episodes[0] == episodes[1]
    env.reset(seed=1)
    assert episodes[0] != (env._number, env.fires.cells.tolist())


def test_naming_the_landscape_leaves_its_draws_alone():
    env = small(rasters=20)
    env.reset(seed=8)
    drawn = env._number
    cells = env.fires.cells
    assert env.reset(seed=8, options={"raster": drawn})[1]["raster"] == drawn
    assert np.array_equal(env.fires.cells, cells)
    assert env.reset(seed=8, options={"raster": 3})[1]["raster"] == 3


@pytest.mark.parametrize("options", [{"raster": 20}, {"raster": -1}, {"raster": "3"}, {"raster": True}, {"rasters": 1}])
def test_unknown_reset_options_are_refused_and_the_episode_goes_on(options):
    env = small(rasters=20)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="cannot be reset with these options"):
        env.reset(seed=0, options=options)
    env.step(at(1))


def test_no_landscape_is_ever_changed():
    env = small(rasters=2, break_step=4)
    pristine = [RasterSet(SIZE, 2)[number] for number in range(2)]
    for seed in range(6):
        play(env, seed)
        for layer in LAYERS:
            assert np.array_equal(getattr(env.landscape.raster, layer), getattr(pristine[env._number], layer))
        assert np.array_equal(env.landscape.edges, Landscape(pristine[env._number], env.weather).edges)
    landscape = env.landscape
    obs = env.reset(seed=9, options={"raster": env._number})[0]
    assert env.landscape is landscape  # kept from the episode before, uncut
    assert np.array_equal(obs, view(Landscape(pristine[env._number], env.weather)))


def test_an_observation_is_the_callers_own():
    env = small()
    obs = env.reset(seed=0)[0]
    obs[:] = 0.5
    led_to = env.step(at())[0]
    assert not np.array_equal(led_to, obs)
    led_to[:] = 0.5
    assert not np.array_equal(env.step(at())[0], led_to)


# Real landscapes


def test_real_landscapes_are_dealt_out(tmp_path):
    for name, fuel in (("a", 102), ("b", 145)):
        np.savez(tmp_path / f"{name}.npz", **layers(SIZE, fuel))
    env = small(raster_path=str(tmp_path))
    assert {env.reset(seed=seed)[1]["raster"] for seed in range(10)} == {0, 1}
    assert {env.landscape.raster.name} < {"a", "b"}


def test_missing_landscapes_are_an_error_when_the_environment_is_built(tmp_path):
    with pytest.raises(ConfigError, match="holds no landscape"):
        small(raster_path=str(tmp_path))


# Errors, and that nothing takes the place of what failed


@pytest.mark.parametrize(
    "action",
    [
        7,
        np.int64(7),
        np.zeros(99),
        np.zeros((10, 10)),
        np.full(100, 2),
        np.full(100, np.nan),
        ["a"] * 100,
        None,
        [[0], 1],
    ],
)
def test_an_action_that_is_none_is_refused_and_the_episode_goes_on(action):
    env = small()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="not in its action space"):
        env.step(action)
    assert not env.plan.any()
    env.step(at(1))


def test_an_index_instead_of_a_vector_is_named():
    env = small()
    env.reset(seed=0)
    with pytest.raises(ConfigError) as caught:
        env.step(7)
    assert str(caught.value) == (
        "[CFG-001] FuelBreakEnv was given an action that is not in its action space\n"
        "  found: int64 array of shape (): 7\n"
        "  expected: 100 numbers, each 0 or 1, shape (100,)\n"
        "  fix: Pass step() a vector with 1 at the cells to cut and 0 elsewhere; nothing was cut."
    )


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.bool_, np.float32, list])
def test_actions_of_any_number_type_are_the_same(kind):
    env = small()
    env.reset(seed=0)
    action = at(42)
    env.step(action.tolist() if kind is list else action.astype(kind))
    assert np.flatnonzero(env.plan).tolist() == [42]


def test_a_simulation_that_fails_raises_and_ends_the_episode(monkeypatch):
    env = small()
    env.reset(seed=0)

    def fails(*_):
        raise FloatingPointError("the fire went out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(module.Burn, "cut", fails)
        with pytest.raises(FloatingPointError, match="out of bounds"):
            env.step(at(1))
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(at(1))
    env.reset(seed=0)
    env.step(at(1))


def test_a_reset_that_fails_leaves_no_episode(monkeypatch):
    env = small()
    env.reset(seed=0)

    def fails(*_):
        raise ConfigError("no raster", fix="none")

    monkeypatch.setattr(RasterSet, "__getitem__", fails)
    with pytest.raises(ConfigError, match="no raster"):
        env.reset(seed=1, options={"raster": (env._number + 1) % 500})
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(at(1))


def test_stepping_after_the_end_or_before_the_beginning_is_refused():
    env = small()
    with pytest.raises(HeadraceError, match="no landscape yet"):
        env.step(at(1))
    play(env, 0)
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(at(1))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"size": 3}, "size must be"),
        ({"budget": 101}, "cannot cut more cells than the map has"),
        ({"budget": 5, "break_step": 6}, "in one step than in the whole episode"),
        ({"reward_version": 3}, "reward_version"),
        ({"wind_from": "up"}, "wind_from"),
        ({"num_simulation": 3}, "nearest: num_simulations"),
        ({"render_mode": "human"}, "render_mode 'human'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(keywords, message):
    with pytest.raises(ConfigError, match=message):
        small(**keywords)


def test_every_setting_of_the_sections_is_a_keyword():
    from headrace.envs.fuelbreak.settings import Keywords, Misbehaviour, Task

    fields = {name for section in (Task, Weather, Misbehaviour) for name in section.model_fields}
    assert set(Keywords.__annotations__) == fields


# Pictures


def test_a_picture_shows_fire_and_breaks():
    env = small(render_mode="rgb_array", rasters=1, num_simulations=20)
    env.reset(seed=0)
    before = env.render()
    assert (before.shape, before.dtype) == ((400, 400, 3), np.uint8)
    cell = before[::40, ::40].astype(int)
    burned = env._burn.probability
    redness = cell[..., 0] - cell[..., 2]
    bare = Landscape(env.landscape.raster, Weather(horizon_h=0.001))
    from headrace.envs.fuelbreak.render import draw

    ground = draw(bare, np.zeros((SIZE, SIZE)), np.zeros((SIZE, SIZE), np.bool_))[::40, ::40].astype(int)
    assert np.array_equal((cell != ground).any(-1), burned > 0)
    assert (redness[burned > 0] > (ground[..., 0] - ground[..., 2])[burned > 0]).all()
    env.step(at(34))
    assert (env.render()[120:160, 160:200] == (30, 30, 34)).all()


def test_a_picture_needs_its_mode_and_a_landscape():
    with pytest.raises(ConfigError, match="without a render_mode"):
        small().render()
    env = small(render_mode="rgb_array")
    with pytest.raises(HeadraceError, match="no landscape yet"):
        env.render()
    env.reset(seed=0)
    env.close()
    with pytest.raises(HeadraceError, match="none any more"):
        env.render()
    env.reset(seed=0)
    assert env.render().any()
