"""Which values of a key of ``info`` count as a report of failure."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.collectors.stepping import says_something


class Moody:
    def __bool__(self):
        raise RuntimeError("ask me something else")


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}, (), np.False_, np.zeros(2), np.array("")])
def test_nothing_is_said(value):
    assert not says_something(value)


@pytest.mark.parametrize(
    "value",
    [True, 3, "disk full", b"x", [[1], [2, 3]], {"a": 0}, np.True_, np.array([0, 1]), ValueError("x"), Moody()],
)
def test_something_is_said(value):
    assert says_something(value)
