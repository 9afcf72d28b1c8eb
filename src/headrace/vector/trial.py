"""A child that tries one environment out for a moment, so that nobody has to guess how it behaves."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from headrace.core.clock import perf_counter_s
from headrace.ipc.child import ChildContext
from headrace.vector.faults import Problem, from_exception
from headrace.vector.stepping import check_environment

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_THREADS = Path("/proc/self/task")
_DRAWN = 64
"""Actions, used over and over: to draw one may take as long as a step."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the child is started with."""

    factory: bytes
    budget_s: float


@dataclass(frozen=True, slots=True)
class Begun:
    """From the child: the environment is built, and is stepped from now on."""


@dataclass(frozen=True, slots=True)
class Tried:
    """From the child: what it saw."""

    step_s: float
    busy_s: float
    steps: int
    observation_bytes: int
    infos: bool
    """Whether most steps returned an info that is not empty."""
    alone: bool
    """Whether it was seen to use no process and no thread of its own."""


@dataclass(frozen=True, slots=True)
class NotTried:
    """From the child: the environment could not be built."""

    problem: Problem


def measure(context: ChildContext) -> None:
    """Target of the child."""
    output = context.fds["output"]
    for place in (1, 2):
        os.dup2(output, place)
    trial: Trial = context.payload
    before = _helpers()
    try:
        env: Any = cloudpickle.loads(trial.factory)()
        check_environment(0, env)
    except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
        context.control.send(NotTried(from_exception(error, "construct")), trial.budget_s + 5.0)
        return
    context.control.send(Begun(), trial.budget_s + 5.0)
    with contextlib.suppress(Exception):  # that it fails is found, and told, where it is used
        context.control.send(_try(env, trial.budget_s, before), trial.budget_s + 5.0)
    with contextlib.suppress(Exception):  # nobody is interested
        env.close()


def _try(env: Any, budget_s: float, before: tuple[int, int] | None) -> Tried:
    """Step it with random actions; the first steps, which are slower than all others, do not count."""
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(_DRAWN)])
    observation, _ = env.reset(seed=0)
    ended, _, _ = _steps(env, actions, budget_s, ended=False, least=1)
    start_s, busy_s = perf_counter_s(), _busy_s()
    _, steps, told = _steps(env, actions, budget_s, ended=ended, least=3)
    wall_s, busy_s = perf_counter_s() - start_s, _busy_s() - busy_s
    size = np.asarray(observation).nbytes if isinstance(observation, np.ndarray) else 0
    alone = before is not None and _helpers() == before
    return Tried(wall_s / steps, busy_s / steps, steps, size, infos=2 * told > steps, alone=alone)


def _steps(env: Any, actions: Iterator[Any], budget_s: float, *, ended: bool, least: int) -> tuple[bool, int, int]:
    """Step it for half of the budget: is its episode over then, how many steps were it, how many returned an info."""
    start_s, steps, told = perf_counter_s(), 0, 0
    while steps < least or perf_counter_s() - start_s < budget_s / 2:
        if ended:
            env.reset()
        _, _, terminated, truncated, info = env.step(copy.deepcopy(next(actions)))  # it may write into it
        ended = bool(terminated or truncated)
        steps += 1
        told += bool(info)
        if perf_counter_s() - start_s > 10 * budget_s:
            break
    return ended, steps, told


def _helpers() -> tuple[int, int] | None:
    """Threads and children of this process, and what children used that have ended; None where that is not told."""
    try:
        threads = list(_THREADS.iterdir())
        children = sum(len((thread / "children").read_text().split()) for thread in threads)
    except OSError:
        return None
    return len(threads) + children, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _busy_s() -> float:
    """CPU time of this process, with the time its thread has waited for a core: that is no waiting of its own."""
    try:
        waited_ns = int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.process_time() + waited_ns / 1e9
