"""The learner's process: one learner, a source of chunks, and a schedule that drives the two."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

from headrace.collectors.collector import Collector
from headrace.collectors.restoring import Episodes
from headrace.core.clock import Clock, MonotonicClock
from headrace.core.garbage import uncollected
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.lanes.credits import CREDIT_BYTES, Commit, commit_bytes
from headrace.learners.base import BaseLearner
from headrace.learners.ledgerbook import LedgerBook
from headrace.record.events import FAILED
from headrace.runtime.asynchronous import run_async
from headrace.runtime.beginning import Begun, begin
from headrace.runtime.checkpointing import Keeper
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.environments import lent_environments
from headrace.runtime.groups import Groups, InlineGroups, RemoteGroups, attached_pipes
from headrace.runtime.lockstep import run_rounds
from headrace.runtime.overlapped import run_rollouts
from headrace.runtime.payloads import (
    GroupBeginning,
    LearnerPayload,
    attach_snapshots,
    build_collector,
    groups_of,
)
from headrace.runtime.recording import failure
from headrace.supervision.messages import Command, Done, Ready, Report, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State
from headrace.weights.snapshot import SnapshotReader

_REPORT_EVERY_S = 0.5


class Schedule(Protocol):
    """What a schedule has to know when collectors come and go."""

    def on_commit(self, commit: Commit) -> None:
        """A commit was found while looking after a lost collector."""
        ...

    def on_lost(self, groups: Sequence[int]) -> None:
        """These groups' collector is gone; called before its rows are salvaged."""
        ...

    def on_joined(self, groups: Sequence[int]) -> None:
        """These groups have a new collector, which waits for credit."""
        ...

    def state(self) -> dict[str, Any]:
        """What another one of its kind needs to go on from here, as JSON knows it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether a run that goes on from here does the very same as one that is not stopped."""
        ...


class Training:
    """What every schedule needs besides the learner: orders from the supervisor, reports, frozen policies.

    Args:
        learner: The learner.
        groups: Where chunks come from.
        control: To the supervisor.
        config: Of the run.
        keeper: Keeps policies, states and checkpoints.
        slot: The learner's place on the board.
        clock: For the pace of reports.
    """

    def __init__(
        self,
        learner: BaseLearner,
        groups: Groups,
        control: Channel,
        config: ExperimentConfig,
        keeper: Keeper,
        slot: Slot,
        clock: Clock,
    ) -> None:
        self.learner = learner
        self.groups = groups
        self.config = config
        self.stop_reason: str | None = None
        """Why collecting ended before its target; None while it goes on."""
        self._control = control
        self._keeper = keeper
        self._slot = slot
        self._clock = clock
        self._reported_s = clock.now()
        every = config.evaluation.every_steps
        self._next_evaluation = (learner.env_steps // every + 1) * every if every else 0
        self._evaluated_version = 0
        self._ledger = begin_ledger(learner, config)
        self.schedule_facts: Mapping[str, Any] = {}
        """State of the schedule where the run was resumed."""

    def goes_on(self, checkpoint: Mapping[str, Any], episodes: Episodes) -> None:
        """Take over what a checkpoint's facts say beside the learner's own state, and the episodes that are running."""
        self.schedule_facts = checkpoint["schedule"]
        self._evaluated_version = checkpoint["schedule"]["evaluated_version"]
        for group, problem in self.groups.restore(episodes).items():
            self.learner.salvage(group)
            self._say(Report("not_restored", {"group": group, "problem": problem}))
            self.groups.begin_anew(group, self.learner.incarnations[group])

    @property
    def control_fd(self) -> int:
        """Descriptor on which orders arrive."""
        return self._control.fileno()

    @property
    def collecting(self) -> bool:
        """Whether more environment steps are wanted."""
        return self.stop_reason is None and self.learner.env_steps < self.config.run.steps

    def tick(self, schedule: Schedule) -> None:
        """Follow orders that have arrived, and report now and then. Never blocks.

        Raises:
            ChannelClosed: The supervisor is gone.
        """
        for message in self._control.receive_all():
            match message:
                case Stop(reason):
                    self.stop_reason = self.stop_reason or reason
                case Command("lost", facts):
                    self._lost(schedule, facts["collector"])
                case Command("note", facts):
                    self._note(facts)
                case Command("left_out", facts):
                    self.groups.leave_out(facts["groups"])
                case Command("joined", facts):
                    schedule.on_joined(self.groups.joined(facts["collector"], facts["incarnation"]))
        now = self._clock.now()
        if now - self._reported_s >= _REPORT_EVERY_S and not self._control.unsent_bytes:
            self._reported_s = now
            self._control.try_send(Report("metrics", self.facts() | {"values": self._values()}))
            self._tell_suspicions()
            self._tell_ledger()
        self._keeper.let_rows_go()
        if self._keeper.state_due and self.learner.at_rest:
            self._slot.enter(Activity.CHECKPOINT)
            problem = self._keeper.state()
            if problem is not None:
                self._say(Report("not_saved", {"problem": problem}))

    def learn(self, schedule: Schedule) -> None:
        """Make the updates that are due; none is begun while the end hurries, but an epoch set that is open is completed."""
        learner = self.learner
        while not learner.at_rest or (learner.due and not self.groups.hurried()):
            learner.update()
            self.tick(schedule)

    def _note(self, facts: Mapping[str, Any]) -> None:
        """Something the supervisor wants to have in the record."""
        if facts["kind"] == "evaluated":
            self._keeper.evaluated(facts["version"], facts["mean_reward"])
        else:
            self._keeper.note(**facts)

    def _tell_suspicions(self) -> None:
        """Each once, and again when it changes."""
        for finding in self.learner.suspicion.news() if self.learner.suspicion is not None else ():
            self._say(Report("suspicious", finding.plain()))

    def _tell_ledger(self, *, final: bool = False) -> None:
        """Whatever was not done as declared at two looks in a row, once."""
        for entry in self._ledger.news(final=final):
            self._say(Report("ledger", entry))

    def _lost(self, schedule: Schedule, collector: int) -> None:
        """Its process has been reaped: take what it had committed, then what it had only written."""
        for commit in self.groups.take():
            schedule.on_commit(commit)
        lost = self.groups.lost(collector)
        schedule.on_lost(lost)
        salvaged = sum(self.learner.salvage(group) for group in lost)
        self._say(Report("salvaged", {"collector": collector, "transitions": salvaged}))

    def leave(self, schedule: Schedule) -> None:
        """Let every group commit what it has; nothing that was collected is left behind."""
        leaving = set(self.groups.stop())
        while leaving:
            for commit in self.groups.take():
                schedule.on_commit(commit)
                if commit.last:
                    leaving.discard(commit.group)
            self.tick(schedule)
            leaving.intersection_update(self.groups.present())
            if leaving:
                self.groups.wait(sorted(leaving), self.control_fd)

    def boundary(self, schedule: Schedule) -> None:
        """Between updates, the newest weights published: an evaluation and a checkpoint, if they are due."""
        if self._evaluation_due and self.learner.updates:
            every = self.config.evaluation.every_steps
            self._next_evaluation = (self.learner.env_steps // every + 1) * every
            self.freeze()
            if self.config.checkpoint.enabled:  # so that the best one by evaluation is kept whole
                self.checkpoint(schedule)
        elif self._keeper.checkpoint_due:
            self.checkpoint(schedule)

    @property
    def boundary_due(self) -> bool:
        """Whether `boundary` would do something."""
        return self._evaluation_due or self._keeper.checkpoint_due

    @property
    def _evaluation_due(self) -> bool:
        return bool(self.config.evaluation.every_steps) and self.learner.env_steps >= self._next_evaluation

    def checkpoint(self, schedule: Schedule) -> None:
        """Write a checkpoint, and tell; the policy in it is that of the updates it names."""
        self.learner.publish()
        self._slot.enter(Activity.CHECKPOINT)
        state = {**schedule.state(), "evaluated_version": self._evaluated_version}
        facts = self._keeper.checkpoint(state, exact=schedule.exact)
        written = "problem" not in facts
        self._ledger.checkpointed(facts["updates"], facts["env_steps"], self._clock.now(), written=written)
        if written:
            self._slot.add("checkpoints")
        self._say(Report("saved" if "problem" not in facts else "not_saved", facts))

    def freeze(self) -> None:
        """Write the newest policy to disk and ask for its evaluation; on a disk that is full there is none."""
        version = self.learner.publish()
        if version == self._evaluated_version:
            return
        self._evaluated_version = version
        self._slot.enter(Activity.CHECKPOINT)
        self._ledger.frozen()
        facts = self._keeper.policy()
        self._say(Report("not_frozen" if "problem" in facts else "frozen", facts))

    def facts(self) -> dict[str, Any]:
        """Counts as they are now; what has no source yet is None."""
        learner = self.learner
        return {
            "env_steps": learner.env_steps,
            "updates": learner.updates,
            "version": learner.version,
            "sampled": learner.sampled,
            "episodes": learner.episodes.counts(),
            "mean_return": learner.episodes.mean_return,
            "mean_length": learner.episodes.mean_length,
            "agents": learner.episodes.by_agent(),
            "policy_ratios": learner.policies.ratios(learner.replay.books, learner.updates),
            "lag": {"mean": learner.lag.mean, "max": learner.lag.max},
            "ratio": learner.limiter.measured(learner.env_steps, learner.updates),
            "first_update_at": learner.first_update_at,
            "ledger": self._ledger.facts(
                learner.algorithm.ledger(), learner.updates, learner.env_steps, learner.asked_updates, self._clock.now()
            ),
            "warnings": [finding.plain() for finding in learner.suspicion.findings] if learner.suspicion else [],
        }

    def _values(self) -> dict[str, float]:
        """What the algorithm has measured since the last call."""
        return self.learner.policies.named(self.learner.algorithm.metrics())

    def finish(self, schedule: Schedule) -> None:
        """The last policy, the last checkpoint, the last counts."""
        if self.config.evaluation.episodes:
            self.freeze()
        if self.config.checkpoint.enabled:
            self.checkpoint(schedule)
        self._keeper.end()
        if self.learner.suspicion is not None:
            self.learner.suspicion.close()
            self._tell_suspicions()
        facts = self.facts() | {
            "weights_sha256": self.learner.algorithm.weights_sha256(),
            "values": self._values(),
            "stop_reason": self.stop_reason,
        }
        self._tell_ledger(final=True)
        tell(self._control, self._slot, Done(facts), last=True)

    def _say(self, message: object) -> None:
        tell(self._control, self._slot, message)


def _driver(config: ExperimentConfig) -> Callable[[Training], Schedule]:
    if config.run.schedule != "async":
        return run_rounds
    return run_rollouts if config.on_policy else run_async


def begin_ledger(learner: BaseLearner, config: ExperimentConfig) -> LedgerBook:
    """The learner's ledger, from where it stands now."""
    inline = config.run.schedule == "inline"
    owners = [
        "learner" if inline else f"collector-{group % config.run.collectors}" for group in range(config.env.groups)
    ]
    due = 0 if config.declared_ratio is None else learner.limiter.updates_due(learner.env_steps)
    learner.ledger = book = LedgerBook(config, owners)
    book.begin(learner.updates, learner.env_steps, learner.version, behind=max(0, due - learner.updates))
    return book


def main(context: ChildContext) -> None:
    """Entry point of the learner's process."""
    payload: LearnerPayload = context.payload
    config = payload.basics.config
    with uncollected():
        importlib.import_module("torch")  # most of what a start takes
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(payload.basics.board))
        slot = board.slot(context.id)
        begun = stack.enter_context(begin(payload, context.fds, slot, context.control))
        groups = stack.enter_context(open_groups(payload, context.fds, board, slot, begun, context.control))
        if payload.succeeds:
            groups.take()  # what the dead learner had not read was salvaged from the rows themselves
        begun.learner.publish()
        facts = {
            "layout": begun.layout, "resumed": begun.succeeded, "streams": begun.streams,
            "record_lost": begun.keeper.record_lost,
        }  # fmt: skip
        tell(context.control, slot, Ready(facts))
        slot.set_state(State.RUNNING)
        training = Training(begun.learner, groups, context.control, config, begun.keeper, slot, MonotonicClock())
        if payload.resume is not None and not payload.succeeds:
            training.goes_on(payload.resume.facts, begun.episodes)
        try:
            schedule = _driver(config)(training)
        except Exception as error:
            begun.keeper.note(FAILED, **failure(error))
            raise
        training.finish(schedule)


@contextmanager
def open_groups(
    payload: LearnerPayload, fds: dict[str, int], board: Board, slot: Slot, begun: Begun, control: Channel,
    inline: Callable[..., InlineGroups] = InlineGroups,
) -> Iterator[Groups]:  # fmt: skip
    """Where the chunks of a run come from: environments here, or collectors."""
    config, learner = payload.basics.config, begun.learner
    if config.run.schedule == "inline":
        snapshots = attach_snapshots(begun.layout, os.dup(fds["snapshots"]))
        policy = payload.spaces.policy(config)

        def build(group: int, begin: GroupBeginning) -> Collector:
            block, reader = learner.replay.block, SnapshotReader(snapshots)
            return build_collector(payload.basics, policy, group, block, reader, slot, begin)

        stopping = learner.replay.block.stopping
        anew = payload.incarnation if payload.succeeds else 0

        own = {group: GroupBeginning(stream + anew, begun.resumed) for group, stream in enumerate(begun.streams)}
        block = learner.replay.block
        with lent_environments(
            payload.basics, payload.spaces, own, block, slot, partial(tell, control, slot)
        ) as beginnings:
            begins = list(beginnings.values())
            groups = inline(build, begins, config.collect.chunk_steps, lambda: bool(stopping[0]), begun.apart)
            yield groups
            groups.close()
        return
    owned = [groups_of(config, collector) for collector in range(config.run.collectors)]
    with attached_pipes(fds, len(owned), (CREDIT_BYTES, commit_bytes(config.env.group_size))) as pipes:
        limit_s, present = config.deadlines.rows_limit_s, not payload.succeeds
        yield RemoteGroups(owned, pipes, learner.replay.block, board, slot, limit_s, present=present)
