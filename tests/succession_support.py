"""A learner that dies at a chosen call, and its successor, all in the test's process: two lives of one small run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.collectors.collector import Collector
from headrace.ipc.channel import Channel
from headrace.ipc.shm import SharedBlock
from headrace.lanes.replay import LaneBooks, balanced
from headrace.learners.checkpoint import LearnerState
from headrace.record.rows import RowLog
from headrace.record.trace import TraceWriter
from headrace.runtime.beginning import Begun, begin
from headrace.runtime.config import load_config
from headrace.runtime.payloads import (
    Basics,
    EnvSpaces,
    GroupBeginning,
    LearnerPayload,
    attach_snapshots,
    build_collector,
)
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board, Slot
from headrace.weights.snapshot import SnapshotReader, Snapshots
from run_support import SMALL

SETTINGS = {
    **SMALL, "env.id": "Pendulum-v1", "env.lanes": 4, "env.group_size": 2, "run.steps": 10_000,
    "replay.learning_starts": 16, "collect.random_steps": 24, "checkpoint.enabled": False, "record.hash_every": 7,
    "supervision.learner_death": "resume", "algorithm.batch_size": 8, "algorithm.normalize_observations": True,
    "algorithm.exploration.kind": "ornstein-uhlenbeck", "algorithm.exploration.scale": 0.3, "replay.capacity": 160,
}  # fmt: skip
CHUNK_STEPS = 8
SEAMS: tuple[tuple[type, str], ...] = (
    (RowLog, "append"),
    (TraceWriter, "write"),
    (LaneBooks, "change"),
    (LaneBooks, "settle"),
    (Snapshots, "prepare"),
    (Snapshots, "show"),
    (LearnerState, "save"),
)
"""Calls that change what outlives the learner."""


class Killed(BaseException):
    """The learner is killed here."""


class Fate:
    """Raises `Killed` at one of the moments before and after the calls of `SEAMS`.

    Args:
        patch: Puts the seams in.
        at: Number of the moment, from 0; None: never.
    """

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None = None) -> None:
        self.moments: list[str] = []
        """All there were."""
        self.armed = False
        self._at = at
        for owner, name in SEAMS:
            patch.setattr(owner, name, self._seam(f"{owner.__name__}.{name}", getattr(owner, name)))

    def _seam(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seam(*args: Any, **kwargs: Any) -> Any:
            self._moment(f"before {name}")
            found = call(*args, **kwargs)
            self._moment(f"after {name}")
            return found

        return seam

    def _moment(self, name: str) -> None:
        if not self.armed:
            return
        self.moments.append(name)
        if len(self.moments) - 1 == self._at:
            self.armed = False
            raise Killed


class Lives:
    """A run whose collectors are asked in turn, and whose learner may have a successor.

    Args:
        folder: Of the run.
        fate: Of its first learner.
        stack: What has to be given back goes there.
        **settings: Keys with ``__`` for the dot.
    """

    def __init__(self, folder: Path, fate: Fate, stack: ExitStack, **settings: Any) -> None:
        given = {key.replace("__", "."): value for key, value in settings.items()}
        self._config = config = load_config(None, {**SETTINGS, **given})
        self._fate = fate
        self._place = stack.enter_context(RunDirectory.create(folder, config))
        self._basics = Basics(config, Path())
        self._spaces = EnvSpaces.of(self._basics)
        board = stack.enter_context(Board.create(self._place.board_file, [("learner", "learner"), ("c", "collector")]))
        self._slot, self._collectors_slot = board.slot("learner"), board.slot("c")
        self._control = Channel.pair()
        for channel in self._control:
            stack.callback(channel.close)
        sizes = self._spaces.geometry(config).nbytes, 1
        self._shared = [stack.enter_context(SharedBlock.create(size)) for size in sizes]
        self._incarnations = [0] * config.env.groups
        self._chunks = [0] * config.env.groups
        self._there: dict[int, Collector] = {}
        self.deaths = 0
        self.record_lost: str | None = None
        """What the supervisor knows of the record's end."""
        self.told: dict[str, int] | None = None
        """By the newest learner, if it took another one's place."""

    def live(self, *, rounds: int) -> str:
        """A learner's life: some rounds, a collector that dies in the middle, some more; returns the weights' hash."""
        with self._begun() as begun:
            try:
                return self._rounds(begun, rounds)
            except Killed:
                self.deaths += 1
                if begun.keeper.recorder is not None:
                    begun.keeper.recorder.lost = "killed"  # what it keeps back dies with it
                raise
            finally:
                self._outlive()

    @contextmanager
    def _begun(self) -> Iterator[Begun]:
        fds = {name: os.dup(shared.fd) for name, shared in zip(("lanes", "snapshots"), self._shared, strict=True)}
        payload = LearnerPayload(
            self._basics, self._spaces, self._place.checkpoints_dir, self._place.record_dir, self.deaths,
            streams=[0] * len(self._incarnations), record_lost=self.record_lost,
        )  # fmt: skip
        try:
            with begin(payload, fds, self._slot, self._control[0]) as begun:
                self.told = begun.succeeded
                fds["mine"] = os.dup(fds["snapshots"])
                self._snapshots = attach_snapshots(begun.layout, fds["mine"])
                self._block = begun.learner.replay.block
                try:
                    self._fate.armed = not self.deaths
                    yield begun
                finally:
                    self._fate.armed = False
                    block = self._block
                    begun.learner.release()
                    block.release()
                    self._snapshots.release()
                    del self._snapshots, self._block, block, begun
        finally:
            for fd in fds.values():
                os.close(fd)
            gc.collect()

    def _rounds(self, begun: Begun, rounds: int) -> str:
        learner, groups = begun.learner, range(len(self._incarnations))
        learner.publish()
        for group in groups:
            self._join(group)
        for number in range(rounds):
            for group in groups:
                commit = self._there[group].collect(self._chunks[group], CHUNK_STEPS)
                self._chunks[group] += 1
                learner.commit(commit)
            while learner.due:
                learner.update()
            learner.publish()
            if number == 0:
                assert begun.keeper.state() is None
            if number == 1:
                for _ in range(2):  # whose batches the record still keeps back when the salvage comes
                    learner.update()
                self._die(1, [3, 2])
                learner.salvage(1)
                self._join(1)
        begun.keeper.end()
        books = [learner.replay.books.lane(lane) for lane in range(self._config.env.lanes)]
        assert all(balanced(book) for book in books), books
        return learner.algorithm.weights_sha256()

    def _join(self, group: int) -> None:
        """A new collector."""
        slot: Slot = self._collectors_slot
        reader, begin = SnapshotReader(self._snapshots), GroupBeginning(self._incarnations[group])
        policy = self._spaces.policy(self._config)
        self._there[group] = build_collector(self._basics, policy, group, self._block, reader, slot, begin)
        self._chunks[group] = 0

    def _die(self, group: int, made: list[int]) -> None:
        """A collector is killed in the middle of a chunk, when it has made so many steps of each lane."""
        collector = self._there.pop(group)
        collector.repeat(self._chunks[group], made)
        collector.close()
        self._incarnations[group] += 1

    def _outlive(self) -> None:
        """The collectors go on for some steps after their learner is gone, and are ended."""
        armed, self._fate.armed = self._fate.armed, False
        for group in list(self._there):
            self._die(group, [2, 1])
        self._fate.armed = armed
        # Those that were lost before have been counted.


@contextmanager
def lives(folder: Path, fate: Fate, **settings: Any) -> Iterator[Lives]:
    """A run in which learners follow one another."""
    with closing(ExitStack()) as stack:
        yield Lives(folder, fate, stack, **settings)
