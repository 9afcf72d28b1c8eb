"""What counts as a number and as a flag, beside Gymnasium's own vector environment."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace import VectorEnv
from headrace.core.scalars import as_flag, as_number

YES = True


class Foreign:
    """An array of another library, such as JAX's."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._value, dtype)

    def __repr__(self) -> str:
        return f"Foreign({self._value!r})"

    def __float__(self) -> float:
        return float(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)


class Elsewhere:
    """An array that cannot be had, as of an accelerator."""

    def __repr__(self) -> str:
        return "Elsewhere()"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError("it is not in host memory")


HALVES = [0.5, np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor(0.5), torch.tensor([0.5]), Foreign(0.5), Fraction(1, 2)]  # fmt: skip
TRUE = [
    True,
    1,
    np.True_,
    np.int64(1),
    np.array(YES),
    np.array([1]),
    torch.tensor(YES),
    torch.tensor([1]),
    Foreign(YES),
]


@pytest.mark.parametrize("value", HALVES, ids=repr)
def test_a_number(value: Any) -> None:
    found = as_number(value)
    assert (type(found), found) == (float, 0.5)


@pytest.mark.parametrize("value", TRUE, ids=repr)
def test_a_flag(value: Any) -> None:
    assert as_flag(value) is True
    assert as_number(value) == 1.0


@pytest.mark.parametrize(
    "value",
    [None, "1", b"1", [1.0], {}, 1j, torch.zeros(2), torch.zeros(1, requires_grad=True), Foreign([1, 0]), Foreign("1"), Elsewhere()],
    ids=repr,
)  # fmt: skip
def test_what_is_neither(value: Any) -> None:
    assert as_number(value) is None
    assert as_flag(value) is None


@pytest.mark.parametrize("value", [2, -1, 1.0, np.array(1.0), torch.tensor(1.0), 10**400], ids=str)
def test_a_number_that_is_no_flag(value: Any) -> None:
    assert as_flag(value) is None
    assert as_number(10**400) is None


class Says(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, reward: Any, flag: Any) -> None:
        self._reward, self._flag = reward, flag

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self._reward, False, self._flag, {}


@pytest.mark.parametrize(
    ("reward", "flag"), [(torch.tensor(0.5), torch.tensor(YES)), (Foreign(0.5), Foreign(YES)), (Fraction(1, 2), True)]
)
def test_vector_environments_agree(reward: Any, flag: Any) -> None:
    steps = []
    for build in (VectorEnv, gymnasium.vector.SyncVectorEnv):
        envs: Any = build([lambda: Says(reward, flag)] * 2)
        envs.reset(seed=0)
        _, rewards, _, truncated, infos = envs.step(np.zeros(2, np.int64))
        envs.close()
        steps.append((rewards.tolist(), truncated.tolist(), infos))
    assert steps[0] == steps[1] == ([0.5, 0.5], [True, True], {})
