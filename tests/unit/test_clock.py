"""Clocks that code of the user's in the same process cannot replace."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.core import clock
from headrace.ipc.channel import Deadline
from headrace.vector import env, trial, worker

CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
REAL = {name: getattr(time, name) for name in CLOCKS}


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLOCKS:
        monkeypatch.setattr(time, name, lambda: 0)


@pytest.mark.usefixtures("frozen")
def test_clocks_go_on_where_those_of_the_process_are_frozen():
    for ours, real in (
        (clock.monotonic_s, REAL["monotonic"]),
        (clock.monotonic_ns, REAL["monotonic_ns"]),
        (clock.perf_counter_s, REAL["perf_counter"]),
        (clock.MonotonicClock().now, REAL["monotonic"]),
    ):
        first = real()
        assert first <= ours() <= real()
    assert Deadline(0.0).passed
    assert Deadline(60.0).left_s() > 0


def test_no_module_holds_a_function_of_time_where_a_search_for_them_finds_it():
    """freezegun replaces attributes of loaded modules that are, by identity, a function of ``time``."""
    assert {env.__name__, worker.__name__} <= set(sys.modules)
    real = {id(function) for function in REAL.values()}
    held = [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "headrace"
        for attribute, value in vars(module).items()
        if id(value) in real
    ]
    assert held == []


class Cheap(gymnasium.Env[Any, Any]):
    """Steps fast, and a trial that goes by its clock takes a thousandth of these steps."""

    def __init__(self) -> None:
        self.left = 1_000_000

    def reset(self, **_given: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        assert self.left, "the trial does not end"
        return np.zeros(1), 0.0, False, False, {}


@pytest.mark.usefixtures("frozen")
def test_a_trial_ends_where_the_environment_has_frozen_clocks():
    _, steps, _ = trial._steps(Cheap(), itertools.cycle([0]), 0.002, ended=False, least=1)
    assert steps >= 1
