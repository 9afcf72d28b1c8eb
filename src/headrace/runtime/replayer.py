"""Runs the record of a run in one process, event by event, and compares everything it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.collectors.collector import Collector
from headrace.core.errors import ConfigError, EnvironmentFault, RecordDamaged
from headrace.ipc.shm import SharedBlock
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.learners.checkpoint import LearnerState
from headrace.learners.learner import Learner
from headrace.learners.witness import Drawn, Nobody, Salvaged, batch_print
from headrace.record.events import (
    BatchesTrained,
    ChunkCommitted,
    Event,
    GroupSalvaged,
    LearnerSucceeded,
    Note,
    PolicyPublished,
    StateSaved,
    WeightsHashed,
)
from headrace.record.machine import limited_threads
from headrace.record.rows import RowReader
from headrace.record.trace import Trace
from headrace.runtime.assembly import build_learner
from headrace.runtime.divergence import Judge, Recorded
from headrace.runtime.moments import Moment, Replayed
from headrace.runtime.payloads import Basics, EnvFactory, EnvSpaces, GroupBeginning, build_collector, group_lanes
from headrace.runtime.policies import PinnedPolicy, Policies
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.refill import Extents
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.until import Stop, parse_until
from headrace.telemetry.board import Activity, Board
from headrace.weights.snapshot import SnapshotLayout, Snapshots


class Replayer:
    """A run once more, in one process.

    Its public attributes are the live objects, so that a run can be looked at where something happened:
    ``learner`` (``.algorithm``, ``.batch()``, ``.update()``), ``block`` (the lanes), ``config``.

    Args:
        run: The run directory; the run may be live, dead or finished.
        env: As the run had it, if it was a callable.

    Raises:
        RecordDamaged: There is no record, or it cannot be read.
        RunDirectoryError: There is no run.
    """

    def __init__(self, run: str | Path | RunDirectory, env: EnvFactory | None = None) -> None:
        run = run if isinstance(run, RunDirectory) else RunDirectory.open(run)
        self.config = run.read_config()
        self._record = run.path / "record"
        self._basics = Basics(self.config, Path(), env)
        self._groups = tuple(group_lanes(self.config, group) for group in range(self.config.env.groups))
        self._collectors: dict[int, tuple[Collector, PinnedPolicy]] = {}
        self._witness = _Comparing()
        self._saved: dict[int, LearnerState] = {}
        self.events = 0
        """Events that have been replayed."""
        self.ended = False
        """Whether the run ended in order."""
        self._stack = ExitStack()
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        self._moments = self._run()

    def _open(self) -> None:
        stack = self._stack
        self.trace = stack.enter_context(Trace.open(self._record / TRACE_FILE))
        rows = stack.enter_context(RowReader(self._record))
        stack.enter_context(limited_threads(self.config.collect.threads))
        self._outline = Outline(self.trace)
        spaces = EnvSpaces.of(self._basics)
        geometry = spaces.geometry(self.config)
        shared = SharedBlock.create(geometry.nbytes)
        stack.callback(shared.close)
        self.block = LaneBlock(geometry, shared.buf)
        self.block.begin()
        self._extents = Extents(self.block, self._groups)
        folder = stack.enter_context(TemporaryDirectory(prefix="headrace-replay-"))
        self.board = stack.enter_context(Board.create(Path(folder) / "board", [("replay", "learner")]))
        self.slot = self.board.slot("replay")
        self.slot.enter(Activity.RESUME)
        self._spaces = spaces
        self._policies = Policies(self._outline.last_use)
        self._snapshots: Snapshots | None = None
        self.learner, self._layout = self._build(Replay(self.block))
        self._judge = Judge(self._basics, spaces, self.trace.header, Recorded(self.block, rows), self._policies)
        stack.callback(self._release)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every environment and give the memory back; may be called twice."""
        for group in list(self._collectors):
            self._discard(group)
        self._stack.close()

    def _release(self) -> None:
        self.learner.release()
        self.block.release()

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
            ConfigError: The record has no such place, or it has been passed.
        """
        stop: Stop | None = None if until is None else parse_until(until)
        for moment in self._moments:
            if on_progress is not None:
                on_progress(moment)
            if stop is not None and stop(moment):
                return moment
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

    def result(self) -> Replayed:
        """What the replay has come to so far."""
        return Replayed(
            events=self.events,
            updates=self.learner.updates,
            env_steps=self.learner.env_steps,
            weights_sha256=self.learner.algorithm.weights_sha256(),
            ended=self.ended,
            torn_bytes=self.trace.torn_bytes,
            machine=tuple(self._judge.machine()),
        )

    def _run(self) -> Iterator[Moment]:
        for number, (position, event) in enumerate(self.trace.events(), 1):
            for update in self._updates_before(number, event):
                yield Moment(number, event, position, update)
                if self.learner.updates < update:  # unless whoever looks at the run has just made it
                    self._update(number)
            yield Moment(number, event, position, None)
            self._apply(number, event)
            self.events = number
            self._policies.forget_before(number + 1)

    def _updates_before(self, number: int, event: Event) -> Iterator[int]:
        """Numbers of the updates that come before an event."""
        target = event.updates
        if isinstance(event, BatchesTrained):
            self._witness.expect(event.updates, event.prints)
            target += len(event.prints)
        elif isinstance(event, LearnerSucceeded):
            return  # those its predecessor made last died with it
        while self.learner.updates < target:
            yield self.learner.updates + 1
        if self.learner.updates > target:
            raise RecordDamaged(
                "the record contradicts itself: fewer updates were made than before the event before",
                event=number,
                updates=f"{target:,}, after {self.learner.updates:,}",
                fix="keep the run directory and file a bug",
            )

    def _update(self, number: int) -> None:
        try:
            self.learner.update()
        except _BatchDiffersError as found:
            raise self._judge.batch(number, found.update, found.recorded, found.replayed).to_error() from None

    def _apply(self, number: int, event: Event) -> None:
        match event:
            case ChunkCommitted():
                self._chunk(number, event)
            case GroupSalvaged():
                self._salvage(number, event)
            case PolicyPublished():
                self._publish(number, event)
            case WeightsHashed(updates, sha256, ledger):
                self._compare_weights(number, updates, sha256, dict(ledger))
            case StateSaved(_, save):
                if save in self._outline.saves_used:
                    self._saved[save] = self.learner.state().copy()
            case LearnerSucceeded(_, save):
                self._succeed(save)
            case Note(_, "resumed", _):
                if 0 in self._outline.saves_used:
                    self._saved[0] = self.learner.state().copy()
            case Note(updates, "ended", facts):
                self.ended = True
                self._compare_weights(number, updates, facts["weights_sha256"], {})

    def _chunk(self, number: int, event: ChunkCommitted) -> None:
        collector = self._collector(event.group, event.incarnation, event.version)
        extents = self._extents.of(event)
        steps = event.lanes[0].transitions
        try:
            commit = collector.collect(event.chunk, steps)
        except EnvironmentFault as error:
            raise self._judge.fault(number, event, error).to_error() from error
        made = [part.checksum for part in commit.lanes]
        if made != [part.checksum for part in event.lanes]:
            raise self._judge.rows(number, event, extents, _ends(commit.lanes)).to_error()
        self.learner.commit(commit)

    def _salvage(self, number: int, event: GroupSalvaged) -> None:
        made = [part.salvaged + part.rejected for part in event.lanes]
        extents, lanes = self._extents.of(event), self._groups[event.group]
        if any(made):
            self._collector(event.group, event.incarnation, event.version).repeat(event.chunk, made)
        self._discard(event.group)
        for lane, part in zip(lanes, event.lanes, strict=True):
            self.block.episodes_begun[lane] = part.episodes_begun
            self.block.incarnation[lane] = event.incarnation
        self._witness.saved = []
        self.learner.salvage(event.group)
        found = [
            (saved.stop, saved.salvaged, saved.rejected, saved.cut, self.block.checksum(lane, saved.start, saved.stop))
            for lane, saved in zip(lanes, self._witness.saved, strict=True)
        ]
        told = [(part.stop, part.salvaged, part.rejected, part.cut, part.checksum) for part in event.lanes]
        if found != told:
            raise self._judge.rows(number, event, extents, [saved.stop for saved in self._witness.saved]).to_error()

    def _publish(self, number: int, event: PolicyPublished) -> None:
        assert self._snapshots is not None, "made with the learner"
        version = self.learner.publish()
        arrays, checksum = self._snapshots.newest()
        if (version, checksum, self._ledger(event.ledger)) != (event.version, event.checksum, dict(event.ledger)):
            ledger = self.learner.algorithm.ledger()
            raise self._judge.policy(number, event, version, checksum, ledger, self._batches_equal).to_error()
        self._policies.keep(version, self._layout, arrays)

    def _compare_weights(self, number: int, updates: int, sha256: str, ledger: dict[str, float]) -> None:
        algorithm, replayed = self.learner.algorithm, self._ledger(ledger)
        if sha256 != algorithm.weights_sha256() or ledger != replayed:
            both = sha256, algorithm.weights_sha256()
            raise self._judge.weights(number, updates, both, (ledger, replayed), self._batches_equal).to_error()

    def _ledger(self, recorded: Mapping[str, float]) -> dict[str, float]:
        """What the replay has done, as far as the record says anything about it."""
        return {name: value for name, value in self.learner.algorithm.ledger().items() if name in recorded}

    @property
    def _batches_equal(self) -> bool | None:
        """Whether all batches so far were equal; None: they were not recorded."""
        return True if self.config.record.batches else None

    def _succeed(self, save: int) -> None:
        self.learner, self._layout = self._build(Replay(self.block, resume=True))
        self.learner.resume(self._saved.get(save))

    def _build(self, replay: Replay) -> tuple[Learner, SnapshotLayout]:
        return build_learner(self.config, self._spaces, replay, self._published_in, self.slot, self._witness)

    def _published_in(self, layout: SnapshotLayout) -> Snapshots:
        if self._snapshots is None:
            shared = SharedBlock.create(layout.nbytes)
            self._stack.callback(shared.close)
            self._snapshots = Snapshots(layout, shared.buf)
        return self._snapshots

    def _collector(self, group: int, incarnation: int, version: int) -> Collector:
        """The group's collector in that incarnation, with that policy."""
        there = self._collectors.get(group)
        if there is None or there[0].group.incarnation != incarnation:
            self._discard(group)
            source, begin = PinnedPolicy(self._policies), GroupBeginning(incarnation)
            policy = self._spaces.policy(self.config)
            there = build_collector(self._basics, policy, group, self.block, source, self.slot, begin), source
            self._collectors[group] = there
        there[1].pin(version)
        return there[0]

    def _discard(self, group: int) -> None:
        there = self._collectors.pop(group, None)
        if there is not None:
            there[0].close()


class Outline:
    """What has to be known of a record before its first event.

    Args:
        trace: Read to its end once.
    """

    def __init__(self, trace: Trace) -> None:
        self.last_use: dict[int, int] = {}
        """Number of the last event that refers to each policy version."""
        self.saves_used: set[int] = set()
        """Saves a learner was succeeded from."""
        self.events = 0
        for number, (_, event) in enumerate(trace.events(), 1):
            self.events = number
            if isinstance(event, ChunkCommitted | GroupSalvaged):
                self.last_use[event.version] = number
            elif isinstance(event, LearnerSucceeded):
                self.saves_used.add(event.number)


class _Comparing(Nobody):
    """The witness of a replay."""

    def __init__(self) -> None:
        self._first = 0
        self._prints: NDArray[np.uint32] = np.zeros((0, 3), np.uint32)
        self.saved: list[Salvaged] = []

    def expect(self, first: int, prints: NDArray[np.uint32]) -> None:
        """Fingerprints of the batches after ``first`` updates."""
        self._first, self._prints = first, prints

    def drew(self, drawn: Drawn, updates: int) -> None:
        """See `headrace.learners.witness.Witness`."""
        at = updates - self._first
        if not 0 <= at < len(self._prints):
            return
        recorded, replayed = tuple(self._prints[at].tolist()), batch_print(drawn, updates)
        if recorded != replayed:
            raise _BatchDiffersError(updates + 1, recorded, replayed)

    def salvaged(self, group: int, lanes: Any, updates: int) -> None:
        """See `headrace.learners.witness.Witness`."""
        self.saved = list(lanes)


class _BatchDiffersError(Exception):
    """A batch is not the recorded one."""

    def __init__(self, update: int, recorded: tuple[int, ...], replayed: tuple[int, ...]) -> None:
        super().__init__(update)
        self.update, self.recorded, self.replayed = update, recorded, replayed


def _ends(lanes: Any) -> list[int]:
    return [part.stop for part in lanes]


def replay(run: str | Path | RunDirectory, env: EnvFactory | None = None) -> Replayed:
    """Replay a run in this process, and compare everything bit for bit.

    Args:
        run: The run directory.
        env: As the run had it, if it was a callable.

    Raises:
        ReplayDiffers: Something differs; the message names event, lane, row, field, values and the likely cause.
        RecordDamaged: There is no record, or it cannot be read.
    """
    with Replayer(run, env) as replayer:
        replayer.run()
        return replayer.result()
