"""Ctrl-C at every line of the vector environment: no row is lost in silence, none comes twice, and nothing hangs."""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType
from typing import Any, Self

import gymnasium as gym
import numpy as np
import pytest

import headrace
from headrace.core.errors import VectorMisused

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
