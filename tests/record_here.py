"""A run in the test's own process, so that a defect can be planted in it, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.collectors.collector import Collector
from headrace.core.clock import MonotonicClock
from headrace.core.errors import ReplayDiffers
from headrace.ipc.channel import Channel
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.runtime.assembly import build_learner
from headrace.runtime.asynchronous import run_async
from headrace.runtime.checkpointing import Keeper
from headrace.runtime.config import load_config
from headrace.runtime.groups import InlineGroups
from headrace.runtime.lockstep import run_rounds
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_collector, group_lanes
from headrace.runtime.recording import header_facts, new_record
from headrace.runtime.replayer import replay
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.training import Training
from headrace.telemetry.board import Board, Slot
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots
from run_support import SMALL

SETTINGS = {
    **SMALL, "env.id": "Pendulum-v1", "env.lanes": 4, "run.steps": 480, "run.schedule": "inline", "run.collectors": 1,
    "checkpoint.enabled": False, "record.hash_every": 50, "collect.random_steps": 40, "replay.learning_starts": 64,
}  # fmt: skip


class EagerGroups(InlineGroups):
    """Collects a chunk the moment it is granted, as a collector in another process may."""

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        super().grant(group, chunk, limit, version)
        self._arrived = [*getattr(self, "_arrived", []), *super().take()]

    def take(self) -> list[Commit]:
        arrived, self._arrived = getattr(self, "_arrived", []), []
        return arrived


Lend = Callable[[Basics, EnvSpaces, LaneBlock, Slot], Sequence[GroupBeginning]]
"""How the groups of a run begin that has its environments elsewhere."""


def record_here(
    folder: Path, lend: Lend | None = None, drive: Callable[[Training], Any] | None = None, **settings: Any
) -> Path:
    """Train in this process, with a record; settings are keys with ``__`` for the dot. Async runs collect eagerly.

    ``drive`` takes the place of the schedule.
    """
    given = {key.replace("__", "."): value for key, value in settings.items()}
    base = {key: value for key, value in SETTINGS.items() if key != "env.id" or "env.factory" not in given}
    if "algorithm.name" in given:
        without = ["algorithm."]
        if given["algorithm.name"] in ("ppo", "vtrace"):
            without += ["replay.", "collect.random_steps"]
        base = {key: value for key, value in base.items() if not key.startswith(tuple(without))}
    config = load_config(None, {**base, **given})
    with RunDirectory.create(folder, config) as place:
        basics = Basics(config, Path())
        spaces = EnvSpaces.of(basics)
        geometry = spaces.geometry(config)
        block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        block.begin()
        groups = tuple(group_lanes(config, group) for group in range(config.env.groups))
        recorder = new_record(place.record_dir, config, header_facts(config, block, []), pytest.fail, block, groups)
        published: list[Snapshots] = []

        def publish_to(layout: SnapshotLayout) -> Snapshots:
            published.append(Snapshots(layout, memoryview(bytearray(layout.nbytes))))
            return published[0]

        with Board.create(place.board_file, [("learner", "learner")]) as board:
            slot, ours = board.slot("learner"), Channel.pair()
            learner, _ = build_learner(config, spaces, Replay(block), publish_to, slot, recorder)

            def build(group: int, begin: GroupBeginning) -> Collector:
                reader = SnapshotReader(published[0])
                return build_collector(basics, spaces.policy(config), group, block, reader, slot, begin)

            kind = InlineGroups if config.run.schedule == "inline" else EagerGroups
            begins = [GroupBeginning(0)] * len(groups) if lend is None else lend(basics, spaces, block, slot)
            source = kind(build, begins, config.collect.chunk_steps, lambda: False)
            keeper = Keeper(place.checkpoints_dir, learner, recorder, config, {}, MonotonicClock())
            training = Training(learner, source, ours[0], config, keeper, slot, MonotonicClock())
            learner.publish()
            drive = drive or (run_rounds if config.run.schedule == "inline" else run_async)
            training.finish(drive(training))
            recorder.close()
            source.close()
            for channel in ours:
                channel.close()
    return folder


def difference(run: Path) -> ReplayDiffers:
    """What a replay of a run with a planted defect says."""
    with pytest.raises(ReplayDiffers) as raised:
        replay(run)
    return raised.value


Tamper = Callable[[Any], Any]


def tampered(collect: Callable[..., Commit], chunk: int, lane: int, tamper: Tamper) -> Callable[..., Commit]:
    """A `Collector.collect` that changes the rows of a lane after one chunk, before anybody else sees them.

    Args:
        collect: The real one.
        chunk: Number of the chunk.
        lane: Which lane; its group has no other.
        tamper: From the chunk's rows [R] and the one after them to as many rows, or fewer.
    """

    def collect_and_tamper(self: Collector, number: int, *rest: Any) -> Commit:
        writer = self._lanes[0].writer
        start, before = writer.row, writer.transitions
        commit = collect(self, number, *rest)
        if number != chunk or self.group.lanes != (lane,):
            return commit
        block = self._block
        ring = block.geometry.ring_rows
        old = block.rows[lane, start : writer.row + 1].copy()
        assert writer.row < ring, "a test tampers before the ring has wrapped"
        new = tamper(old.copy())
        gone = len(old) - len(new)
        block.rows[lane, start : start + len(new)] = new
        writer.row -= gone
        writer.transitions -= gone
        writer._place -= gone
        block.rows_written[lane] = writer.row
        checksum, running = block.checksum(lane, start, writer.row), commit.lanes[0].running
        part = LaneCommit(writer.row, writer.transitions - before, checksum, running)
        return Commit(commit.incarnation, commit.group, number, commit.version, commit.last, (part,))

    return collect_and_tamper
