"""Faults in the constructor, in ``reset()`` and in ``close()``: named, bounded in time, and nothing is left behind."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace
from headrace.core.clock import MonotonicClock
from headrace.core.errors import EnvironmentNotBuilt, HeadraceError, RestartBudgetSpent
from headrace.vector.options import FaultBudget
from told_envs import HANGS, WORDS, Make, Told, Trouble, WithHelper, told
from vector_support import BACKENDS, MODES, Follower, drive

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.thin(4)]

COUNT, CULPRIT = 4, 1
LIMIT_S = 1.5
ISOLATED = ("worker", "threads")
SOON_S = 20.0
"""A bound on what must not take for ever, with room for a busy machine."""


def vector(trouble: Trouble | None, backend: str, **options: Any) -> headrace.VectorEnv:
    limits = {"reset_timeout_s": LIMIT_S, "start_timeout_s": 30.0, "close_timeout_s": LIMIT_S}
    if backend not in ("serial", "split"):
        limits["step_timeout_s"] = LIMIT_S
    return headrace.VectorEnv(told(COUNT, CULPRIT, trouble), **{**limits, **BACKENDS[backend], **options})


# In a constructor


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_constructor_that_raises_ends_the_start_with_its_text(backend):
    with pytest.raises(EnvironmentNotBuilt) as caught:
        vector(Trouble("raises", at=1, place="construct"), backend)
    assert f"ValueError: {WORDS}" in str(caught.value)
    assert str(CULPRIT) in str(caught.value).partition("\n  traceback")[0]
    assert "told_envs.py" in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("made", [None, Told, 3], ids=["None", "class", "number"])
def test_a_factory_that_makes_no_environment_is_told(made, backend):
    with pytest.raises(EnvironmentNotBuilt, match=r"factory for env 1 returned (None|type|int)"):
        headrace.VectorEnv([Make(0), lambda: made], **BACKENDS[backend])


@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", ["exit-0", "exit-3", "sigkill", "sigsegv", "sys-exit"])
def test_a_constructor_that_ends_its_process_is_told(what, backend):
    with pytest.raises(HeadraceError) as caught:
        vector(Trouble(what, at=1, place="construct"), backend)
    says = {"exit-0": "0", "exit-3": "3", "sigkill": "SIGKILL", "sigsegv": "SIGSEGV", "sys-exit": "SystemExit"}[what]
    assert says in str(caught.value)
    assert str(CULPRIT) in str(caught.value)


@pytest.mark.table
@pytest.mark.parametrize(
    ("what", "backend"),
    [
        pytest.param(what, backend, marks=[] if number % 4 == 0 else [pytest.mark.table])
        for number, (what, backend) in enumerate(itertools.product(HANGS, ISOLATED))
    ],
)
def test_a_constructor_that_hangs_is_told_after_its_time(what, backend):
    clock = MonotonicClock()
    began_s = clock.now()
    with pytest.raises(HeadraceError) as caught:
        vector(Trouble(what, at=1, place="construct"), backend, start_timeout_s=3.0)
    assert clock.now() - began_s < SOON_S
    assert str(CULPRIT) in str(caught.value)
    assert "3" in str(caught.value)


class Second:
    """Builds well once; every later build misbehaves."""

    def __init__(self, folder: Path, trouble: Trouble, at_first: Trouble) -> None:
        self._folder, self._trouble, self._at_first = str(folder), trouble, at_first

    def __call__(self) -> Told:
        first = Path(self._folder) / "built"
        if first.exists():
            return Told(CULPRIT, 7, self._trouble)
        first.touch()
        return Told(CULPRIT, 7, self._at_first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replacement_that_cannot_be_built_spends_the_budget(tmp_path, backend):
    factories = told(COUNT)
    factories[CULPRIT] = Second(tmp_path, Trouble("raises", at=1, place="construct"), Trouble("raises", at=2))
    with (
        headrace.VectorEnv(factories, budget=FaultBudget(per_env=3, backoff_s=0.0), **BACKENDS[backend]) as envs,
        pytest.raises(RestartBudgetSpent) as caught,
    ):
        drive(envs, Follower(COUNT, AutoresetMode.NEXT_STEP), 50)
    assert f"environment {CULPRIT}" in str(caught.value)
    assert WORDS in str(caught.value)


# In a reset


@pytest.mark.parametrize("mode", [pytest.param(mode, id=mode.value) for mode in MODES])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["raises", "none-obs", "nan-obs", "shape-6"])
def test_a_fault_in_a_later_reset_is_made_good_by_a_replacement(tmp_path, what, backend, mode):
    """The step says so, and its row is the first of the replacement; in the same step as an end, that end is cut."""
    trouble = Trouble(what, at=2, place="reset", marker=str(tmp_path / "marker"))
    follower = Follower(COUNT, mode)
    with vector(trouble, backend, autoreset_mode=mode) as envs:
        drive(envs, follower, 20)
        kind = {"raises": "raised", "nan-obs": "not-finite"}.get(what, "contract")
        assert [(fault.env, str(fault.kind), fault.phase) for fault in envs.faults] == [(CULPRIT, kind, "reset")]
    told = follower.cuts if mode is AutoresetMode.SAME_STEP else follower.mended
    assert [(cut.env, cut.fault) for cut in told] == [(CULPRIT, kind)]
    assert len(follower.cuts) + len(follower.mended) == 1


@pytest.mark.thin(3)
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", ["sleep", "loop", "gil", "sigstop", "sigkill", "exit-0"])
def test_a_reset_that_hangs_or_dies_is_made_good_by_a_replacement(tmp_path, what, backend):
    trouble = Trouble(what, at=2, place="reset", marker=str(tmp_path / "marker"))
    follower = Follower(COUNT, AutoresetMode.NEXT_STEP)
    with vector(trouble, backend) as envs:
        drive(envs, follower, 20)
        [fault] = [fault for fault in envs.faults if fault.env == CULPRIT]
    assert (str(fault.kind), fault.phase) == ("hung" if what in HANGS else "died", "reset")
    assert [cut.env for cut in follower.mended].count(CULPRIT) == 1
    assert all(len(seen.builds) == 1 for env, seen in enumerate(follower.envs) if env not in lost(follower))


def lost(follower: Follower) -> set[int]:
    """The culprit, and who went with its worker."""
    return {cut.env for cut in (*follower.mended, *follower.cuts)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_first_reset_that_never_works_spends_the_budget(backend):
    budget = FaultBudget(per_env=2, backoff_s=0.0)
    trouble = Trouble("raises", at=1, place="reset")
    with vector(trouble, backend, budget=budget) as envs, pytest.raises(RestartBudgetSpent) as caught:
        envs.reset(seed=0)
    assert f"environment {CULPRIT}" in str(caught.value)
    assert WORDS in str(caught.value)


# In closing


@pytest.mark.thin(4)
@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", [*HANGS, "raises", "sigkill", "exit-3"])
def test_close_comes_back_whatever_close_does(what, backend):
    envs = vector(Trouble(what, at=1, place="close"), backend)
    envs.reset(seed=0)
    pids = list(envs.worker_pids().values())
    clock = MonotonicClock()
    began_s = clock.now()
    envs.close()
    assert clock.now() - began_s < SOON_S
    assert pids
    assert envs.closed
    envs.close()


@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", HANGS)
def test_close_comes_back_while_a_step_hangs(what, backend):
    envs = vector(Trouble(what, at=1), backend, step_timeout_s=600.0)
    envs.reset(seed=0)
    envs.send(np.zeros(COUNT, np.int64))
    clock = MonotonicClock()
    began_s = clock.now()
    envs.close(timeout_s=1.0)
    assert clock.now() - began_s < SOON_S


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_reaches_every_environment(tmp_path, backend):
    pids = tmp_path / "pids"
    envs = headrace.VectorEnv([lambda: WithHelper(str(pids)) for _ in range(3)], **BACKENDS[backend])
    envs.reset(seed=0)
    envs.close()
    assert len(pids.read_text().split()) >= 3  # that they are gone, the leak check sees
