"""Ctrl-C at every line of the vector environment: no row is lost in silence, none comes twice, and nothing hangs."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import gymnasium as gym
import numpy as np
import pytest

import headrace
from headrace.core.errors import VectorMisused
from headrace.vector.barrier import Barrier
from headrace.vector.crew import Crew
from headrace.vector.fastlane import FastLane
from headrace.vector.handle import Handle
from headrace.vector.pool import Pool
from headrace.vector.slab import Mailbox
from headrace.vector.slots import Slots

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.timeout(240)]

COUNT = 4
BACKENDS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "workers": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 1, "threads_per_worker": COUNT},
    "split": {"workers": 1, "threads_per_worker": 1, "here": 2},
}
PACKAGE = "/headrace/vector/"
PLENTY = headrace.FaultBudget(per_env=10**6, total=10**6, longest_pause_s=1e-6)


class Counting(gym.Env[Any, Any]):
    """Tells who it is, its episode and its step; each has episodes of a length of its own."""

    observation_space = gym.spaces.Box(0, 1e9, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, env: int) -> None:
        self.env, self.episode, self.t = env, 0, 0

    def _seen(self) -> Any:
        return np.array([self.env, self.episode, self.t], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {"t": 0}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._seen(), float(self.t), self.t == 3 + self.env, False, {"t": self.t}


class Watched:
    """A vector environment whose every row is checked against the one before."""

    def __init__(self, envs: headrace.VectorEnv) -> None:
        self.envs = envs
        self.last: dict[int, tuple[int, int] | None] = {}
        """Episode and step of each; None: the next row begins an episode, which may be any."""
        self.ended: set[int] = set()

    def check(self, ids: Any, observations: Any, rewards: Any, ends: Any, valid: Any, infos: Any) -> None:
        for place, env in enumerate(ids):
            who, episode, t = (int(value) for value in observations[place])
            if not valid[place]:
                assert ends[place]
                self.last[env] = None
                self.ended.add(env)
                continue
            last = self.last.get(env)
            assert who == env
            assert infos["_t"][place]
            assert int(infos["t"][place]) == t
            assert rewards[place] == t
            if env in self.ended:
                assert t == 0
            elif last is not None:
                assert (episode, t) == (last[0], last[1] + 1)
            if last is not None and env in self.ended:
                assert episode in (last[0] + 1, 1)  # 1: a new environment begins it
            self.last[env] = (episode, t)
            (self.ended.add if ends[place] else self.ended.discard)(env)

    def step(self) -> None:
        observations, rewards, terminated, truncated, infos = self.envs.step([0] * COUNT)
        self.check(range(COUNT), observations, rewards, terminated | truncated, self.envs.valid, infos)

    def receive(self, enough: int) -> Any:
        got = self.envs.receive(enough)
        ends = got.terminations | got.truncations
        self.check(got.env_ids.tolist(), got.observations, got.rewards, ends, got.valid, got.infos)
        return got.env_ids

    def in_turn(self) -> None:
        """Half of the answers, and the same asked again."""
        ids = self.receive(COUNT // 2)
        self.envs.send([0] * len(ids), ids)

    def settle(self, as_ready: bool) -> None:
        """What a program does that goes on after Ctrl-C; the interrupt may come as late as here."""
        for _ in range(3):
            try:
                self.step()
            except VectorMisused:
                self.receive(COUNT)
            except KeyboardInterrupt:
                continue
        if as_ready:
            self.envs.send([0] * COUNT)


class AtLine:
    """Ctrl-C when so many lines of the package have run."""

    def __init__(self, line: int) -> None:
        self._left, self.place = line, ""

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        # Where the old handler is back, the caller is as good as told: it may be interrupted as it takes the row, too.
        last = frame.f_code.co_qualname == "Held.__exit__"
        return self._line if PACKAGE in frame.f_code.co_filename and not last else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self._line


@pytest.mark.thin(8)
@pytest.mark.parametrize("as_ready", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_at_any_line(backend: str, as_ready: bool) -> None:
    def made(env: int) -> Any:
        return lambda: Counting(env)

    line, came = 0, True
    with headrace.VectorEnv([made(env) for env in range(COUNT)], **BACKENDS[backend], budget=PLENTY) as envs:
        watched = Watched(envs)
        envs.reset(seed=1)
        watched.last = dict.fromkeys(range(COUNT), (1, 0))
        if as_ready:
            envs.send([0] * COUNT)
        while came:
            line += 1
            with AtLine(line) as at, contextlib.suppress(KeyboardInterrupt):
                watched.in_turn() if as_ready else watched.step()
            came = bool(at.place)
            try:
                watched.settle(as_ready)
            except BaseException as error:
                error.add_note(f"interrupted at {at.place}")
                raise
    assert line > 50


class AtCall:
    """Makes the first call of something raise, before it is made or after; all others are made."""

    def __init__(self, owner: Any, name: str, error: BaseException, *, after: bool = False) -> None:
        self._owner, self._name, self._after = owner, name, after
        self._errors = [error]
        self._real: Any = getattr(owner, name)

    def __enter__(self) -> Self:
        def called(*arguments: Any, **named: Any) -> Any:
            errors, self._errors = self._errors, []
            if errors and not self._after:
                raise errors[0]
            value = self._real(*arguments, **named)
            if errors:
                raise errors[0]
            return value

        setattr(self._owner, self._name, called)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._real)


def counting(backend: str, **options: Any) -> headrace.VectorEnv:
    def made(env: int) -> Any:
        return lambda: Counting(env)

    return headrace.VectorEnv([made(env) for env in range(COUNT)], **BACKENDS[backend], **options)


SEAMS: dict[str, tuple[Any, str, bool, type[BaseException]]] = {
    "before-anybody-is-asked": (Handle, "order", False, SystemExit),
    "when-some-are-asked": (Handle, "order", True, TimeoutError),
    "as-they-are-waited-for": (Barrier, "answered", False, SystemExit),
    "as-the-row-is-copied": (FastLane, "_observations", True, MemoryError),
}


@pytest.mark.thin(8)
@pytest.mark.parametrize("place", SEAMS)
@pytest.mark.parametrize("backend", ["workers", "split"])
def test_what_is_raised_while_workers_step_loses_no_row(backend: str, place: str) -> None:
    """As by the handler of SIGTERM or SIGALRM, which is not held up."""
    owner, name, after, error = SEAMS[place]
    with counting(backend, budget=PLENTY) as envs:
        watched = Watched(envs)
        envs.reset(seed=1)
        watched.last = dict.fromkeys(range(COUNT), (1, 0))
        for _ in range(7):
            with AtCall(owner, name, error("as asked"), after=after), pytest.raises(error):
                watched.step()
            watched.settle(as_ready=False)
        assert not envs.faults


@pytest.mark.parametrize("place", [(Handle, "order"), (Pool, "submit")], ids=["workers", "all-workers"])
@pytest.mark.parametrize("backend", ["workers", "split", "threads"])
def test_what_is_raised_while_workers_are_asked_gives_no_number_out_twice(backend: str, place: Any) -> None:
    with counting(backend, budget=PLENTY) as envs:
        watched = Watched(envs)
        envs.reset(seed=1)
        watched.last = dict.fromkeys(range(COUNT), (1, 0))
        for _ in range(7):
            with AtCall(*place, TimeoutError("as asked"), after=True), pytest.raises(TimeoutError):
                envs.send([0] * COUNT)
            with pytest.raises(VectorMisused, match=r"busy|not taken"):
                envs.send([0] * COUNT)
            watched.receive(COUNT)
            watched.step()
        assert not envs.faults


class Signalling(Counting):
    """In its second step it sends a signal to whoever waits for it, and takes its time to answer."""

    def __init__(self, env: int, pid: int) -> None:
        super().__init__(env)
        self.pid = pid

    def step(self, action: Any) -> Any:
        if self.t == 1 and self.episode == 1:
            os.kill(self.pid, signal.SIGUSR2)
            threading.Event().wait(0.1)
        return super().step(action)


@pytest.fixture
def times_out() -> Iterator[None]:
    """As pytest-timeout does with SIGALRM: a handler that raises wherever the program is."""

    def handler(_number: int, _frame: Any) -> None:
        raise TimeoutError("as asked")

    former = signal.signal(signal.SIGUSR2, handler)
    yield
    signal.signal(signal.SIGUSR2, former)


@pytest.mark.usefixtures("times_out")
@pytest.mark.parametrize("goes_on", ["reset", "step"])
def test_an_answer_that_comes_after_a_time_out_of_the_program_is_nobody_elses(goes_on: str) -> None:
    pid = os.getpid()
    with headrace.VectorEnv([lambda: Signalling(0, pid)], workers=1, threads_per_worker=1) as envs:
        envs.reset(seed=1)
        envs.step([0])
        with pytest.raises(TimeoutError, match="as asked"):
            envs.step([0])
        with pytest.raises(VectorMisused, match="receive"):
            envs.reset(seed=5) if goes_on == "reset" else envs.step([0])
        late = envs.receive()
        assert late.observations.tolist() == [[0, 1, 2]]
        assert late.valid.all()
        expected = [0, 2, 0] if goes_on == "reset" else [0, 1, 3]
        observations = envs.reset(seed=5)[0] if goes_on == "reset" else envs.step([0])[0]
        assert observations.tolist() == [expected]


def test_ctrl_c_while_workers_are_waited_for_breaks_off_nothing_that_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = Pool.poll, itertools.count()

    def poll(self: Pool, missing: int, timeout_s: float) -> Any:
        match next(calls):
            case 0:
                return []  # they are not ready yet
            case 1:
                raise KeyboardInterrupt
        return real(self, missing, timeout_s)

    with counting("split") as envs:
        envs.reset(seed=1)
        envs.send([0] * COUNT)
        monkeypatch.setattr(Pool, "poll", poll)
        with pytest.raises(KeyboardInterrupt):
            envs.receive(COUNT)
        got = envs.receive(COUNT)
        assert got.env_ids.tolist() == list(range(COUNT))
        assert got.valid.all()
        assert envs.step([0] * COUNT)[0][:, 2].tolist() == [2] * COUNT
        assert envs.valid.all()


@pytest.mark.parametrize("as_ready", [False, True])
@pytest.mark.parametrize("backend", ["here", "split"])
def test_ctrl_c_before_anything_was_stepped_breaks_nothing_off(backend: str, as_ready: bool) -> None:
    """It comes while questions are written down, and waits until they are about to be asked."""

    def interrupts(*_: object) -> int:
        signal.raise_signal(signal.SIGINT)
        return first(*_)  # type: ignore[arg-type]

    with counting(backend) as envs, pytest.MonkeyPatch.context() as patch:
        envs.reset(seed=1)
        if as_ready:
            envs.send([0] * COUNT)
        owner, name = (Slots, "count_done") if as_ready else (FastLane, "_first")
        first = getattr(owner, name)
        patch.setattr(owner, name, interrupts)
        with pytest.raises(KeyboardInterrupt):
            envs.receive(COUNT) if as_ready else envs.step([0] * COUNT)
        patch.undo()
        if as_ready or backend == "split":
            with pytest.raises(VectorMisused, match="receive"):
                envs.step([0] * COUNT)
            got = envs.receive(COUNT)
            observations, valid = got.observations, got.valid
        else:
            observations, valid = envs.step([0] * COUNT)[0], envs.valid
        assert observations[:, 2].tolist() == [1] * COUNT
        assert valid.all()


GIVEN_BACK: dict[str, tuple[Any, str, bool]] = {
    "before-anything-is-given-back": (Crew, "_release", False),
    "when-one-worker-is-given-back": (Handle, "close", True),
    "between-the-parts-of-one": (Mailbox, "close", False),
}


@pytest.mark.parametrize("place", GIVEN_BACK)
@pytest.mark.parametrize("backend", ["workers", "split"])
def test_what_breaks_off_close_while_things_are_given_back_hinders_no_second_one(backend: str, place: str) -> None:
    """As by the handler of SIGTERM; Ctrl-C waits until it is done."""
    owner, name, after = GIVEN_BACK[place]
    envs = counting(backend)
    envs.reset(seed=1)
    pids = envs.worker_pids()
    with AtCall(owner, name, SystemExit("as asked"), after=after), pytest.raises(SystemExit):
        envs.close()
    envs.close()
    assert pids
    assert not envs.worker_pids()
