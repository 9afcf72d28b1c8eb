"""Whatever `SyncVectorEnv` returns, `headrace.VectorEnv` returns, wherever its environments run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace
from headrace.core.errors import ConfigError, UnknownAttribute, VectorMisused
from vector_envs import SPACES, Sampling

pytestmark = pytest.mark.process

BACKENDS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "workers": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 2, "threads_per_worker": 4},
}
MODES = list(AutoresetMode)
COUNT = 3


@contextlib.contextmanager
def both(factories: list[Any], backend: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    shared = {name: options[name] for name in ("autoreset_mode", "observation_mode") if name in options}
    sync = SyncVectorEnv(factories, **shared)
    try:
        with headrace.VectorEnv(factories, **BACKENDS[backend], **options) as ours:
            yield sync, ours
    finally:
        sync.close()


def assert_same(expected: Any, found: Any) -> None:
    """Equal in values, types, dtypes and shapes."""
    assert type(expected) is type(found), (expected, found)
    if isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        if expected.dtype == object:
            for one, other in zip(expected.ravel(), found.ravel(), strict=True):
                assert_same(one, other)
        else:
            np.testing.assert_array_equal(expected, found)
    elif isinstance(expected, dict):
        assert list(expected) == list(found)
        for key, value in expected.items():
            assert_same(value, found[key])
    elif isinstance(expected, tuple | list):
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other)
    else:
        assert expected == found


def play(sync: Any, ours: Any, *, seed: Any = 3, steps: int = 15, options: Any = None, disabled: bool = False) -> None:
    """The same questions to both; the same answers."""
    sync.action_space.seed(5)
    given = [None if options is None else dict(options) for _ in range(2)]
    assert_same(sync.reset(seed=seed, options=given[0]), ours.reset(seed=seed, options=given[1]))
    for _ in range(steps):
        actions = sync.action_space.sample()
        expected, found = sync.step(actions), ours.step(actions)
        assert_same(expected, found)
        ended = expected[2] | expected[3]
        if disabled and ended.any():
            assert_same(sync.reset(options={"reset_mask": ended}), ours.reset(options={"reset_mask": ended.copy()}))
    assert ours.valid.all()
    assert not ours.faults


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SPACES)
def test_every_space(kind: str, mode: AutoresetMode, backend: str) -> None:
    factories = [Sampling(kind) for _ in range(COUNT)]
    with both(factories, backend, autoreset_mode=mode) as (sync, ours):
        assert_same(sync.metadata, ours.metadata)
        assert ours.observation_space == sync.observation_space
        assert ours.single_observation_space == sync.single_observation_space
        assert ours.action_space == sync.action_space
        play(sync, ours, disabled=mode is AutoresetMode.DISABLED)
