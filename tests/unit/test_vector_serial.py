"""Environments in this very process: the fast lane and the ordinary way say the same, and Ctrl-C loses nothing silently."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace
from headrace.core.errors import ConfigError, EnvironmentNotBuilt, RestartBudgetSpent, VectorMisused
from headrace.vector.faults import Interrupted
from headrace.vector.limits import Limits
from headrace.vector.options import FaultBudget
from headrace.vector.serial import Serial
from headrace.vector.stepping import Body, Phase
from headrace.vector.watcher import Watcher
from vector_envs import Failing, Faulty, Sampling

COUNT = 3


class InPlace(Faulty):
    """Always returns the same array, changed."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.zeros(3, np.float32)

    def _seen(self) -> Any:
        self.own[:] = self.index, self.t, self.total
        return self.own


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_environments_that_change_what_they_returned(mode: str) -> None:
    with headrace.VectorEnv([InPlace, InPlace], workers=0, autoreset_mode=mode) as envs:
        before = envs.reset(seed=0)[0]
        for step in range(1, 10):
            observations = envs.step([0, 0])[0]
            assert before[:, 1].tolist() == [step - 1] * 2
            before = observations
        *_, infos = envs.step([0, 0])
        if mode == "SameStep":
            assert [one[1] for one in infos["final_obs"]] == [10, 10]


@pytest.mark.parametrize("error", [Interrupted(), KeyboardInterrupt(), ValueError("its own")])
def test_what_was_built_to_answer_a_call_is_reset_unless_that_call_was_broken_off(error: BaseException) -> None:
    def breaks(_env: Any) -> None:
        raise error

    phases: list[Phase] = []
    body = Body(0, InPlace, AutoresetMode.NEXT_STEP, phases.append, {})
    body.build()
    failed = body.env
    phases.clear()
    assert body.call("t", (), {}) == 0
    assert body.env is failed  # what is there answers, as it is
    body.set_attribute("total", 7, gone=True)
    building = [Phase.CONSTRUCT, Phase.STEP, Phase.RESET, Phase.CALL]
    assert phases == [Phase.CLOSE, Phase.STEP, *building]  # each has a limit of its own
    new = body.env
    assert new is not failed
    body.set_attribute("total", 8, gone=True)
    assert body.call("total", (), {}) == 8
    body.renew()
    assert body.env is new
    with pytest.raises(type(error)):
        body.call("", (breaks,), {})
    body.renew()
    assert (body.env is new) == isinstance(error, ValueError)
    body.reset()
    body.renew()  # it failed once more
    assert body.env is None


def test_what_is_built_to_answer_is_reset_before_and_is_not_gone_on_with_until_that_worked() -> None:
    refuses = True

    class Refusing(InPlace):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if refuses:
                raise ValueError("not yet")
            self.seeds = [*getattr(self, "seeds", []), seed]
            return super().reset(seed=seed, options=options)

    body = Body(0, Refusing, AutoresetMode.NEXT_STEP, lambda _phase: None, {})
    with pytest.raises(ValueError, match="not yet"):
        body.call("seeds", (), {}, seed=5)
    bare = body.env
    refuses = False
    assert body.call("seeds", (), {}, seed=6) == [6]
    assert body.env is bare
    body.reset(seed=7)
    assert body.call("seeds", (), {}, seed=8) == [6, 7]
    refuses = True
    body.drop(close=True)
    with pytest.raises(ValueError, match="not yet"):
        body.call("seeds", (), {})
    body.renew()
    assert body.env is None


class Bytes(gym.Env[Any, Any]):
    """Whole numbers, which are checked before any is written; the second one does something wrong, once."""

    observation_space = gym.spaces.Box(0, 255, (4,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, env: int, at: int, wrong: Any) -> None:
        self.env, self.at, self.wrong, self.t = env, at, wrong, 0

    def _seen(self) -> Any:
        return np.array([self.env, self.t, 7, 7], np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if (self.env, self.t) == (1, self.at):
            if self.wrong is None:
                raise RuntimeError("as asked")
            return self.wrong, 1.0, False, False, {}
        return self._seen(), 1.0, False, False, {}


@pytest.mark.parametrize("at", [3, 4])
@pytest.mark.parametrize("wrong", [None, np.zeros(5, np.uint8), np.zeros(4), "text"])
def test_one_that_does_not_fit_never_replaces_the_last_valid_observation(wrong: Any, at: int) -> None:
    def made(env: int) -> Any:
        return lambda: Bytes(env, at, wrong)

    with headrace.VectorEnv([made(env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        kept = [envs.step([0] * COUNT)[0] for _ in range(at)]
        assert [seen[:, 1].tolist() for seen in kept[:-1]] == [[t] * COUNT for t in range(1, at)]
        assert kept[-1][:, 1].tolist() == [at, at - 1, at]
        assert envs.valid.tolist() == [True, False, True]
        seen = [envs.step([0] * COUNT)[0] for _ in range(at - 1)]
        assert [one[:, 1].tolist() for one in seen] == [[at + t, t - 1, at + t] for t in range(1, at)]
        assert (np.array([*kept, *seen])[:, :, 0] == np.arange(COUNT)).all()


class Floats(Bytes):
    """Numbers that are checked while they are written."""

    observation_space = gym.spaces.Box(-9, 9, (4,), np.float32)

    def _seen(self) -> Any:
        return super()._seen().astype(np.float32)


def test_one_that_fails_while_it_is_written_never_replaces_the_last_valid_observation() -> None:
    def made(env: int) -> Any:
        return lambda: Floats(env, 3, np.array([1.0, 5.0, 7.0, np.nan], np.float32))

    with headrace.VectorEnv([made(env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        *_, last = [envs.step([0] * COUNT)[0] for _ in range(3)]
        assert envs.valid.tolist() == [True, False, True]
        assert last.tolist() == [[0.0, 3.0, 7.0, 7.0], [1.0, 2.0, 7.0, 7.0], [2.0, 3.0, 7.0, 7.0]]


class OneDict(Faulty):
    """Always returns the same dict, changed."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, Any] = {}

    def reset(self, **arguments: Any) -> Any:
        observation, _ = super().reset(**arguments)
        self.own["t"] = self.t
        return observation, self.own

    def step(self, action: Any) -> Any:
        observation, *others, _ = super().step(action)
        self.own["t"] = self.t
        return observation, *others, self.own


def test_the_last_info_of_an_episode_is_not_the_next_ones_first() -> None:
    with headrace.VectorEnv([OneDict], workers=0, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        infos: dict[str, Any] = {}
        steps = 0
        while "final_info" not in infos:
            *_, infos = envs.step([0])
            steps += 1
        assert infos["final_info"]["t"].tolist() == [steps]
        assert infos["t"].tolist() == [0]


class Unbatched(Bytes):
    """Its second info is a text after a number, which Gymnasium cannot put into one array; its episode ends there."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, _ = super().step(action)
        info = {"a": "text" if self.env else 1} if self.t == 2 else {}
        return observation, reward, self.t == 2, False, info


@pytest.mark.parametrize("as_ready", [False, True])
def test_infos_that_cannot_be_put_together_cost_their_batch_and_nothing_else(as_ready: bool) -> None:
    raises = [1]  # the first copy of the second one, in its first step

    def made(env: int) -> Any:
        return lambda: Unbatched(env, raises.pop() if env == 1 and raises else 99, None)

    with headrace.VectorEnv([made(env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        envs.step([0] * COUNT)
        assert envs.valid.tolist() == [True, False, True]
        failed = 0
        for _ in range(6):
            try:
                if as_ready:
                    envs.send([0] * COUNT)
                    observations = envs.receive(COUNT).observations
                else:
                    observations, *_ = envs.step([0] * COUNT)
            except ValueError:
                failed += 1
                continue
            assert envs.valid.all()
            assert observations[:, 1].max() <= 2
        assert failed


class Interrupting(Faulty):
    """Ctrl-C comes in its third step."""

    def step(self, action: Any) -> Any:
        if self.total == 2 and self.index == 1:
            self.total += 1
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("as_ready", [False, True])
def test_ctrl_c_within_a_step_ends_the_episodes_that_were_stepped(as_ready: bool) -> None:
    def made(env: int) -> Any:
        return lambda: Interrupting(env)

    with headrace.VectorEnv([made(env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        envs.step([1] * COUNT)
        envs.step([1] * COUNT)
        if as_ready:
            envs.send([1] * COUNT)
        with pytest.raises(KeyboardInterrupt):
            envs.receive() if as_ready else envs.step([1] * COUNT)
        observations, rewards, terminated, truncated, infos = envs.step([1] * COUNT)
        assert not envs.valid.any()
        assert (rewards.tolist(), terminated.any(), truncated.all()) == ([0.0] * COUNT, False, True)
        assert observations[:, 1].tolist() == [2] * COUNT  # the last that were returned
        assert "Ctrl-C" in infos["headrace"]["message"][0]
        assert envs.step([1] * COUNT)[0][:, 1].tolist() == [0] * COUNT
        assert envs.valid.all()


def test_a_fault_in_the_fast_lane_concerns_one_and_is_paid_from_its_budget() -> None:
    factories = [Failing(env, at=3 * (env == 1)) for env in range(COUNT)]
    with headrace.VectorEnv(factories, workers=0, budget=FaultBudget(per_env=2, backoff_s=0.0)) as envs:
        envs.reset(seed=0)
        seen: list[Any] = []

        def go_on() -> None:
            for _ in range(30):
                observations = envs.step([1] * COUNT)[0]
                seen.append((envs.valid.tolist(), observations[:, 1].tolist()))

        with pytest.raises(RestartBudgetSpent) as told:
            go_on()
        assert [valid for valid, _ in seen].count([True, False, True]) == 2
        assert all(valid[0] and valid[2] for valid, _ in seen)
        assert [steps[0] for _, steps in seen] == list(range(1, len(seen) + 1))
        text = str(told.value)
        assert text.startswith("[SUP-003] environment 1 failed 3 times; the budget allows 2 replacements\n  env: 1\n")
        assert "burn map corrupt, tile 7" in text
        with pytest.raises(RestartBudgetSpent):
            envs.step([1] * COUNT)


# Probes


class Counting(gym.Env[Any, Any]):
    """Counts its steps in one array, one dict and one list, which its reset changes; three steps are an episode.

    Args:
        resets: Which of its resets raise; each once.
    """

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *resets: int) -> None:
        self.t = np.zeros(1)
        self.told: dict[str, Any] = {"t": 0}
        self.listed = [0]
        self.steps = self.resets = 0
        self.raises = set(resets)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets in self.raises:
            raise RuntimeError("as asked")
        return self._seen(0)

    def step(self, action: Any) -> Any:
        observation, info = self._seen(self.steps + 1)
        return observation, 1.0, self.steps == 3, False, info

    def _seen(self, steps: int) -> Any:
        self.steps = self.told["t"] = self.t[0] = self.listed[0] = steps
        return np.full(1, steps, np.float32), {"told": self.told}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_probes_found_is_the_callers_own(mode: str) -> None:
    probes = {
        "t": headrace.Probe.attribute("unwrapped.t"),
        "told": headrace.Probe.attribute("unwrapped.told"),
        "info": headrace.Probe.info("told", at="episode_end"),
        "listed": headrace.Probe.attribute("unwrapped.listed"),
    }
    with headrace.VectorEnv([Counting] * 2, workers=0, probes=probes, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        kept = [envs.probes]
        for _ in range(3):
            envs.step([0, 0])
            kept.append(envs.probes)
        envs.step([0, 0])
        for steps, found in enumerate(kept):
            assert found["t"].values.tolist() == [[steps]] * 2
            assert found["told"].values.tolist() == [{"t": steps}] * 2
            assert found["listed"].values.tolist() == [[steps]] * 2
        assert kept[3]["info"].values.tolist() == [{"t": 3}] * 2


def test_a_reset_that_raises_within_a_step_leaves_no_values_of_the_episode_before() -> None:
    made: list[Counting] = []

    def make() -> Counting:
        made.append(Counting() if made else Counting(2))
        return made[-1]

    probes = {"t": headrace.Probe.attribute("unwrapped.t", every=2)}
    with headrace.VectorEnv([make], workers=0, probes=probes, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        seen = []
        for _ in range(6):
            envs.step([0])
            found = envs.probes["t"]
            seen.append((int(found.step[0]), bool(found.mask[0]), float(found.values[0].sum())))
        assert len(made) == 2
        assert [fault.phase for fault in envs.faults] == ["reset"]
        # The third step is cut, and shows the first observation of the replacement.
        assert seen == [
            (1, False, 0.0),
            (2, True, 2.0),
            (0, True, 0.0),
            (1, False, 0.0),
            (2, True, 2.0),
            (3, False, 0.0),
        ]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_last_info_that_is_no_dict_is_a_fault_in_every_mode(mode: str) -> None:
    class Silent(Counting):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, None if terminated else info

    with headrace.VectorEnv([Silent], workers=0, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step([0])
        assert [(fault.kind, fault.phase) for fault in envs.faults] == [("contract", "step")]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_first_info_that_is_no_dict_is_a_fault_in_every_mode(mode: str) -> None:
    class Silent(Counting):
        def reset(self, **arguments: Any) -> Any:
            observation, info = super().reset(**arguments)
            return observation, None if self.resets == 2 else info

    with headrace.VectorEnv([Silent], workers=0, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            envs.step([0])
        assert [(fault.kind, fault.phase) for fault in envs.faults] == [("contract", "reset")]


def test_the_two_ways_say_the_same() -> None:
    """One vector takes the fast lane; a probe keeps the other one from it."""
    factories = [Sampling("box", infos="flat") for _ in range(COUNT)]
    probes = {"n": headrace.Probe.info("n")}
    with (
        headrace.VectorEnv(factories, workers=0) as fast,
        headrace.VectorEnv(factories, workers=0, probes=probes) as ordinary,
    ):
        fast.reset(seed=3), ordinary.reset(seed=3)
        for _ in range(20):
            for one, other in zip(fast.step([0] * COUNT)[:4], ordinary.step([0] * COUNT)[:4], strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_exception_while_building_closes_what_was_built() -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.index)

    def failing() -> gym.Env[Any, Any]:
        raise RuntimeError("no license")

    with pytest.raises(EnvironmentNotBuilt, match="environment 2 raised RuntimeError: no license"):
        headrace.VectorEnv([lambda: Closing(0), lambda: Closing(1), failing], workers=0)
    assert closed == [0, 1]


def test_a_call_that_does_not_return_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    limits, here = Limits(step_s=0.02, reset_s=9.0, construct_s=9.0, close_s=9.0), threading.get_ident()
    logged = threading.Event()
    logging.getLogger("headrace.vector").addFilter(lambda _record: logged.set() or True)
    watcher = Watcher(lambda: ("call", 5, Phase.STEP, here), limits)
    try:
        with caplog.at_level(logging.WARNING, "headrace.vector"):
            watcher.start()
            assert logged.wait(timeout=20.0)
    finally:
        watcher.close()
        logging.getLogger("headrace.vector").filters.clear()
    assert "environment 5 has been inside step()" in caplog.text
    assert "test_vector_serial.py" in caplog.text


# Building, calling and closing in this process


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], None]]:
    """Waits until a warning with this text is logged."""
    said, logger = queue.SimpleQueue[str](), logging.getLogger("headrace.vector")

    def note(record: logging.LogRecord) -> bool:
        said.put(record.getMessage())
        return True

    def wait(text: str) -> None:
        while text not in said.get(timeout=20.0):
            pass

    logger.addFilter(note)
    with caplog.at_level(logging.WARNING, "headrace.vector"):
        yield wait
    logger.removeFilter(note)


def test_whoever_does_not_return_is_named_whatever_it_is_asked(logged: Callable[[str], None]) -> None:
    class Waiting(Faulty):
        """Goes on when it has been named."""

        def __init__(self, index: int) -> None:
            super().__init__(index)
            self._wait("construct")

        def _wait(self, phase: str) -> None:
            if self.index == 1:
                logged(f"environment 1 has been inside {phase}()")

        def call(self) -> None:
            self._wait("call")

        def close(self) -> None:
            self._wait("close")

    limits = {"start_timeout_s": 0.02, "reset_timeout_s": 0.02, "close_timeout_s": 0.02}
    envs = headrace.VectorEnv([functools.partial(Waiting, env) for env in range(COUNT)], workers=0, **limits)
    envs.call("call")
    envs.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-vector-watcher"]


def test_the_stack_that_is_logged_is_that_of_the_thread_that_steps(
    logged: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    class Waiting(Faulty):
        def reset(self, **arguments: Any) -> Any:
            logged("environment 0 has been inside reset()")
            return super().reset(**arguments)

    def elsewhere() -> None:
        envs.reset(seed=0)

    with headrace.VectorEnv([Waiting], workers=0, reset_timeout_s=0.02) as envs:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(timeout=20.0)
    assert "in elsewhere" in caplog.text


def test_another_batch_is_another_call_although_its_list_lies_where_the_last_one_did() -> None:
    one = Serial([], AutoresetMode.NEXT_STEP, {}, Limits(step_s=1.0, reset_s=1.0, construct_s=1.0, close_s=1.0))
    one.asked = [7]
    seen = []
    for _ in range(3):
        one.running = []
        seen.append(one.look()[0])
        one.running = None
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), RuntimeError("no license")])
@pytest.mark.parametrize("where", ["factory", "metadata"])
def test_whatever_ends_the_building_closes_what_was_built(error: BaseException, where: str) -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.index)

    class Odd(Closing):
        @property
        def metadata(self) -> Any:  # type: ignore[override]
            raise error

    def failing() -> gym.Env[Any, Any]:
        raise error

    is_factory = where == "factory"
    last = failing if is_factory else functools.partial(Closing, 1)
    expected = EnvironmentNotBuilt if is_factory and not isinstance(error, KeyboardInterrupt) else type(error)
    with pytest.raises(expected):
        headrace.VectorEnv([functools.partial(Closing if is_factory else Odd, 0), last], workers=0)
    assert closed == ([0] if is_factory else [0, 1])


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("as asked")])
def test_one_that_does_not_close_leaves_none_open(error: BaseException) -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.index)
            if self.index == 1:
                raise error

    envs = headrace.VectorEnv([functools.partial(Closing, env) for env in range(COUNT)], workers=0)
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else contextlib.nullcontext():
        envs.close()
    assert closed == [0, 1, 2]
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-vector-watcher"]


def test_a_close_that_is_interrupted_goes_on_with_those_that_are_open() -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.index)
            if self.index == 1:
                raise KeyboardInterrupt

    def made(env: int) -> Any:
        return lambda: Closing(env)

    envs = headrace.VectorEnv([made(env) for env in range(COUNT)], workers=0)
    envs.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    with pytest.raises(VectorMisused, match="closed"):
        envs.step([0] * COUNT)
    envs.close()
    assert (closed, envs.closed) == ([0, 1, 2], True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_one_environment_behind_two_factories_is_refused_and_closed(wrapped: bool) -> None:
    closed: list[int] = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(self.index)

    one = Closing(7)

    def made() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(one, 3) if wrapped else one

    with pytest.raises(ConfigError, match="the factories of environments 1 and 2 returned the same object"):
        headrace.VectorEnv([lambda: Closing(0), made, made], workers=0)
    assert closed == [0, 7, 7]


def test_environments_whose_unwrapped_is_made_anew_each_time_are_not_the_same() -> None:
    class Anew(Faulty):
        unwrapped = property(lambda _: gym.Env())  # type: ignore[assignment]

    headrace.VectorEnv([Anew] * COUNT, workers=0).close()


def test_an_exception_without_a_text_is_one_environments_fault() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("as asked")

    class Raising(Faulty):
        def step(self, action: Any) -> Any:
            raise Mute

    with headrace.VectorEnv([Faulty, Raising], workers=0) as envs:
        envs.reset(seed=0)
        *_, infos = envs.step([0, 0])
        assert envs.valid.tolist() == [True, False]
        assert "raised Mute" in infos["headrace"]["message"][1]
