"""What a run may begin from: the spaces of the run that learned it."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.errors import ConfigError
from headrace.runtime.inheritance import Beginning, require_spaces
from headrace.runtime.payloads import EnvSpaces

HERE = EnvSpaces(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}), spaces.Discrete(2))


def learned_in(observation: spaces.Space, action: spaces.Space) -> Beginning:
    return Beginning({}, {"run": "runs/other"}, EnvSpaces(observation, action))


@pytest.mark.parametrize(
    ("observation", "action", "which"),
    [
        (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(2)}), spaces.Discrete(2), "observation"),
        (spaces.Dict({"b": spaces.Discrete(2), "c": spaces.Discrete(3)}), spaces.Discrete(2), "observation"),
        (spaces.Box(0, 1, (5,), np.float32), spaces.Discrete(2), "observation"),
        (HERE.observation, spaces.Box(-1, 1, (2,), np.float32), "action"),
        (HERE.observation, spaces.Discrete(2, start=1), "action"),
    ],
)
def test_as_many_numbers_that_mean_something_else_are_refused(observation, action, which):
    with pytest.raises(ConfigError, match=f"has another {which} space than this one"):
        require_spaces(learned_in(observation, action), HERE)


def test_the_same_spaces_and_other_bounds_will_do():
    require_spaces(learned_in(HERE.observation, HERE.action), HERE)
    wide, narrow = (EnvSpaces(spaces.Box(-x, x, (3,)), spaces.Box(-x, x, (1,))) for x in (9.0, 1.0))
    require_spaces(learned_in(wide.observation, wide.action), narrow)
    require_spaces(None, narrow)
