"""How a learner begins: with a new run, from a checkpoint, or in the place of one that died."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.collectors.restoring import EPISODES_FILE, Episodes, save_episodes
from headrace.core.clock import MonotonicClock
from headrace.core.errors import RunDirectoryError
from headrace.ipc.channel import Channel
from headrace.ipc.shm import SharedBlock
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import Replay
from headrace.lanes.unread import next_unread
from headrace.learners.base import BaseLearner
from headrace.learners.checkpoint import STATE_FILE, LearnerState
from headrace.learners.manifest import Checkpoint
from headrace.learners.recorder import Recorder
from headrace.learners.witness import Nobody
from headrace.record.events import RowPlace
from headrace.record.machine import environment_modules
from headrace.record.rows import RowReader
from headrace.record.trace import Trace
from headrace.runtime.assembly import build_learner, suspicion
from headrace.runtime.checkpointing import Keeper
from headrace.runtime.inheritance import HEADER_KEY, begin_with, beginning_of, require_spaces
from headrace.runtime.payloads import LearnerPayload, attach_lanes, group_lanes
from headrace.runtime.recording import TRACE_FILE, Inherited, header_facts, new_record, record_goes_on
from headrace.runtime.refill import refill
from headrace.runtime.torchapart import TorchApart
from headrace.supervision.messages import Report
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Slot
from headrace.weights.snapshot import SnapshotLayout, Snapshots

_SMALLER = "take a smaller network, or let this process and the machine have more memory"


@dataclass(frozen=True, slots=True)
class Begun:
    """A learner that is ready to take rows."""

    learner: BaseLearner
    layout: SnapshotLayout
    keeper: Keeper
    streams: list[int]
    """Incarnation of each group's random streams that the run's first collectors go on with."""
    succeeded: dict[str, int] | None = None
    """What to tell about taking the place of a learner that died."""
    resumed: bool = False
    """Whether collectors are to go on with the episodes that are running in the lanes."""
    episodes: Episodes = field(default_factory=dict)
    """Those."""
    apart: TorchApart = field(default_factory=TorchApart)
    """Keeps what environments in this process set in torch from the learner."""


@contextmanager
def begin(payload: LearnerPayload, fds: dict[str, int], slot: Slot, control: Channel) -> Iterator[Begun]:
    """The learner as it has to begin.

    Args:
        payload: What the supervisor has handed over.
        fds: Descriptors of ``lanes`` and ``snapshots``.
        slot: The learner's place on the board.
        control: To the supervisor.

    Raises:
        RunDirectoryError: A state or checkpoint cannot be read.
        RecordDamaged: The record does not hold what the checkpoint refers to.
    """
    desk = _Desk(payload, fds, slot, control)
    if payload.succeeds:
        begun = desk.succeed()
    elif payload.resume is not None:
        begun = desk.go_on()
    else:
        begun = desk.start()
    try:
        yield begun
    finally:
        if begun.keeper.recorder is not None:
            begun.keeper.recorder.close()


class _Desk:
    """The three ways to begin."""

    def __init__(self, payload: LearnerPayload, fds: dict[str, int], slot: Slot, control: Channel) -> None:
        self._payload = payload
        self._config = config = payload.basics.config
        self._fds = fds
        self._slot = slot
        self._control = control
        self._apart = TorchApart.from_start()
        self._block: LaneBlock = attach_lanes(payload.spaces, config, fds["lanes"])
        self._groups = tuple(group_lanes(config, group) for group in range(config.env.groups))

    def start(self) -> Begun:
        """A new run."""
        self._block.begin()
        if self._payload.incarnation:  # a predecessor died before it was ready, perhaps after it had begun a record
            for path in self._payload.record.glob("*.bin"):
                path.unlink()
        beginning = beginning_of(self._config)
        require_spaces(beginning, self._payload.spaces)

        def record() -> Recorder:
            folder, kept = self._payload.record, {}
            if beginning is not None:
                kept = {HEADER_KEY: beginning.keep(folder)}
            header = {**self._header(), **kept}
            return new_record(folder, self._config, header, self._record_lost, self._block, self._groups)

        recorder = self._opened(record)
        learner, layout = self._learner(Replay(self._block), recorder)
        begin_with(learner, beginning)
        return self._begun(learner, layout, recorder)

    def go_on(self) -> Begun:
        """From a checkpoint."""
        point = self._payload.resume
        assert point is not None, "there is a checkpoint to go on from"
        with self._reading():
            checkpoint = Checkpoint.read(point.folder)
            state = checkpoint.load()
            facts = point.facts
            with (
                RowReader(self._payload.record) as reader,
                Trace.open(self._payload.record / TRACE_FILE) as trace,
            ):
                wanted = self._config.checkpoint.restore_episodes
                refilled = refill(self._block, self._groups, trace, reader, facts, self._reads, episodes=wanted)
            recorder = self._goes_on(facts["trace_bytes"], RowPlace(*facts["rows"]))
        learner, layout = self._learner(Replay(self._block, resume=True), recorder)
        with self._reading():
            learner.restore(state, checkpoint.policy()[0], facts["running_from"])
        if recorder is not None:
            recorder.contents, recorder.saves = refilled.contents, facts["saves"]
            again = {"session": point.session, "machine": self._header()["machine"]}
            recorder.note(learner.updates, "resumed", again)
        if not wanted:
            for group in range(len(self._groups)):
                learner.salvage(group)
            return self._begun(learner, layout, recorder, list(learner.incarnations))
        save_episodes(self._payload.record / EPISODES_FILE, refilled.episodes)
        return replace(
            self._begun(learner, layout, recorder, list(learner.incarnations)), episodes=refilled.episodes, resumed=True
        )

    def succeed(self) -> Begun:
        """In the place of a learner that died: its newest saved state, and every row there is."""
        payload = self._payload
        with self._reading():
            replay = Replay(self._block, resume=True)
            inherited = self._inherited(replay)
            state, save = self._newest_state()
            recorder = None
            if inherited is not None:
                kept = self._config.record.rows != "none"
                rows_at = inherited.rows_at or RowPlace(0, 0) if kept else None
                recorder = self._goes_on(inherited.trace_bytes, rows_at)
        learner, layout = self._learner(replay, recorder, inherited.version if inherited is not None else 0)
        with self._reading():
            if recorder is not None and inherited is not None:
                recorder.contents, recorder.saves = inherited.contents, inherited.saves
                inherited.write_missing(recorder)
                recorder.succeeded(inherited.updates, save)
            missed = learner.resume(state)
            for group, lanes in enumerate(self._groups):
                while (commit := next_unread(replay, group, lanes)) is not None:
                    learner.commit(commit)
        salvaged = sum(learner.salvage(group) for group in range(len(self._groups)))
        told = {
            "updates": learner.updates, "env_steps": learner.env_steps, "salvaged": salvaged, "missed_rows": missed,
        }  # fmt: skip
        return self._begun(learner, layout, recorder, payload.streams, succeeded=told)

    def _newest_state(self) -> tuple[LearnerState | None, int]:
        """What this session's learner kept last, and its number in the record.

        0 is what the session itself began from; -1: there is nothing.
        """
        state, point = LearnerState.load(self._payload.checkpoints / STATE_FILE), self._payload.resume
        if state is not None:
            return state, int(state.facts["save"])
        return (None, -1) if point is None else (Checkpoint.read(point.folder).load(), 0)

    def _begun(
        self,
        learner: BaseLearner,
        layout: SnapshotLayout,
        recorder: Recorder | None,
        streams: list[int] | None = None,
        succeeded: dict[str, int] | None = None,
    ) -> Begun:
        payload, facts = self._payload, self._payload.spaces.facts()
        keeper = Keeper(
            payload.checkpoints, learner, recorder, self._config, facts, MonotonicClock(), payload.record_lost
        )
        if payload.resume is not None and not (payload.checkpoints / STATE_FILE).exists():
            keeper.save_at_once()  # until then a successor needs the checkpoint, which is pruned like any other
        streams = streams or [0] * len(self._groups)
        return Begun(learner, layout, keeper, streams, succeeded, apart=self._apart)

    def _learner(
        self, replay: Replay, recorder: Recorder | None, recorded_version: int = 0
    ) -> tuple[BaseLearner, SnapshotLayout]:
        def publish_to(layout: SnapshotLayout) -> Snapshots:
            snapshots = Snapshots(layout, SharedBlock.sized(self._fds["snapshots"], layout.nbytes, _SMALLER).buf)
            snapshots.show(max(snapshots.version, recorded_version))  # prepared and recorded, and perhaps not yet shown
            return snapshots

        return build_learner(
            self._config, self._payload.spaces, replay, publish_to, self._slot, recorder or Nobody(),
            suspicion(self._config, self._payload.spaces, self._block),
        )  # fmt: skip

    def _header(self) -> Mapping[str, Any]:
        import torch

        torch.set_num_threads(self._config.learn.threads)  # before it is asked how many there are
        with self._apart.environments():  # they may be imported by that
            modules = environment_modules(self._config.env, self._payload.basics.env_factory)
        return header_facts(self._config, self._block, modules)

    def _reads(self) -> None:
        """Tell that what an earlier learner left is being read; its limit counts from the last time this was told."""
        self._slot.enter(Activity.RESUME)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """While that is read. What follows is the start again: imports, and networks that are built, have its limit."""
        self._reads()
        yield
        self._slot.enter(Activity.START)

    def _inherited(self, replay: Replay) -> Inherited | None:
        file = self._payload.record / TRACE_FILE
        if self._payload.record_lost is not None:
            return None  # it ended, and what was missed since cannot be made good
        if not self._config.record.enabled or not file.exists():
            return None
        return Inherited(self._payload.record, replay, self._groups, self._reads)

    def _goes_on(self, trace_bytes: int, rows_at: RowPlace | None) -> Recorder | None:
        """The record from a place on, see `record_goes_on`; unless it is not wanted."""
        return self._opened(
            lambda: record_goes_on(
                self._payload.record, self._config.record, trace_bytes, rows_at, self._record_lost, self._block,
                self._groups,
            )
        )  # fmt: skip

    def _opened(self, make: Callable[[], Recorder]) -> Recorder | None:
        """The record, unless it is not wanted.

        Raises:
            RunDirectoryError: The disk does not take it; nothing has been learned yet.
        """
        if not self._config.record.enabled:
            return None
        try:
            return make()
        except OSError as error:
            raise RunDirectoryError(
                f"the record in {self._payload.record} cannot be written",
                problem=f"{type(error).__name__}: {error}",
                fix="make room on the disk, or set record.enabled = false and checkpoint.enabled = false",
            ) from error

    def _record_lost(self, problem: str) -> None:
        tell(self._control, self._slot, Report("record_lost", {"problem": problem}))
