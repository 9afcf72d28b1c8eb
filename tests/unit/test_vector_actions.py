"""The very numbers of an action arrive at an environment, or none is sent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace
from headrace.core.errors import VectorMisused
from headrace.vector.spaces import ActionCodec

WHOLE = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]


class Heard(gym.Env[Any, Any]):
    """Remembers its newest action."""

    observation_space = gym.spaces.Discrete(2)

    def __init__(self, action_space: gym.spaces.Space[Any]) -> None:
        self.action_space, self.heard = action_space, None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        self.heard = action
        return 0, 0.0, False, False, {}


def box(dtype: np.dtype[Any]) -> gym.spaces.Box:
    whole = dtype.kind in "iu"
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (-1.0, 1.0)
    return gym.spaces.Box(low, high, (2,), dtype.type)


def heard(space: gym.spaces.Box, actions: Any) -> Any:
    """What the environment gets; None: VectorMisused."""
    codec = ActionCodec(space, gym.vector.utils.batch_space(space, 1))
    try:
        columns, _ = codec.encode(actions, 1)
    except VectorMisused:
        return None
    [action] = codec.decode(columns)
    assert action.dtype == space.dtype
    return action


@pytest.mark.parametrize("given", WHOLE, ids=str)
@pytest.mark.parametrize("wanted", WHOLE, ids=str)
def test_whole_numbers_arrive_as_they_are_or_not_at_all(wanted: np.dtype[Any], given: np.dtype[Any]) -> None:
    space, most, kind = box(wanted), np.iinfo(wanted), np.iinfo(given)
    edges = {
        int(f(one)) for one in (most.min, most.max, kind.min, kind.max) for f in (int, lambda x: x - 1, lambda x: x + 1)
    }
    for number in sorted({0, 1, *edges}):
        if not kind.min <= number <= kind.max:
            continue
        got = heard(space, np.array([[1, number]], given))
        fits = most.min <= number <= most.max and np.can_cast(given, wanted, "same_kind")
        assert (None if got is None else got.tolist()) == ([1, number] if fits else None)


@pytest.mark.parametrize(
    ("wanted", "given", "arrives"),
    [
        (np.float32, np.array([0.1, -1.0]), [np.float32(0.1), -1.0]),
        (np.float32, np.array([0.0, 1e300]), None),
        (np.float32, np.array([-1e300, 1e300]), None),
        (np.float32, np.array([np.inf, -np.inf]), [np.inf, -np.inf]),
        (np.float32, np.array([np.nan, 0.5]), [np.nan, 0.5]),
        (np.float32, np.array([np.nan, 1e300]), None),
        (np.float16, np.array([1.0, 7e4], np.float32), None),
        (np.float16, np.array([1, 70_000]), None),
        (np.float32, np.array([1, 2**24]), [1.0, 2.0**24]),
        (np.float32, np.array([1, 2**24 + 1]), [1.0, 2.0**24]),
        (np.float16, np.array([1, 100_000]), None),
        (np.float64, np.array([1e300, 1.0], np.float64), [1e300, 1.0]),
        (np.float64, np.array([True, False]), [1.0, 0.0]),
    ],
)  # fmt: skip
def test_real_numbers_are_rounded_and_never_become_infinite(wanted: Any, given: Any, arrives: Any) -> None:
    np.testing.assert_equal(heard(box(np.dtype(wanted)), given[None]), arrives and np.array(arrives, wanted))


def test_numbers_that_the_space_cannot_hold_are_refused_and_nothing_is_sent() -> None:
    with headrace.VectorEnv([lambda: Heard(gym.spaces.Box(-100, 100, (2,), np.int8))] * 2, workers=0) as envs:
        envs.reset()
        envs.step(np.array([[1, -100], [100, 5]]))
        for ask in (envs.step, envs.send):
            with pytest.raises(VectorMisused) as caught:
                ask(np.array([[1, 2], [300, 5]]))
            assert str(caught.value) == (
                "[VEC-001] action holds a number that the dtype of the action space cannot hold; nothing was sent\n"
                "  expected: int8\n"
                "  found: int64 from 1 to 300\n"
                "  fix: clip the actions to the bounds of the space"
            )
        assert [one.tolist() for one in envs.get_attr("heard")] == [[1, -100], [100, 5]]
