"""The two messages of the data path: "committed up to here" and "you may go up to there".

Both are small fixed layouts that pass through a pipe in one piece. Their passing through the kernel is
the memory barrier: what a collector wrote before it sent a commit, the learner sees after it received it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_COMMIT = struct.Struct("<IIqqB7x")
_LANE = struct.Struct("<qqIB3x")
_CREDIT = struct.Struct("<IIqqqB7x")
CREDIT_BYTES = _CREDIT.size


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """What one lane adds with a chunk."""

    stop: int
    """Row number after its last committed row."""
    transitions: int
    """Transitions among the rows, as the collector counted them while stepping."""
    checksum: int
    """CRC-32 of the rows' bytes."""
    running: bool = False
    """Whether an episode of the lane's environment goes on after the rows. They do not tell: of many agents all may end in
    one step in which others come, who have no row yet. False also of a collector that is gone."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's chunk is complete."""

    incarnation: int
    group: int
    chunk: int
    """Number of the chunk in its group, from 0."""
    version: int
    """Of the policy that chose the chunk's actions."""
    last: bool
    """Nothing more comes from this group: its collector is leaving."""
    lanes: tuple[LaneCommit, ...]

    def pack(self) -> bytes:
        """The message."""
        head = _COMMIT.pack(self.incarnation, self.group, self.chunk, self.version, self.last)
        return head + b"".join(
            _LANE.pack(lane.stop, lane.transitions, lane.checksum, lane.running) for lane in self.lanes
        )

    @classmethod
    def unpack(cls, data: bytes) -> Commit:
        """The commit in a message."""
        incarnation, group, chunk, version, last = _COMMIT.unpack_from(data)
        parts = _LANE.iter_unpack(data[_COMMIT.size :])
        lanes = tuple(LaneCommit(stop, made, checksum, bool(running)) for stop, made, checksum, running in parts)
        return cls(incarnation, group, chunk, version, bool(last), lanes)


def commit_bytes(lanes: int) -> int:
    """Size of a commit of so many lanes."""
    return _COMMIT.size + lanes * _LANE.size


@dataclass(frozen=True, slots=True)
class Credit:
    """A group may collect chunks up to, and not including, ``limit``."""

    incarnation: int
    """Of the collector it is meant for; one that replaced it ignores what was on its way."""
    group: int
    chunk: int
    """The group's next chunk when its collector is new; otherwise the newest one acknowledged."""
    limit: int
    version: int
    """The newest published policy; an older one must not be used for what this credit allows."""
    stop: bool
    """Commit what is there and leave."""

    def pack(self) -> bytes:
        """The message."""
        return _CREDIT.pack(self.incarnation, self.group, self.chunk, self.limit, self.version, self.stop)

    @classmethod
    def unpack(cls, data: bytes) -> Credit:
        """The credit in a message."""
        incarnation, group, chunk, limit, version, stop = _CREDIT.unpack(data)
        return cls(incarnation, group, chunk, limit, version, bool(stop))


class CreditBook:
    """What the learner has granted each group. Chunks in, chunks out.

    Args:
        groups: Number of groups.
        chunk_steps: Environment steps of one chunk of one group, over its lanes.
        window: Chunks a group may be ahead of its newest commit.
    """

    def __init__(self, groups: int, chunk_steps: int, window: int) -> None:
        self._chunk_steps = chunk_steps
        self._window = window
        self.limit = [0] * groups
        """Chunks granted to each group."""
        self.committed = [0] * groups
        """Chunks committed by each group."""

    @property
    def outstanding_steps(self) -> int:
        """Steps that may still arrive for credits already given."""
        chunks = sum(limit - done for limit, done in zip(self.limit, self.committed, strict=True))
        return chunks * self._chunk_steps

    def go_on(self, committed: Sequence[int]) -> None:
        """Begin where each group has committed so many chunks, and no credit is outstanding."""
        self.committed, self.limit = list(committed), list(committed)

    def on_commit(self, group: int) -> None:
        """A chunk of the group arrived."""
        self.committed[group] += 1

    def on_lost(self, group: int) -> int:
        """The group's collector is gone; take back what it had not used.

        Returns:
            The group's next chunk.
        """
        self.limit[group] = self.committed[group]
        return self.committed[group]

    def grant(self, env_steps: int, allowed_steps: int, groups: Sequence[int]) -> list[int]:
        """Give as many chunks as the allowance permits, each to the group that was given least.

        Args:
            env_steps: Steps committed so far.
            allowed_steps: Steps that may be granted in all.
            groups: Those whose collector is there to take it.

        Returns:
            The groups whose limit rose.
        """
        room = (allowed_steps - env_steps - self.outstanding_steps + self._chunk_steps - 1) // self._chunk_steps
        raised: set[int] = set()
        while room > 0:
            open_groups = [g for g in groups if self.limit[g] - self.committed[g] < self._window]
            if not open_groups:
                break
            group = min(open_groups, key=lambda g: (self.limit[g], g))
            self.limit[group] += 1
            raised.add(group)
            room -= 1
        return sorted(raised)
