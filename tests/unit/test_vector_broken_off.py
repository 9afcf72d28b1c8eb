"""What a program breaks off in its own process, by Ctrl-C or another signal; and what follows ``on_fault="raise"``."""

from __future__ import annotations

import functools
import itertools
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import headrace
from headrace.core.errors import EnvironmentRaised, NonFiniteValue, VectorMisused
from headrace.vector import serial
from headrace.vector.engine import Engine
from headrace.vector.fastlane import FastLane
from headrace.vector.interrupts import is_programs
from vector_envs import Failing, Faulty

COUNT = 3


# What the program's own signals do


class Handler:
    """Raises whatever the signal is for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, _number: int, _frame: Any) -> None:
        raise self.error

    def method(self, _number: int, _frame: Any) -> None:
        raise self.error


def taken_away(error: BaseException) -> Any:
    """As many do that end a program: whoever sends the signal again finds nobody."""

    def stop(number: int, _frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise error

    return stop


def forgetful(error: BaseException) -> Any:
    def stop(number: int, frame: Any) -> None:
        del number, frame
        raise error

    return stop


HANDLERS: dict[str, Callable[[BaseException], Any]] = {
    "function": lambda error: lambda *_: Handler(error).method(0, None),
    "method": lambda error: Handler(error).method,
    "object": Handler,
    "partial": lambda error: functools.partial(Handler.method, Handler(error)),
    "taken-away": taken_away,
    "taken-away-partial": lambda error: functools.partial(taken_away(error)),
    "forgetful": forgetful,
}


def test_what_a_function_of_settrace_raises_is_the_environments() -> None:
    """As those who limit the steps of strange code do; it is given the frame of its caller, too."""

    def limit(_frame: Any, _event: str, _argument: Any) -> None:
        raise TimeoutError("as asked")

    def traced() -> None:
        limit(sys._getframe(), "line", None)

    with pytest.raises(TimeoutError) as caught:
        traced()
    assert not is_programs(caught.value)


class Signalled(Faulty):
    """Environment 1 is told to end by a signal in its second step; the first copy of it."""

    told: ClassVar[list[int]] = []

    def step(self, action: Any) -> Any:
        if self.index == 1 and self.total == 1 and not self.told:
            self.told.append(1)
            signal.raise_signal(signal.SIGUSR2)
        return super().step(action)

    def tell(self) -> None:
        """A method in which the signal comes."""
        if self.index == 1:
            signal.raise_signal(signal.SIGUSR2)


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    former = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, handler) and None
    signal.signal(signal.SIGUSR2, former)


@pytest.mark.parametrize("as_ready", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), TimeoutError("too long")])
@pytest.mark.parametrize("kind", HANDLERS)
def test_what_a_signals_handler_raises_is_no_fault_of_the_environment(
    handled: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, kind: str, error: BaseException, as_ready: bool
) -> None:
    monkeypatch.setattr(Signalled, "told", [])
    handled(HANDLERS[kind](error))
    with headrace.VectorEnv([functools.partial(Signalled, env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        envs.step([1] * COUNT)
        if as_ready:
            envs.send([1] * COUNT)
        with pytest.raises(type(error)):
            envs.receive() if as_ready else envs.step([1] * COUNT)
        assert not envs.faults
        envs.step([1] * COUNT)
        assert not envs.valid.any()  # nobody knows how far they got
        assert envs.step([1] * COUNT)[0][:, 1].tolist() == [0] * COUNT
        assert envs.valid.all()


def test_a_method_that_is_broken_off_costs_its_environment_alone(handled: Callable[[Any], None]) -> None:
    handled(Handler(TimeoutError("too long")))
    with headrace.VectorEnv([functools.partial(Signalled, env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        with pytest.raises(TimeoutError, match="too long"):
            envs.call("tell")
        observations = envs.step([1] * COUNT)[0]
        assert envs.valid.tolist() == [True, False, True]
        assert observations[:, 1].tolist() == [1, 0, 1]


def test_what_an_environment_raises_is_its_own_although_there_are_handlers(handled: Callable[[Any], None]) -> None:
    handled(Handler(SystemExit(3)))

    class Leaving(Faulty):
        def step(self, action: Any) -> Any:
            return sys.exit(3) if self.index == 1 else super().step(action)

        def leave(self) -> None:
            sys.exit(3)

    with headrace.VectorEnv([functools.partial(Leaving, env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        envs.step([1] * COUNT)
        assert envs.valid.tolist() == [True, False, True]
        assert "SystemExit: 3" in envs.faults[0].message
        envs.reset(seed=0)
        with pytest.raises(EnvironmentRaised, match=r"leave of environment 0: .*SystemExit"):
            envs.call("leave")


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as the next step ends: it is noted, and done by a later call."""
    real = Engine.went

    def went(*arguments: Any) -> None:
        monkeypatch.undo()
        real(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "went", went)


class Told(Faulty):
    """Remembers what became of it."""

    said: ClassVar[list[str]]

    def tell(self) -> str:
        self.said.append("told")
        return "heard"

    def close(self) -> None:
        self.said.append("closed")


@pytest.mark.usefixtures("struck")
def test_ctrl_c_that_was_noted_comes_before_a_call_and_not_instead_of_what_it_returns() -> None:
    Told.said = []
    with headrace.VectorEnv([Told], workers=0) as envs:
        envs.reset(seed=0)
        envs.step([1])
        with pytest.raises(KeyboardInterrupt):
            envs.call("tell")
        assert Told.said == []
        assert envs.call("tell") == ("heard",)


@pytest.mark.usefixtures("struck")
def test_ctrl_c_that_was_noted_is_not_lost_if_nothing_follows_but_close() -> None:
    Told.said = []
    envs = headrace.VectorEnv([Told], workers=0)
    envs.reset(seed=0)
    envs.step([1])
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    assert Told.said == ["closed"]
    envs.close()
    assert Told.said == ["closed"]


def test_a_call_that_was_broken_off_before_makes_nobody_busy_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def strikes(*arguments: Any) -> int:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)  # before anybody is stepped
        return first(*arguments)

    first = FastLane._first
    with headrace.VectorEnv([functools.partial(Faulty, env) for env in range(COUNT)], workers=0) as envs:
        envs.reset(seed=0)
        envs._opened.backend.stopped = [1]  # type: ignore[attr-defined]  # and nobody could be told
        monkeypatch.setattr(FastLane, "_first", strikes)
        with pytest.raises(KeyboardInterrupt):
            envs.step([1] * COUNT)
        assert envs.step([1] * COUNT)[0][:, 1].tolist() == [1, 0, 1]
        assert envs.valid.tolist() == [True, False, True]


class Twice(Faulty):
    """Each copy raises in its first step; resets of the copies from ``interrupted`` on are Ctrl-C."""

    def __init__(self, copies: list[int], interrupted: int) -> None:
        super().__init__()
        self.copies, self.interrupted = copies, interrupted
        copies.append(len(copies))
        self.options: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if len(self.copies) == self.interrupted:
            raise KeyboardInterrupt
        self.options.append(options)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if len(self.copies) < 3:
            raise ValueError("as asked")
        return super().step(action)


def twice(interrupted: int, mode: str) -> headrace.VectorEnv:
    copies: list[int] = []
    return headrace.VectorEnv([lambda: Twice(copies, interrupted)], workers=0, autoreset_mode=mode)


def test_ctrl_c_in_the_pause_of_a_replacement_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupts(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with twice(99, "SameStep") as envs:
        envs.reset(seed=0)
        envs.step([1])
        assert not envs.valid.any()
        monkeypatch.setattr(serial, "poll_fds", interrupts)
        with pytest.raises(KeyboardInterrupt):
            envs.step([1])  # the second fault: its replacement has to wait
        with pytest.raises(VectorMisused, match="receive"):
            envs.reset(seed=1)
        late = envs.receive()
        assert not late.valid.any()
        assert late.infos["final_obs"][0].tolist() == [0, 0, 0]
        assert late.infos["headrace"]["fault"].tolist() == ["raised"]
        _, infos = envs.reset(seed=1)
        assert envs.valid.all()
        assert infos.keys() == {"seed", "_seed"}
        envs.step([1])
        assert envs.valid.all()


def test_of_a_replacement_whose_reset_is_broken_off_nothing_stays_behind() -> None:
    with twice(2, "SameStep") as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            envs.step([1])
        envs.get_attr("t")
        _, infos = envs.reset(seed=1)
        assert envs.valid.all()
        assert infos.keys() == {"seed", "_seed"}


def test_options_of_a_reset_that_is_broken_off_are_not_those_of_the_next() -> None:
    class Options(Faulty):
        seen: ClassVar[list[Any]] = []

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.seen.append(options)
            if len(self.seen) == 2:
                raise KeyboardInterrupt
            return super().reset(seed=seed, options=options)

    with headrace.VectorEnv([Options], workers=0) as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            envs.reset(seed=1, options={"level": 9})
        envs.step([0])  # a cut, and a reset after it
        envs.step([0])
        assert envs.valid.all()
        assert Options.seen == [None, {"level": 9}, None]


# After an exception of `on_fault`


def raising(at: Sequence[int]) -> headrace.VectorEnv:
    factories = [Failing(env, at=2 * (env in at)) for env in range(COUNT)]
    envs = headrace.VectorEnv(factories, workers=0, on_fault="raise")
    envs.reset(seed=0)
    envs.step([1] * COUNT)
    return envs


def test_who_looks_around_after_an_exception_loses_no_row() -> None:
    with raising([1, 2]) as envs:
        with pytest.raises(EnvironmentRaised, match="environment 1 "):
            envs.step([1] * COUNT)
        for work in (lambda: envs.get_attr("t"), lambda: envs.step([1] * COUNT), lambda: envs.set_attr("t", 7)):
            with pytest.raises(VectorMisused, match="receive"):
                work()
        with pytest.raises(EnvironmentRaised, match="environment 2 "):
            envs.receive()
        late = envs.receive()
        assert late.env_ids.tolist() == [0]
        assert late.observations[:, 1].tolist() == [2]
        assert envs.get_attr("t") == (2, 2, 2)
        envs.reset(options={"reset_mask": np.array([False, True, True])})
        assert envs.step([1] * COUNT)[0][:, 1].tolist() == [3, 1, 1]


def test_a_reset_after_an_exception_drops_what_nobody_received() -> None:
    with raising([1, 2]) as envs:
        with pytest.raises(EnvironmentRaised, match="environment 1 "):
            envs.step([1] * COUNT)
        envs.reset(options={"reset_mask": np.array([False, True, True])})
        assert envs.step([1] * COUNT)[0][:, 1].tolist() == [3, 1, 1]


@pytest.mark.parametrize("resets", ["reset", "send_reset"])
def test_an_exception_that_was_dealt_with_drops_nothing_later(resets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        gather(*arguments)
        raise KeyboardInterrupt

    gather = Engine.gather
    with raising([1]) as envs:
        with pytest.raises(EnvironmentRaised):
            envs.step([1] * COUNT)
        assert envs.receive().env_ids.tolist() == [0, 2]
        if resets == "reset":
            envs.reset(options={"reset_mask": np.arange(COUNT) == 1})
        else:
            envs.send_reset([1], [5])
            envs.receive()
        envs.send([1] * COUNT)
        monkeypatch.setattr(Engine, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.receive()
        monkeypatch.undo()
        for work in (envs.reset, lambda: envs.step([1] * COUNT)):
            with pytest.raises(VectorMisused, match="receive"):
                work()
        assert envs.receive().observations[:, 1].tolist() == [3, 1, 3]


def test_two_failures_in_a_row_leave_the_last_valid_observation() -> None:
    """The second one answers a question whose number has the same parity as that of the last valid one."""

    class NaNs(Faulty):
        def __init__(self, env: int, copy: int) -> None:
            super().__init__(env)
            self.copy = copy

        def reset(self, **arguments: Any) -> Any:
            observation, info = super().reset(**arguments)
            return (np.full(3, np.nan, np.float32) if self.copy else observation), info

        def step(self, action: Any) -> Any:
            if self.index == 0:
                raise ValueError("as asked")
            return super().step(action)

    def made(env: int) -> Any:
        copies = itertools.count()
        return lambda: NaNs(env, next(copies) if env == 0 else 0)

    with headrace.VectorEnv([made(env) for env in range(2)], workers=0, on_fault="raise") as envs:
        first = envs.reset(seed=0)[0]
        with pytest.raises(EnvironmentRaised):
            envs.step([1, 1])
        envs.receive()
        with pytest.raises(NonFiniteValue):
            envs.reset(options={"reset_mask": np.array([True, False])})
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
        assert observations.tolist() == [first[0].tolist(), [1, 0, 1]]
