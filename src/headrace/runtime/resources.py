"""What the parent of a run owns: descriptors of shared memory and pipes, and the descriptions of its children."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from headrace.collectors.restoring import EPISODES_FILE
from headrace.core.config import FROZEN, DeadlinesConfig
from headrace.core.errors import ConfigError
from headrace.ipc.channel import MessagePipe
from headrace.ipc.shm import SharedBlock
from headrace.lanes.credits import CREDIT_BYTES, commit_bytes
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import LaneBooks
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import (
    Basics,
    CollectorPayload,
    EnvSpaces,
    EvaluatorPayload,
    LearnerPayload,
    groups_of,
)
from headrace.runtime.resume import ResumePoint
from headrace.supervision.spec import ChildSpec, RestartBudget
from headrace.telemetry.board import Activity
from headrace.weights.snapshot import SnapshotLayout

_FILES_PER_COLLECTOR = 6
"""Two pipes with two ends each, its control channel, its process."""
_FILES_BESIDES = 24
"""Those of the other components, shared memory, and what a start or a look at stacks needs for a moment."""


def collector_ids(config: ExperimentConfig) -> list[str]:
    """Ids of the collector processes; none in the inline schedule."""
    return [] if config.run.schedule == "inline" else [f"collector-{n}" for n in range(config.run.collectors)]


def components(config: ExperimentConfig) -> list[tuple[str, str]]:
    """Id and kind of every component of a run, in the order of the board."""
    evaluator = [("evaluator", "evaluator")] if config.evaluation.episodes else []
    collectors = [(child_id, "collector") for child_id in collector_ids(config)]
    return [("supervisor", "supervisor"), ("probe", "probe"), ("learner", "learner"), *collectors, *evaluator]


class Resources:
    """Shared memory and pipes. The parent keeps all ends, so a component can be replaced at any time.

    Args:
        config: Of the run.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        self.spaces: EnvSpaces | None = None
        self.layout: SnapshotLayout | None = None
        self.block: LaneBlock | None = None
        self.books: LaneBooks | None = None
        self.resume: ResumePoint | None = None
        """Where the run goes on; None: it is new."""
        self.streams: list[int] | None = None
        """Incarnation of each group's random streams that the first collectors go on with; told by the learner."""
        self.record_lost: str | None = None
        """Why the record has ended early; None: it has not."""
        self.left_out: set[int] = set()
        """Groups that no collector is given any more."""
        self._shared: list[SharedBlock] = []
        self._pipes: list[tuple[MessagePipe, MessagePipe]] = []

    def allocate(self, spaces: EnvSpaces) -> None:
        """Make lanes and pipes for an environment with these spaces.

        Raises:
            ConfigError: The machine refuses the memory, so many open files, or pipes that hold all that may be in flight,
                or a commit would not fit into a pipe's atomic write.
        """
        _require_descriptors(len(collector_ids(self._config)))
        self.spaces = spaces
        geometry = spaces.geometry(self._config)
        lanes = SharedBlock.create(geometry.nbytes)
        self._shared = [lanes, SharedBlock.create(1)]  # the learner gives the second its size
        self.block = LaneBlock(geometry, lanes.buf)
        self.books = LaneBooks(self.block)
        size = commit_bytes(self._config.env.group_size)
        for number in range(len(collector_ids(self._config))):
            pair = MessagePipe.create(CREDIT_BYTES), MessagePipe.create(size)
            self._pipes.append(pair)
            for pipe, messages in zip(pair, _in_flight(self._config, number), strict=True):
                _make_room(self._config, pipe, messages)

    def groups_left(self, collector_id: str) -> tuple[int, ...]:
        """Groups of a collector that have not been left out."""
        number = int(collector_id.removeprefix("collector-"))
        return tuple(group for group in groups_of(self._config, number) if group not in self.left_out)

    def learner_fds(self) -> Mapping[str, int]:
        """Descriptors the learner is given."""
        fds = self._memory_fds()
        for number, (credit_pipe, commit_pipe) in enumerate(self._pipes):
            fds |= {f"credits-{number}": credit_pipe.writer_fd, f"commits-{number}": commit_pipe.reader_fd}
        return fds

    def collector_fds(self, number: int) -> Mapping[str, int]:
        """Descriptors a collector is given."""
        credit_pipe, commit_pipe = self._pipes[number]
        return self._memory_fds() | {"credits": credit_pipe.reader_fd, "commits": commit_pipe.writer_fd}

    def _memory_fds(self) -> dict[str, int]:
        return {"lanes": self._shared[0].fd, "snapshots": self._shared[1].fd}

    def stop_collecting(self) -> None:
        """Have collectors leave at their next step, also if there is no learner to tell them."""
        if self.block is not None:
            self.block.stopping[:] = 1

    def close(self) -> None:
        """Give everything back."""
        self.block = self.books = None
        for shared in self._shared:
            shared.close()
        for pair in self._pipes:
            for pipe in pair:
                pipe.close()
        self._shared, self._pipes = [], []


def _require_descriptors(collectors: int) -> None:
    """Refuse what would end with "Too many open files" in the middle of the start, or at the first replacement."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = len(os.listdir("/dev/fd")) + _FILES_PER_COLLECTOR * collectors + _FILES_BESIDES  # noqa: PTH208 - a count
    if limit != resource.RLIM_INFINITY and need > limit:
        raise ConfigError(
            "this process may not open as many files as the run needs: Too many open files",
            needed=f"{need} ({_FILES_PER_COLLECTOR} for each of {collectors} collectors, and others)",
            limit=limit,
            fix="raise it with ulimit -n, or lower run.collectors",
        )


def _in_flight(config: ExperimentConfig, collector: int) -> tuple[int, int]:
    """Credits and commits that may be on their way to and from a collector at once.

    A group has at most a window of chunks that are granted and not taken over, and a credit grants one or more of them.
    A window of credits may be left of a collector that has died when its successor is granted another one, and the end
    takes one credit more. Commits of one that has died are taken before its successor is granted anything; but both may
    send a last one, which takes no credit.
    """
    groups, window = len(groups_of(config, collector)), _window(config)
    return groups * (2 * window + 1), groups * (window + 2)


def _window(config: ExperimentConfig) -> int:
    """Chunks of one group that may be granted and not taken over; in rounds one."""
    return config.chunks_ahead if config.run.schedule == "async" else 1


def _make_room(config: ExperimentConfig, pipe: MessagePipe, messages: int) -> None:
    """Refuse what would end with a full pipe in the middle of the run: nobody waits for room in one."""
    try:
        pipe.make_room(messages)
    except OSError as error:
        env, window = config.env, _window(config)
        ahead = "rollout.max_policy_lag" if config.on_policy else "collect.window_chunks"
        raise ConfigError(
            "the collectors have more groups than their pipes to the learner can carry the messages of: "
            f"{error.strerror}",
            groups_of_a_collector=f"{len(groups_of(config, 0)):,} ({env.lanes:,} lanes in groups of {env.group_size}, "
            f"{config.run.collectors} collectors)",
            messages_in_flight=f"{messages:,} of {pipe.message_bytes} bytes ({window} chunks ahead in each group)",
            needed_bytes=pipe.bytes_for(messages),
            fix=f"raise env.group_size or run.collectors, lower env.lanes{f' or {ahead}' if window > 1 else ''}, or raise "
            "/proc/sys/fs/pipe-max-size and /proc/sys/fs/pipe-user-pages-soft",
        ) from None


class _Handover:
    """What children are started with, as far as it is known when they are."""

    def __init__(self, basics: Basics, resources: Resources, checkpoints: Path) -> None:
        self._basics = basics
        self._resources = resources
        self._checkpoints = checkpoints
        self._record = checkpoints.parent / "record"

    @property
    def _spaces(self) -> EnvSpaces:
        assert self._resources.spaces is not None, "the probe comes first"
        return self._resources.spaces

    def learner(self, incarnation: int) -> LearnerPayload:
        resources = self._resources
        return LearnerPayload(
            self._basics,
            self._spaces,
            self._checkpoints,
            self._record,
            incarnation,
            resources.resume,
            resources.streams,
            resources.record_lost,
        )

    def collector(self, number: int, incarnation: int) -> CollectorPayload:
        resources = self._resources
        assert resources.layout is not None, "the learner comes before the collectors"
        assert resources.streams is not None, "the learner comes before the collectors"
        resumed = resources.resume is not None and self._basics.config.checkpoint.restore_episodes
        return CollectorPayload(
            self._basics, self._spaces, resources.layout, resources.groups_left(f"collector-{number}"), incarnation,
            tuple(resources.streams), self._record / EPISODES_FILE if resumed else None,
        )  # fmt: skip

    def evaluator(self) -> EvaluatorPayload:
        return EvaluatorPayload(self._basics, self._spaces, self._checkpoints)


LEARNER = "headrace.runtime.training:main"


def child_specs(
    basics: Basics, resources: Resources, checkpoints: Path, learner_target: str = LEARNER
) -> list[ChildSpec]:
    """Every child of a run, in the order of their start."""
    config = basics.config
    limits = activity_limits(config.deadlines)
    stop_s = config.deadlines.stop_s
    never = RestartBudget(max_restarts=0)
    learner = never if config.supervision.learner_death == "fail" else None
    hand = _Handover(basics, resources, checkpoints)
    specs = [
        ChildSpec(
            id="probe", kind="probe", target="headrace.runtime.components:probe", payload=lambda _: basics,
            deadlines=limits, stop_timeout_s=stop_s, budget=never,
        ),
        ChildSpec(
            id="learner", kind="learner", target=learner_target,
            payload=hand.learner, fds=resources.learner_fds, deadlines=limits, stop_timeout_s=stop_s, budget=learner,
        ),
    ]  # fmt: skip
    for number, child_id in enumerate(collector_ids(config)):
        specs.append(
            ChildSpec(
                id=child_id, kind="collector", target="headrace.runtime.components:collector",
                payload=partial(hand.collector, number),
                fds=partial(resources.collector_fds, number),
                deadlines=limits, stop_timeout_s=stop_s, expendable=config.supervision.when_spent == "degrade",
            )
        )  # fmt: skip
    if config.evaluation.episodes:
        specs.append(
            ChildSpec(
                id="evaluator", kind="evaluator", target="headrace.runtime.evaluation:evaluator",
                payload=lambda _: hand.evaluator(),
                deadlines=limits, stop_timeout_s=stop_s,
            )
        )  # fmt: skip
    return specs


def activity_limits(deadlines: DeadlinesConfig) -> dict[Activity, float]:
    """Seconds an activity may last.

    Whoever waits is not to blame, and gives up or looks up by itself after its limit. One that does not is frozen
    (SIGSTOP, a debugger), and is found a little later; the learner waits longer still, so as to see it replaced.
    """
    frozen_s = FROZEN * deadlines.wait_s
    waits = (Activity.WAIT_COMMANDS, Activity.WAIT_WEIGHTS, Activity.WAIT_ACTIONS, Activity.WAIT_RESULTS)
    return {
        **dict.fromkeys((*waits, Activity.WAIT_ACK), frozen_s),
        Activity.WAIT_CREDIT: FROZEN * deadlines.credit_limit_s,
        Activity.WAIT_ROWS: 2.0 * deadlines.rows_limit_s,
        Activity.START: deadlines.start_s,
        Activity.ENV_CONSTRUCT: deadlines.start_s,
        Activity.ENV_RESET: deadlines.reset_s,
        Activity.ENV_STEP: deadlines.step_s,
        Activity.ENV_CLOSE: deadlines.stop_s,
        # Who steps it for us sees to its deadline, and to its replacement.
        Activity.WAIT_ENV: FROZEN * (max(deadlines.reset_s, deadlines.step_s) + deadlines.start_s),
        Activity.POLICY: deadlines.step_s,
        Activity.COMMIT: deadlines.commit_s,
        Activity.SAMPLE: deadlines.update_s,
        Activity.UPDATE: deadlines.update_s,
        Activity.PUBLISH: deadlines.publish_s,
        Activity.LOAD_WEIGHTS: deadlines.publish_s,
        Activity.EVALUATE: deadlines.evaluate_s,
        Activity.CHECKPOINT: deadlines.checkpoint_s,
        Activity.RECORD: deadlines.checkpoint_s,
        Activity.RESUME: deadlines.checkpoint_s,
    }
