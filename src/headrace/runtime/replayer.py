"""Runs the record of a run in one process, event by event, and compares everything it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from headrace.core.errors import ConfigError, RecordDamaged
from headrace.ipc.copies import copies_ended
from headrace.lanes.lane import LaneBlock
from headrace.learners.base import BaseLearner
from headrace.record.machine import limited_threads
from headrace.record.rows import RowReader
from headrace.record.trace import Trace
from headrace.runtime.belonging import edits_told, require_same_streams
from headrace.runtime.inheritance import begin_with, kept_beginning
from headrace.runtime.moments import Moment, Replayed
from headrace.runtime.payloads import Basics, EnvFactory
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.reenactment import Outline, Reenactment
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.until import Stop, parse_until
from headrace.telemetry.board import Activity, Board


class Replayer:
    """A run once more, in one process.

    Its public attributes are the live objects, so that a run can be looked at where something happened:
    ``learner`` (``.algorithm``, ``.update()``, and ``.batch()`` where it learns from a replay), ``block`` (the lanes), ``config``.

    Args:
        run: The run directory; the run may be live (what it has recorded by now is replayed), dead or finished.
        env: As the run had it, if it was a callable; needed if that was no function of a module that can be imported.

    Raises:
        ConfigError: The environment was such a callable, and is not handed over again.
        RecordDamaged: There is no record, it cannot be read, or another version of Headrace drew otherwise from its seed.
        RunDirectoryError: There is no run.
    """

    def __init__(self, run: str | Path | RunDirectory, env: EnvFactory | None = None) -> None:
        run = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
        self._place = run
        self.config = run.read_config()
        self.events = 0
        """Events that have been replayed."""
        with ExitStack() as stack:
            self.trace = stack.enter_context(Trace.open(run.record_dir / TRACE_FILE))
            require_same_streams(self.trace.header)
            rows = stack.enter_context(RowReader(run.record_dir))
            stack.enter_context(limited_threads(self.config.collect.threads))
            stack.enter_context(copies_ended("the replay"))
            self.board = stack.enter_context(_board())
            slot = self.board.slot("replay")
            slot.enter(Activity.RESUME)
            self._outline = Outline(self.trace)
            basics = Basics(self.config, Path(), env)
            self._again = Reenactment(basics, self.trace, self._outline, rows, slot, stack)
            begin_with(self._again.learner, kept_beginning(run.record_dir, self.trace.header))
            self._stack = stack.pop_all()
        self._moments = self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every environment and give the memory back; may be called twice."""
        self._stack.close()

    @property
    def learner(self) -> BaseLearner:
        """As it is at this moment of the run; another one after a learner died."""
        return self._again.learner

    @property
    def block(self) -> LaneBlock:
        """The lanes."""
        return self._again.block

    @property
    def record_bytes(self) -> int:
        """Size of the record, for progress; see `Moment.position`."""
        return self.trace.length()

    def run(self, until: str | int | None = None, on_progress: Callable[[Moment], None] | None = None) -> Moment | None:
        """Go on, and compare everything.

        Args:
            until: Where to stop, see `headrace.runtime.until.parse_until`; None: at the end.
            on_progress: Called before each event and each update.

        Returns:
            Where it stands; None at the end of the record.

        Raises:
            ReplayDiffers: It came to something else than what is recorded.
            RecordDamaged: The record contradicts itself, or goes on behind a damage.
            ConfigError: The record has no such place, or it has been passed; or this replay was ended by an error before.
        """
        stop: Stop | None = None if until is None else parse_until(until)
        with edits_told(self._place, self.config):
            for moment in self._moments:
                if on_progress is not None:
                    on_progress(moment)
                if stop is not None and stop(moment):
                    return moment
        if self.events < self._outline.events:  # or it would seem to have come to the end
            raise ConfigError(
                "this replay was ended by an error, or interrupted, and cannot go on",
                events=f"{self.events:,} of {self._outline.events:,}",
                fix="begin a new replay",
            )
        if stop is not None:
            raise ConfigError(
                f"the record does not come to {until}, or is past it",
                events=f"{self._outline.events:,}",
                updates=f"{self.learner.updates:,}",
                fix="choose a place within it; begin a new replay to go back",
            )
        if self.trace.damaged:
            raise RecordDamaged(
                f"everything is identical up to event {self.events:,}; there the record is damaged, and it goes on behind it",
                byte=self.record_bytes,
                fix="restore record/trace.bin from a copy; what comes after the damage cannot be replayed",
            )
        return None

    def outcome(self) -> Replayed:
        """What the replay has come to so far."""
        return Replayed(
            events=self.events,
            updates=self.learner.updates,
            env_steps=self.learner.env_steps,
            weights_sha256=self.learner.algorithm.weights_sha256(),
            ended=self._again.ended,
            failed=self._again.failed,
            torn_bytes=self.trace.torn_bytes,
            machine=tuple(self._again.judge.machine()),
        )

    def _run(self) -> Iterator[Moment]:
        again = self._again
        # No further than the outline knows: a run that trains goes on writing, and may do so for ever.
        events = islice(self.trace.events(), self._outline.events)
        for number, (position, event) in enumerate(events, 1):
            for update in again.updates_before(number, event):
                yield Moment(number, event, position, update)
                if again.learner.updates < update:  # unless whoever looks at the run has just made it
                    again.update(number)
            yield Moment(number, event, position, None)
            again.apply(number, event)
            self.events = number


def _board() -> Board:
    """A board that only this process has: its file is gone at once, so a replay that is killed leaves nothing."""
    with TemporaryDirectory(prefix="headrace-replay-") as folder:
        return Board.create(Path(folder) / "board", [("replay", "learner")])


def replay(run: str | Path | RunDirectory, env: EnvFactory | None = None) -> Replayed:
    """Replay a run in this process, and compare everything bit for bit.

    Args:
        run: The run directory.
        env: As for `Replayer`.

    Raises:
        ConfigError: As of `Replayer`.
        ReplayDiffers: Something differs; the message names event, lane, row, field, values and the likely cause.
        RecordDamaged: There is no record, or it cannot be read.
    """
    with Replayer(run, env) as replayer:
        replayer.run()
        return replayer.outcome()
