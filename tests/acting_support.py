"""A run without a learner, in this process, that leaves what a run leaves: configuration, policies, record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from headrace.algorithms.registry import build_actor, build_algorithm
from headrace.collectors.collector import Collector
from headrace.collectors.stepping import Group
from headrace.core.spaces import space_facts
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.learners.witness import Salvaged
from headrace.record.events import PolicyPublished
from headrace.record.machine import fingerprint, limited_threads
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.payloads import EnvSpaces, group_lanes
from headrace.runtime.recording import header_facts, new_record
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from headrace.weights.policy_file import save_policy
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots

SMALL: Mapping[str, object] = {
    "run.seed": 11,
    "run.steps": 10_000,
    "run.collectors": 1,
    "env.factory": "acting_support:drift",
    "env.lanes": 2,
    "env.group_size": 1,
    "collect.chunk_steps": 8,
    "collect.window_chunks": 2,
    "collect.random_steps": 0,
    "replay.capacity": 2_000,
    "replay.learning_starts": 10,
    "algorithm.actor.hidden": [16],
    "algorithm.critic.hidden": [16],
    "algorithm.exploration.scale": 0.2,
}


class Drift(gymnasium.Env[Any, Any]):
    """Measured values that the action moves; episodes of different lengths."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))
        self._x = np.zeros(3)
        self._t = self._limit = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._limit = 0, int(self.np_random.integers(4, 11))
        self._x = self.np_random.standard_normal(3)
        return self._x.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._x = 0.8 * self._x + 0.3 * self.np_random.standard_normal(3) + 0.1 * float(action[0])
        ends = self._t >= self._limit
        return self._x.copy(), float(action[1]), ends and self._t % 2 == 0, ends and self._t % 2 == 1, {}


def drift() -> Drift:
    return Drift()


def network(inputs: int, outputs: int) -> torch.nn.Module:
    """A policy network of the user's own."""
    return torch.nn.Sequential(torch.nn.Linear(inputs, 12), torch.nn.GELU(), torch.nn.Linear(12, outputs))


def configuration(**settings: Any) -> ExperimentConfig:
    """A small run; keys with ``__`` for the dot."""
    given = {**SMALL, **{key.replace("__", "."): value for key, value in settings.items()}}
    if given.get("algorithm.exploration.kind") == "none":
        del given["algorithm.exploration.scale"]  # nobody would read it
    return load_config(None, given)


@functools.cache
def this_machine() -> dict[str, Any]:
    """The fingerprint of a learner with one thread; it takes a while, so once is enough."""
    before = torch.get_num_threads()
    with limited_threads(1):
        torch.set_num_threads(1)
        found = fingerprint()
    torch.set_num_threads(before)
    return found


class SmallRun:
    """Collects and records without a learner; policies are random numbers.

    Args:
        folder: Becomes the run directory.
        config: Of the run.
    """

    def __init__(self, folder: Path, config: ExperimentConfig) -> None:
        self.config = config
        self.directory = RunDirectory(folder)
        self.directory.claim(config)
        self.directory.close()
        env = Drift()
        self.spaces = EnvSpaces(env.observation_space, env.action_space)
        self.geometry = self.spaces.geometry(config)
        self.block = LaneBlock(self.geometry, memoryview(bytearray(self.geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        self.policy = self.spaces.policy(config)
        algorithm = build_algorithm(config.algorithm, self.policy.observation_space, self.policy.action_space, 1)
        self.arrays = {name: array.copy() for name, array in algorithm.policy_arrays().items()}
        layout = SnapshotLayout.of(self.arrays)
        self.snapshots = Snapshots(layout, memoryview(bytearray(layout.nbytes)))
        self.groups = tuple(group_lanes(config, group) for group in range(config.env.groups))
        header = self._header()
        self.recorder = new_record(self.directory.record_dir, config, header, self._lost, self.block, self.groups)
        self.board = Board.create(folder / "board", [("collector-0", "collector")])
        self.collectors: dict[int, Collector] = {}
        self.chunks = [0] * len(self.groups)
        self.updates = 0
        self._generator = np.random.default_rng(5)

    def publish(self, *, keep: bool = True) -> int:
        """A new policy, and its file."""
        for name, array in self.arrays.items():
            noise = self._generator.standard_normal(array.shape) * 0.2
            array[...] = {"actor": noise, "obs_mean": noise, "obs_std": 1 + np.abs(noise)}.get(name, array)
        self.updates += 10
        version = self.tell()
        if keep:
            self.keep(version)
        return version

    def tell(self) -> int:
        """Publish the policy as it is."""
        version = self.snapshots.publish(self.arrays)
        self.recorder.write(PolicyPublished(self.updates, version, self.snapshots.newest()[1], {}))
        return version

    def keep(self, version: int) -> None:
        """Write its file."""
        facts = space_facts(self.spaces.observation, self.spaces.action)
        save_policy(self.directory.checkpoints_dir, version, self.arrays, facts)

    def make(self, group: int, incarnation: int = 0) -> Collector:
        """A fresh collector for a group."""
        lanes = self.groups[group]
        random_steps = -(-self.config.collect.random_steps // self.config.env.lanes)
        told = Group(group, lanes, self.config.run.seed, incarnation, random_steps, "drift")
        self.collectors[group] = Collector(
            told, [Drift() for _ in lanes], self.block, build_actor(self.policy), SnapshotReader(self.snapshots),
            self.board.slot("collector-0"),
        )  # fmt: skip
        return self.collectors[group]

    def collect(
        self, group: int = 0, steps: int | None = None, before: Callable[[Collector], None] | None = None
    ) -> None:
        """One chunk: collected, recorded, taken over."""
        collector = self.collectors.get(group) or self.make(group)
        if before is not None:
            before(collector)
        commit = collector.collect(self.chunks[group], self.config.collect.chunk_steps if steps is None else steps)
        self.chunks[group] += 1
        lanes = self.groups[group]
        self.recorder.committed(commit, [int(self.replay.books.row[lane]) for lane in lanes], self.updates)
        for lane, part in zip(lanes, commit.lanes, strict=True):
            self.replay.commit(lane, part)

    def round(self, chunks: int = 1, **options: Any) -> None:
        """So many chunks of every group."""
        for _ in range(chunks):
            for group in range(len(self.groups)):
                self.collect(group, **options)

    def end(self) -> RunDirectory:
        """All is written; what is left is a run directory."""
        self.recorder.close()
        self.board.close()
        return self.directory

    def salvage(self, group: int = 0) -> None:
        """The group's collector is gone; what it had written and not committed is taken over."""
        found = []
        for lane in self.groups[group]:
            books = self.replay.books
            start, salvaged, rejected = int(books.row[lane]), int(books.salvaged[lane]), int(books.rejected[lane])
            _, cut = self.replay.salvage(lane)
            made = int(books.salvaged[lane]) - salvaged, int(books.rejected[lane]) - rejected
            found.append(Salvaged(start, int(books.row[lane]), *made, cut))
        self.recorder.salvaged(group, found, self.updates)
        self.chunks[group] = 0

    def stored(self, lane: int, start: int, stop: int) -> np.ndarray:
        """Rows in the lanes, copied."""
        return np.concatenate([piece.copy() for piece in self.block.pieces(lane, start, stop)])

    def _header(self) -> dict[str, Any]:
        with mock.patch("headrace.runtime.recording.fingerprint", return_value=this_machine()):
            return header_facts(self.config, self.block, [])

    def _lost(self, problem: str) -> None:
        raise AssertionError(problem)
