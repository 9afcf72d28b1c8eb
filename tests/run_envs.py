"""Environments for tests of whole runs: rows that tell where they come from, and faults on demand.

Named by ``run_envs:make`` and the like; the module lies beside the tests, and is imported in child processes too.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import multiprocessing
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.testing import provoke


def pause(seconds: float) -> None:
    """What a slow or hanging simulator does."""
    select.select([], [], [], seconds)


def refuse_to_print() -> None:
    """As a library does whose own stream stands in the place of the process's, and is closed."""

    def write(text: str) -> int:
        raise RuntimeError("this stream is closed")

    sys.stderr = types.SimpleNamespace(write=write, flush=lambda: None)


class Traced(gymnasium.Env[Any, Any]):
    """The observation is (seed given to the reset, t): a stored row tells its lane, episode and step.

    Args:
        limit: Steps per episode; the last one truncates it.
        fault: What goes wrong, a method's name; None: nothing.
        at: Total step of one environment at which it does.
        marker: A file that is made when it does; while it exists, nothing goes wrong any more. None: every time.
        step_s: Seconds one step takes.
    """

    def __init__(
        self, limit: int = 10, fault: str | None = None, at: int = 7, marker: str | None = None, step_s: float = 0.0
    ) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-1.0, 2.0**31, (2,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._limit, self._fault, self._at, self._marker, self._step_s = limit, fault, at, marker, step_s
        self._total = self._t = 0
        self._seed = 0
        self.obs: Any = None
        self.reward: Any = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._t = seed or 0, 0
        self.obs = np.array([self._seed, 0], np.float64)
        if self._at == 0 and self._due():
            getattr(self, str(self._fault))()
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._total += 1
        self._t += 1
        if self._step_s:
            pause(self._step_s)
        self.obs, self.reward = np.array([self._seed, self._t], np.float64), float(self._t)
        if self._total == self._at and self._due():
            getattr(self, str(self._fault))()
        return self.obs, self.reward, False, self._t >= self._limit, {}

    def swell(self) -> None:
        """Takes a gigabyte, and keeps it."""
        self.kept = bytearray(b"x") * 2**30

    def _due(self) -> bool:
        if self._fault is None:
            return False
        if self._marker is None:
            return True
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    # Ends of a process.

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self) -> None:
        ctypes.string_at(0)

    def leave(self) -> None:
        os._exit(0)

    def sys_exit(self) -> None:
        sys.exit()

    def freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def hang(self) -> None:
        pause(600.0)

    # Helpers of its own, forked.

    def fork(self) -> None:
        """Both go on."""
        os.fork()

    def fork_exit(self) -> None:
        if os.fork() == 0:
            sys.exit(0)

    def fork_fail(self) -> None:
        if os.fork() == 0:
            raise ValueError("in the helper")

    def fork_fail_mute(self) -> None:
        refuse_to_print()
        self.fork_fail()

    def fork_exit_large(self) -> None:
        if os.fork() == 0:
            sys.exit(2**40)

    def help_itself(self) -> None:
        """Helpers that end by themselves, of any kind."""
        pid = os.fork()
        if pid == 0:
            os._exit(sum(map(abs, range(4))))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
        helper = multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
        helper.start()
        helper.join()
        assert helper.exitcode == 5
        assert subprocess.run([sys.executable, "-c", "exit(4)"], preexec_fn=os.getpid, check=False).returncode == 4

    # What an environment may do wrong.

    def fail(self) -> None:
        raise ValueError("burn map corrupt, tile 7")

    def fail_mute(self) -> None:
        refuse_to_print()
        self.fail()

    def nan_reward(self) -> None:
        self.reward = float("nan")

    def nan_obs(self) -> None:
        self.obs = np.array([self._seed, np.nan])

    def wrong_shape(self) -> None:
        self.obs = np.zeros(3)

    def wrong_dtype(self) -> None:
        self.obs = np.zeros(2, np.float32)

    def wrong_reward(self) -> None:
        self.reward = np.zeros(2)


class StuckAfter(Traced):
    """The first step of what replaces the one that failed does not return while there is no file ``marker.over``.

    That it is there ``marker.stuck`` says: by then the step that was lost is written down.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        marker = Path(str(self._marker))
        if not self._total and marker.exists() and not marker.with_suffix(".over").exists():
            marker.with_suffix(".stuck").touch()
            self.hang()
        return super().step(action)


class Levels(Traced):
    """Integer observations from 0 to 9; the fault ``beyond`` returns 10."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 9, (2,), np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._level(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return self._level(), *rest

    def _level(self) -> Any:
        return np.array([self.obs[0] if self.obs[0] == 10 else 1, 2], np.int64)

    def beyond(self) -> None:
        self.obs = np.array([10, 0])


class Buttons(Traced):
    """Actions are buttons, which TD3 cannot press."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2)


class Boundless(Traced):
    """Actions without bounds, which TD3 cannot scale."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Gambler(gymnasium.Env[Any, Any]):
    """Draws from the global generators, when it is built, reset and stepped, as many simulators do."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._luck = random.random() + float(np.random.rand())  # noqa: NPY002 - the legacy generator is what is meant
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._draw(), float(np.random.randn()), random.random() < 0.05, self._t >= 30, {}  # noqa: NPY002 - see above

    def _draw(self) -> Any:
        return np.array([self._luck, random.gauss(0.0, 1.0), np.random.rand()])  # noqa: NPY002 - see above


def make(**kwargs: Any) -> Traced:
    return Traced(**kwargs)


def dawdling(gate: str, slow_from: int, inner: str, **kwargs: Any) -> Any:
    """An environment, of one agent or of many, that is slow from its step ``slow_from`` on until the file ``gate`` is there.

    Slow, and not held: where one process steps and learns, it has to go on for its learner to report.

    Args:
        gate: The file.
        slow_from: Step of one copy, from 1.
        inner: A factory, ``module:function``, or an id of Gymnasium.
        **kwargs: Its arguments.
    """
    module, _, function = inner.partition(":")
    env = getattr(importlib.import_module(module), function)(**kwargs) if function else gymnasium.make(inner, **kwargs)
    step, number = env.step, itertools.count(1)

    def slow(actions: Any) -> Any:
        if next(number) >= slow_from and not Path(gate).exists():
            pause(0.05)
        return step(actions)

    env.step = slow
    return env


def stuck_after(**kwargs: Any) -> StuckAfter:
    return StuckAfter(**kwargs)


def levels(**kwargs: Any) -> Levels:
    return Levels(**kwargs)


def buttons() -> Buttons:
    return Buttons()


def boundless() -> Boundless:
    return Boundless()


def gambler() -> Gambler:
    return Gambler()


def raises_when_built() -> Traced:
    raise RuntimeError("the map of the park is missing")


def returns_none() -> None:
    Traced()


def returns_a_class() -> type[Traced]:
    return Traced


class Held(Traced):
    """Declares a space that cannot travel from one process to another."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space.lock = threading.Lock()


def held() -> Held:
    return Held()


def provoked(inner: str = "make", step_s: float = 0.0, *, waits: bool = False, **plan: Any) -> gymnasium.Env[Any, Any]:
    """`Traced`, or `Levels`, that misbehaves as `provoke.Plan` says.

    Where it ``waits``, those that are left are slow from then on until another one is made in its place, so that the run is
    not over by then.
    """
    where = provoke.Plan(**plan)
    if where.place == "import":
        # As a module of the user's own that does it at its top level.
        source = f"import run_envs\nrun_envs.misbehave({where.kwargs!r})\n"
        module = types.ModuleType("module_of_the_user")
        exec(compile(source, "module_of_the_user.py", "exec"), module.__dict__)
    env = provoke.Factory({"make": make, "levels": levels}[inner], where)(step_s=step_s)
    if waits:
        happened, again, step = Path(where.marker), Path(f"{where.marker}.again"), env.step
        if happened.exists():
            again.touch()

        def slow(action: Any) -> Any:
            if happened.exists() and not again.exists():
                pause(0.05)
            return step(action)

        env.step = slow
    return env


def misbehave(plan: dict[str, Any]) -> None:
    provoke.misbehave_while_building(provoke.Plan(**plan), "import")


LOCK = threading.Lock()
"""Held by a thread of the parent while processes start, in one test."""


def takes_the_lock(**kwargs: Any) -> Traced:
    if not LOCK.acquire(timeout=5.0):
        raise TimeoutError("the lock was inherited while somebody held it")
    LOCK.release()
    return Traced(**kwargs)


class WithHelper(Traced):
    """Has a helper process, which only ``close`` ends; its pid is noted in a file."""

    def __init__(self, pids: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        command = [sys.executable, "-c", "import select; select.select([], [], [], 600)"]
        self._helper = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=False)
        with Path(pids).open("a") as file:
            file.write(f"{self._helper.pid}\n")

    def close(self) -> None:
        self._helper.kill()
        self._helper.wait(timeout=5.0)


def with_helper(**kwargs: Any) -> WithHelper:
    return WithHelper(**kwargs)


class Noted(Traced):
    """Notes in a file in which process it is built."""

    def __init__(self, pids: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with Path(pids).open("a") as file:
            file.write(f"{os.getpid()}\n")


def noted(**kwargs: Any) -> Noted:
    return Noted(**kwargs)


class Talker(Traced):
    """Prints at every step, onto a disk that is full from the moment it is built in a process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        full = os.open("/dev/full", os.O_WRONLY)
        for place in (1, 2):
            os.dup2(full, place)
        os.close(full)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sys.stdout.write(f"step {self._t}\n")
        sys.stderr.write("and to the other one, without an end of its line ")
        sys.stderr.flush()
        return super().step(action)


def talker(**kwargs: Any) -> Talker:
    return Talker(**kwargs)


class Follower(Traced):
    """Its reward is the action's first number."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, float(action[0]), *rest


def follower(**kwargs: Any) -> Follower:
    return Follower(**kwargs)


class Scribbler(Traced):
    """Its reward is the sum of the action, into which it writes as into the one array that it shows everything in."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shown = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._shown[:] = super().reset(seed=seed)[0]
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        did = float(action.sum())
        action.fill(0)
        self._shown.fill(-1.0)
        obs, _, *rest = super().step(action)
        self._shown[:] = obs
        return self._shown, did, *rest


def scribbler(**kwargs: Any) -> Scribbler:
    return Scribbler(**kwargs)


class Unseeded(Traced):
    """Draws from a generator that nobody seeds."""

    def __init__(self) -> None:
        super().__init__(limit=20)
        self._luck = np.random.default_rng()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return obs + self._luck.random() * 0.5, *rest


def unseeded() -> Unseeded:
    return Unseeded()


class Slowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment each step of which takes so long; with a marker, only while there is such a file."""

    def __init__(self, env: gymnasium.Env[Any, Any], step_s: float, marker: str | None) -> None:
        super().__init__(env)
        self._step_s, self._marker = step_s, marker

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._marker is None or Path(self._marker).exists():
            pause(self._step_s)
        return self.env.step(action)


def slow_pendulum(step_s: float, marker: str | None = None) -> Slowed:
    return Slowed(gymnasium.make("Pendulum-v1"), step_s, marker)


class Tight(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Lets its process write no file beyond a size, as a disk that is full; for good, or until a step of its own.

    Args:
        env: Within.
        file_bytes: That size.
        spared: Process in which it does nothing.
        until: Number of the step; 0: for good.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], file_bytes: int, spared: int, until: int) -> None:
        super().__init__(env)
        self._spared, self._left = os.getpid() == spared, until
        self._limit(file_bytes)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0:
            self._limit(resource.RLIM_INFINITY)
        return self.env.step(action)

    def _limit(self, file_bytes: int) -> None:
        if not self._spared:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, most))


def tight(file_bytes: int, spared: int, until: int = 0) -> Tight:
    return Tight(gymnasium.make("Pendulum-v1"), file_bytes, spared, until)
