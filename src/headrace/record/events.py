"""What a record holds: every event that decides what the learner learns, as small fixed layouts.

Integers are little-endian. A frame's kind says which class its bytes are; an event that happens rarely is a `Note`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.telemetry.events import plain

_CHUNK = struct.Struct("<qIIqqB3xIqI")
_LANE = struct.Struct("<qqI")
_SALVAGE = struct.Struct("<qIIqqIqI")
_SALVAGED_LANE = struct.Struct("<qqq?3xqI")
_BATCHES = struct.Struct("<q")
_PUBLISHED = struct.Struct("<qqI")
_WEIGHTS = struct.Struct("<q32s")
_SAVED = struct.Struct("<qq")
_LOST = struct.Struct("<qIq")
_LOST_STEP = struct.Struct("<II")


@dataclass(frozen=True, slots=True, order=True)
class RowPlace:
    """Where rows lie in the row log."""

    segment: int
    """Number of the file; -1: these rows were not kept."""
    offset: int
    """First byte in it."""


NOT_KEPT = RowPlace(-1, 0)
GATHERED_NOTHING = "gathered_nothing"
"""Kind of the note that a rollout was gathered of which no update could be made. Records of a Headrace that did not write
them are read as if each such rollout had been gathered just before the next update."""
FAILED = "failed"
"""Kind of the note with which a learner ended that failed by what it, or an environment in its process, raised: ``code``, ``what``
and, of an exception that is not ours, ``error``. It follows the event after which, or in which, that was."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """What one lane added with a chunk."""

    stop: int
    """Row number after its last row."""
    transitions: int
    checksum: int
    """CRC-32 of the rows' bytes."""
    carry: bytes = b""
    """Exploration state that crosses the chunk's end, float32; the same size in all events of a run."""


@dataclass(frozen=True, slots=True)
class ChunkCommitted:
    """A group's chunk was taken over by the learner."""

    code: ClassVar[int] = 1
    updates: int
    """Gradient steps made before this event; likewise in every other class."""
    incarnation: int
    """How often the group's random streams have been begun anew."""
    group: int
    chunk: int
    version: int
    """Of the policy that acted."""
    last: bool
    """The group's collector is leaving."""
    place: RowPlace
    """Of the lanes' rows, one lane after the other; each followed by the observation its last row led to, or zeros
    where no episode is running."""
    lanes: tuple[LanePart, ...]

    def pack(self) -> bytes:
        """The frame's payload."""
        carry = len(self.lanes[0].carry)
        head = _CHUNK.pack(
            self.updates, self.incarnation, self.group, self.chunk, self.version, self.last, self.place.segment & 0xFFFFFFFF,
            self.place.offset, carry,
        )  # fmt: skip
        return head + b"".join(_LANE.pack(p.stop, p.transitions, p.checksum) + p.carry for p in self.lanes)

    @classmethod
    def unpack(cls, data: bytes) -> ChunkCommitted:
        """The event in a payload."""
        updates, incarnation, group, chunk, version, last, segment, offset, carry = _CHUNK.unpack_from(data)
        size = _LANE.size + carry
        parts = ((_LANE.unpack_from(data, at), at + _LANE.size) for at in range(_CHUNK.size, len(data), size))
        lanes = tuple(
            LanePart(stop, transitions, checksum, data[at : at + carry]) for (stop, transitions, checksum), at in parts
        )
        return cls(updates, incarnation, group, chunk, version, bool(last), _place(segment, offset), lanes)


@dataclass(frozen=True, slots=True)
class SalvagedLane:
    """What was saved of one lane of a collector that is gone."""

    stop: int
    """Row number after its last row, the one that marks the cut included."""
    salvaged: int
    """Transitions saved."""
    rejected: int
    """Transitions written and refused, because they or what they led to are not finite."""
    cut: bool
    """Whether a running episode was cut; its last row is of kind CUT then."""
    episodes_begun: int
    """Episodes begun in the lane so far."""
    checksum: int
    """CRC-32 of the rows that were added, the one of the cut included."""


@dataclass(frozen=True, slots=True)
class GroupSalvaged:
    """A group's collector is gone, and what it had written and not committed was taken over."""

    code: ClassVar[int] = 2
    updates: int
    incarnation: int
    """Of the one that is gone."""
    group: int
    chunk: int
    """Number of the chunk it was in."""
    version: int
    """Of the policy that made the rows; 0: there are none."""
    place: RowPlace
    """As in `ChunkCommitted`."""
    lanes: tuple[SalvagedLane, ...]

    def pack(self) -> bytes:
        """The frame's payload."""
        head = _SALVAGE.pack(
            self.updates, self.incarnation, self.group, self.chunk, self.version, self.place.segment & 0xFFFFFFFF,
            self.place.offset, len(self.lanes),
        )  # fmt: skip
        lanes = (
            _SALVAGED_LANE.pack(p.stop, p.salvaged, p.rejected, p.cut, p.episodes_begun, p.checksum) for p in self.lanes
        )
        return head + b"".join(lanes)

    @classmethod
    def unpack(cls, data: bytes) -> GroupSalvaged:
        """The event in a payload."""
        updates, incarnation, group, chunk, version, segment, offset, _ = _SALVAGE.unpack_from(data)
        lanes = tuple(SalvagedLane(*part) for part in _SALVAGED_LANE.iter_unpack(data[_SALVAGE.size :]))
        return cls(updates, incarnation, group, chunk, version, _place(segment, offset), lanes)


@dataclass(frozen=True, slots=True, eq=False)
class BatchesTrained:
    """Fingerprints of the batches of consecutive updates, written before the next other event."""

    code: ClassVar[int] = 3
    updates: int
    """Gradient steps made before the first of them."""
    prints: NDArray[np.uint32]
    """[U, 3] which rows were drawn, what they held, and what was made of them (0: not looked at)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchesTrained):
            return NotImplemented
        return self.updates == other.updates and np.array_equal(self.prints, other.prints)

    def __hash__(self) -> int:
        return hash((self.updates, self.prints.tobytes()))

    def pack(self) -> bytes:
        """The frame's payload."""
        return _BATCHES.pack(self.updates) + np.ascontiguousarray(self.prints, "<u4").tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> BatchesTrained:
        """The event in a payload."""
        (updates,) = _BATCHES.unpack_from(data)
        return cls(updates, np.frombuffer(data, "<u4", offset=_BATCHES.size).reshape(-1, 3))


@dataclass(frozen=True, slots=True)
class PolicyPublished:
    """A policy became the newest one."""

    code: ClassVar[int] = 4
    updates: int
    version: int
    checksum: int
    """CRC-32 of all that acting needs."""
    ledger: Mapping[str, float] = field(default_factory=dict)
    """What had been done so far, by name."""

    def pack(self) -> bytes:
        """The frame's payload."""
        head = _PUBLISHED.pack(self.updates, self.version, self.checksum)
        return head + json.dumps(dict(self.ledger), sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes) -> PolicyPublished:
        """The event in a payload."""
        updates, version, checksum = _PUBLISHED.unpack_from(data)
        return cls(updates, version, checksum, json.loads(data[_PUBLISHED.size :]))


@dataclass(frozen=True, slots=True)
class WeightsHashed:
    """All learned arrays were hashed, and the ledger was looked at."""

    code: ClassVar[int] = 5
    updates: int
    sha256: str
    ledger: Mapping[str, float]
    """What had been done so far, by name."""

    def pack(self) -> bytes:
        """The frame's payload."""
        ledger = json.dumps(dict(self.ledger), sort_keys=True).encode()
        return _WEIGHTS.pack(self.updates, bytes.fromhex(self.sha256)) + ledger

    @classmethod
    def unpack(cls, data: bytes) -> WeightsHashed:
        """The event in a payload."""
        updates, digest = _WEIGHTS.unpack_from(data)
        return cls(updates, digest.hex(), json.loads(data[_WEIGHTS.size :]))


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The learner's own state was kept for a successor."""

    code: ClassVar[int] = 6
    updates: int
    number: int
    """Counts the saves of the run."""

    def pack(self) -> bytes:
        """The frame's payload."""
        return _SAVED.pack(self.updates, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> StateSaved:
        """The event in a payload."""
        return cls(*_SAVED.unpack(data))


@dataclass(frozen=True, slots=True)
class LearnerSucceeded:
    """The learner died; another one has taken its place."""

    code: ClassVar[int] = 7
    updates: int
    """Gradient steps the record knew of; those of the state it began from are known once that is loaded."""
    number: int
    """Of the save it began from; 0: what the resumed run began from; -1: fresh weights."""

    def pack(self) -> bytes:
        """The frame's payload."""
        return _SAVED.pack(self.updates, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> LearnerSucceeded:
        """The event in a payload."""
        return cls(*_SAVED.unpack(data))


@dataclass(frozen=True, slots=True)
class StepsLost:
    """In the chunk of a group that the next event about the group brings, these steps brought these lanes no transition.

    Either an environment did not come back from the step and was replaced, and the lane has a row of kind LOST; or the
    lane's agent was not there, and it has one of kind ABSENT.
    """

    code: ClassVar[int] = 9
    updates: int
    group: int
    chunk: int
    steps: tuple[tuple[int, int], ...]
    """(lane, number of the step in the chunk, from 0) of each, in the order of the lanes."""

    def pack(self) -> bytes:
        """The frame's payload."""
        head = _LOST.pack(self.updates, self.group, self.chunk)
        return head + b"".join(_LOST_STEP.pack(*step) for step in self.steps)

    @classmethod
    def unpack(cls, data: bytes) -> StepsLost:
        """The event in a payload."""
        updates, group, chunk = _LOST.unpack_from(data)
        return cls(updates, group, chunk, tuple(_LOST_STEP.iter_unpack(data[_LOST.size :])))


@dataclass(frozen=True, slots=True)
class Note:
    """Anything else: ``frozen``, ``evaluated``, ``checkpoint``, ``resumed``, ``gathered_nothing``, ``ended``."""

    code: ClassVar[int] = 8
    updates: int
    kind: str
    facts: Mapping[str, Any]
    """As JSON knows them; what it does not know is kept as `headrace.telemetry.events.plain` says."""

    def pack(self) -> bytes:
        """The frame's payload."""
        return json.dumps({"updates": self.updates, "kind": self.kind, "facts": plain(self.facts)}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Note:
        """The event in a payload."""
        return cls(**json.loads(data))


Event = (
    ChunkCommitted
    | GroupSalvaged
    | BatchesTrained
    | PolicyPublished
    | WeightsHashed
    | StateSaved
    | LearnerSucceeded
    | Note
    | StepsLost
)

KINDS: Mapping[int, type[Event]] = {
    kind.code: kind
    for kind in (
        ChunkCommitted, GroupSalvaged, BatchesTrained, PolicyPublished, WeightsHashed, StateSaved, LearnerSucceeded,
        Note, StepsLost,
    )
}  # fmt: skip


def updates_after(event: Event) -> int:
    """Gradient steps made when an event was over; for all but those that tell of updates, as many as before it."""
    return event.updates + (len(event.prints) if isinstance(event, BatchesTrained) else 0)


def _place(segment: int, offset: int) -> RowPlace:
    return NOT_KEPT if segment == 0xFFFFFFFF else RowPlace(segment, offset)
