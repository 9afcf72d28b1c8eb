"""The learner's process: one learner, a source of chunks, and a schedule that drives the two."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from headrace.algorithms.registry import build_algorithm
from headrace.core import seeding
from headrace.core.clock import Clock, MonotonicClock
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.lanes.credits import CREDIT_BYTES, Commit, commit_bytes
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import UniformSampler
from headrace.learners.checkpoint import STATE_FILE, LearnerState
from headrace.learners.learner import Learner, LearnerParts
from headrace.learners.oddities import Expected
from headrace.learners.suspicion import Suspicion
from headrace.runtime.asynchronous import run_async
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.groups import Groups, InlineGroups, RemoteGroups, attached_pipes
from headrace.runtime.lockstep import run_rounds
from headrace.runtime.payloads import (
    LearnerPayload,
    attach_lanes,
    attach_snapshots,
    build_collector,
    group_lanes,
    groups_of,
)
from headrace.supervision.messages import Command, Done, Ready, Report, Stop
from headrace.telemetry.board import Activity, Board, Slot, State
from headrace.weights.policy_file import save_policy
from headrace.weights.snapshot import SnapshotLayout

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


class Training:
    """What every schedule needs besides the learner: orders from the supervisor, reports, frozen policies.

    Args:
        learner: The learner.
        groups: Where chunks come from.
        control: To the supervisor.
        config: Of the run.
        checkpoints: Folder for policies.
        slot: The learner's place on the board.
        clock: For the pace of reports.
    """

    def __init__(
        self,
        learner: Learner,
        groups: Groups,
        control: Channel,
        config: ExperimentConfig,
        checkpoints: Path,
        slot: Slot,
        clock: Clock,
    ) -> None:
        self.learner = learner
        self.groups = groups
        self.config = config
        self.stop_reason: str | None = None
        """Why collecting ended before its target; None while it goes on."""
        self._control = control
        self._checkpoints = checkpoints
        self._slot = slot
        self._clock = clock
        self._reported_s = clock.now()
        every = config.evaluation.every_steps
        self._next_evaluation = (learner.env_steps // every + 1) * every if every else 0
        self._saved_s = clock.now()
        self._evaluated_version = 0

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
                case Command("left_out", facts):
                    self.groups.leave_out(facts["groups"])
                case Command("joined", facts):
                    schedule.on_joined(self.groups.joined(facts["collector"], facts["incarnation"]))
        now = self._clock.now()
        if now - self._reported_s >= _REPORT_EVERY_S and not self._control.unsent:
            self._reported_s = now
            self._control.try_send(Report("metrics", self.facts() | {"values": self.learner.algorithm.metrics()}))
            self._tell_suspicions()
        self._save(now)

    def _save(self, now_s: float) -> None:
        """Keep the learner's own state, so that another one can go on from it."""
        supervision = self.config.supervision
        if supervision.learner_death != "resume" or now_s - self._saved_s < supervision.learner_save_every_s:
            return
        self._saved_s = now_s
        self._slot.enter(Activity.CHECKPOINT)
        try:
            self.learner.state().save(self._checkpoints / STATE_FILE)
        except OSError as error:
            self._say(Report("not_saved", {"problem": str(error)}))

    def _tell_suspicions(self) -> None:
        """Each once, and again when it changes."""
        for finding in self.learner.suspicion.news() if self.learner.suspicion is not None else ():
            self._say(Report("suspicious", finding.plain()))

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

    def boundary(self) -> None:
        """Between updates, the newest weights published: freeze a policy for evaluation if one is due."""
        every = self.config.evaluation.every_steps
        if not every or self.learner.env_steps < self._next_evaluation or not self.learner.updates:
            return
        self._next_evaluation = (self.learner.env_steps // every + 1) * every
        self.freeze()

    @property
    def evaluation_due(self) -> bool:
        """Whether `boundary` would freeze a policy."""
        return bool(self.config.evaluation.every_steps) and self.learner.env_steps >= self._next_evaluation

    def freeze(self) -> None:
        """Write the newest policy to disk and ask for its evaluation."""
        version = self.learner.publish()
        if version == self._evaluated_version:
            return
        self._evaluated_version = version
        self._slot.enter(Activity.CHECKPOINT)
        facts = {"env_steps": self.learner.env_steps, "updates": self.learner.updates}
        save_policy(self._checkpoints, version, self.learner.algorithm.policy_arrays(), facts)
        self._slot.add("checkpoints")
        self._say(Report("frozen", {"version": version, **facts}))

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
            "lag": {"mean": learner.lag.mean, "max": learner.lag.max},
            "ratio": learner.limiter.measured(learner.env_steps, learner.updates),
            "first_update_at": learner.first_update_at,
            "warnings": [finding.plain() for finding in learner.suspicion.findings] if learner.suspicion else [],
        }

    def finish(self) -> None:
        """The last policy, the last counts."""
        if self.config.evaluation.episodes:
            self.freeze()
        if self.learner.suspicion is not None:
            self.learner.suspicion.close()
            self._tell_suspicions()
        facts = self.facts() | {
            "weights_sha256": self.learner.algorithm.weights_sha256(),
            "values": self.learner.algorithm.metrics(),
            "stop_reason": self.stop_reason,
        }
        self._say(Done(facts))

    def _say(self, message: object) -> None:
        self._control.send(message, timeout_s=self.config.deadlines.wait_s)


def main(context: ChildContext) -> None:
    """Entry point of the learner's process."""
    payload: LearnerPayload = context.payload
    config = payload.basics.config
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(payload.basics.board))
        slot = board.slot(context.id)
        learner, layout = build_learner(payload, context.fds, slot)
        resumed = resume(learner, payload) if payload.incarnation else None
        groups = stack.enter_context(_groups(payload, context.fds, board, slot, learner, layout))
        if resumed is not None:
            groups.take()  # what the dead learner had not read was salvaged from the rows themselves
        learner.publish()
        training = Training(learner, groups, context.control, config, payload.checkpoints, slot, MonotonicClock())
        context.control.send(Ready({"layout": layout, "resumed": resumed}), timeout_s=config.deadlines.start_s)
        slot.set_state(State.RUNNING)
        if config.run.schedule == "async":
            run_async(training)
        else:
            run_rounds(training)
        training.finish()


def build_learner(payload: LearnerPayload, fds: dict[str, int], slot: Slot) -> tuple[Learner, SnapshotLayout]:
    """The learner, fresh lanes, and the layout of the policies it publishes."""
    import torch

    config = payload.basics.config
    torch.set_num_threads(config.learn.threads)
    block = attach_lanes(payload.spaces, config, fds["lanes"])
    if not payload.incarnation:
        block.begin()
    replay = Replay(block, resume=bool(payload.incarnation))
    policy = payload.spaces.policy(config)
    algorithm = build_algorithm(
        config.algorithm, policy.observation_space, policy.action_space, config.run.seed, config.learn.device
    )
    layout = SnapshotLayout.of(algorithm.policy_arrays())
    os.ftruncate(fds["snapshots"], layout.nbytes)  # only here is it known how large a policy is
    parts = LearnerParts(
        replay=replay,
        sampler=UniformSampler(replay, seeding.generator(config.run.seed, "sampling")),
        algorithm=algorithm,
        snapshots=attach_snapshots(layout, fds["snapshots"]),
        limiter=rate_limiter(config),
        groups=tuple(group_lanes(config, group) for group in range(config.env.groups)),
        batch_size=config.algorithm.batch_size,
        gamma=config.algorithm.gamma,
        slot=slot,
        suspicion=suspicion(config, payload, replay),
    )
    return Learner(parts), layout


def resume(learner: Learner, payload: LearnerPayload) -> dict[str, int]:
    """Take the place of a learner that died: its newest saved state, and every row there is.

    Returns:
        What to tell about it.
    """
    missed = learner.resume(LearnerState.load(payload.checkpoints / STATE_FILE))
    groups = range(payload.basics.config.env.groups)
    salvaged = sum(learner.salvage(group) for group in groups)
    return {"updates": learner.updates, "env_steps": learner.env_steps, "salvaged": salvaged, "missed_rows": missed}


def suspicion(config: ExperimentConfig, payload: LearnerPayload, replay: Replay) -> Suspicion:
    """Who looks whether the environments make data up."""
    return Suspicion(
        replay.geometry.dtype,
        config.env.lanes,
        payload.spaces.observation,
        payload.spaces.action,
        Expected(
            continuing=config.env.continuing,
            max_episode_steps=config.env.max_episode_steps,
            acting_from=max(config.collect.random_steps, config.replay.learning_starts),
        ),
        replay.block.info_counts,
    )


def rate_limiter(config: ExperimentConfig) -> RateLimiter:
    """The declared replay ratio as a limiter."""
    replay = config.replay
    round_steps = config.env.lanes * config.collect.chunk_steps
    return RateLimiter(
        learning_starts=max(1, replay.learning_starts),
        ratio=None if replay.free_running else replay.ratio,
        slack_steps=replay.slack_steps or 2 * round_steps,
        target_steps=config.run.steps,
    )


@contextmanager
def _groups(
    payload: LearnerPayload, fds: dict[str, int], board: Board, slot: Slot, learner: Learner, layout: SnapshotLayout
) -> Iterator[Groups]:
    config = payload.basics.config
    if config.run.schedule == "inline":
        snapshots = attach_snapshots(layout, os.dup(fds["snapshots"]))
        policy = payload.spaces.policy(config)
        collectors = [
            build_collector(payload.basics, policy, group, learner.replay.block, snapshots, slot, payload.incarnation)
            for group in range(config.env.groups)
        ]
        stopping = learner.replay.block.stopping
        yield InlineGroups(collectors, config.collect.chunk_steps, lambda: bool(stopping[0]))
        for collector in collectors:
            collector.close()
        return
    owned = [groups_of(config, collector) for collector in range(config.run.collectors)]
    with attached_pipes(fds, len(owned), (CREDIT_BYTES, commit_bytes(config.env.group_size))) as pipes:
        limit_s, present = config.deadlines.rows_limit_s, not payload.incarnation
        yield RemoteGroups(owned, pipes, learner.replay.block, board, slot, limit_s, present=present)
