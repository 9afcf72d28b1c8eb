"""One side of a comparison of vector environments, run in a process of its own: ours, the plain loop, or a peer.

    python _vector_sides.py '{"side": "gymnasium Async", "environment": "CartPole-v1", "count": 8, "window_s": 2}'

prints one JSON object. Every side does the same: it takes random actions, drawn beforehand, does what a policy would
cost, steps, and goes on after an episode's end. Environment steps are counted; resets are not steps.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import mmap
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _processes import Load, family, pss_mb
from _vector_envs import burn, makers

CORES = len(os.sched_getaffinity(0))
DRAWN = 64
"""Batches of actions, used over and over."""


@dataclass(frozen=True)
class Work:
    """What is to be done."""

    environment: str
    count: int
    policy_us: float = 0.0
    """CPU time of a policy for each row."""
    ready: int = 0
    """Rows that a side which takes whichever are ready waits for."""

    def action_batches(self) -> np.ndarray:
        """Actions [DRAWN, N, …]."""
        env = makers(self.environment, 1)[0]()
        env.action_space.seed(0)
        drawn = [env.action_space.sample() for _ in range(DRAWN * self.count)]
        env.close()
        return np.array(drawn).reshape(DRAWN, self.count, *np.shape(drawn[0]))

    def think(self, rows: int) -> None:
        """What a policy costs."""
        if self.policy_us:
            burn(self.policy_us * rows)


class Side(ABC):
    """Steps environments, some at a time.

    Args:
        work: What is to be done.
    """

    note = ""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.makers = makers(work.environment, work.count)
        self.actions: Iterator[np.ndarray] = itertools.cycle(work.action_batches())
        self.over = np.zeros(work.count, bool)  # [N]: the next row is a reset

    @abstractmethod
    def steps(self) -> int:
        """Step some environments; how many."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Leave nothing behind."""

    def count(self, ids: Any, over: np.ndarray) -> int:
        """Steps among the rows of ``ids``, for those that give a reset its own row."""
        resets = int(np.count_nonzero(self.over[ids]))
        self.over[ids] = over
        return len(over) - resets


class Loop(Side):
    """Every environment in turn, in this process; nothing is put together."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.envs = [make() for make in self.makers]
        for seed, env in enumerate(self.envs):
            env.reset(seed=seed)
        batches = work.action_batches()
        lists = batches.tolist() if batches.ndim == 2 else list(map(list, batches))
        self.lists = itertools.cycle(lists)

    def steps(self) -> int:
        for env, action in zip(self.envs, next(self.lists), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        self.work.think(self.work.count)
        return self.work.count


class Loops(Loop):
    """The same on every core at once, each on its own environments: what the machine gives at that moment."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.done = memoryview(mmap.mmap(-1, 8 * CORES)).cast("q")
        self.seen = 0
        self.pids = [self._started(place) for place in range(1, CORES)]

    def _started(self, place: int) -> int:
        parent, pid = os.getpid(), os.fork()
        if pid:
            return pid
        while os.getppid() == parent:
            self.done[place] += super().steps()
        os._exit(0)

    def steps(self) -> int:
        self.done[0] += super().steps()
        seen, self.seen = self.seen, sum(self.done)
        return self.seen - seen

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Batches(Side):
    """Whatever has Gymnasium's interface for vectors."""

    def __init__(self, work: Work, make: Callable[[list[Any]], Any]) -> None:
        super().__init__(work)
        self.envs = make(self.makers)
        self.envs.reset(seed=0)

    def steps(self) -> int:
        _, _, terminated, truncated, _ = self.envs.step(next(self.actions))
        self.work.think(self.work.count)
        return self.count(slice(None), terminated | truncated)

    def close(self) -> None:
        self.envs.close()


def gymnasium_sync(work: Work) -> Side:
    from gymnasium.vector import SyncVectorEnv

    return Batches(work, SyncVectorEnv)


def gymnasium_async(work: Work) -> Side:
    from gymnasium.vector import AsyncVectorEnv

    return Batches(work, AsyncVectorEnv)


class StableBaselines(Side):
    """Resets inside a step."""

    def __init__(self, work: Work, *, processes: bool) -> None:
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

        super().__init__(work)
        self.envs = SubprocVecEnv(self.makers, start_method="fork") if processes else DummyVecEnv(self.makers)
        self.envs.reset()

    def steps(self) -> int:
        self.envs.step(next(self.actions))
        self.work.think(self.work.count)
        return self.work.count

    def close(self) -> None:
        self.envs.close()


def puffer(factories: Sequence[Callable[[], Any]], *, workers: int, batch: int) -> Any:
    """PufferLib's processes."""
    import pufferlib.emulation
    import pufferlib.vector

    def wrap(make: Callable[[], Any]) -> Callable[..., Any]:
        return lambda buf=None, seed=0: pufferlib.emulation.GymnasiumPufferEnv(make(), buf=buf, seed=seed)

    count = len(factories)
    return pufferlib.vector.make(
        [wrap(make) for make in factories], backend=pufferlib.vector.Multiprocessing, num_envs=count,
        num_workers=workers, batch_size=batch, env_args=[[]] * count, env_kwargs=[{}] * count,
    )  # fmt: skip


class Puffer(Side):
    """Takes the batch that is there; with one worker that is all of them."""

    def __init__(self, work: Work, *, workers: int, as_ready: bool) -> None:
        super().__init__(work)
        self.envs = puffer(self.makers, workers=workers, batch=work.count // workers if as_ready else work.count)
        self.envs.async_reset(0)

    def steps(self) -> int:
        _, _, terminated, truncated, _, ids, _ = self.envs.recv()
        self.work.think(len(ids))
        self.envs.send(next(self.actions)[ids])
        return self.count(ids, np.asarray(terminated | truncated))

    def close(self) -> None:
        self.envs.close()


class Tianshou(Side):
    """Waits for as many as are wanted; resets are the caller's."""

    def __init__(self, work: Work, *, as_ready: bool) -> None:
        from tianshou.env import ShmemVectorEnv

        super().__init__(work)
        self.envs = ShmemVectorEnv(self.makers, wait_num=work.ready if as_ready else None)
        self.envs.reset()
        self.ids = np.arange(work.count)

    def steps(self) -> int:
        _, _, terminated, truncated, infos = self.envs.step(next(self.actions)[self.ids], self.ids)
        self.ids = np.array([info["env_id"] for info in infos])
        self.work.think(len(self.ids))
        over = self.ids[terminated | truncated]
        if len(over):
            self.envs.reset(over)
        return len(self.ids)

    def close(self) -> None:
        self.envs.close()


class Ours(Side):
    """`headrace.VectorEnv`, with a barrier, or taking whichever environments are ready."""

    def __init__(self, work: Work, *, as_ready: bool, **options: Any) -> None:
        import headrace

        super().__init__(work)
        self.envs = headrace.VectorEnv(self.makers, **options)
        self.note = str(self.envs.plan)
        self.envs.reset(seed=0)
        self.as_ready = as_ready
        if as_ready:
            self.envs.send(next(self.actions))

    def steps(self) -> int:
        if not self.as_ready:
            _, _, terminated, truncated, _ = self.envs.step(next(self.actions))
            self.work.think(self.work.count)
            return self.count(slice(None), terminated | truncated)
        got = self.envs.receive(self.work.ready)
        ids = got.env_ids
        self.work.think(len(ids))
        self.envs.send(next(self.actions)[ids], ids)
        return self.count(ids, got.terminations | got.truncations)

    def close(self) -> None:
        self.envs.close()


SIDES: dict[str, tuple[str, Callable[[Work], Side]]] = {
    "auto": ("headrace", lambda work: Ours(work, as_ready=False)),
    "step": ("headrace", lambda work: Ours(work, as_ready=False, workers=CORES)),
    "receive": ("headrace", lambda work: Ours(work, as_ready=True, workers=CORES)),
    "beside": ("headrace", lambda work: Ours(work, as_ready=True, workers=max(1, CORES - 1))),
    "auto, receive": ("headrace", lambda work: Ours(work, as_ready=True)),
    "loop": ("gymnasium", Loop),
    "loops at once": ("gymnasium", Loops),
    "Gymnasium Sync": ("gymnasium", gymnasium_sync),
    "Gymnasium Async": ("gymnasium", gymnasium_async),
    "SB3 Dummy": ("stable-baselines3", lambda work: StableBaselines(work, processes=False)),
    "SB3 Subproc (fork)": ("stable-baselines3", lambda work: StableBaselines(work, processes=True)),
    "PufferLib, 1 worker": ("pufferlib", lambda work: Puffer(work, workers=1, as_ready=False)),
    "PufferLib, as ready": ("pufferlib", lambda work: Puffer(work, workers=CORES, as_ready=True)),
    "tianshou Shmem": ("tianshou", lambda work: Tianshou(work, as_ready=False)),
    "tianshou, as ready": ("tianshou", lambda work: Tianshou(work, as_ready=True)),
}
"""By name: the distribution it comes from, and how to open it."""

NEEDS = {"HalfCheetah-v5": "mujoco"}
"""Distributions that an environment needs besides."""


def version(distribution: str) -> str | None:
    """Of what is installed here; None if it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(request: dict[str, Any]) -> str | None:
    """The distribution that is needed and not installed here."""
    wanted = [SIDES[request["side"]][0], NEEDS.get(request["environment"], "gymnasium")]
    return next((name for name in wanted if version(name) is None), None)


def preload(distribution: str) -> None:
    """Imports are nobody's start-up."""
    modules = {"stable-baselines3": ["stable_baselines3.common.vec_env"], "tianshou": ["tianshou.env"],
               "pufferlib": ["pufferlib.vector", "pufferlib.emulation"], "gymnasium": ["gymnasium.vector"],
               "headrace": ["headrace"]}  # fmt: skip
    for module in modules[distribution]:
        importlib.import_module(module)
    if distribution == "headrace":
        import headrace

        assert headrace.VectorEnv  # exports are imported on first use


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Start, memory, and environment steps a second in one window."""
    distribution, open_side = SIDES[request["side"]]
    work = Work(*(request[name] for name in ("environment", "count", "policy_us", "ready")))
    preload(distribution)
    makers(work.environment, 1)[0]().close()
    alone_mb = pss_mb([os.getpid()])
    began_s = time.perf_counter()
    side = open_side(work)
    side.steps()
    start_s = time.perf_counter() - began_s
    memory_mb = pss_mb(family(os.getpid())) - alone_mb
    _run(side, request["warm_up_s"])
    load = Load()
    steps, taken_s = _run(side, request["window_s"])
    others = load.cores()
    side.close()
    return {
        "rate": steps / taken_s, "start_s": start_s, "memory_mb": memory_mb, "others": others, "note": side.note,
        "version": version(distribution), "gymnasium": version("gymnasium"), "numpy": np.__version__,
        "scheduler": os.sched_getscheduler(0), "nice": os.nice(0),
    }  # fmt: skip


def _run(side: Side, seconds: float) -> tuple[int, float]:
    """Steps, and how long they took."""
    steps, began_s = 0, time.perf_counter()
    while True:
        steps += side.steps()
        taken_s = time.perf_counter() - began_s
        if taken_s >= seconds:
            return steps, taken_s


def main() -> None:
    request = json.loads(sys.argv[1])
    lacking = missing(request)
    print(json.dumps({"missing": lacking} if lacking else measure(request)), flush=True)


if __name__ == "__main__":
    main()
