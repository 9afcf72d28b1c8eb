"""Where a schedule gets chunks from: collectors in this process, or in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from headrace.collectors.collector import Collector, followed
from headrace.collectors.restoring import Episodes
from headrace.core.errors import ComponentStalled, EpisodeNotRestored
from headrace.ipc.channel import MessagePipe
from headrace.lanes.credits import Commit, Credit
from headrace.lanes.lane import LaneBlock
from headrace.runtime.payloads import GroupBeginning
from headrace.runtime.torchapart import TorchApart
from headrace.telemetry.board import Activity, Board, Slot
from headrace.telemetry.waits import wait_readable


class Groups(Protocol):
    """All groups of a run, as a schedule sees them."""

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        """Let a group collect chunks up to, and not including, ``limit``."""
        ...

    def take(self) -> list[Commit]:
        """Commits that have arrived, in the order they did."""
        ...

    def wait(self, waiting_for: Sequence[int], control_fd: int) -> None:
        """Return when a commit, or a message on ``control_fd``, may be there.

        Raises:
            ComponentStalled: Nobody who was waited for did anything for the whole limit.
        """
        ...

    def present(self) -> list[int]:
        """Groups whose collector is there."""
        ...

    def lost(self, collector: int) -> list[int]:
        """A collector is gone; none of its commits is on its way any more.

        Returns:
            Its groups.
        """
        ...

    def joined(self, collector: int, incarnation: int) -> list[int]:
        """A collector has been started in the place of the lost one; its groups may be granted chunks again."""
        ...

    def leave_out(self, groups: Sequence[int]) -> None:
        """These groups never come back; their collector, if it does, comes without them."""
        ...

    def stop(self) -> list[int]:
        """Tell every group to commit what it has and leave.

        Returns:
            The groups that will send a last commit.
        """
        ...

    def hurried(self) -> bool:
        """Whether chunks are ended early, because somebody waits for the end of the run."""
        ...

    def restore(self, episodes: Episodes) -> dict[int, str]:
        """Have every group go on with the episodes that are running in its lanes, if the run was resumed.

        Args:
            episodes: Those.

        Returns:
            Why some groups could not; their collector is gone, and their rows are to be salvaged before `begin_anew`.
        """
        ...

    def begin_anew(self, group: int, incarnation: int) -> None:
        """Give such a group a new collector, with random streams of this incarnation."""
        ...


class InlineGroups:
    """Collectors in the learner's own process: a granted chunk is collected when it is asked for.

    Args:
        build: Makes the collector of a group.
        beginnings: How each group's collector begins.
        chunk_steps: Environment steps per lane and chunk.
        stopping: Asked between environment steps; true ends a chunk early, and no further one is begun.
        apart: Keeps what environments set in torch from the learner.
    """

    def __init__(
        self,
        build: Callable[[int, GroupBeginning], Collector],
        beginnings: Sequence[GroupBeginning],
        chunk_steps: int,
        stopping: Callable[[], bool],
        apart: TorchApart | None = None,
    ) -> None:
        self._build = build
        self._beginnings = beginnings
        self._apart = apart or TorchApart()
        with self._apart.environments():
            self._collectors = [build(group, begin) for group, begin in enumerate(beginnings)]
        self._chunk_steps = chunk_steps
        self._stopping = stopping
        self._granted: list[tuple[int, int]] = []

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        """See `Groups`."""
        self._granted += [(group, number) for number in range(chunk, limit)]

    def take(self) -> list[Commit]:
        """See `Groups`; this is where the environments are stepped."""
        granted, self._granted = self._granted, []
        collectors = [(self._collectors[group], chunk) for group, chunk in granted]
        with self._apart.environments():
            if self._collectors[0].remote is None:
                return [one.collect(chunk, self._chunk_steps, self._stopping) for one, chunk in collectors]
            return followed([(one, one.course(chunk, self._chunk_steps, self._stopping)) for one, chunk in collectors])

    def wait(self, waiting_for: Sequence[int], control_fd: int) -> None:
        """See `Groups`; there is never anything to wait for."""

    def present(self) -> list[int]:
        """See `Groups`."""
        return list(range(len(self._collectors)))

    def lost(self, collector: int) -> list[int]:
        """See `Groups`; no collector can be lost without its learner."""
        return []

    def joined(self, collector: int, incarnation: int) -> list[int]:
        """See `Groups`."""
        return []

    def leave_out(self, groups: Sequence[int]) -> None:
        """See `Groups`; no group can be lost without the learner."""

    def stop(self) -> list[int]:
        """See `Groups`; every chunk that was begun has been taken, so nothing is left to commit."""
        return []

    def hurried(self) -> bool:
        """See `Groups`."""
        return self._stopping()

    def restore(self, episodes: Episodes) -> dict[int, str]:
        """See `Groups`."""
        failed = {}
        for group, begin in enumerate(self._beginnings):
            if not begin.resume:
                continue
            try:
                with self._apart.environments():
                    self._collectors[group].restore(episodes, self._stopping)
            except EpisodeNotRestored as error:
                failed[group] = str(error)
        return failed

    def begin_anew(self, group: int, incarnation: int) -> None:
        """See `Groups`."""
        begin = replace(self._beginnings[group], incarnation=incarnation, resume=False)
        with self._apart.environments():
            self._collectors[group].close()
            self._collectors[group] = self._build(group, begin)

    def close(self) -> None:
        """Close every environment."""
        with self._apart.environments():
            for collector in self._collectors:
                collector.close()


class RemoteGroups:
    """Collectors in processes of their own, reached through one pair of pipes each.

    Args:
        owned: Groups of each collector.
        pipes: To and from each collector.
        block: The lanes.
        board: Of the run.
        slot: The learner's.
        wait_s: Longest a wait may last while nobody who is waited for does anything.
        present: Whether the collectors have been started; if not, each is announced by `joined`.
    """

    def __init__(
        self,
        owned: Sequence[Sequence[int]],
        pipes: Sequence[tuple[MessagePipe, MessagePipe]],
        block: LaneBlock,
        board: Board,
        slot: Slot,
        wait_s: float,
        *,
        present: bool = True,
    ) -> None:
        self._block = block
        self._owned = owned
        self._pipes = pipes
        self._board = board
        self._slot = slot
        self._wait_s = wait_s
        self._incarnation = [0] * len(owned)
        self._present = set(range(len(owned))) if present else set()
        self._left: set[int] = set()
        """Groups that have sent their last commit."""
        self._left_out: set[int] = set()
        self._owner = {group: collector for collector, groups in enumerate(owned) for group in groups}

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        """See `Groups`."""
        self._send(group, chunk, limit, version, stop=False)

    def take(self) -> list[Commit]:
        """See `Groups`."""
        taken = [Commit.unpack(data) for _, commits in self._pipes for data in commits.take()]
        self._left.update(commit.group for commit in taken if commit.last)
        return taken

    def wait(self, waiting_for: Sequence[int], control_fd: int) -> None:
        """See `Groups`; the first collector that is waited for is shown as the one to blame."""
        names = [f"collector-{number}" for number in sorted({self._owner[group] for group in waiting_for})]
        before = [self._board.read(name).since_ns for name in names]
        fds = [commits.reader_fd for _, commits in self._pipes]
        ready = wait_readable(
            self._slot, [*fds, control_fd], activity=Activity.WAIT_ROWS, on=names[0] if names else "supervisor",
            need=len(waiting_for), have=0, timeout_s=self._wait_s, raise_on_timeout=False,
        )  # fmt: skip
        if not ready and before == [self._board.read(name).since_ns for name in names]:
            views = [self._board.read(name) for name in names]
            raise ComponentStalled(
                f"the learner waited {self._wait_s:g} s for rows, and nobody it waited for did anything meanwhile",
                waits_on=", ".join(f"{view.id} ({view.activity.label})" for view in views) or "supervisor",
                fix="see what they are doing in logs/; raise deadlines.rows_s if a step may take so long",
            )

    def present(self) -> list[int]:
        """See `Groups`."""
        return sorted(group for collector in self._present for group in self._groups_of(collector))

    def lost(self, collector: int) -> list[int]:
        """See `Groups`."""
        self._present.discard(collector)
        return self._groups_of(collector)

    def joined(self, collector: int, incarnation: int) -> list[int]:
        """See `Groups`."""
        self._incarnation[collector] = incarnation
        self._present.add(collector)
        groups = self._groups_of(collector)
        self._left.difference_update(groups)
        return groups

    def leave_out(self, groups: Sequence[int]) -> None:
        """See `Groups`."""
        self._left_out.update(groups)

    def _groups_of(self, collector: int) -> list[int]:
        return [group for group in self._owned[collector] if group not in self._left_out]

    def stop(self) -> list[int]:
        """See `Groups`."""
        self._block.stopping[:] = 1  # seen between two environment steps; the credit wakes those who wait
        # The supervisor may have set the mark before it told the learner, so some may have left already.
        groups = [group for group in self.present() if group not in self._left]
        for group in groups:
            self._send(group, 0, 0, 0, stop=True)
        return groups

    def hurried(self) -> bool:
        """See `Groups`."""
        return bool(self._block.stopping.any())

    def restore(self, episodes: Episodes) -> dict[int, str]:
        """See `Groups`; each collector does so by itself, and one that cannot is replaced."""
        return {}

    def begin_anew(self, group: int, incarnation: int) -> None:
        """See `Groups`; the supervisor does."""

    def _send(self, group: int, chunk: int, limit: int, version: int, *, stop: bool) -> None:
        collector = self._owner[group]
        credit = Credit(self._incarnation[collector], group, chunk, limit, version, stop)
        self._pipes[collector][0].put(credit.pack())


@contextmanager
def attached_pipes(
    descriptors: Mapping[str, int], collectors: int, sizes: tuple[int, int]
) -> Iterator[list[tuple[MessagePipe, MessagePipe]]]:
    """The learner's ends of the pipes to and from every collector.

    Args:
        descriptors: ``credits-<n>`` and ``commits-<n>``.
        collectors: How many.
        sizes: Bytes of a credit and of a commit.
    """
    pipes = [
        (
            MessagePipe.attach(sizes[0], writer_fd=descriptors[f"credits-{number}"]),
            MessagePipe.attach(sizes[1], reader_fd=descriptors[f"commits-{number}"]),
        )
        for number in range(collectors)
    ]
    try:
        yield pipes
    finally:
        for pair in pipes:
            for pipe in pair:
                pipe.close()
