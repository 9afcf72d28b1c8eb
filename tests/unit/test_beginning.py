"""How a learner begins in a session that goes on from a checkpoint, and another one in its place; all in the test's process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.ipc.channel import Channel
from headrace.ipc.shm import SharedBlock
from headrace.learners.checkpoint import STATE_FILE
from headrace.record.trace import Trace
from headrace.runtime import beginning
from headrace.runtime.beginning import Begun, begin
from headrace.runtime.payloads import Basics, EnvSpaces, LearnerPayload
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.survey import find_resume_point
from headrace.telemetry.board import Activity, Board, Slot
from record_here import record_here


class Session:
    """One that goes on where a run has ended, and whose learners are asked for one after the other.

    Args:
        folder: Of the run.
        stack: What has to be given back goes there.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._place = RunDirectory(folder)
        config = self._place.read_config()
        self._basics = Basics(config, Path())
        self._spaces = EnvSpaces.of(self._basics)
        self._point = find_resume_point(self._place, config)
        self._slot: Slot = stack.enter_context(Board.attach(self._place.board_file)).slot("learner")
        self._control = Channel.pair()
        for channel in self._control:
            stack.callback(channel.close)
        sizes = self._spaces.geometry(config).nbytes, 1
        self._shared = [stack.enter_context(SharedBlock.create(size)) for size in sizes]
        self._streams: list[int] | None = None
        self._learners = 0

    @property
    def activity(self) -> Activity:
        """What its learner is busy with, by the board."""
        return self._slot.resume()[0]

    @contextmanager
    def learner(self) -> Iterator[Begun]:
        """The next learner, from its begin to its death."""
        fds = {name: os.dup(shared.fd) for name, shared in zip(("lanes", "snapshots"), self._shared, strict=True)}
        payload = LearnerPayload(
            self._basics, self._spaces, self._place.checkpoints_dir, self._place.record_dir, self._learners, self._point,
            self._streams,
        )  # fmt: skip
        self._learners += 1
        try:
            with begin(payload, fds, self._slot, self._control[0]) as begun:
                self._streams = begun.streams
                block = begun.learner.replay.block
                try:
                    yield begun
                finally:
                    begun.learner.release()
                    block.release()
                    del begun, block
        finally:
            for fd in fds.values():
                os.close(fd)
            gc.collect()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = {"checkpoint__enabled": True, "supervision__learner_death": "resume"}
    return record_here(tmp_path / "run", run__steps=160, **settings)


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with ExitStack() as stack:
        yield Session(folder, stack)


@pytest.mark.table
def test_a_successor_does_not_hang_on_the_checkpoint_of_the_session(session: Session, folder: Path):
    with session.learner() as begun:
        assert begun.keeper.state_due
        updates = begun.learner.updates
    with session.learner() as begun:  # the first has not come to it
        assert begun.succeeded is not None
        assert (begun.succeeded["updates"], begun.keeper.state_due) == (updates, True)
        assert begun.keeper.state() is None
        assert not begun.keeper.state_due
    (manifest,) = folder.glob("checkpoints/*/checkpoint.json")
    manifest.unlink()  # as pruning does
    with session.learner() as begun:
        assert begun.succeeded is not None
        assert (begun.succeeded["updates"], begun.keeper.state_due) == (updates, False)
    assert (folder / "checkpoints" / STATE_FILE).exists()


def test_whoever_waits_sees_that_the_record_is_being_read(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    with Trace.open(folder / "record" / TRACE_FILE) as trace:
        recorded = len(list(trace.events()))
    told: list[Activity] = []
    enter = Slot.enter

    def entered(slot: Slot, activity: Activity, *place: int) -> None:
        told.append(activity)
        enter(slot, activity, *place)

    monkeypatch.setattr(Slot, "enter", entered)
    with session.learner():
        assert told.count(Activity.RESUME) >= recorded - 2  # without those behind the checkpoint


def test_imports_and_networks_have_the_limit_of_the_start_also_where_a_run_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    """First a learner that goes on from the checkpoint, then another one in its place."""
    during: list[Activity] = []
    build = beginning.build_learner

    def built(*rest: Any) -> Any:
        during.append(session.activity)
        return build(*rest)

    monkeypatch.setattr(beginning, "build_learner", built)
    for learners in (1, 2):
        with session.learner() as begun:
            assert (begun.succeeded is not None) == (learners == 2)
            assert during == [Activity.START] * learners
            assert session.activity is Activity.START
