"""Environments that hang, die and raise at random: every row that comes back is the true successor it claims to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gymnasium.vector import AutoresetMode

from headrace.testing.vectorcheck import KINDS, Soak, Soaked

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
STEP_TIMEOUT_S = 1.0
"""Long for what a step of these environments does, also beside other work, and short enough to meet a few times."""

DYING = {"sigkill": 2e-3, "exit-3": 1e-3, "raises": 3e-3, "nan-reward": 2e-3}
HANGING = {"sleep": 6e-4, "loop": 4e-4, "sigstop": 6e-4, "raises": 1e-3}
WAITING = {"sleep": 6e-4, "sigkill": 6e-4, "raises": 1e-3, "nan-reward": 1e-3}
"""In threads: what loops there cannot be ended, and would only slow everything else down."""


def soak(folder: Path, wanted: Soak, threads: int = 1) -> None:
    seen: set[str] = set()
    for seed in range(4):  # what is rare may not come to pass, once in a few dozen times
        place = folder / str(seed)
        place.mkdir()
        once = replace(wanted, seed=seed)
        found = once.run(place, workers=2, threads_per_worker=threads, step_timeout_s=STEP_TIMEOUT_S)
        check(found, once)
        seen |= set(found.provoked)
        if seen == set(wanted.rates):
            return
    raise AssertionError(f"too few rows for one of each: {seen}")


def check(found: Soaked, wanted: Soak) -> None:
    assert found.unaccounted == []
    for what in found.provoked:
        assert found.told.keys() & set(KINDS[what]), f"{what} was never told as {KINDS[what]}"
    rows = found.counts["transitions"] + found.counts["cuts"]
    assert rows >= wanted.rows * 0.9
    assert found.counts["infos"] > rows / 20


@pytest.mark.parametrize(
    ("mode", "as_ready"),
    [
        pytest.param(NEXT_STEP, False, id="step-NEXT_STEP", marks=pytest.mark.table),
        pytest.param(SAME_STEP, False, id="step-SAME_STEP", marks=pytest.mark.table),
        pytest.param(DISABLED, False, id="step-DISABLED", marks=pytest.mark.table),
        pytest.param(NEXT_STEP, True, id="receive-NEXT_STEP"),
        pytest.param(SAME_STEP, True, id="receive-SAME_STEP", marks=pytest.mark.table),
    ],
)
def test_environments_that_die(tmp_path: Path, mode: AutoresetMode, as_ready: bool) -> None:
    soak(tmp_path, Soak(rows=6_000, num_envs=8, mode=mode, rates=DYING, as_ready=as_ready))


@pytest.mark.parametrize(
    ("mode", "as_ready"),
    [
        pytest.param(NEXT_STEP, False, id="step", marks=pytest.mark.table),
        pytest.param(SAME_STEP, True, id="receive", marks=pytest.mark.table),
    ],
)
def test_environments_that_hang(tmp_path: Path, mode: AutoresetMode, as_ready: bool) -> None:
    soak(tmp_path, Soak(rows=6_000, num_envs=8, mode=mode, rates=HANGING, as_ready=as_ready))


@pytest.mark.table
@pytest.mark.parametrize(
    ("mode", "as_ready"),
    [
        pytest.param(SAME_STEP, False, id="step", marks=pytest.mark.table),
        pytest.param(NEXT_STEP, True, id="receive"),
    ],
)
def test_environments_in_threads(tmp_path: Path, mode: AutoresetMode, as_ready: bool) -> None:
    soak(tmp_path, Soak(rows=6_000, num_envs=8, mode=mode, rates=WAITING, as_ready=as_ready), threads=4)
