"""A record on a disk that takes no more: it ends once, and the run learns the same as without."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import record_here as recording
from headrace.core.config import RecordConfig
from headrace.core.specs import leaves
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.recorder import _MOST_PRINTS, Recorder
from headrace.learners.witness import Drawn, Salvaged
from headrace.record.events import RowPlace
from headrace.record.rows import RowLog
from headrace.record.trace import TraceWriter
from headrace.runtime import checkpointing
from headrace.runtime.recording import new_record
from headrace.runtime.replayer import replay
from record_here import record_here

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told about the end of the record."""
    told: list[str] = []
    monkeypatch.setattr(recording, "new_record", lambda *given: new_record(*given[:3], told.append, *given[4:]))
    return told


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hash of the weights at the end of each run."""
    found: list[str] = []
    end = checkpointing.Keeper.end

    def ended(keeper: checkpointing.Keeper) -> None:
        found.append(keeper._learner.algorithm.weights_sha256())
        end(keeper)

    monkeypatch.setattr(checkpointing.Keeper, "end", ended)
    return found


@pytest.mark.thin(4)
@pytest.mark.parametrize("owner", [TraceWriter, RowLog], ids=["the order of events", "rows"])
@pytest.mark.parametrize("batches", [True, False])
def test_a_full_disk_ends_the_record_once_and_never_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], weights: list[str], owner: type, batches: bool
):
    record_here(tmp_path / "whole", record__batches=batches)
    name = "_write" if owner is TraceWriter else "append"
    write, calls = getattr(owner, name), []

    def fills_up(self, *given):
        calls.append(given)
        if 30 <= len(calls) < 60:
            raise FULL
        return write(self, *given)

    monkeypatch.setattr(owner, name, fills_up)
    record_here(tmp_path / "cut", record__batches=batches)
    monkeypatch.undo()
    assert lost == ["OSError: [Errno 28] No space left on device"]
    assert weights[0] == weights[1], "what is recorded changes nothing"
    assert len(calls) == 30, "nothing is written behind the gap"
    found, whole = replay(tmp_path / "cut"), replay(tmp_path / "whole")
    assert (found.ended, found.torn_bytes, whole.ended) == (False, 0, True)
    assert 0 < found.events < whole.events
    assert found.updates < whole.updates


def test_a_checkpoint_before_which_the_record_ends_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str]
):
    """What was kept back until the record is synchronised for it finds no room."""
    sync, write, made = Recorder.sync, TraceWriter._write, checkpointing.Keeper.checkpoint
    found: list[dict[str, Any]] = []

    def synced(recorder: Recorder) -> None:
        recorder.drew(DRAWN, 1)  # the policy published just before leaves nothing kept back
        with monkeypatch.context() as full:
            full.setattr(TraceWriter, "_write", lambda *given: fails() if found else write(*given))
            sync(recorder)

    def fails() -> int:
        raise FULL

    def checkpoint(*given: Any, **facts: Any) -> dict[str, Any]:
        found.append(made(*given, **facts))
        return found[-1]

    monkeypatch.setattr(Recorder, "sync", synced)
    monkeypatch.setattr(checkpointing.Keeper, "checkpoint", checkpoint)
    run = record_here(tmp_path / "run", checkpoint__enabled=True, checkpoint__every_steps=160)
    assert lost == ["OSError: [Errno 28] No space left on device"]
    assert [facts.get("problem") for facts in found] == [None, *[f"the record ended early ({lost[0]})"] * 3]
    kept = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    assert [one.version for one in kept] == [found[0]["version"]]


class Disk:
    """A trace and a row log that take no more at some of their writes.

    Args:
        full: Numbers of the writes that fail, from 0 over both.
    """

    def __init__(self, full: range) -> None:
        self.told: list[str] = []
        """Why the record has ended."""
        self.tried = 0
        self.beyond: list[Any] = []
        """What was written, or tried, after it had been told that the record has ended."""
        self._full = full

    def write(self, what: Any) -> RowPlace:
        if self.told:
            self.beyond.append(what)
        self.tried += 1
        if self.tried - 1 in self._full:
            raise FULL
        return RowPlace(0, 0)

    append = write

    def sync(self) -> None:
        if self.told:
            self.beyond.append("sync")

    def drop_before(self, segment: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


DRAWN: Any = Drawn(np.zeros(1, np.int64), np.zeros((1, 2), [("obs", "<u8")]), SimpleNamespace(), 1, 8)
"""A batch of one transition, of which nothing was derived."""
ALGORITHM: Any = SimpleNamespace(updates=3, weights_sha256=lambda: "0" * 64, ledger=dict)


def recorder_on(disk: Disk) -> tuple[Recorder, LaneBlock]:
    """A recorder of one lane, in which lie a step and one that was lost."""
    obs = leaves(spaces.Box(-1, 1, (2,), np.float32), "obs")
    geometry = Geometry(1, 6, obs, leaves(spaces.Discrete(9), "action"), 2, 1)
    block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    block.begin()
    writer, zeros = LaneWriter(block, 0), [np.zeros(2, np.float32)]
    writer.begin_episode(zeros)
    writer.step([np.int64(1)], 1.0, (False, False), zeros, 1)
    writer.lose(1)
    given: Any = disk
    return Recorder(RecordConfig(hash_every=1), given, given, block, [(0,)], disk.told.append), block


def everything(recorder: Recorder, block: LaneBlock) -> None:
    """Every call of a recorder, each after one batch that is kept back."""
    first, stop = block.geometry.first_row, int(block.rows_written[0])
    commit = Commit(0, 0, 0, 1, last=False, lanes=(LaneCommit(stop, 1, block.checksum(0, first, stop)),))
    for call in (
        lambda: recorder.note(1, "begun", {}),
        lambda: recorder.committed(commit, [first], 1),
        lambda: recorder.salvaged(0, [Salvaged(first, stop, 1, 0, cut=True)], 1),
        lambda: recorder.updated(ALGORITHM),
        lambda: recorder.gathered_nothing(1),
        lambda: recorder.published(1, 0, ALGORITHM),
        lambda: recorder.saved(1),
        lambda: recorder.succeeded(1, 0),
        recorder.sync,
        lambda: recorder.drop_rows_before(1),
    ):
        recorder.drew(DRAWN, 1)
        call()
    for _ in range(_MOST_PRINTS + 2):  # more than are kept back
        recorder.drew(DRAWN, 1)
    recorder.close()


@pytest.mark.parametrize("room", [False, True], ids=["stays full", "has room again"])
def test_whichever_write_fails_is_the_last_and_is_told_once(room: bool):
    whole = Disk(range(0))
    everything(*recorder_on(whole))
    assert (whole.tried, whole.told) == (23, [])
    for failing in range(whole.tried):
        disk = Disk(range(failing, failing + 1 if room else whole.tried))
        everything(*recorder_on(disk))
        assert disk.told == ["OSError: [Errno 28] No space left on device"], failing
        assert (disk.tried, disk.beyond) == (failing + 1, []), failing
