"""What a caller has kept of one step is not changed by a later one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace
from vector_envs import Failing
from vector_support import BACKENDS, MODES

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server")]

COUNT = 4


class Telling(gym.Wrapper[Any, Any, Any, Any]):
    """With numbers as infos, in every step."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"t": float(observation[1]), "n": int(observation[2])}


class Made:
    """Picklable factory; environment 1 raises in its step ``at``, once."""

    def __init__(self, env: int, at: int, once: Path) -> None:
        self.inner = Failing(env, at=at * (env == 1), once=str(once))

    def __call__(self) -> gym.Env[Any, Any]:
        return Telling(self.inner())


class Keeper:
    """Keeps what was returned, and how it looked at once."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self._before: list[bytes] = []

    def keep(self, *values: Any) -> None:
        """More of it."""
        self.kept.append(values)
        self._before.append(pickle.dumps(values))

    def check(self) -> None:
        """It is still what it was."""
        for kept, before in zip(self.kept, self._before, strict=True):
            assert pickle.dumps(kept) == before, f"{kept} was once {pickle.loads(before)}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_kept_of_steps_does_not_change(backend: str, mode: AutoresetMode, tmp_path: Path) -> None:
    keeper, cuts = Keeper(), []
    factories = [Made(env, 4, tmp_path / "once") for env in range(COUNT)]
    with headrace.VectorEnv(factories, autoreset_mode=mode, **BACKENDS[backend]) as envs:
        observations, infos = envs.reset(seed=0)
        keeper.keep(envs.valid, observations, infos)
        for step in range(10):
            returned = envs.step(np.full(COUNT, step % 5))
            keeper.keep(envs.valid, *returned)
            cuts.append(envs.valid)
            over = returned[2] | returned[3]
            if mode is AutoresetMode.DISABLED and over.any():
                observations, infos = envs.reset(options={"reset_mask": over})
                keeper.keep(envs.valid, observations, infos)
                assert envs.valid.all()
        envs.send(np.zeros(COUNT, int))
        left = COUNT
        while left:
            answers = envs.receive()
            keeper.keep(envs.valid, answers.valid, answers.rewards, answers.observations, answers.infos)
            left -= len(answers)
    keeper.check()
    assert [int((~valid).sum()) for valid in cuts] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert len({id(valid) for valid, *_ in keeper.kept}) == len(keeper.kept)


def test_a_mask_that_was_kept_outlasts_receive_and_a_masked_reset(tmp_path: Path) -> None:
    factories = [Failing(env, at=2 * (env in (1, 2)), once=str(tmp_path / f"once{env}")) for env in range(COUNT)]
    with headrace.VectorEnv(factories, workers=0, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(COUNT, int))
        envs.send(np.zeros(COUNT, int))
        envs.receive(min_envs=COUNT)
        cut = envs.valid
        envs.reset(options={"reset_mask": np.array([False, True, False, False])})
        half = envs.valid
        envs.reset(options={"reset_mask": np.array([False, False, True, False])})
        assert cut.tolist() == [True, False, False, True]
        assert half.tolist() == [True, True, False, True]
        whole = envs.valid
        envs.step(np.zeros(COUNT, int))
        envs.valid[:] = False  # nobody else's either
        envs.step(np.zeros(COUNT, int))
        assert whole.all()
        assert envs.valid.all()
