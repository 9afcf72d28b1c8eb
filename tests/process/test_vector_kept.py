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


NUMBER = gym.spaces.Box(-9, 9, (1,), np.float32)
PARTS: dict[str, gym.spaces.Space[Any]] = {
    "sequence": gym.spaces.Sequence(NUMBER),
    "graph": gym.spaces.Graph(NUMBER, None),
    "one_of": gym.spaces.OneOf((NUMBER, gym.spaces.Discrete(2))),
}


class Recycled(gym.Env[Any, Any]):
    """Observes its step, always in the same array, and raises in its third, when that has changed already."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, kind: str, *, alone: bool) -> None:
        self.kind, self.alone = kind, alone
        self.observation_space = PARTS[kind] if alone else gym.spaces.Dict({"a": NUMBER, "part": PARTS[kind]})
        self.own = np.zeros((1, 1) if kind == "graph" else 1, np.float32)

    def __call__(self) -> gym.Env[Any, Any]:
        return Recycled(self.kind, alone=self.alone)

    def _seen(self) -> Any:
        self.own[:] = self.t
        part = {"sequence": (self.own,), "graph": gym.spaces.GraphInstance(self.own, None, None)}
        found = part.get(self.kind, (0, self.own))
        return found if self.alone else {"a": self.own.reshape(1), "part": found}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        seen = self._seen()
        if self.t == 3:
            raise ValueError("as asked")
        return seen, 0.0, False, False, {}


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", [{"workers": 0}, {"workers": 1, "here": 1}, {"workers": 1, "here": 0}], ids=str)
@pytest.mark.thin(3)
def test_a_cut_shows_what_an_environment_said_and_not_what_it_made_of_that_later(
    where: dict[str, int], mode: AutoresetMode, kind: str, *, alone: bool, copies: bool
) -> None:
    threads = {"threads_per_worker": 1} if where["workers"] else {}
    factories = [Recycled(kind, alone=alone)] * 2
    with headrace.VectorEnv(factories, autoreset_mode=mode, copy=copies, **where, **threads) as envs:

        def rows(observations: Any) -> list[str]:
            return [repr(row) for row in gym.vector.utils.iterate(envs.observation_space, observations)]

        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
        observations = envs.step(np.zeros(2, int))[0]
        said = rows(observations)
        if copies:  # then they are the caller's own
            for part in observations if alone else observations["part"]:
                array = part[0] if kind != "one_of" else part[1]
                array[:] = -1.0
        observations, *_, infos = envs.step(np.zeros(2, int))
        assert not envs.valid.any()
        cut = [repr(one) for one in infos["final_obs"]] if mode is AutoresetMode.SAME_STEP else rows(observations)
        assert cut == said
