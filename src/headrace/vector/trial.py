"""A child that tries one environment out for a moment, so that nobody has to guess how it behaves."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from headrace.ipc.child import ChildContext
from headrace.vector.faults import Problem, from_exception
from headrace.vector.stepping import check_environment

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class Trial:
    """What the child is started with."""

    factory: bytes
    budget_s: float


@dataclass(frozen=True, slots=True)
class Tried:
    """From the child: what it saw."""

    step_s: float
    busy_s: float
    steps: int
    observation_bytes: int


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
    try:
        env: Any = cloudpickle.loads(trial.factory)()
        check_environment(0, env)
    except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
        context.control.send(NotTried(from_exception(error, "construct")), trial.budget_s + 5.0)
        return
    with contextlib.suppress(Exception):  # that it fails is found, and told, where it is used
        context.control.send(_try(env, trial.budget_s), trial.budget_s + 5.0)


def _try(env: Any, budget_s: float) -> Tried:
    """Step it with random actions; the first step, which often is unlike the others, does not count."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    ended = _step(env)
    warm_s = time.perf_counter() + budget_s / 2  # the first thousand steps are slower than all others
    while time.perf_counter() < warm_s:
        if ended:
            env.reset()
        ended = _step(env)
    start_s, busy_s, steps = time.perf_counter(), _busy_s(), 0
    while steps < 3 or time.perf_counter() - start_s < budget_s:
        if ended:
            env.reset()
        ended = _step(env)
        steps += 1
        if time.perf_counter() - start_s > 10 * budget_s:
            break
    wall_s, busy_s = time.perf_counter() - start_s, _busy_s() - busy_s
    size = np.asarray(observation).nbytes if isinstance(observation, np.ndarray) else 0
    return Tried(wall_s / steps, busy_s / steps, steps, size)


def _step(env: Any) -> bool:
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    return bool(terminated or truncated)


def _busy_s() -> float:
    """CPU time of this process, with the time its thread has waited for a core: that is no waiting of its own."""
    try:
        waited_ns = int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.process_time() + waited_ns / 1e9
