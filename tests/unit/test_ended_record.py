"""A disk took no more of the record, and has room again when the learner dies: its successor leaves the record as it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import RecordDamaged
from headrace.record.trace import Trace, TraceWriter
from headrace.runtime.checkpointing import Keeper
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import replay
from succession_support import Fate, Killed, Lives, lives

FULL = f"OSError: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
ENDS_AFTER = 12
"""Events that the disk takes."""


def dies_after_its_record(run: Lives, rounds: int) -> None:
    """The first life: the disk is full for a while, and room or not, the learner is killed at its end."""
    write, left = TraceWriter.write, [ENDS_AFTER]

    def full(trace: TraceWriter, event: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(trace, event)

    def killed(keeper: Keeper) -> None:
        assert keeper.record_lost == FULL
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TraceWriter, "write", full)
        patch.setattr(Keeper, "end", killed)
        with pytest.raises(Killed):
            run.live(rounds=rounds)


def events_in(folder: Path) -> int:
    with Trace.open(folder / "record" / TRACE_FILE) as trace:
        return len(list(trace.events()))


@pytest.mark.table
def test_the_successor_of_a_learner_whose_record_had_ended_has_none(tmp_path, monkeypatch):
    folder, at_the_end = tmp_path / "run", []
    with lives(folder, Fate(monkeypatch)) as run:
        dies_after_its_record(run, rounds=3)
        run.record_lost = FULL
        end = Keeper.end

        def ends(keeper: Keeper) -> None:
            at_the_end.append((keeper.recorder, keeper.record_lost, keeper.checkpoint({}, exact=False)["problem"]))
            end(keeper)

        monkeypatch.setattr(Keeper, "end", ends)
        run.live(rounds=3)
    assert at_the_end == [(None, FULL, f"the record ended early ({FULL})")]
    assert events_in(folder) == ENDS_AFTER
    found = replay(folder)
    assert (found.ended, found.events) == (False, ENDS_AFTER)


def test_more_than_the_lanes_still_hold_is_never_written_as_one_salvage(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with lives(folder, Fate(monkeypatch), replay__capacity=72) as run:
        dies_after_its_record(run, rounds=16)
        with pytest.raises(RecordDamaged) as caught:
            run.live(rounds=1)
    assert events_in(folder) == ENDS_AFTER
    what, recorded, taken, _ = str(caught.value).splitlines()
    assert what == (
        "[REC-001] the record lacks more of lane 0 than can be made good: its oldest rows have been written over"
    )
    assert int(taken.rpartition(" ")[2]) - int(recorded.rpartition(" ")[2]) > 64
