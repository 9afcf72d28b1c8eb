"""What an environment may return, and in which words everything else is refused."""

from __future__ import annotations

import functools
import sys
import timeit
import types

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError, EnvironmentNotBuilt, NonFiniteValue, ObservationMismatch, UnsupportedSpace
from headrace.envs import toy
from headrace.envs.building import build_environment, environment_name
from headrace.envs.contract import ObservationCheck, first_non_finite


def not_built(source, **options):
    with pytest.raises(EnvironmentNotBuilt) as caught:
        build_environment(source, **options)
    return caught.value


# Building


def test_environment_is_built_by_id():
    env = build_environment(EnvConfig(id="Pendulum-v1", kwargs={"g": 9.81}))
    assert env.unwrapped.g == 9.81
    env.close()


def test_environment_is_built_by_module_and_id(monkeypatch):
    module = types.ModuleType("registers_on_import")
    monkeypatch.setitem(sys.modules, "registers_on_import", module)
    monkeypatch.setitem(
        gymnasium.registry, "Mine-v0", gymnasium.envs.registration.EnvSpec("Mine-v0", entry_point=toy.counter)
    )
    assert isinstance(build_environment(EnvConfig(id="registers_on_import:Mine-v0")).unwrapped, toy.Counter)


def test_environment_is_built_by_factory_name():
    env = build_environment(EnvConfig(factory="headrace.envs.toy:counter", kwargs={"limit": 3}))
    assert isinstance(env, toy.Counter)
    assert env._limit == 3


def test_environment_is_built_by_a_callable():
    assert isinstance(build_environment(toy.counter), toy.Counter)
    assert isinstance(build_environment(EnvConfig(kwargs={"limit": 3}), factory=toy.counter), toy.Counter)


def test_time_limit_truncates_on_top_of_the_environments_own():
    env = build_environment(EnvConfig(factory="headrace.envs.toy:counter", max_episode_steps=2))
    env.reset(seed=0)
    assert [env.step(np.zeros(1, np.float32))[3] for _ in range(2)] == [False, True]


def lengths(env, episodes=2):
    """Steps of each episode; 99 if it does not end."""
    found = []
    for _ in range(episodes):
        env.reset(seed=0)
        found.append(next((step for step in range(1, 99) if any(env.step(0)[2:4])), 99))
    return found


class Truncating(toy.Counter):
    """Remembers the limit that it is handed."""

    told = None

    def truncate_after(self, steps):
        self.told = steps


class Skipping(gymnasium.Wrapper):
    """Repeats each action four times."""

    def step(self, action):
        for _ in range(4):
            taken = self.env.step(action)
        return taken


class Proxy(toy.Counter):
    """Hands on whatever it does not know to somebody who takes every call."""

    def __getattr__(self, name):
        if name.startswith("_") or name == "possible_agents":
            raise AttributeError(name)
        return lambda *_: None


@pytest.mark.parametrize("attribute", [None, 200])
def test_a_truncate_after_that_is_no_method_changes_nothing(attribute):
    kind = type("Has", (toy.Counter,), {"truncate_after": attribute})
    assert lengths(build_environment(EnvConfig(max_episode_steps=2), factory=kind)) == [2, 2]


def test_a_limit_is_handed_on_where_steps_are_the_same():
    inner = Truncating()
    around = gymnasium.wrappers.TransformReward(gymnasium.wrappers.OrderEnforcing(inner), float)
    assert lengths(build_environment(EnvConfig(max_episode_steps=2), factory=lambda: around)) == [2, 2]
    assert inner.told == 2


def test_a_limit_counts_the_steps_of_the_run_where_actions_are_repeated():
    inner = Truncating(limit=1000)
    env = build_environment(EnvConfig(max_episode_steps=30), factory=lambda: Skipping(inner))
    assert (lengths(env), inner.told) == ([30, 30], None)


def test_a_wrapper_may_say_how_many_steps_that_is_inside():
    class Telling(Skipping):
        def truncate_after(self, steps):
            self.env.truncate_after(4 * steps)

    inner = Truncating(limit=1000)
    env = build_environment(EnvConfig(max_episode_steps=30), factory=lambda: Telling(inner))
    assert (lengths(env), inner.told) == ([30, 30], 120)


def test_a_limit_holds_for_an_environment_that_answers_to_any_name():
    env = build_environment(EnvConfig(max_episode_steps=30), factory=lambda: Proxy(limit=1000))
    assert Proxy().truncate_after(30) is None
    assert lengths(env) == [30, 30]


def test_what_truncate_after_raises_is_the_environments():
    kind = type("TakesNothing", (toy.Counter,), {"truncate_after": lambda self: None})
    assert "raised TypeError: " in str(not_built(EnvConfig(max_episode_steps=2), factory=kind))

    def refuses(self, limit):
        raise ValueError(f"not {limit}")

    kind = type("Refusing", (toy.Counter,), {"truncate_after": refuses})
    error = not_built(EnvConfig(max_episode_steps=2), factory=kind)
    assert "building the environment of lane 0 raised ValueError: not 2" in str(error)
    assert "in refuses" in str(error)


def test_render_mode_is_passed_on():
    env = build_environment(EnvConfig(id="Pendulum-v1"), render_mode="rgb_array")
    assert env.render_mode == "rgb_array"
    env.close()


def test_unregistered_id_names_the_nearest():
    error = not_built(EnvConfig(id="Pendulm-v1"), component="collector-1")
    assert str(error) == (
        "[ENV-001] Gymnasium knows no environment Pendulm-v1\n"
        "  component: collector-1\n"
        "  environment: Pendulm-v1\n"
        "  nearest: Pendulum-v1\n"
        "  problem: Environment `Pendulm` doesn't exist. Did you mean: `Pendulum`?\n"
        '  fix: set env.id = "Pendulum-v1", or name the module that registers it: env.id = "module:Id-v0"'
    )


def breaks():
    raise KeyError("no such level")


def test_exception_of_a_factory_is_told_with_class_text_and_place():
    error = not_built(breaks, lane=3, component="collector-1")
    line = breaks.__code__.co_firstlineno + 1
    assert error.what == "building the environment of lane 3 raised KeyError: 'no such level'"
    assert error.facts["component"] == "collector-1"
    assert error.facts["environment"] == f"{__name__}:breaks"
    assert error.facts["raised_at"] == f"{__file__}:{line} in breaks"
    assert isinstance(error.__cause__, KeyError)


def test_exception_behind_gymnasium_is_found(monkeypatch):
    def entry(**kwargs):
        raise TypeError("no such level")

    monkeypatch.setitem(gymnasium.registry, "Bad-v0", gymnasium.envs.registration.EnvSpec("Bad-v0", entry_point=entry))
    error = not_built(EnvConfig(id="Bad-v0"))
    assert "no such level" in error.what
    assert error.facts["raised_at"].endswith("in entry")


def causes_itself():
    error = ValueError("no such level")
    raise error from error


def is_caused_by_a_ring():
    first, second = ValueError("no such level"), KeyError("y")
    try:
        raise second from first
    except KeyError:
        raise first from second


def is_caused_by_what_was_raised_nowhere():
    raise ValueError("no such level") from KeyError("y")  # as by a pool of processes, whose cause is a text


@pytest.mark.parametrize("factory", [causes_itself, is_caused_by_a_ring, is_caused_by_what_was_raised_nowhere])
def test_a_cause_that_leads_nowhere_is_not_followed(factory):
    error = not_built(factory)
    assert error.what == "building the environment of lane 0 raised ValueError: no such level"
    assert error.facts["raised_at"].endswith(f"in {factory.__name__}")


def test_factory_that_returned_nothing():
    assert str(not_built(lambda: None)) == (
        "[ENV-001] factory for lane 0 returned None\n"
        "  component: run\n"
        f"  environment: {__name__}:test_factory_that_returned_nothing.<locals>.<lambda>\n"
        "  expected: an instance of gymnasium.Env, or an environment of many agents with possible_agents\n"
        "  found: None\n"
        "  fix: end the factory with `return env`"
    )


def test_factory_that_returned_a_class():
    assert not_built(lambda: toy.Counter).what == "factory for lane 0 returned type"


@pytest.mark.parametrize("field", ["observation_space", "action_space"])
def test_environment_without_a_space(field):
    def factory():
        env = toy.counter()
        setattr(env, field, None)
        return env

    assert not_built(factory).what == f"the environment of lane 0 has no {field}"


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("headrace", "headrace does not say where the factory is"),
        (":counter", ":counter does not say where the factory is"),
        ("no_such_module:f", "building the environment of lane 0 raised ModuleNotFoundError"),
        ("headrace.envs.toy:countr", "module headrace.envs.toy has no countr"),
    ],
)
def test_factory_that_cannot_be_found(factory, what):
    assert not_built(EnvConfig(factory=factory)).what.startswith(what)


def test_factory_in_no_module_that_is_found_here():
    error = not_built(EnvConfig(factory="no_such_module:f"))
    assert (
        error.fix
        == "run it where Python finds no_such_module: in the folder that holds it, or with its package installed"
    )


def test_what_a_factory_imports_is_not_looked_for_in_its_folder():
    def factory():
        import no_such_module  # noqa: F401

    error = not_built(factory)
    assert error.fix == "install the package that has no_such_module, or correct the import"


def test_misspelt_factory_names_the_nearest():
    assert not_built(EnvConfig(factory="headrace.envs.toy:countr")).facts["nearest"] == "headrace.envs.toy:counter"


def test_nothing_named_is_refused():
    assert not_built(EnvConfig()).what == "no environment is named"


def test_own_errors_pass_unchanged():
    with pytest.raises(ConfigError, match="does not know mode 'SOLO'"):
        build_environment(EnvConfig(id="headrace/Hockey-v0", kwargs={"mode": "SOLO"}))


def test_name_of_an_environment():
    assert environment_name(EnvConfig(id="Pendulum-v1")) == "Pendulum-v1"
    assert environment_name(EnvConfig(), functools.partial(toy.counter, 3)) == "headrace.envs.toy:counter"


# Observations

BOX = spaces.Box(-1, 1, (3,), np.float32)


def mismatch(space, value, **options):
    with pytest.raises(ObservationMismatch) as caught:
        ObservationCheck(space, "toy", **options).check(value, 2, 17)
    return caught.value


@pytest.mark.parametrize("name", list(toy.SPACES))
def test_members_of_every_space_pass_unchanged(name):
    space = toy.sampler(name).observation_space
    space.seed(3)
    check = ObservationCheck(space, "toy")
    for step in range(20):
        value = space.sample()
        assert check.check(value, 0, step) is value


def test_wrong_dtype_is_told_in_full():
    assert str(mismatch(BOX, np.zeros(3))) == (
        "[ENV-002] obs does not fit what the environment declared\n"
        "  environment: toy\n"
        "  field: obs\n"
        "  expected: float32 array of shape (3,)\n"
        "  found: float64 array of shape (3,)\n"
        "  lane: 2\n"
        "  step: 17\n"
        "  fix: correct the observation space or what the environment returns; "
        "env.cast_observations = true converts dtypes"
    )


@pytest.mark.parametrize(
    ("space", "value", "field", "found"),
    [
        (BOX, np.zeros((3, 1), np.float32), "obs", "float32 array of shape (3, 1)"),
        (BOX, [0.0, 0.0, 0.0], "obs", "list [0.0, 0.0, 0.0]"),
        (BOX, None, "obs", "NoneType None"),
        (spaces.Discrete(3, start=-1), 2, "obs", "value 2"),
        (spaces.Discrete(3, start=-1), -2, "obs", "value -2"),
        (spaces.Discrete(3), 1.0, "obs", "float 1.0"),
        (spaces.Discrete(3), True, "obs", "bool True"),
        (spaces.Discrete(3), np.zeros(1, np.int64), "obs", "int64 array of shape (1,)"),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 4]), "obs", "value 4"),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), "obs", "value 2"),
        (spaces.Box(0, 10, (2,), np.int32), np.array([11, 0], np.int32), "obs", "value 11"),
        (spaces.Dict(a=BOX), {"b": 0}, "obs", "keys ['b']"),
        (spaces.Dict(a=BOX), {"a": np.zeros(3, np.float32), "b": 0}, "obs", "keys ['a', 'b']"),
        (spaces.Dict(a=BOX), np.zeros(3, np.float32), "obs", "float32 array of shape (3,)"),
        (spaces.Dict(a=spaces.Dict(b=BOX)), {"a": {"b": 1}}, "obs.a.b", "int 1"),
        (spaces.Tuple((BOX, spaces.Discrete(2))), (np.zeros(3, np.float32),), "obs", "1 parts"),
        (spaces.Tuple((BOX, spaces.Discrete(2))), (np.zeros(3, np.float32), 2), "obs.1", "value 2"),
        (spaces.Tuple((BOX,)), {"0": 1}, "obs", "dict {'0': 1}"),
    ],
)
def test_value_that_does_not_fit(space, value, field, found):
    error = mismatch(space, value)
    assert (error.facts["field"], error.facts["found"]) == (field, found)
    assert (error.facts["lane"], error.facts["step"]) == (2, 17)


@pytest.mark.parametrize("shape", [(52,), (4, 13), (2048,)], ids=["small", "flat or not", "large"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_bytes_between_zero_and_a_bound_are_looked_at_one_and_all(kind, shape):
    space = spaces.Box(0, 3, shape, kind)
    check = ObservationCheck(space, "env")
    fits = np.full(shape, 3, kind)
    assert check.check(fits, 0, 0) is fits
    assert check.transition((fits, 1.0, False, False), 0, 1) == (fits, 1.0, (False, False))
    for bad in (4, np.iinfo(kind).min or 255, np.iinfo(kind).max):
        wrong = fits.copy()
        wrong.flat[-1] = bad
        for refuse in (lambda w: check.check(w, 0, 0), lambda w: check.transition((w, 1.0, False, False), 0, 1)):
            with pytest.raises(ObservationMismatch) as caught:
                refuse(wrong)
            assert caught.value.facts["found"] == f"value {bad}"


def test_integer_range_is_part_of_what_is_expected():
    assert mismatch(spaces.Discrete(3, start=-1), 2).facts["expected"] == "integer, values from -1 to 1"


def test_image_needs_no_range_check():
    space = toy.SPACES["image"]
    value = np.full((4, 4, 3), 255, np.uint8)
    assert ObservationCheck(space, "toy").check(value, 0, 0) is value
    assert ObservationCheck(space, "toy")._fast


def test_casting_warns_once_and_changes_only_the_dtype():
    said = []
    check = ObservationCheck(BOX, "toy", cast=True, on_cast=said.append)
    for step in range(3):
        made = check.check(np.array([0.5, 0.25, 1.0]), 0, step)
        assert made.dtype == np.float32
        assert made.tolist() == [0.5, 0.25, 1.0]
    assert check.check([1, 0, 0], 0, 3).tolist() == [1.0, 0.0, 0.0]
    assert said == [
        "toy: obs is converted on every step, from float64 array of shape (3,) to float32 array of shape (3,)"
    ]


def test_casting_rebuilds_a_tree():
    space = spaces.Dict(a=BOX, b=spaces.Discrete(2))
    made = ObservationCheck(space, "toy", cast=True).check({"a": np.zeros(3), "b": 1}, 0, 0)
    assert made["a"].dtype == np.float32
    assert made["b"] == 1


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, np.zeros((1, 3))),
        (BOX, ["a", "b", "c"]),
        (BOX, None),
        (BOX, [[1], [1, 2], 3]),
        (BOX, torch.zeros(3, requires_grad=True)),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([256])),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([0.5])),
        (spaces.Discrete(2), 0.5),
        (spaces.Discrete(2), 3.0),
    ],
)
def test_casting_never_changes_a_shape_or_a_whole_number(space, value):
    mismatch(space, value, cast=True)


def test_space_that_cannot_be_stored_is_refused():
    with pytest.raises(UnsupportedSpace):
        ObservationCheck(spaces.Text(5), "toy")


WIDE = spaces.Box(-np.inf, np.inf, (2,), np.float64)
LARGEST = float(np.finfo(np.float32).max)


def test_a_number_that_float32_makes_infinite_is_told_in_full():
    with pytest.raises(NonFiniteValue) as caught:
        ObservationCheck(WIDE, "toy").transition((np.array([0.5, -1e39]), 1.0, False, False), 2, 7)
    assert str(caught.value) == (
        "[ENV-003] obs: -1e+39 does not fit into float32, which is what networks see\n"
        "  environment: toy\n"
        "  field: obs\n"
        "  expected: numbers from -3.40282e+38 to 3.40282e+38\n"
        "  found: -1e+39 at index (1,)\n"
        "  lane: 2\n"
        "  step: 7\n"
        "  fix: let the environment scale it, clip it or take its logarithm; nobody has acted on it"
    )


@pytest.mark.parametrize(
    ("space", "value", "cast", "told"),
    [
        (WIDE, np.array([np.nan, 1e300]), False, "obs: 1e+300 does not fit into float32"),
        (spaces.Dict(a=BOX, b=WIDE), {"a": np.zeros(3, np.float32), "b": np.array([0, 1e39])}, False, "obs.b: 1e"),
        (spaces.Box(-np.inf, np.inf, (), np.float64), np.float64(1e39), False, "at index ()"),
        (WIDE, [1, 1e39], True, "at index (1,)"),
        (BOX, np.array([0, 1e39, 0]), True, "1e+39 does not fit into float32, which"),
        (spaces.Box(-9, 9, (1,), np.float16), np.array([70_000]), True, "float16, as which it was declared"),
    ],
)
def test_what_would_be_infinite_is_refused_wherever_it_is(space, value, cast, told):
    with pytest.raises(NonFiniteValue) as caught:
        ObservationCheck(space, "toy", cast=cast).check(value, 0, 0)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (WIDE, np.array([LARGEST, -LARGEST])),  # though the sum of their squares is too large
        (WIDE, np.array([np.nan, -np.inf])),  # looked at by chunks, as of every dtype
        (spaces.Box(-np.inf, np.inf, (0,), np.float64), np.zeros(0)),
        (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), np.array([2**63 - 1, -(2**63)])),
    ],
)
def test_what_float32_can_hold_passes_unchanged(space, value):
    assert ObservationCheck(space, "toy").check(value, 0, 0) is value


def test_common_case_is_cheap():
    """Bound with a margin of ten: it catches a check that walks the space, not a slow machine."""
    check, value = ObservationCheck(BOX, "toy").check, np.zeros(3, np.float32)
    assert min(timeit.repeat(lambda: check(value, 0, 0), number=1000, repeat=20)) / 1000 < 3e-6


# Rewards, flags, finite values


@pytest.mark.parametrize(
    "value", [1.5, np.float32(1.5), np.float64(1.5), np.array(1.5), np.array([1.5]), np.array([1.5], np.float32)]
)
def test_reward_is_a_number(value):
    made = ObservationCheck(BOX, "toy").reward(value, 0, 0)
    assert type(made) is float
    assert made == 1.5


@pytest.mark.parametrize("value", [2, np.int64(2), True, np.array([1], np.int32), np.True_])
def test_whole_reward_is_a_number(value):
    assert ObservationCheck(BOX, "toy").reward(value, 0, 0) == float(np.asarray(value).item())


@pytest.mark.parametrize("value", [10**400, None, "1.5", [1.5], np.zeros(2), np.zeros((1, 1)), np.array("x"), 1j])
def test_reward_of_another_kind_is_refused(value):
    with pytest.raises(ObservationMismatch, match="reward is unusable") as caught:
        ObservationCheck(BOX, "toy").reward(value, 2, 17)
    assert caught.value.facts["field"] == "reward"
    assert caught.value.facts["step"] == 17


@pytest.mark.parametrize("value", [True, np.True_, 1, np.array(1, np.bool_), np.array([True]), np.int64(1)])
def test_flag_is_a_bool(value):
    assert ObservationCheck(BOX, "toy").flag("truncated", value, 0, 0) is True


def test_flag_may_be_false():
    assert ObservationCheck(BOX, "toy").flag("truncated", np.False_, 0, 0) is False


@pytest.mark.parametrize("value", [None, "yes", 2, 1.0, np.array([True, False]), {}])
def test_flag_of_another_kind_is_refused(value):
    with pytest.raises(ObservationMismatch, match="terminated is unusable") as caught:
        ObservationCheck(BOX, "toy").flag("terminated", value, 2, 17)
    assert caught.value.facts["expected"] == "a bool"


@pytest.mark.parametrize(
    ("array", "index"),
    [
        (np.zeros((4, 3), np.float32), None),
        (np.array([[0, 1], [np.nan, np.inf]]), (1, 0)),
        (np.array([0, 1, -np.inf], np.float32), (2,)),
        (np.array(np.nan), ()),
        (np.array([1, 2]), None),
        (np.zeros((0, 3)), None),
    ],
)
def test_first_value_that_is_not_finite(array, index):
    assert first_non_finite(array) == index
