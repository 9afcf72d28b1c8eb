"""Where environments run: measurements in, a plan out."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.vector.choosing import Machine, Measured, Plan, choose
from headrace.vector.options import FaultBudget, Options
from headrace.vector.preloading import modules_of, pickled

TWO = Machine(cores=2)


def measured(step_us: float, *, waits: float = 0.0, steps: int = 100, **more: bool) -> Measured:
    step_s = step_us * 1e-6
    return Measured(step_s=step_s, busy_s=step_s * (1 - waits), steps=steps, observation_bytes=16, **more)


def plan(what: Measured | None, count: int, machine: Machine = TWO, **asked: Any) -> Plan:
    how = (asked.get("workers"), asked.get("threads"), asked.get("isolate", False), asked.get("here"))
    return choose(what, machine, count, *how)


@pytest.mark.parametrize(
    ("step_us", "count", "workers", "here"),
    [
        (6.5, 8, 0, 0),  # CartPole: every isolated design is slower than a loop
        (5.0, 32, 0, 0),
        (7.5, 32, 1, 17),
        (6.5, 100, 1, 51),
        (30.0, 8, 0, 0),
        (43.0, 8, 1, 4),  # HalfCheetah
        (43.0, 32, 1, 16),
        (38.0, 400, 2, 0),  # this process would not help enough to give up that a hang can be ended
        (1000.0, 2, 1, 1),
        (1000.0, 1, 0, 0),
        (0.5, 8, 0, 0),
    ],
)
def test_steps_that_compute(step_us: float, count: int, workers: int, here: int) -> None:
    chosen = plan(measured(step_us), count)
    assert (chosen.workers, chosen.threads, chosen.here) == (workers, 1, here), chosen


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("infos", [False, True])
def test_no_worker_is_without_environments(cores: int, infos: bool) -> None:
    for step_us in (1.0, 7.0, 25.0, 43.0, 50.0, 100.0, 1000.0, 30_000.0):
        for count in range(1, 40):
            for asked in ({}, {"isolate": True}, {"here": 3}, {"workers": 5}, {"workers": 9, "here": 2}):
                chosen = plan(measured(step_us, infos=infos), count, Machine(cores=cores), **asked)
                where = f"{chosen} for {count} of {step_us} us on {cores}"
                assert chosen.workers <= count - chosen.here, where
                assert chosen.workers or not chosen.here, where
                assert 0 <= chosen.here < count, where


def test_with_more_cores_every_one_steps_its_share() -> None:
    chosen = plan(measured(6.5), 200, Machine(cores=4))
    assert chosen.workers == 3
    assert 50 < chosen.here < 75
    assert str(chosen).startswith(f"{chosen.here} in this process and the others in 3 workers: a step takes 6.5 us")


def test_this_process_steps_none_if_that_is_asked() -> None:
    assert plan(measured(6.5), 100, here=0).here == 0
    assert plan(measured(6.5), 200, here=0).workers == 2
    assert plan(measured(6.5), 8, here=0).workers == 0
    assert plan(measured(6.5), 100, isolate=True).here == 0
    assert plan(measured(6.5), 100, Machine(cores=2, busy_cores=1.0)).here == 0


def test_this_process_steps_as_many_as_are_asked_and_leaves_one() -> None:
    assert plan(None, 8, workers=2, threads=1, here=3) == Plan(2, 1, "as asked", 3)
    assert plan(None, 8, workers=2, threads=1, here=9) == Plan(1, 1, "as asked", 7)
    assert plan(measured(6.5), 8, here=3).here == 3
    assert plan(measured(6.5), 8, here=3).workers >= 1
    assert plan(measured(6.5), 8, here=3).reason.endswith("; workers beside this process, as asked")
    assert plan(None, 8, workers=0, threads=1, here=3).here == 0


def test_infos_cost_more() -> None:
    assert plan(measured(36.0), 8).workers == 1
    assert plan(measured(36.0, infos=True), 8).workers == 0
    assert plan(measured(100.0, infos=True), 32).workers >= 1


def test_a_busy_neighbour_takes_a_core_away() -> None:
    assert plan(measured(6.5), 100, Machine(cores=2, busy_cores=1.0)).workers == 0
    assert plan(measured(6.5), 100, Machine(cores=4, busy_cores=1.0)).workers == 2
    assert "1 of 2 cores free" in str(plan(measured(38.0), 32, Machine(cores=2, busy_cores=0.9)))


def test_steps_that_wait_get_a_thread_each() -> None:
    chosen = plan(measured(2130, waits=0.98), 100)
    assert (chosen.workers, chosen.threads) == (2, 50)
    assert str(chosen) == "2 workers, 50 threads each: a step takes 2.13 ms, of which it waits 98%"
    assert plan(measured(2130, waits=0.98), 1).workers == 0


def test_workers_keep_to_one_core_if_environments_start_nothing_that_would_inherit_it() -> None:
    chosen = plan(measured(2130, waits=0.98, alone=True), 100)
    assert chosen.pinned
    assert str(chosen).startswith("2 workers, 50 threads each, each on one core while it is free: a step takes")
    assert not plan(measured(2130, waits=0.98), 100).pinned
    assert not plan(measured(2130, alone=True), 100).pinned  # steps in turn
    assert not plan(measured(2130, waits=0.98, alone=True), 100, workers=2).pinned  # who chooses has reasons


def test_a_short_wait_is_no_blocking() -> None:
    assert plan(measured(20, waits=0.9), 8).threads == 1


def test_somebody_has_to_enforce_a_time_out() -> None:
    assert plan(measured(6.5), 8, isolate=True).workers >= 1


@pytest.mark.parametrize("what", [None, measured(0, steps=0)])
def test_what_could_not_be_measured_is_kept_away(what: Measured | None) -> None:
    chosen = plan(what, 8)
    assert chosen.workers == 2
    assert "did not return" in chosen.reason


def test_what_is_asked_is_done() -> None:
    assert plan(None, 8, workers=3, threads=1) == Plan(3, 1, "as asked")
    assert plan(None, 2, workers=3, threads=1).workers == 2
    assert plan(None, 10, workers=2, threads=3) == Plan(2, 5, "as asked")
    assert plan(measured(2130, waits=0.9), 10, workers=2).threads == 5
    assert repr(plan(None, 8, workers=1, threads=1)) == "1 worker: as asked"
    assert repr(Plan(0, 1, "as asked")) == "in this process: as asked"


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": -1},
        {"workers": 1.5},
        {"workers": True},
        {"threads_per_worker": 0},
        {"step_timeout_s": 0},
        {"step_timeout_s": float("nan")},
        {"reset_timeout_s": -1},
        {"close_timeout_s": float("inf")},
        {"on_fault": "ignore"},
        {"autoreset_mode": "Never"},
        {"workers": 0, "step_timeout_s": 1.0},
        {"here": -1},
        {"here": 1.5},
        {"here": 2, "step_timeout_s": 1.0},
        {"here": 2, "workers": 0},
        {"log_path": "envs.log", "workers": 0},
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Options(**wrong)


@pytest.mark.parametrize("wrong", [{"per_env": -1}, {"total": -1}, {"window_s": -1.0}, {"backoff_s": float("nan")}])
def test_budgets_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FaultBudget(**wrong)


def test_modules_of_factories_are_imported_once_for_all() -> None:
    def local() -> Any:
        return json_like

    json_like = functools.partial(pickled)
    found = modules_of([functools.partial(local), local])
    assert "headrace.vector.worker" in found
    assert "headrace.vector.preloading" in modules_of([modules_of])  # type: ignore[list-item]
    assert __name__ not in found or __name__.startswith("tests")


def test_a_factory_that_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(
        ConfigError,
        match=r"factory for env 1 cannot be sent to a worker\n  stays here: lock, a _thread\.lock, used by ",
    ):
        pickled([lambda: None, lambda: lock])  # type: ignore[list-item, return-value]
