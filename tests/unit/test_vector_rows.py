"""What environments return, checked and laid down; infos put together; actions taken apart."""

from __future__ import annotations

import signal
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any
from warnings import catch_warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import VectorMisused
from headrace.vector.endings import ENDING
from headrace.vector.faults import FaultKind, from_exception
from headrace.vector.infos import Infos, columns_of, kept
from headrace.vector.pool import _sealed
from headrace.vector.rows import Rows, settle
from headrace.vector.spaces import ActionCodec, Layout
from vector_envs import SPACES, plain

BOX = spaces.Box(-1, 1, (2,), np.float32)


def rows_of(space: Any = BOX, *, count: int = 3, finals: bool = False, **how: bool) -> Rows:
    rows = Rows.private(Layout(space, "obs"), count, **{"check_finite": True, **how})
    rows.finals = finals
    return rows


def good(value: float = 0.5, reward: Any = 1.0, info: Any = None) -> tuple[Any, ...]:
    return np.full(2, value, np.float32), reward, False, True, info or {}


def test_what_fits_is_laid_down_in_its_row() -> None:
    rows = rows_of()
    settled = settle(rows, range(3, 6), [good(0.1), good(0.2, 2, {"a": 1}), good(0.3, np.float32(3))])
    np.testing.assert_allclose(rows.arrays[0][3:, 0], [0.1, 0.2, 0.3], rtol=1e-6)
    assert not rows.arrays[0][:3].any()
    assert list(settled.rewards) == [1.0, 2.0, 3.0]
    assert (list(settled.terminated), list(settled.truncated)) == ([False] * 3, [True] * 3)
    assert (settled.infos, settled.problems) == ({1: {"a": 1}}, {})


def test_rows_need_not_be_neighbours() -> None:
    rows = rows_of()
    settle(rows, [4, 0], [good(0.1), good(0.2)])
    np.testing.assert_allclose(rows.arrays[0][[4, 0], 0], [0.1, 0.2], rtol=1e-6)


NAN = float("nan")
BAD: dict[str, tuple[Any, FaultKind, str]] = {
    "shape": ((np.zeros(3, np.float32), 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "broadcast": ((np.zeros(1, np.float32), 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "text": (("no", 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "none": ((None, 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "ragged": (([0.0, [1.0]], 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "complex": ((np.zeros(2, complex), 1.0, False, False, {}), FaultKind.CONTRACT, "obs"),
    "nan": ((np.array([0, NAN], np.float32), 1.0, False, False, {}), FaultKind.NOT_FINITE, "obs"),
    "inf": ((np.array([np.inf, 0], np.float32), 1.0, False, False, {}), FaultKind.NOT_FINITE, "obs"),
    "nan reward": ((np.zeros(2, np.float32), NAN, False, False, {}), FaultKind.NOT_FINITE, "reward"),
    "inf reward": ((np.zeros(2, np.float32), np.float32("inf"), False, False, {}), FaultKind.NOT_FINITE, "reward"),
    "two rewards": ((np.zeros(2, np.float32), np.zeros(2), False, False, {}), FaultKind.CONTRACT, "reward"),
    "no reward": ((np.zeros(2, np.float32), None, False, False, {}), FaultKind.CONTRACT, "reward"),
    "text reward": ((np.zeros(2, np.float32), "1.0", False, False, {}), FaultKind.CONTRACT, "reward"),
    "no flag": ((np.zeros(2, np.float32), 1.0, None, False, {}), FaultKind.CONTRACT, "terminated"),
    "text flag": ((np.zeros(2, np.float32), 1.0, False, "no", {}), FaultKind.CONTRACT, "truncated"),
    "number flag": ((np.zeros(2, np.float32), 1.0, 2, False, {}), FaultKind.CONTRACT, "terminated"),
    "no info": ((np.zeros(2, np.float32), 1.0, False, False, None), FaultKind.CONTRACT, "info"),
    "list info": ((np.zeros(2, np.float32), 1.0, False, False, ["a"]), FaultKind.CONTRACT, "info"),
    "four": ((np.zeros(2, np.float32), 1.0, False, {}), FaultKind.CONTRACT, "what step() returned"),
    "six": ((np.zeros(2, np.float32), 1.0, False, False, {}, 1), FaultKind.CONTRACT, "what step() returned"),
    "nothing": (None, FaultKind.CONTRACT, "what step() returned"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_has_one_owner(name: str) -> None:
    bad, kind, field = BAD[name]
    rows = rows_of()
    settled = settle(rows, range(3), [good(0.1, info={"a": 1}), bad, good(0.3)])
    assert set(settled.problems) == {1}
    problem = settled.problems[1]
    assert (problem.kind, problem.error.facts["field"]) == (kind, field)
    np.testing.assert_allclose(rows.arrays[0][[0, 2], 0], [0.1, 0.3], rtol=1e-6)
    assert [list(settled.rewards)[place] for place in (0, 2)] == [1.0, 1.0]
    assert settled.infos[0] == {"a": 1}


def test_two_wrong_shapes_do_not_make_up_for_each_other() -> None:
    short, long = np.zeros(1, np.float32), np.zeros(3, np.float32)
    settled = settle(rows_of(), range(2), [(short, 1.0, False, False, {}), (long, 1.0, False, False, {})])
    assert set(settled.problems) == {0, 1}


@pytest.mark.parametrize(
    ("value", "kept"),
    [([0.5, 0.25], [0.5, 0.25]), (np.array([0.5, 0.25]), [0.5, 0.25]), (np.array([1, 0]), [1.0, 0.0])],
)
def test_dtypes_of_the_same_kind_are_converted_as_gymnasium_does(value: Any, kept: list[float]) -> None:
    rows = rows_of()
    assert not settle(rows, range(1), [(value, 1.0, False, False, {})]).problems
    assert rows.arrays[0][0].tolist() == kept


ONE = spaces.Box(-1, 1, (), np.float32)
STRICT = [
    (BOX, [0.5, 0.25], "list [0.5, 0.25]"),
    (BOX, np.array([0.5, 0.25]), "float64 of shape (2,)"),
    (spaces.MultiBinary(2), np.array([1, 0]), "int64 of shape (2,)"),
    (ONE, 0.5, "float 0.5"),
    (spaces.Discrete(3), True, "bool True"),
    (spaces.Dict({"a": BOX}), {"a": np.zeros(2)}, "float64 of shape (2,)"),
]


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(("space", "value", "found"), STRICT)
def test_where_nothing_is_to_be_converted_another_dtype_is_a_fault(
    space: Any, value: Any, found: str, others: int
) -> None:
    rows = rows_of(space, cast=False)
    fitting = [(space.sample(), 1.0, False, False, {})] * others
    settled = settle(rows, range(others + 1), [*fitting, (value, 1.0, False, False, {})])
    assert set(settled.problems) == {others}
    problem = settled.problems[others]
    assert (problem.kind, problem.error.facts["found"]) == (FaultKind.CONTRACT, found)


@pytest.mark.parametrize(
    ("space", "value"), [(ONE, np.float32(0.5)), (spaces.Discrete(3), np.int32(2)), (BOX, np.ones(2, "f4"))]
)
def test_where_nothing_is_to_be_converted_what_was_declared_is_laid_down(space: Any, value: Any) -> None:
    rows = rows_of(space, cast=False)
    assert not settle(rows, range(2), [(value, 1.0, False, False, {})] * 2).problems
    assert rows.arrays[0][1].tolist() == value.tolist()


@pytest.mark.parametrize("reward", [np.array([1.5]), np.array(1.5), np.float64(1.5), 1.5])
def test_a_reward_of_one_number_is_that_number(reward: Any) -> None:
    settled = settle(rows_of(), range(2), [good(reward=reward), good(reward=2)])
    assert (list(settled.rewards), settled.problems) == ([1.5, 2.0], {})


def test_values_that_are_not_finite_pass_where_that_is_wanted() -> None:
    rows = rows_of(check_finite=False)
    settled = settle(rows, range(1), [(np.array([NAN, np.inf], np.float32), NAN, False, False, {})])
    assert not settled.problems
    assert not rows.write_plain(0, None)


@pytest.mark.parametrize(
    "value", [{"b": np.zeros(2)}, {"a": 1, "b": np.zeros(2), "c": 3}, {"a": 0.5, "b": np.zeros(2)}, [1], None]
)
def test_a_dict_has_exactly_its_keys(value: Any) -> None:
    fitting = {"a": 1, "b": np.zeros(2)}
    settled = settle(rows_of(SPACES["dict"]), range(2), [(o, 1.0, False, False, {}) for o in (fitting, value)])
    assert set(settled.problems) == {1}


@pytest.mark.parametrize("value", [(1,), (1, (np.zeros((2, 2)),), 3), (1, ()), None])
def test_a_tuple_has_exactly_its_parts(value: Any) -> None:
    fitting = (1, (np.zeros((2, 2)),))
    settled = settle(rows_of(SPACES["tuple"]), range(2), [(o, 1.0, False, False, {}) for o in (fitting, value)])
    assert set(settled.problems) == {1}


def test_the_last_observation_of_an_episode_is_checked_too() -> None:
    last = np.array([NAN, 0], np.float32)
    ends = (np.zeros(2, np.float32), 1.0, True, False, {ENDING: (last, {})})
    assert set(settle(rows_of(finals=True), range(2), [good(), ends]).problems) == {1}
    assert set(settle(rows_of(finals=True), [0, 2], [good(), ends]).problems) == {1}
    begins = (last, 1.0, True, False, {ENDING: (np.zeros(2, np.float32), {})})
    problems = settle(rows_of(finals=True), range(2), [ends, begins]).problems
    assert [problems[place].phase for place in (0, 1)] == ["step", "reset"]
    assert not settle(rows_of(finals=False), range(2), [good(), ends]).problems


def test_the_plain_way_takes_only_the_plainest() -> None:
    rows = rows_of()
    assert rows.write_plain(2, good(0.7))
    assert rows.arrays[0][2, 0] == np.float32(0.7)
    for bad, _, _ in BAD.values():
        assert not rows.write_plain(2, bad), bad
    assert not rows.write_plain(2, good(info={"a": 1}))


def gymnasiums(infos: dict[int, Any], count: int) -> dict[str, Any]:
    envs: Any = gym.vector.VectorEnv()
    envs.num_envs = count
    found: dict[str, Any] = {}
    for env, info in sorted(infos.items()):
        found = envs._add_info(found, info, env)
    return found


NUMBERS = st.one_of(st.integers(-5, 5), st.floats(-1, 1), st.booleans(), st.floats(-1, 1).map(np.float32))
ANY_NUMBERS = st.one_of(
    NUMBERS, st.integers(-(2**63), 2**63 - 1), st.floats(), st.floats(width=32).map(np.float32),
    st.integers(0, 255).map(np.uint8), st.integers(0, 2**64 - 1).map(np.uint64), st.booleans().map(np.bool_),
)  # fmt: skip


def infos_of(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from("abc"), numbers, min_size=1, max_size=3)


@given(st.dictionaries(st.integers(0, 3), infos_of(NUMBERS), min_size=1), st.booleans())
def test_columns_are_what_gymnasium_makes_one_by_one(infos: dict[int, Any], split: bool) -> None:
    expected = gymnasiums(infos, 4)
    alike = columns_of(infos)
    batch = Infos(4)
    if alike is None:
        batch.fill(infos, [], None)
    elif split:
        parts = [columns_of({env: info}) for env, info in infos.items()]
        batch.fill({}, [part for part in parts if part is not None], None)
    else:
        batch.fill({}, [alike], None)
    assert list(batch.batch) == list(expected)
    for key, array in expected.items():
        assert array.dtype == batch.batch[key].dtype
        np.testing.assert_array_equal(array, batch.batch[key])
    if alike is not None:
        again = alike.one_by_one()
        assert again == infos
        assert [list(map(type, info.values())) for info in again.values()] == [
            list(map(type, info.values())) for info in infos.values()
        ]


@given(st.dictionaries(st.integers(0, 3), infos_of(ANY_NUMBERS), min_size=1))
def test_columns_in_shared_memory_come_back_as_they_were(infos: dict[int, Any]) -> None:
    columns, numbers = columns_of(infos), np.full((3, 4), np.nan)
    if columns is None or not columns.lay_down(numbers):
        return
    again = columns.form.read(numbers, columns.envs)
    assert (again.envs, again.form) == (columns.envs, columns.form)
    for one, other in zip(again.arrays, columns.arrays, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elsewhere = [env for env in range(4) if env not in infos]
    assert np.isnan(numbers[:, elsewhere]).all()


def test_large_whole_numbers_in_shared_memory_are_exact() -> None:
    columns, numbers = columns_of({0: {"a": 2**53 + 1}, 1: {"a": -(2**62) - 1}}), np.zeros((1, 2))
    assert columns is not None
    assert columns.lay_down(numbers)
    assert columns.form.read(numbers, columns.envs).arrays[0].tolist() == [2**53 + 1, -(2**62) - 1]


@pytest.mark.parametrize("info", [{"a": 2**63}, {"a": np.uint64(1)}, {"a": 1 + 1j}, dict.fromkeys("abcd", 1.0)])
def test_what_is_no_number_of_eight_bytes_is_not_laid_down(info: Any) -> None:
    columns = columns_of({0: info})
    assert columns is None or not columns.lay_down(np.zeros((3, 4)))


@pytest.mark.parametrize("info", [{"a": "text"}, {"a": np.zeros(2)}, {"a": {"b": 1}}, {"a": 2**70}, {"a": None}])
def test_what_is_no_number_is_no_column(info: Any) -> None:
    assert columns_of({0: info}) is None


@pytest.mark.parametrize("kind", SPACES)
def test_actions_come_back_one_by_one(kind: str) -> None:
    single = SPACES[kind]
    batched = batch_space(single, 3)
    batched.seed(4)
    actions = batched.sample()
    codec = ActionCodec(single, batched)
    columns, objects = codec.encode(actions, 3)
    one_by_one = objects if codec.as_objects else codec.decode(columns)
    expected = list(gym.vector.utils.iterate(batched, actions))
    assert len(one_by_one) == 3
    for found, wanted in zip(one_by_one, expected, strict=True):
        assert str(plain(found)) == str(plain(wanted))


def test_decoded_actions_are_nobody_elses() -> None:
    codec = ActionCodec(BOX, batch_space(BOX, 2))
    given_ = np.zeros((2, 2), np.float32)
    columns, _ = codec.encode(given_, 2)
    decoded = codec.decode(columns)
    given_[:] = 7
    assert not np.array(decoded).any()


@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "text", "mixed"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_wrong_number_of_actions(kind: str, count: int) -> None:
    codec = ActionCodec(SPACES[kind], batch_space(SPACES[kind], 3))
    with pytest.raises(VectorMisused):
        codec.encode(batch_space(SPACES[kind], count).sample(), 3)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((3, 1), int), np.array(["a"] * 3), None, [[1], [2], [3]]])
def test_actions_that_do_not_fit(wrong: Any) -> None:
    with pytest.raises(VectorMisused):
        ActionCodec(SPACES["discrete"], batch_space(SPACES["discrete"], 3)).encode(wrong, 3)


class Unlucky:
    """Raises whatever it is asked."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("nobody asks")

    __len__ = __iter__ = __float__ = __bool__ = __array__ = __eq__ = __repr__ = _raise
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("reward", [10**400, -(10**400), np.array(None), Unlucky(), "1"])
def test_a_reward_that_is_no_number_is_one_environments_fault(reward: Any, finite: bool) -> None:
    rows = rows_of(check_finite=finite)
    settled = settle(rows, range(3), [good(), good(reward=reward), good()])
    assert {place: problem.kind.value for place, problem in settled.problems.items()} == {1: "contract"}
    assert not rows.write_plain(1, good(reward=reward))


@pytest.mark.parametrize("what", [Unlucky(), (Unlucky(),) * 5, [1, 2, 3, 4, Unlucky()]])
def test_what_raises_when_it_is_looked_at_is_one_environments_fault(what: Any) -> None:
    settled = settle(rows_of(), range(2), [what, good()])
    assert {place: problem.kind.value for place, problem in settled.problems.items()} == {0: "contract"}


@pytest.mark.parametrize("key", [1, True, ("a", 1), Unlucky])
def test_only_names_are_keys_of_columns(key: Any) -> None:
    assert columns_of({0: {key: 1.0}}) is None


def test_gymnasium_keeps_whatever_is_called_final_obs_as_an_object() -> None:
    found = {env: {"final_obs": 3} for env in range(2)}
    assert columns_of(found) is None
    infos = Infos(2)
    infos.fill(found, [], None)
    assert infos.batch["final_obs"].dtype == object


class Attached:
    """As a tensor whose gradient is wanted: it has a shape, and no array is made of it."""

    shape = (2,)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("as asked")


class Surprising:
    """Raises `Mute` whatever it is asked."""

    def _raise(self, *_: Any) -> Any:
        raise Mute

    __len__ = __iter__ = __array__ = __getitem__ = __repr__ = _raise


ONE_TEXT, TWO_TEXTS = spaces.Dict({"text": spaces.Text(4)}), spaces.Tuple((spaces.Text(4), spaces.Text(4)))


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (SPACES["mixed"], {"box": np.zeros(2, np.float32), "txt": "x"}),
        (ONE_TEXT, "x"),
        (ONE_TEXT, {"txt": "x"}),
        (TWO_TEXTS, "xy"),
        (TWO_TEXTS, {0: "x", 1: "y"}),
        (BOX, Attached()),
        (SPACES["mixed"], {"box": Attached(), "text": "x"}),
        *((space, Surprising()) for space in (BOX, SPACES["discrete"], SPACES["mixed"], TWO_TEXTS)),
    ],
)
def test_whatever_an_observation_is_it_is_one_environments_fault(space: Any, wrong: Any) -> None:
    right = space.sample()
    settled = settle(rows_of(space), range(3), [(one, 1.0, False, False, {}) for one in (right, wrong, right)])
    assert {place: problem.kind.value for place, problem in settled.problems.items()} == {1: "contract"}
    assert list(settled.rewards) == [1.0, 0.0, 1.0]
    for column in settled.objects:
        assert [value is None for value in column] == [False, True, False]


def test_whatever_a_last_observation_is_it_is_one_environments_fault() -> None:
    ends = (np.zeros(2, np.float32), 1.0, True, False, {ENDING: (Surprising(), {})})
    settled = settle(rows_of(finals=True), range(2), [good(), ends])
    assert {place: problem.kind.value for place, problem in settled.problems.items()} == {1: "contract"}


def test_an_exception_that_cannot_say_what_it_is_is_named() -> None:
    found = from_exception(Mute(), "step").error
    assert found.what == "the environment raised Mute: (no text: its __str__ raises)"


@pytest.mark.parametrize("warnings", ["error", "ignore"])
@pytest.mark.parametrize("finals", [False, True])
@pytest.mark.parametrize(
    ("space", "value", "found"),
    [
        (BOX, np.array([0.5, -1e300]), "-1e+300 at index (1,), which float32 cannot hold"),
        (BOX, [1e300, 0.5], "1e+300 at index (0,), which float32 cannot hold"),
        (ONE, 1e300, "1e+300 at index (), which float32 cannot hold"),
        (spaces.Dict({"a": BOX}), {"a": np.array([1e300, np.nan])}, "1e+300 at index (0,), which float32 cannot hold"),
        (BOX, np.array([0.5, np.inf]), "inf at index (1,)"),
    ],
)
def test_what_does_not_fit_its_dtype_is_not_finite(
    space: Any, value: Any, found: str, finals: bool, warnings: Any
) -> None:
    fitting = space.sample()
    wrong = (fitting, 1.0, True, False, {ENDING: (value, {})}) if finals else (value, 1.0, False, False, {})
    with catch_warnings(action=warnings):
        settled = settle(rows_of(space, finals=finals), range(2), [(fitting, 1.0, False, False, {}), wrong])
    assert set(settled.problems) == {1}
    problem = settled.problems[1]
    assert (problem.kind, problem.error.facts["found"]) == (FaultKind.NOT_FINITE, found)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)])
@pytest.mark.parametrize("where", [range(1, 3), [2, 0]])
def test_observations_without_numbers_fit(shape: tuple[int, ...], where: Any) -> None:
    rows = rows_of(spaces.Box(-1, 1, shape, np.float32))
    assert not settle(rows, where, [(np.zeros(shape, np.float32), 1.0, False, False, {})] * 2).problems
    assert rows.take(np.array([0, 1]))[0].shape == (2, *shape)


@pytest.mark.parametrize("wrong", [[[1, 2], [3]], Unlucky(), Attached(), {"a": 1}])
@pytest.mark.parametrize("kind", ["discrete", "box", "dict", "text"])
def test_actions_that_cannot_be_read_are_refused_in_a_sentence(kind: str, wrong: Any) -> None:
    with pytest.raises(VectorMisused, match="action"):
        ActionCodec(SPACES[kind], batch_space(SPACES[kind], 3)).encode(wrong, 3)


# What the program's own signals do while something is looked at


def alarm(*_: Any) -> Any:
    """A look that lasts so long that the program's alarm goes off."""
    signal.raise_signal(signal.SIGUSR2)


class LazyShape:
    shape = property(alarm)


class Lazy:
    __array__ = __deepcopy__ = alarm

    def __reduce__(self) -> Any:
        return alarm()


class LazyKeys(dict[str, Any]):
    keys = alarm


class LazyInfo(UserDict[str, Any]):
    keys = alarm


class LazyAnswer(tuple[Any, ...]):
    __slots__ = ()
    __len__ = alarm


NAMED = spaces.Dict({"a": BOX, "name": spaces.Text(5)})
LOOKS: dict[str, Callable[[], Any]] = {
    "answer": lambda: settle(rows_of(), range(1), [LazyAnswer(good())]),
    "observation": lambda: settle(rows_of(), range(1), [(LazyShape(), *good()[1:])]),
    "array": lambda: settle(rows_of(), range(1), [(Lazy(), *good()[1:])]),
    "objects": lambda: settle(rows_of(NAMED), range(1), [(LazyKeys(a=good()[0], name="x"), *good()[1:])]),
    "info": lambda: settle(rows_of(), range(1), [(*good()[:4], LazyInfo(a=1))]),
    "actions": lambda: ActionCodec(BOX, batch_space(BOX, 3)).encode(Lazy(), 3),
    "pickled": lambda: _sealed(Lazy(), "an action", 0),
    "copied": lambda: kept({"a": Lazy()}),
}


@pytest.fixture
def times_out() -> Iterator[None]:
    """A handler that goes off once."""

    def handler(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        raise TimeoutError("too long")

    former = signal.signal(signal.SIGUSR2, handler)
    yield
    signal.signal(signal.SIGUSR2, former)


@pytest.mark.usefixtures("times_out")
@pytest.mark.parametrize("what", LOOKS)
def test_what_a_signals_handler_raises_while_something_is_looked_at_is_the_programs(what: str) -> None:
    with pytest.raises(TimeoutError, match="too long"):
        LOOKS[what]()
