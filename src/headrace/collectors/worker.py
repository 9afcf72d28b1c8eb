"""The loop of a collector's process: take credits, collect, commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.collectors.collector import Collector, Course, wait_for_any
from headrace.core.errors import ComponentStalled
from headrace.ipc.channel import Channel, MessagePipe
from headrace.lanes.credits import Commit, Credit
from headrace.telemetry.board import Activity, Board, Slot
from headrace.telemetry.waits import wait_readable


@dataclass(slots=True)
class _Progress:
    """Chunks of one group."""

    collector: Collector
    next_chunk: int = 0
    limit: int = 0
    course: Course | None = None
    """The chunk that is being collected."""

    @property
    def ready(self) -> bool:
        """Whether it can get on with a chunk, or begin one."""
        if self.course is None:
            return self.next_chunk < self.limit
        return not self.collector.awaited


class CollectorWorker:
    """Collects for one or more groups, a chunk of each at a time, while it has credit.

    Environments in this process are stepped a chunk at a time. While those in workers are at it, the other groups act.

    Args:
        collectors: One per group.
        incarnation: Credits for any other one are ignored.
        credit_pipe: Where credits come from.
        commit_pipe: Where commits go.
        control: To the supervisor; its end of file means that the run is over.
        board: Of the run.
    """

    def __init__(
        self,
        collectors: Mapping[int, Collector],
        incarnation: int,
        credit_pipe: MessagePipe,
        commit_pipe: MessagePipe,
        control: Channel,
        board: Board,
        slot: Slot,
    ) -> None:
        self._groups = {number: _Progress(collector) for number, collector in collectors.items()}
        self._incarnation = incarnation
        self._credits = credit_pipe
        self._commits = commit_pipe
        self._control = control
        self._board = board
        self._slot = slot
        self._stop = False
        self._env_steps = 0

    def run(self, chunk_steps: int, wait_s: float, stopping: Callable[[], bool]) -> None:
        """Collect until told to stop.

        Args:
            chunk_steps: Environment steps per lane and chunk.
            wait_s: Longest a wait for credit may last while the learner does nothing at all.
            stopping: Looked at between environment steps.

        Raises:
            ComponentStalled: The learner stood still for that long.
            ChannelClosed: The supervisor or the learner is gone.
        """
        collectors = [group.collector for group in self._groups.values()]
        while True:
            self._take_credits()
            self._stop |= bool(self._control.receive_all())  # the supervisor says nothing here but to leave
            if self._stop or stopping():
                break
            ready = [group for group in self._groups.values() if group.ready]
            if ready:
                self._advance(min(ready, key=lambda group: group.next_chunk), chunk_steps, stopping)
            elif not wait_for_any(collectors):
                self._wait(wait_s)
        for group in self._groups.values():
            while group.course is not None:  # what was begun is completed
                wait_for_any([group.collector])
                self._advance(group, chunk_steps, stopping)
            self._commit(group, group.collector.collect(group.next_chunk, 0), last=True)

    def _advance(self, group: _Progress, chunk_steps: int, stopping: Callable[[], bool]) -> None:
        """Get on with a group's chunk, as far as that is possible without waiting."""
        if group.course is None:
            group.course = group.collector.course(group.next_chunk, chunk_steps, stopping)
        try:
            next(group.course)
        except StopIteration as end:
            group.course = None
            self._commit(group, end.value)

    def _commit(self, group: _Progress, commit: Commit, *, last: bool = False) -> None:
        self._slot.enter(Activity.COMMIT)
        self._commits.put(
            Commit(commit.incarnation, commit.group, commit.chunk, commit.version, last, commit.lanes).pack()
        )
        group.next_chunk += 1
        self._env_steps += sum(lane.transitions for lane in commit.lanes)
        self._slot.count("env_steps", self._env_steps)
        self._slot.count("version", commit.version)
        self._slot.add("chunks")

    def _take_credits(self) -> None:
        for message in self._credits.take():
            credit = Credit.unpack(message)
            if credit.incarnation != self._incarnation or credit.group not in self._groups:
                continue
            group = self._groups[credit.group]
            group.next_chunk = max(group.next_chunk, credit.chunk)
            group.limit = max(group.limit, credit.limit)
            self._stop |= credit.stop

    def _wait(self, wait_s: float) -> None:
        """Wait for credit as long as the learner gets on with something, or waits for somebody else."""
        seen = self._board.read("learner").since_ns
        have = sum(group.limit - group.next_chunk for group in self._groups.values())
        fds = [self._credits.reader_fd, self._control.fileno()]
        ready = wait_readable(  # of the supervisor too: what it says is read before the next chunk
            self._slot, fds, activity=Activity.WAIT_CREDIT, on="learner", need=1, have=have,
            timeout_s=wait_s, raise_on_timeout=False,
        )  # fmt: skip
        learner = self._board.read("learner")
        waits_for_another = learner.activity is Activity.WAIT_ROWS and learner.waits_on not in (None, self._slot.id)
        if not ready and learner.since_ns == seen and not waits_for_another:  # that wait has a limit of its own
            raise ComponentStalled(
                f"{self._slot.id} waited {wait_s:g} s for credit, and the learner did nothing meanwhile",
                waits_on="learner",
                learner_is_busy_with=learner.activity.label,
                fix="see what the learner is doing: logs/learner.log; raise deadlines.credit_s if an update takes so long",
            )
