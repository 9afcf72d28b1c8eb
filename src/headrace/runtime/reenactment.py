"""Does what the events of a record say, one after the other, and compares what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.collectors.collector import Collector
from headrace.core.errors import ConfigError, EnvironmentFault, RecordDamaged
from headrace.ipc.shm import SharedBlock
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.learners.base import BaseLearner
from headrace.learners.checkpoint import LearnerState
from headrace.learners.witness import Drawn, Nobody, Salvaged, batch_print
from headrace.record.events import (
    FAILED,
    GATHERED_NOTHING,
    BatchesTrained,
    ChunkCommitted,
    Event,
    GroupSalvaged,
    LearnerSucceeded,
    Note,
    PolicyPublished,
    StateSaved,
    StepsLost,
    WeightsHashed,
    updates_after,
)
from headrace.record.rows import RowReader
from headrace.record.trace import Trace
from headrace.runtime.assembly import build_learner
from headrace.runtime.belonging import require_same_layout
from headrace.runtime.divergence import Judge, Recorded
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_collector, group_lanes
from headrace.runtime.policies import PinnedPolicy, Policies
from headrace.runtime.recording import failure
from headrace.runtime.refill import Extents
from headrace.runtime.torchapart import TorchApart
from headrace.telemetry.board import Slot
from headrace.weights.snapshot import SnapshotLayout, Snapshots


class Reenactment:
    """The learner, the collectors and the lanes of a run, driven by its record.

    Args:
        basics: Of the run.
        trace: The record's events.
        outline: What has to be known of them before.
        rows: The record's rows.
        slot: The replay's place on a board.
        stack: What has to be given back at the end goes there.
    """

    def __init__(
        self, basics: Basics, trace: Trace, outline: Outline, rows: RowReader, slot: Slot, stack: ExitStack
    ) -> None:
        self._config = config = basics.config
        self._trace = trace
        self._outline = outline
        self._slot = slot
        self._stack = stack
        self._groups = tuple(group_lanes(config, group) for group in range(config.env.groups))
        self._witness = _Comparing()
        self._saved: dict[int, LearnerState] = {}
        self._lost: dict[int, StepsLost] = {}
        """What is known of the next chunk of each group."""
        self.ended = False
        """Whether the run ended in order."""
        self.failed: str | None = None
        """What the learner failed with, if nothing came after that."""
        self._failed_at = 0
        """Number of the event in which, or before which, it failed here as well."""
        self._apart = TorchApart()
        with self._apart.environments():
            self._spaces = spaces = EnvSpaces.of(basics)
        geometry = spaces.geometry(config)
        require_same_layout(trace.header, config, geometry)
        shared = SharedBlock.create(geometry.nbytes)
        stack.callback(shared.close)
        self.block = LaneBlock(geometry, shared.buf)
        self.block.begin()
        self._extents = Extents(self.block, self._groups)
        self._policies = Policies(outline.last_use)
        self._snapshots: Snapshots | None = None
        self.learner, self._layout = self._build(Replay(self.block))
        self.judge = Judge(basics, spaces, trace.header, Recorded(self.block, rows), self._policies)
        stack.callback(self._release)
        self._crew = Crew(basics, spaces, self.block, self._policies, slot, self._apart)
        stack.callback(self._crew.close)

    def _release(self) -> None:
        self.learner.release()
        self.block.release()

    def updates_before(self, number: int, event: Event) -> Iterator[int]:
        """Numbers of the updates that come before an event; each has to be made before the next is asked for."""
        target = updates_after(event)
        if isinstance(event, BatchesTrained):
            self._witness.expect(event.updates, event.prints)
        elif isinstance(event, LearnerSucceeded):
            return  # those its predecessor made last died with it
        while self.learner.updates < target and self._failed_at != number:
            yield self.learner.updates + 1
        if self.learner.updates > target:
            raise RecordDamaged(
                "the record contradicts itself: fewer updates were made than before the event before",
                event=number,
                updates=f"{target:,}, after {self.learner.updates:,}",
                fix="keep the run directory and file a bug",
            )

    def update(self, number: int) -> None:
        """Make the next update, which comes before event ``number``."""
        try:
            with self._learning(number):
                self.learner.update()
        except _BatchDiffersError as found:
            raise self.judge.batch(number, found.update, found.recorded, found.replayed).to_error() from None

    @contextmanager
    def _learning(self, number: int) -> Iterator[None]:
        """Around what the learner does by itself: that it fails where it failed in the run is no difference.

        Raises:
            ReplayDiffers: It fails otherwise.
        """
        try:
            yield
        except (_BatchDiffersError, RecordDamaged):
            raise
        except Exception as error:  # what it may raise is the network's of the user, too
            found = failure(error)
            if found != self._outline.failures.get(number):
                if isinstance(error, ConfigError):  # of whoever looks at the run
                    raise
                raise self.judge.failed(number, self.learner.updates, found).to_error() from error
            self._failed_at = number

    def apply(self, number: int, event: Event) -> None:
        """Do what an event says, and compare."""
        match event:
            case StepsLost():
                self._lost[event.group] = event
            case ChunkCommitted():
                self._chunk(number, event)
            case GroupSalvaged():
                self._salvage(number, event)
            case PolicyPublished():
                self._publish(number, event)
            case WeightsHashed(updates, sha256, ledger):
                self._compare_weights(number, updates, sha256, dict(ledger))
            case StateSaved(_, save):
                self._save(save)
            case LearnerSucceeded(_, save):
                self._succeed(save)
            case Note():
                self._note(number, event)

        self._policies.forget_before(number + 1)

    def _note(self, number: int, note: Note) -> None:
        if note.kind == "resumed":
            self._save(0)
        elif note.kind == GATHERED_NOTHING:
            with self._learning(number):
                self.learner.update()
        elif note.kind == FAILED:
            self.failed = f"[{note.facts['code']}] {note.facts['what']}"
        elif note.kind == "ended":
            self.ended = True
            self._compare_weights(number, note.updates, note.facts["weights_sha256"], {})

    def _save(self, number: int) -> None:
        """Keep the learner's state, if another one begins from it later."""
        if number in self._outline.saves_used:
            self._saved[number] = self.learner.state().copy()

    def _chunk(self, number: int, event: ChunkCommitted) -> None:
        collector = self._crew.get(event.group, event.incarnation, event.version)
        extents = self._extents.of(event)
        lost = self._lost_in(event)
        steps = event.lanes[0].transitions + sum(lane == self._groups[event.group][0] for lane, _ in lost)
        try:
            with self._apart.environments():
                commit = collector.collect(event.chunk, steps, lost=lost)
        except EnvironmentFault as error:
            raise self.judge.fault(number, event, error).to_error() from error
        made = [part.checksum for part in commit.lanes]
        if made != [part.checksum for part in event.lanes]:
            raise self.judge.rows(number, event, extents, _ends(commit.lanes)).to_error()
        with self._learning(number):
            self.learner.commit(commit)

    def _salvage(self, number: int, event: GroupSalvaged) -> None:
        extents, lanes, lost = self._extents.of(event), self._groups[event.group], self._lost_in(event)
        gone = Counter(lane for lane, _ in lost)
        made = [part.salvaged + part.rejected + gone[lane] for lane, part in zip(lanes, event.lanes, strict=True)]
        if any(made):
            collector = self._crew.get(event.group, event.incarnation, event.version)
            with self._apart.environments():
                collector.repeat(event.chunk, made, lost)
        self._crew.discard(event.group)
        for lane, part in zip(lanes, event.lanes, strict=True):
            self.block.episodes_begun[lane] = part.episodes_begun
            self.block.incarnation[lane] = event.incarnation
            self.block.chunk_begun[lane, 0] = event.chunk  # of which there may be no step that was repeated
        self._witness.saved = []
        self.learner.salvage(event.group)
        found = [
            (saved.stop, saved.salvaged, saved.rejected, saved.cut, self.block.checksum(lane, saved.start, saved.stop))
            for lane, saved in zip(lanes, self._witness.saved, strict=True)
        ]
        told = [(part.stop, part.salvaged, part.rejected, part.cut, part.checksum) for part in event.lanes]
        if found != told:
            raise self.judge.rows(number, event, extents, [saved.stop for saved in self._witness.saved]).to_error()

    def _lost_in(self, event: ChunkCommitted | GroupSalvaged) -> frozenset[tuple[int, int]]:
        """(lane, step) that environments did not come back from in the chunk of an event."""
        told = self._lost.pop(event.group, None)
        return frozenset(told.steps) if told is not None and told.chunk == event.chunk else frozenset()

    def _publish(self, number: int, event: PolicyPublished) -> None:
        assert self._snapshots is not None, "made with the learner"
        version = self.learner.publish()
        arrays, checksum = self._snapshots.newest()
        if (version, checksum, self._ledger(event.ledger)) != (event.version, event.checksum, dict(event.ledger)):
            ledger = self.learner.algorithm.ledger()
            raise self.judge.policy(number, event, version, checksum, ledger, self._batches_equal).to_error()
        self._policies.keep(version, self._layout, arrays)

    def _compare_weights(self, number: int, updates: int, sha256: str, ledger: dict[str, float]) -> None:
        algorithm, replayed = self.learner.algorithm, self._ledger(ledger)
        if sha256 != algorithm.weights_sha256() or ledger != replayed:
            both = sha256, algorithm.weights_sha256()
            raise self.judge.weights(number, updates, both, (ledger, replayed), self._batches_equal).to_error()

    def _ledger(self, recorded: Mapping[str, float]) -> dict[str, float]:
        """What the replay has done, as far as the record says anything about it."""
        return {name: value for name, value in self.learner.algorithm.ledger().items() if name in recorded}

    @property
    def _batches_equal(self) -> bool | None:
        """Whether all batches so far were equal; None: they were not recorded."""
        return True if self._config.record.batches and not self._config.on_policy else None

    def _succeed(self, save: int) -> None:
        self._witness.forget()
        self.failed = None
        self.learner, self._layout = self._build(Replay(self.block, resume=True))
        self.learner.resume(self._saved.get(save))

    def _build(self, replay: Replay) -> tuple[BaseLearner, SnapshotLayout]:
        return build_learner(self._config, self._spaces, replay, self._published_in, self._slot, self._witness)

    def _published_in(self, layout: SnapshotLayout) -> Snapshots:
        if self._snapshots is None:
            shared = SharedBlock.create(layout.nbytes)
            self._stack.callback(shared.close)
            self._snapshots = Snapshots(layout, shared.buf)
        return self._snapshots


class Crew:
    """The collectors of a replay, each in the incarnation and with the policy the record names.

    Args:
        basics: Of the run.
        spaces: Of one environment.
        block: The lanes.
        policies: Those of the record.
        slot: The replay's place on a board.
        apart: Keeps what environments set in torch from the learner.
    """

    def __init__(
        self, basics: Basics, spaces: EnvSpaces, block: LaneBlock, policies: Policies, slot: Slot, apart: TorchApart
    ) -> None:
        self._basics = basics
        self._policy = spaces.policy(basics.config)
        self._block = block
        self._policies = policies
        self._slot = slot
        self._apart = apart
        self._there: dict[int, tuple[Collector, PinnedPolicy]] = {}

    def get(self, group: int, incarnation: int, version: int) -> Collector:
        """The group's collector in that incarnation, which will take that policy."""
        there = self._there.get(group)
        if there is None or there[0].group.incarnation != incarnation:
            self.discard(group)
            source, begin = PinnedPolicy(self._policies), GroupBeginning(incarnation)
            parts = self._basics, self._policy, group, self._block, source, self._slot, begin
            with self._apart.environments():
                there = self._there[group] = build_collector(*parts), source
        there[1].pin(version)
        return there[0]

    def discard(self, group: int) -> None:
        """The group's collector is gone."""
        there = self._there.pop(group, None)
        if there is not None:
            with self._apart.environments():
                there[0].close()

    def close(self) -> None:
        """Close every environment."""
        for group in list(self._there):
            self.discard(group)


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
        self.failures: dict[int, dict[str, Any]] = {}
        """What the learner failed with, by the number of the event in or before which it did."""
        self.events = 0
        for number, (_, event) in enumerate(trace.events(), 1):
            self.events = number
            if isinstance(event, Note) and event.kind == FAILED:
                self.failures[number - 1] = dict(event.facts)
            if isinstance(event, ChunkCommitted | GroupSalvaged):
                self.last_use[event.version] = number
            elif isinstance(event, LearnerSucceeded):
                self.saves_used.add(event.number)


class _Comparing(Nobody):
    """The witness of a replay."""

    def __init__(self) -> None:
        self._first = 0
        self._prints: NDArray[np.uint32] = np.zeros((0, 3), np.uint32)
        self._drawn = -1
        self.saved: list[Salvaged] = []

    def forget(self) -> None:
        """Another learner begins, and may make the same update again."""
        self._drawn = -1

    def expect(self, first: int, prints: NDArray[np.uint32]) -> None:
        """Fingerprints of the batches after ``first`` updates."""
        self._first, self._prints = first, prints

    def drew(self, drawn: Drawn, updates: int) -> None:
        """See `headrace.learners.witness.Witness`."""
        if updates == self._drawn:  # only who looks at the run can do that
            raise ConfigError(
                f"the batch of update {updates + 1:,} was drawn twice in this replay, so what follows would be drawn otherwise",
                fix="make the update of a batch that was drawn: algorithm.update(batch); begin a new replay",
            )
        self._drawn = updates
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
