"""What a record costs the learner: the same training, once with its record and once without, taking turns.

Hockey with the preset's networks, batches of its size and its replay ratio; collectors in the same process. Only what
the learner does is counted, in CPU seconds of the process: taking chunks over, updates, publications, checkpoints not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _report import Row, arguments, compare, report, take_turns

from headrace.ipc.shm import SharedBlock
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.learners.learner import Learner
from headrace.learners.recorder import Recorder
from headrace.learners.witness import Nobody, Witness
from headrace.runtime.assembly import build_learner
from headrace.runtime.config import load_config
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_collector, group_lanes
from headrace.runtime.recording import header_facts, new_record
from headrace.telemetry.board import Board
from headrace.weights.snapshot import SnapshotLayout, SnapshotReader, Snapshots


@dataclass
class Spent:
    """CPU seconds."""

    learner_s: float = 0.0
    recorder_s: float = 0.0


class Timed:
    """A witness that tells how long another one takes; two readings of a clock are counted in."""

    def __init__(self, witness: Witness, spent: Spent) -> None:
        self._witness, self._spent = witness, spent

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._witness, name)

        def timed(*arguments: Any) -> Any:
            began_s = time.process_time()
            found = call(*arguments)
            self._spent.recorder_s += time.process_time() - began_s
            return found

        return timed


class Training:
    """Rounds of collecting and updating in this process.

    Args:
        folder: For the record.
        record: Whether to write one.
        timed: Whether to time the recorder by itself.
    """

    def __init__(self, folder: Path, stack: ExitStack, *, record: bool, timed: bool = False) -> None:
        self.config = config = load_config("hockey-td3", {"collect.random_steps": 200, "replay.learning_starts": 400})
        self.spent = Spent()
        basics = Basics(config, Path())
        spaces = EnvSpaces.of(basics)
        geometry = spaces.geometry(config)
        block = LaneBlock(geometry, stack.enter_context(SharedBlock.create(geometry.nbytes)).buf)
        block.begin()
        groups = tuple(group_lanes(config, group) for group in range(config.env.groups))
        witness: Witness = Nobody()
        if record:
            folder.mkdir()
            witness = recorder = new_record(folder, config, header_facts(config, block, []), print, block, groups)
            stack.callback(recorder.close)
            assert isinstance(witness, Recorder)
        board = stack.enter_context(Board.create(folder.with_suffix(".board"), [("learner", "learner")]))
        slot = board.slot("learner")

        def publish_to(layout: SnapshotLayout) -> Snapshots:
            self.snapshots = Snapshots(layout, stack.enter_context(SharedBlock.create(layout.nbytes)).buf)
            return self.snapshots

        watched = Timed(witness, self.spent) if timed else witness
        self.learner: Learner
        self.learner, _ = build_learner(config, spaces, Replay(block), publish_to, slot, watched)
        self.learner.publish()
        policy = spaces.policy(config)
        self._collectors = [
            build_collector(basics, policy, group, block, SnapshotReader(self.snapshots), slot, GroupBeginning(0))
            for group in range(config.env.groups)
        ]
        self._chunk = 0

    def round(self) -> None:
        """A chunk of every group, and the updates it pays for."""
        commits = [collector.collect(self._chunk, self.config.collect.chunk_steps) for collector in self._collectors]
        self._chunk += 1
        began_s, learner = time.process_time(), self.learner
        for commit in commits:
            learner.commit(commit)
            while learner.due:
                learner.update()
                if learner.updates % self.config.learn.publish_every == 0:
                    learner.publish()
        self.spent.learner_s += time.process_time() - began_s

    def updates_per_s(self, updates: int) -> float:
        """Of the learner's own time."""
        before, began_s = self.learner.updates, self.spent.learner_s
        while self.learner.updates < before + updates:
            self.round()
        return (self.learner.updates - before) / (self.spent.learner_s - began_s)


def rows(updates: int, rounds: int) -> Iterator[Row]:
    with TemporaryDirectory() as folder, ExitStack() as stack:
        with_record, without = (
            Training(Path(folder) / name, stack, record=name == "with") for name in ("with", "without")
        )
        for training in (with_record, without):
            training.updates_per_s(50)
        found = take_turns(rounds, lambda: with_record.updates_per_s(updates), lambda: without.updates_per_s(updates))
        peer = ("the same without a record", "-")
        yield compare("updates with a record", "hockey", peer, (found[0], found[1]), "updates/CPU s")
        timed = Training(Path(folder) / "timed", stack, record=True, timed=True)
        timed.updates_per_s(50)
        timed.spent.learner_s = timed.spent.recorder_s = 0.0
        timed.updates_per_s(updates * rounds)
        left = 100.0 * (1.0 - timed.spent.recorder_s / timed.spent.learner_s)
        yield compare("time outside the recorder", "hockey", peer, ([left], [100.0]), "%")


if __name__ == "__main__":
    given = arguments(__doc__ or "", updates=400, rounds=7)
    report(list(rows(given.updates, given.rounds)), as_json=given.json)
