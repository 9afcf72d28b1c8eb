"""One measurement of collecting with PPO, in a process of its own.

    python _collecting_sides.py '{"side": "training", "task": "cage2", "seconds": 30, "lag": 1, "rate": 4e7}'

prints one JSON object. ``alone``: the collectors of a run as fast as they can, each in a process, for nobody who learns.
``training``: the run itself; read from its counters, commit by commit, and from the processor time of its processes.
``one``: one environment in a loop, and nothing else; ``each``: one on every core at once. Linux only: it reads /proc.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import _original_env
import gymnasium
import numpy as np
from _processes import cpu_s

from headrace import train
from headrace.algorithms.registry import build_algorithm
from headrace.lanes.lane import LaneBlock
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_collector, groups_of
from headrace.runtime.presets import presets
from headrace.telemetry.board import Board, State
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots

PRESET = "cage2-ppo"
LIKE_THE_ORIGINAL = {
    "run.collectors": 2, "env.lanes": 100, "env.group_size": 50, "collect.chunk_steps": 100, "algorithm.name": "ppo",
    "algorithm.epochs": 4, "algorithm.batch_size": 100_000, "algorithm.lr": 2e-3, "algorithm.advantage": "return",
    "algorithm.loss.entropy_weight": 0.01,
}  # fmt: skip
"""Full-batch epochs over a hundred whole episodes."""
UNENDING = 10**12
WARM = 0.25
"""Part of a run after which counting begins."""
LOOK_S = 0.02
_AT_WORK = (State.RUNNING, State.WAITING)

Look = tuple[float, dict[str, int], dict[str, float]]
"""When, the steps of each collector, and the CPU seconds of each component."""


def configuration(task: str, lag: int, rate: float) -> ExperimentConfig:
    """Of the run that is measured; no evaluations and no checkpoints."""
    further: dict[str, object] = {
        "run.steps": UNENDING, "rollout.max_policy_lag": lag, "evaluation.every_steps": 0, "evaluation.episodes": 0,
        "checkpoint.enabled": False,
    }  # fmt: skip
    if task == "original":
        further |= {**LIKE_THE_ORIGINAL, "env.factory": "_original_env:make", "env.kwargs": {"rate": rate}}
        return load_config(None, further)
    if PRESET in presets():
        return load_config(PRESET, further)
    return load_config(None, {**further, **LIKE_THE_ORIGINAL, "env.id": "headrace/CAGE2-v0"})


def one(config: ExperimentConfig, seconds: float) -> dict[str, float]:
    """Steps a second of a single environment that acts at random; its resets take time and are no steps."""
    env: gymnasium.Env[Any, Any] = _original_env.make(**config.env.kwargs)
    actions = np.random.default_rng(0).integers(0, _original_env.CHOICES, _original_env.STEPS)
    steps, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        env.reset(seed=steps)
        for action in actions:
            env.step(action)
        steps += len(actions)
    return {"steps_per_s": steps / (time.perf_counter() - began_s)}


def each(config: ExperimentConfig, seconds: float) -> dict[str, float]:
    """Steps a second of such an environment on every core at once, which share caches, and may be threads of one core."""
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        found = pool.starmap(one, [(config, seconds)] * cores, chunksize=1)
    return {"steps_per_s": sum(rate["steps_per_s"] for rate in found)}


def alone(config: ExperimentConfig, seconds: float) -> dict[str, float]:
    """Steps a second of all collectors at once."""
    context = multiprocessing.get_context("fork")
    barrier, rates = context.Barrier(config.run.collectors), context.SimpleQueue()
    processes = [
        context.Process(target=_collect, args=(config, number, seconds, barrier, rates), daemon=True)
        for number in range(config.run.collectors)
    ]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return {"steps_per_s": total}


def _collect(config: ExperimentConfig, number: int, seconds: float, barrier: Any, rates: Any) -> None:
    """One collector: chunk after chunk of its groups, with the policy a run begins with."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"collector-{number}"
        with Board.create(Path(folder) / "board", [(name, "collector")]) as board:
            basics = Basics(config, Path(folder) / "board", None)
            spaces = EnvSpaces.of(basics)
            geometry, policy = spaces.geometry(config), spaces.policy(config)
            block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
            block.begin()
            learner = build_algorithm(config.algorithm, spaces.observation, spaces.action, config.run.seed)
            layout = SnapshotLayout.of(learner.policy_arrays())
            snapshots = Snapshots(layout, memoryview(bytearray(layout.nbytes)))
            snapshots.publish(learner.policy_arrays())
            collectors = [
                build_collector(
                    basics, policy, group, block, SnapshotReader(snapshots), board.slot(name), GroupBeginning(0)
                )
                for group in groups_of(config, number)
            ]
            barrier.wait()
            rates.put(_rate(collectors, config.collect.chunk_steps, seconds))
            barrier.wait()  # nobody has a core to itself while another one still counts
            for collector in collectors:
                collector.close()


def _rate(collectors: list[Any], chunk_steps: int, seconds: float) -> float:
    chunk, steps, began_s, counts_from_s = 0, 0, time.perf_counter(), 0.0
    while not counts_from_s or time.perf_counter() - began_s < seconds:
        if not counts_from_s and time.perf_counter() - began_s >= WARM * seconds:
            counts_from_s = time.perf_counter()
            steps = 0
        for collector in collectors:
            commit = collector.collect(chunk, chunk_steps)
            steps += sum(lane.transitions for lane in commit.lanes)
        chunk += 1
    return steps / (time.perf_counter() - counts_from_s)


class Watch:
    """Looks at a run again and again from a thread: what its collectors have committed, and what everybody has used.

    Args:
        board_file: Of the run; it need not be there yet.
        collectors: How many there are.
    """

    def __init__(self, board_file: Path, collectors: int) -> None:
        self._file, self._collectors = board_file, collectors
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks: list[Look] = []
        """Those at which everybody was at work."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._file.exists():
            if self._over.wait(LOOK_S):
                return
        with Board.open(self._file) as board:
            while not self._over.wait(LOOK_S):
                views = [view for view in board.read_all() if view.pid and view.state in _AT_WORK]
                steps = {view.id: view.counters["env_steps"] for view in views if view.kind == "collector"}
                used = {view.id: cpu_s([view.pid]) for view in views}
                if len(steps) == self._collectors and all(steps.values()):
                    self.looks.append((time.perf_counter(), steps, used))


def training(config: ExperimentConfig, seconds: float) -> dict[str, float]:
    """Steps a second of a run, and what they would be if nobody ever waited.

    Nobody gets on faster than the busiest process would if it were always busy, nor all of them together faster than the
    cores would be if they were.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        with Watch(place / "board", config.run.collectors) as watch:
            run = train(config, run_dir=place, run_duration_s=seconds)
        if run.summary["error"] is not None:
            raise RuntimeError(run.summary["error"])
    return {**_pace(watch.looks, run.summary), "updates_per_s": run.summary["throughput"]["updates_per_s"]}


def _pace(looks: list[Look], summary: Any) -> dict[str, float]:
    if not looks:
        raise RuntimeError("not every collector has committed a chunk; more seconds are needed")
    begin_s = looks[0][0] + WARM * (looks[-1][0] - looks[0][0])
    kept = [look for look in looks if look[0] >= begin_s]
    rate = sum(_steps_per_s(name, kept) for name in kept[0][1])
    (first_s, _, first), (last_s, _, last) = kept[0], kept[-1]
    busy = {name: (last[name] - first[name]) / (last_s - first_s) for name in first if name in last}
    limit = max(sum(busy.values()) / (os.cpu_count() or 1), *busy.values())
    return {
        "steps_per_s": rate, "ideal_steps_per_s": rate / limit, "restarts": summary["restarts"],
        **{f"busy_{name}": round(share, 3) for name, share in busy.items()},
    }  # fmt: skip


def _steps_per_s(collector: str, looks: list[Look]) -> float:
    """Of one collector, from a commit to a later one: it counts chunk by chunk."""
    commits = [
        (now[0], now[1][collector])
        for before, now in itertools.pairwise(looks)
        if now[1][collector] > before[1][collector]
    ]
    if len(commits) < 2:
        raise RuntimeError(f"{collector} has committed {len(commits)} chunks; more seconds are needed")
    (begin_s, begun), (end_s, ended) = commits[0], commits[-1]
    return (ended - begun) / (end_s - begin_s)


SIDES = {"one": one, "each": each, "alone": alone, "training": training}


def main() -> None:
    request = json.loads(sys.argv[1])
    config = configuration(request["task"], request["lag"], request["rate"])
    print(json.dumps(SIDES[request["side"]](config, request["seconds"])))


if __name__ == "__main__":
    main()
