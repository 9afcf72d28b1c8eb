"""A record on a disk that takes no more: it ends once, and the run learns the same as without."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import record_here as recording
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
