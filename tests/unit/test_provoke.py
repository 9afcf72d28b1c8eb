"""The environment that misbehaves on purpose: when, where, once, and with any space."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from headrace.core import seeding
from headrace.core.config import EnvConfig
from headrace.core.errors import ObservationMismatch
from headrace.envs.building import build_environment, environment_name
from headrace.envs.contract import ObservationCheck, integer_range
from headrace.envs.toy import SPACES, counter, sampler
from headrace.testing import provoke
from headrace.testing.faultrun import UserEnvironment
from headrace.testing.provoke import Factory, Plan, Provoked

LANE_1 = seeding.integer(0, "environment", 1, 0)
LANE_0 = seeding.integer(0, "environment", 0, 0)


@pytest.fixture
def marker(tmp_path) -> str:
    return str(tmp_path / "marker")


def stepped(env: Provoked, steps: int, seed: int = LANE_1):
    """What an environment returned in each of so many steps after a reset with this seed."""
    env.reset(seed=seed)
    return [env.step(env.action_space.sample()) for _ in range(steps)]


def test_it_happens_in_the_chosen_step_of_the_chosen_lane(marker):
    env = Provoked(counter(), Plan(what="raises", at=3, marker=marker))
    stepped(env, 2)
    with pytest.raises(ValueError, match="burn map corrupt, tile 7"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("seed", [LANE_0, seeding.integer(0, "evaluation", 0), 17, None])
def test_elsewhere_nothing_happens(marker, seed):
    env = Provoked(counter(), Plan(what="raises", at=3, marker=marker))
    assert [reward for _, reward, *_ in stepped(env, 9, seed)] == [float(t) for t in range(1, 10)]


def test_it_happens_once(marker):
    plan = Plan(what="nan-reward", at=2, marker=marker)
    first, second = (stepped(Provoked(counter(), plan), 3) for _ in range(2))
    assert [bool(np.isfinite(reward)) for _, reward, *_ in first] == [True, False, True]
    assert [reward for _, reward, *_ in second] == [1.0, 2.0, 3.0]


def test_where_no_lane_is_served_can_be_chosen(marker):
    env = Provoked(counter(), Plan(what="raises", lane=provoke.NOT_A_LANE, marker=marker))
    with pytest.raises(ValueError, match=provoke.WORDS):
        stepped(env, 1, seed=17)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("what", provoke.VALUES)
def test_whatever_the_space_a_spoiled_observation_is_refused_or_known_to_be_impossible(marker, tmp_path, what, space):
    env = Provoked(sampler(space), Plan(what=what, at=2, marker=marker))
    (good, *_), (bad, *_) = stepped(env, 2)
    check = ObservationCheck(env.observation_space, "toy")
    check.check(good, 1, 1)
    if (tmp_path / "marker.impossible").exists():
        check.check(bad, 1, 2)
        return
    if "observation" in what:
        assert not all(np.isfinite(leaf.of(bad)).all() for leaf in provoke.leaves(env.observation_space, "obs")), (
            "NaN or infinity is in it"
        )
    else:
        with pytest.raises(ObservationMismatch):
            check.check(bad, 1, 2)


def test_impossible_are_only_those_for_which_there_is_no_such_leaf(tmp_path):
    impossible = set()
    for space in SPACES:
        for what in provoke.VALUES:
            place = tmp_path / f"{space}-{what}"
            stepped(Provoked(sampler(space), Plan(what=what, marker=str(place))), 1)
            if not place.exists():
                impossible.add((space, what))
    integers = ("image", "discrete", "multidiscrete", "multibinary")
    assert impossible == {
        ("box", "out-of-range"),
        ("image", "out-of-range"),  # every uint8 is an intensity
        *((space, what) for space in integers for what in ("nan-observation", "infinite-observation")),
    }


BYTES = np.array([0, 0], np.uint8)
INTEGERS = {
    "discrete": spaces.Discrete(3, start=-1),
    "multidiscrete": spaces.MultiDiscrete([3, 4], start=[2, 0]),  # 3 is in its first range
    "multidiscrete of bytes": spaces.MultiDiscrete([[2, 1], [3, 2]], dtype=np.int8, start=[[126, 5], [0, -128]]),
    "multibinary": spaces.MultiBinary((2, 2)),
    "all bytes": spaces.Box(0, 255, (2,), np.uint8),
    "all bytes in the first place": spaces.Box(BYTES, np.array([255, 7], np.uint8), dtype=np.uint8),
    "limited below only": spaces.Box(3, 255, (2,), np.uint8),
    "of no dimension": spaces.Box(-5, 5, (), np.int32),
}


@pytest.mark.parametrize("space", INTEGERS.values(), ids=INTEGERS)
def test_beyond_a_space_of_integers_is_what_the_contract_says_is_beyond(space):
    (leaf,), check = provoke.leaves(space, "obs"), ObservationCheck(space, "toy")
    low, high = integer_range(space)
    space.seed(1)
    good = space.sample()
    bad = provoke.VALUES["out-of-range"].change(space, leaf, good)
    check.check(good, 1, 1)  # as it was
    if bad is None:
        natural = np.iinfo(leaf.dtype)
        assert (np.all(low == natural.min), np.all(high == natural.max)) == (True, True)
        return
    with pytest.raises(ObservationMismatch, match=r"found: value"):
        check.check(bad, 1, 2)


def test_while_building_calls_are_counted_over_all_processes(marker):
    plan = Plan(what="raises", place="construct", at=2, marker=marker)
    factory = Factory(counter, plan)
    factory()
    with pytest.raises(ValueError, match=provoke.WORDS):
        factory()
    factory()


def test_it_travels_and_keeps_the_name_of_the_users_environment(marker):
    plan = Plan(what="raises", marker=marker)
    user = UserEnvironment(EnvConfig(factory="headrace.envs.toy:counter"))
    factory = cloudpickle.loads(cloudpickle.dumps(Factory(user, plan, name="headrace.envs.toy:counter")))
    assert environment_name(EnvConfig(), factory) == "headrace.envs.toy:counter"
    env = build_environment(EnvConfig(kwargs={"limit": 2}), factory=factory)
    env.reset(seed=LANE_0)
    assert [env.step(np.zeros(1, np.float32))[3] for _ in range(2)] == [False, True]


def test_an_exception_that_cannot_be_pickled_cannot():
    with pytest.raises(TypeError):
        cloudpickle.dumps(provoke.RefusesToTravel("stay"))


def test_a_leak_grows_and_goes_on(marker):
    env = Provoked(counter(), Plan(what="leaks", at=2, marker=marker))
    stepped(env, 5)
    assert len(env._leaked) == 4
    assert {len(block) for block in env._leaked} == {provoke.LEAKED_BYTES}
