"""What travels between processes beside the shared memory: values that one side cannot write, or the other cannot read."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import headrace
from headrace.core.errors import ComponentDied, EnvironmentRaised, HeadraceError, VectorMisused
from headrace.ipc.channel import Deadline, poll_fds
from headrace.vector.options import FaultBudget
from vector_envs import Faulty

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server")]

ISOLATED: dict[str, dict[str, Any]] = {
    "workers": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 2, "threads_per_worker": 4},
    "split": {"workers": 1, "threads_per_worker": 1, "here": 1},
}
COUNT = 4
LIMIT_S = 20.0
ACTIONS = np.ones(COUNT, np.int64)


class Awkward(Exception):
    """Can be pickled, and not be read again, as so many exceptions with arguments of their own."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


class Telling(Faulty):
    """Counts; its second step brings an info with whatever it was made for, its reset tells of its options."""

    def __init__(self, index: int, what: Any = None) -> None:
        super().__init__(index)
        self.what = what

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"level": options["level"].n} if options else {}

    def step(self, action: Any) -> Any:
        *answer, info = super().step(action)
        if self.t == 2 and self.what is not None:
            info = {"said": self.value()}
        return *answer, info

    def value(self, *_: Any) -> Any:
        return {"generator": (n for n in range(3)), "awkward": Awkward(1, 2)}.get(self.what, self.what)


class Wordy(gym.Env[Any, Any]):
    """Is told words, and says how long they were."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Text(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(1, len(action), np.float32), action.worth, False, False, {}


def making(what: Any, env: int) -> list[Any]:
    """Environments of which one brings something."""
    return [lambda i=i: Telling(i, what if i == env else "plain" if i == 3 else None) for i in range(COUNT)]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a class as if it were defined in the main script, which a worker does not have."""

    def make(*bases: type, **attributes: Any) -> Any:
        made = type("OfTheScript", bases, {"__module__": "__main__", **attributes})
        monkeypatch.setattr(sys.modules["__main__"], "OfTheScript", made, raising=False)
        return made

    return make


def _refuse() -> None:
    raise ImportError("only this process has it")


# To a worker


@pytest.mark.parametrize("backend", ISOLATED)
def test_options_of_a_class_of_the_main_script_arrive(backend: str, main: Any) -> None:
    level = main()()
    level.n = 7
    with headrace.VectorEnv(making(None, 0), **ISOLATED[backend]) as envs:
        _, infos = envs.reset(seed=1, options={"level": level})
        assert infos["level"].tolist() == [7] * COUNT
        assert not envs.faults


@pytest.mark.parametrize("backend", ISOLATED)
def test_actions_of_a_class_of_the_main_script_arrive(backend: str, main: Any) -> None:
    word = main(str, worth=0.5)
    with headrace.VectorEnv([Wordy] * COUNT, **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        observations, rewards, *_ = envs.step(tuple(word("x" * length) for length in range(COUNT)))
        assert observations[:, 0].tolist() == [0, 1, 2, 3]
        assert rewards.tolist() == [0.5] * COUNT
        assert not envs.faults


@pytest.mark.parametrize("backend", ["workers", "threads"])
def test_what_a_worker_cannot_read_costs_only_the_environment_it_was_for(backend: str, main: Any) -> None:
    unreadable = main(str, __reduce__=lambda _self: (_refuse, ()))
    with headrace.VectorEnv(making(None, 0), on_fault="raise", **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        envs.send_reset(range(COUNT), [None] * COUNT, [None, {"level": unreadable()}, None, None])
        with pytest.raises(
            EnvironmentRaised, match=r"seed and options for environment 1 cannot be read in its process"
        ):
            envs.receive(min_envs=COUNT)
        assert envs.receive(min_envs=COUNT, timeout_s=LIMIT_S).env_ids.tolist() == [0, 2, 3]
        assert envs.worker_pids() == pids
    word = main(str, worth=0.5)
    with headrace.VectorEnv([Wordy] * COUNT, **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        unreadable = main(str, __reduce__=lambda _self: (_refuse, ()))
        infos = envs.step((word("a"), word("b"), word("c"), unreadable()))[4]
        assert envs.valid.tolist() == [True, True, True, False]
        assert "an action for environment 3 cannot be read" in infos["headrace"]["message"][3]
        assert "only this process has it" in infos["headrace"]["message"][3]
        assert envs.worker_pids() == pids


@pytest.mark.parametrize("backend", ISOLATED)
def test_what_cannot_be_sent_is_refused_and_nothing_was_sent(backend: str) -> None:
    lock = threading.Lock()
    with headrace.VectorEnv(making(None, 0), **ISOLATED[backend]) as envs:
        for options in ({"level": lock}, [{"level": lock}] * COUNT):
            with pytest.raises(VectorMisused, match=r"options for environment \d cannot be pickled"):
                envs.send_reset(range(COUNT), [1] * COUNT, options)
        with pytest.raises(VectorMisused, match="cannot be pickled"):
            envs.reset(seed=1, options={"level": lock})
        with pytest.raises(VectorMisused, match="cannot be pickled"):
            envs.call("value", lock)
        with pytest.raises(VectorMisused, match="there is nothing to receive"):
            envs.receive()
        envs.reset(seed=1)
        envs.step(ACTIONS)
        assert envs.valid.all()
    with headrace.VectorEnv([Wordy] * COUNT, **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        with pytest.raises(VectorMisused, match="an action for environment 2 cannot be pickled"):
            envs.send(("a", "b", lock, "d"))
        assert envs.reset(seed=1)[0].shape == (COUNT, 1)


# From a worker


@pytest.mark.thin(8)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("what", ["generator", "awkward"])
@pytest.mark.parametrize("backend", ["workers", "threads"])
def test_an_info_that_cannot_travel_costs_only_its_environment(backend: str, what: str, shared: bool) -> None:
    with headrace.VectorEnv(making(what, 2), shared=shared, **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        envs.step(ACTIONS)
        observations, *_, infos = envs.step(ACTIONS)
        assert envs.valid.tolist() == [True, True, False, True]
        assert observations[:, 1].tolist() == [2, 2, 1, 2]
        assert infos["said"][3] == "plain"
        assert infos["headrace"]["fault"].tolist() == [None, None, "contract", None]
        observations = envs.step(ACTIONS)[0]
        assert envs.valid.all()
        assert observations[:, 1].tolist() == [3, 3, 0, 3]
        assert len(envs.faults) == 1


@pytest.mark.parametrize("what", ["generator", "awkward"])
@pytest.mark.parametrize("backend", ["workers", "threads"])
def test_a_value_that_cannot_travel_is_told_with_its_environment(backend: str, what: str) -> None:
    with headrace.VectorEnv(making(what, 2), reset_timeout_s=LIMIT_S, **ISOLATED[backend]) as envs:
        envs.reset(seed=1)
        with pytest.raises(HeadraceError, match=r"environment 2") as caught:
            envs.call("value")
        assert "TypeError" in str(caught.value)
        assert envs.apply(lambda env: env.unwrapped.index) == (0, 1, 2, 3)
        envs.step(ACTIONS)
        assert envs.valid.all()


# Where it fails on the way


@pytest.mark.parametrize("threads", [1, 4])
def test_a_worker_that_cannot_be_started_loses_no_question(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = FaultBudget(per_env=9, backoff_s=0.0)
    with headrace.VectorEnv(making(None, 0), workers=2, threads_per_worker=threads, budget=budget) as envs:
        envs.reset(seed=1)
        crew = envs._opened.backend.crew  # type: ignore[attr-defined]
        refused: list[Any] = []

        def spawn(*_args: Any, **_kwargs: Any) -> Any:
            refused.append(1)
            raise ComponentDied("the machine refuses another process", fix="wait")

        with monkeypatch.context() as patch:
            patch.setattr(crew, "spawn", spawn)
            os.kill(envs.worker_pids()[1], signal.SIGKILL)
            envs.step(ACTIONS)
            while envs.valid.all():
                envs.step(ACTIONS)
            assert envs.valid.tolist() == [True, True, False, False]
            for _ in range(2):
                with pytest.raises(ComponentDied, match="refuses another"):
                    envs.step(ACTIONS)
                with pytest.raises(VectorMisused, match="nothing to receive"):
                    envs.receive()
            assert len(refused) == 3
        observations = envs.step(ACTIONS)[0]
        assert observations[2:, 1].tolist() == [0, 0]
        envs.step(ACTIONS)
        assert envs.valid.all()


def test_answers_are_told_although_something_else_failed_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.VectorEnv(making(None, 0), **ISOLATED["workers"]) as envs:
        envs.reset(seed=1)
        pool: Any = envs._opened.backend

        def look(_events: Any) -> None:
            raise OSError("out of something")

        envs.send(ACTIONS)
        deadline = Deadline(LIMIT_S)
        while sum(handle.given for handle in pool.crew.handles.values()) < COUNT:
            assert not deadline.passed
            poll_fds({}, 0.01)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_look", look)
            pool.look_at_s = 0.0
            with pytest.raises(OSError, match="out of something"):
                envs.receive(min_envs=COUNT)
        received = envs.receive(min_envs=COUNT, timeout_s=LIMIT_S)
        assert received.env_ids.tolist() == [0, 1, 2, 3]
        assert received.observations[:, 1].tolist() == [1] * COUNT
