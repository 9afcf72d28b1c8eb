"""A million steps in which everything goes wrong at random: every row is true, and every fault is told."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from gymnasium.vector import AutoresetMode

import headrace
from headrace.vector.options import FaultBudget
from told_envs import LIES, NOT_FINITE, Wild
from vector_support import BACKENDS, Follower, drive, drive_ready

pytestmark = pytest.mark.process

COUNT = 32
ENOUGH = FaultBudget(per_env=100_000, total=1_000_000, backoff_s=0.0)
RARE = ("sleep", "loop", "gil", "swallow", "sigstop", "sigkill", "sigsegv", "exit-0")
KINDS = {
    **dict.fromkeys(("sleep", "loop", "gil", "swallow", "sigstop"), "hung"),
    **dict.fromkeys(("sigkill", "sigsegv", "exit-0"), "died"),
    **dict.fromkeys(("raises", "sys-exit"), "raised"),
    **{what: "not-finite" if what in NOT_FINITE else "contract" for what in LIES},
}


def chances(rows: int, hangs: int) -> dict[str, float]:
    """So that of each hang and death there are about ``hangs`` in so many rows, and of each other fault a few more."""
    return {what: (hangs if what in RARE else 3 * hangs) / rows for what in KINDS}


@pytest.mark.parametrize("backend", ["worker", "threads"])
@pytest.mark.parametrize(
    ("rows", "hangs", "ready"),
    [
        (12_000, 1, False),
        (12_000, 1, True),
        pytest.param(500_000, 5, False, marks=[pytest.mark.table, pytest.mark.timeout(900)]),
        pytest.param(500_000, 5, True, marks=[pytest.mark.table, pytest.mark.timeout(900)]),
    ],
)
def test_every_row_is_true_and_every_fault_is_told(backend, rows, hangs, ready):
    factories = [partial(Wild, index, chances(rows, hangs)) for index in range(COUNT)]
    with headrace.VectorEnv(factories, step_timeout_s=1.0, budget=ENOUGH, **BACKENDS[backend]) as envs:
        follower = Follower(COUNT, AutoresetMode.NEXT_STEP, limit=40)
        if ready:
            drive_ready(envs, follower, rows, timeout_s=800.0)
        else:
            drive(envs, follower, rows // COUNT)
        told = Counter(cut.fault for cut in follower.cuts)
    assert set(told) <= {*KINDS.values(), "lost-with-worker"}
    assert told["contract"] + told["raised"] > 10 * hangs
    assert sum(seen.transitions for seen in follower.envs) > 0.8 * rows
