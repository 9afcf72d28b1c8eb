"""Spaces as text: nothing about them changes on the way."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import RunDirectoryError, UnsupportedSpace
from headrace.core.spaces import from_json, space_facts, spaces_of, to_json
from headrace.core.specs import leaves
from headrace.envs.toy import SPACES

FLOATS = {np.float16: 16, np.float32: 32, np.float64: 64}
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64)


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from([*FLOATS, *INTEGERS])))
    if dtype.kind == "f":
        numbers = st.floats(width=FLOATS[dtype.type], allow_nan=False)
    else:
        numbers = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    size = int(np.prod(shape))
    pairs = [sorted(draw(st.tuples(numbers, numbers))) for _ in range(size)]
    low, high = (np.array([pair[side] for pair in pairs], dtype).reshape(shape) for side in (0, 1))
    return spaces.Box(low, high, dtype=dtype.type)


@st.composite
def multi_discretes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    numbers = st.lists(st.integers(1, 9), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    nvec, start = (np.array(draw(numbers)).reshape(shape) for _ in range(2))
    return spaces.MultiDiscrete(nvec, dtype=draw(st.sampled_from((np.int64, np.int32))), start=start - 5)


plain_spaces = st.one_of(
    boxes(),
    st.builds(
        spaces.Discrete, st.integers(1, 99), start=st.integers(-9, 9), dtype=st.sampled_from([np.int64, np.int32])
    ),
    multi_discretes(),
    st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 5), st.lists(st.integers(1, 3), min_size=1, max_size=3))),
)
keys = st.one_of(st.text(max_size=4).filter(lambda key: "." not in key), st.integers(-5, 5))
any_spaces = st.recursive(
    plain_spaces,
    lambda inner: st.one_of(
        st.builds(
            lambda pairs: spaces.Dict(OrderedDict(pairs)),
            st.lists(st.tuples(keys, inner), max_size=3, unique_by=lambda pair: str(pair[0])),
        ),
        st.builds(spaces.Tuple, st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)


def bits(space):
    """All that matters of a space, in the order it has there."""
    if isinstance(space, spaces.Dict):
        return [(key, bits(inner)) for key, inner in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return tuple(bits(inner) for inner in space.spaces)
    names = {"Box": "low high", "Discrete": "n start", "MultiDiscrete": "nvec start", "MultiBinary": "n"}
    kind = type(space).__name__
    numbers = [getattr(space, name) for name in names[kind].split()]
    arrays = [(array.dtype, array.shape, array.tobytes()) for array in map(np.asarray, numbers)]
    return kind, np.dtype(space.dtype), space.shape, arrays


@given(any_spaces)
def test_a_space_comes_back_with_all_its_bits(space):
    text = to_json(space)
    back = from_json(text)
    assert "\n" not in text
    assert bits(back) == bits(space)
    assert leaves(back, "obs") == leaves(space, "obs")
    assert back == space


@pytest.mark.parametrize("name", SPACES)
def test_every_kind_that_environments_here_have(name):
    action = spaces.Box(np.array([-2, 0], np.float32), np.array([2, np.inf], np.float32))
    back = spaces_of({"env_steps": "7", **space_facts(SPACES[name], action)})
    assert [bits(space) for space in back] == [bits(SPACES[name]), bits(action)]


def test_values_of_the_copy_are_members_of_the_original():
    copy = from_json(to_json(SPACES["dict"]))
    copy.seed(3)
    assert all(SPACES["dict"].contains(copy.sample()) for _ in range(20))


def test_a_uniform_bound_takes_no_room():
    assert len(to_json(spaces.Box(0, 255, (210, 160, 3), np.uint8))) < 120
    mixed = spaces.Box(np.array([-0.0, 0.0], np.float32), np.ones(2, np.float32))
    assert np.signbit(from_json(to_json(mixed)).low).tolist() == [True, False]


def test_the_order_of_a_dict_is_not_changed():
    space = spaces.Dict(OrderedDict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3)), (1, spaces.Discrete(4))]))
    assert list(from_json(to_json(space)).spaces) == ["b", "a", 1]


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (spaces.Dict(a=spaces.Text(3)), "field: obs.a"),
        (spaces.Sequence(spaces.Discrete(2)), "obs space has a part that cannot be stored"),
        (spaces.Dict({(1, 2): spaces.Discrete(2)}), "the key of a Dict space cannot be written"),
        (spaces.Dict({True: spaces.Discrete(2)}), "found: bool: True"),
    ],
)
def test_space_that_cannot_be_written(space, match):
    with pytest.raises(UnsupportedSpace, match=match):
        space_facts(space, spaces.Box(-1, 1, (1,)))


ONE, OTHER = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "path", "both"),
    [
        (spaces.Dict({"a.b": ONE, "a": spaces.Dict({"b": OTHER})}), "obs.a.b", "obs['a']['b'] and obs['a.b']"),
        (spaces.Dict({"a.0": ONE, "a": spaces.Tuple([OTHER])}), "obs.a.0", "obs['a'][0] and obs['a.0']"),
        (spaces.Tuple([spaces.Dict(OrderedDict([(1, ONE), ("1", OTHER)]))]), "obs.0.1", "obs[0][1] and obs[0]['1']"),
    ],
)
def test_two_parts_with_one_path_are_refused_by_their_keys(space, path, both):
    with pytest.raises(UnsupportedSpace) as raised:
        leaves(space, "obs")
    assert str(raised.value) == (
        "[ENV-005] obs space has two parts with one name\n"
        f"  field: {path}\n"
        f"  found: {both}\n"
        "  fix: rename a key in the environment, or in a wrapper around it: a dot in a key reads like another level"
    )


def test_a_key_with_a_dot_is_a_key():
    space = spaces.Dict({"a.b": ONE, "a": spaces.Dict({"c": OTHER})})
    assert [(leaf.path, leaf.keys) for leaf in leaves(space, "obs")] == [("obs.a.c", ("a", "c")), ("obs.a.b", ("a.b",))]
    assert bits(from_json(to_json(space))) == bits(space)


BOX = json.loads(to_json(spaces.Box(-1, 1, (2,))))


def changed(**values):
    return json.dumps({key: value for key, value in (BOX | values).items() if value is not None})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[]",
        "{}",
        '{"kind":"Graph"}',
        '{"kind":["Box"]}',
        changed(dtype="<f8"),
        changed(dtype="object"),
        changed(dtype="float32"),
        changed(dtype=None),
        changed(shape=[3, 1, -1]),
        changed(shape=[2.0]),
        changed(shape=2),
        changed(low="AAA"),
        changed(low="AACA v"),
        changed(low=to_json(spaces.Box(-1, 1, (1,)))),
        changed(low=BOX["high"], high=BOX["low"]),
        changed(more=1),
        '{"kind":"Discrete","dtype":"<i8","n":0,"start":0}',
        '{"kind":"Discrete","dtype":"<i8","n":2.5,"start":0}',
        '{"kind":"Discrete","dtype":"<f8","n":2,"start":0}',
        '{"kind":"Discrete","dtype":"|i1","n":300,"start":0}',
        '{"kind":"MultiDiscrete","dtype":"<i8","nvec":[2,3],"start":[0]}',
        '{"kind":"MultiDiscrete","dtype":"<i8","nvec":[[2],[3,4]],"start":[[0],[0,0]]}',
        '{"kind":"MultiBinary","n":[0]}',
        '{"kind":"MultiBinary","n":"5"}',
        '{"kind":"Tuple","parts":{"kind":"Tuple","parts":[]}}',
        '{"kind":"Dict","parts":[["a"]]}',
        '{"kind":"Dict","parts":[["a",{"kind":"MultiBinary","n":1}],["a",{"kind":"MultiBinary","n":1}]]}',
        '{"kind":"Dict","parts":[[null,{"kind":"MultiBinary","n":1}]]}',
    ],
)
def test_text_that_is_no_space(text):
    with pytest.raises(RunDirectoryError, match="a stored space cannot be read"):
        from_json(text)


def test_message_about_a_damaged_space():
    with pytest.raises(RunDirectoryError) as caught:
        from_json('{"kind":"Graph"}')
    assert str(caught.value) == (
        "[CFG-002] a stored space cannot be read\n"
        '  found: {"kind":"Graph"}\n'
        "  problem: ValueError: expected an object of kind Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple, "
        "found {'kind': 'Graph'}\n"
        "  fix: copy the file again from the run it belongs to, or take another version of the policy"
    )


def test_file_without_spaces():
    with pytest.raises(RunDirectoryError, match="does not say on what spaces it acts") as caught:
        spaces_of({"env_steps": "7", "version": "3"})
    assert caught.value.facts["found"] == "env_steps, version"
