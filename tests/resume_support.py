"""A run directory as a run leaves it, made by hand: record, checkpoints, events, metrics; no process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.clock import FakeClock
from headrace.core.seeding import STREAMS
from headrace.learners.checkpoint import LearnerState
from headrace.learners.checkpoints import CheckpointStore
from headrace.record.events import BatchesTrained, ChunkCommitted, LanePart
from headrace.record.rows import RowLog
from headrace.record.trace import TraceWriter
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from headrace.telemetry.events import EventLog

CHUNK_STEPS = 10
CHUNK_UPDATES = 4


class PastRun:
    """A run that writes what a test wants it to, and ends.

    Args:
        path: Of its directory.
        config: What it is told; None: the preset pendulum-td3.
    """

    def __init__(self, path: Path, config: ExperimentConfig | None = None) -> None:
        self.config = config or load_config("pendulum-td3")
        self.env_steps = self.updates = self.version = 0
        self._clock = FakeClock(50.0)
        self._stack = ExitStack()
        self.place = self._stack.enter_context(RunDirectory.create(path, self.config))
        with Board.create(self.place.board_file, [("supervisor", "supervisor"), ("learner", "learner")]):
            pass
        self._events = self._stack.enter_context(EventLog(self.place.events_file, self._clock))
        self.trace = self._stack.enter_context(
            TraceWriter.create(self.place.record_dir / TRACE_FILE, {"streams": STREAMS})
        )
        self.rows = self._stack.enter_context(RowLog.create(self.place.record_dir, 1000))
        self.store = CheckpointStore(self.place.checkpoints_dir, self.config.checkpoint.keep)

    def event(self, kind: str, component: str = "supervisor", **facts: object) -> None:
        """A second passes, and something happens."""
        self._clock.advance(1.0)
        self._events.emit(kind, component, kind, **facts)

    def learn(self, chunks: int = 1) -> None:
        """Some chunks of steps, each followed by updates; and a line of metrics."""
        for _ in range(chunks):
            place = self.rows.append([bytes(100)])
            part = LanePart(stop=self.env_steps, transitions=CHUNK_STEPS, checksum=0)
            self.trace.write(
                ChunkCommitted(self.updates, 0, 0, 0, self.version, last=False, place=place, lanes=(part,))
            )
            self.trace.write(BatchesTrained(self.updates, np.zeros((CHUNK_UPDATES, 3), np.uint32)))
            self.env_steps += CHUNK_STEPS
            self.updates += CHUNK_UPDATES
        self.metrics(self.env_steps, updates=self.updates, wall_s=self.env_steps / 10)

    def metrics(self, step: int, **values: float) -> None:
        """A line of metrics."""
        with self.place.metrics_file.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def policy(self, version: int) -> Path:
        """A policy that was frozen and evaluated, and is no checkpoint."""
        folder = self.place.checkpoint_dir(version)
        folder.mkdir()
        (folder / "policy.safetensors").write_bytes(b"a policy")
        return folder

    def checkpoint(self, **more: object) -> Path:
        """A checkpoint of the next version."""
        self.version += 1
        facts = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "trace_bytes": self.trace.position,
            "rows": [self.rows.position.segment, self.rows.position.offset],
            "oldest_segment": 0,
            **more,
        }
        state = LearnerState({"weights": np.full(40, self.version, np.float32)}, {"updates": self.updates})
        policy = {"actor": np.full(20, self.version, np.float32)}
        return self.store.write(self.version, state, facts, policy, {"env_steps": self.env_steps})

    def end(self, outcome: str | None = "completed", **summary: Any) -> Path:
        """It ends, or is killed (None); returns its directory."""
        if outcome is not None:
            books = {"produced": self.env_steps}
            self.place.write_summary({"outcome": outcome, "env_steps": self.env_steps, "books": books, **summary})
        self._stack.close()
        return self.place.path


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a run but the lock, whose content is the number of whoever looked last."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "lock"}


def lines(path: Path) -> list[Mapping[str, Any]]:
    """Objects of a file with one a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]
