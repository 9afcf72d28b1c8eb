"""Which chunks of a record can be verified, a random sample of them, and what of each is stored."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import seeding
from headrace.core.errors import RecordDamaged
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry
from headrace.record.events import ChunkCommitted, GroupSalvaged, Note, PolicyPublished, RowPlace
from headrace.record.rows import RowReader, segments_in
from headrace.record.trace import Trace
from headrace.runtime.belonging import require_same_exploration
from headrace.runtime.reacting import GroupChunk, LaneChunk, Rows, Setting
from headrace.runtime.refill import Extents, RowEvent


class Skipped(StrEnum):
    """Why a chunk cannot be verified."""

    POLICY = "the policy that acted was not kept"
    OTHER_POLICY = "the policy kept under that number is not the one that acted"
    ROWS = "the rows were not kept"
    STACK = "the rows before it, which a stack of frames needs, were not kept"
    SALVAGED = "it was salvaged from a collector that died"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one lane that one event brought."""

    lane: int
    start: int
    """Number of the first row."""
    stop: int
    place: RowPlace
    """Where they lie in the row log."""
    checksum: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that can be verified."""

    number: int
    """Of the event, from 1."""
    event: ChunkCommitted
    stretches: tuple[tuple[Stretch, ...], ...]
    """Of each lane: stretches a stack of frames may reach back to, and the chunk's own."""
    carries: tuple[bytes, ...] | None
    """Exploration state each lane began with; None: a fresh one."""
    random: bool
    """All actions are uniformly random, so no policy is needed."""
    published: int | None
    """Checksum of the policy that acted, as it was published; None: the record does not say."""
    machine: int
    """Place of the machine that computed it in `Survey.machines`."""

    def own(self, place: int) -> Stretch:
        """The chunk's own rows in the lane at that place of the group."""
        return self.stretches[place][-1]


class _Sample:
    """So many of all that are offered, each as likely as any other; the memory holds no more.

    *Source*: Vitter 1985, algorithm R.
    """

    def __init__(self, size: int, generator: np.random.Generator) -> None:
        self.taken: list[Candidate] = []
        self._size = size
        self._generator = generator
        self._offered = 0

    def offer(self, candidate: Candidate) -> None:
        """Take it, perhaps in the place of another one."""
        self._offered += 1
        if len(self.taken) < self._size:
            self.taken.append(candidate)
            return
        place = int(self._generator.integers(self._offered))
        if place < self._size:
            self.taken[place] = candidate


class Survey:
    """Goes through a record once, and picks chunks at random among those that can be verified.

    Args:
        trace: The record's events.
        setting: Of the run.
        groups: Lanes of each group.
        kept: Versions of the policies on disk.
        samples: How many chunks to pick.
        seed: Of the choice.
    """

    def __init__(
        self, trace: Trace, setting: Setting, groups: Sequence[tuple[int, ...]], kept: Sequence[int], samples: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.chunks = 0
        """Chunks with transitions, in all."""
        self.skipped: Counter[Skipped] = Counter()
        self.machines: list[Mapping[str, Any]] = [trace.header["machine"]]
        """Those that computed the run, in turn: it may have been resumed on another one."""
        self._setting = setting
        self._kept = frozenset(kept)
        self._segments = frozenset(segments_in(trace.path.parent))
        self._samples = samples
        self._acted, self._random = (
            _Sample(samples, seeding.generator(seed, f"verify-{which}")) for which in ("acted", "random")
        )
        self._published: dict[int, int] = {}
        self._carries: dict[int, tuple[int, tuple[bytes, ...]]] = {}
        """Of each group: incarnation, and the exploration state after its newest chunk."""
        self._transitions = [0] * setting.geometry.lanes
        self._recent: list[list[Stretch]] = [[] for _ in range(setting.geometry.lanes)]
        extents = Extents(_without_rows(setting.geometry), groups)
        for number, (_, event) in enumerate(trace.events(), 1):
            if isinstance(event, PolicyPublished):
                self._published[event.version] = event.checksum
            elif isinstance(event, Note) and event.kind == "resumed" and "machine" in event.facts:
                self.machines.append(event.facts["machine"])
            elif isinstance(event, ChunkCommitted | GroupSalvaged):
                self._look_at(number, event, extents.of(event))

    @property
    def sample(self) -> list[Candidate]:
        """The chunks that were picked, in the order of their events.

        Those in which a policy acted come first; a tenth is left to those that are random throughout.
        """
        acted, random = self._acted.taken, self._random.taken
        random = random[: max(self._samples - len(acted), self._samples // 10)]
        picked = [*acted[: self._samples - len(random)], *random]
        return sorted(picked, key=lambda candidate: candidate.number)

    def _look_at(self, number: int, event: RowEvent, extents: Sequence[tuple[int, int, int, int]]) -> None:
        checksums = [part.checksum for part in event.lanes]
        stretches = [
            Stretch(lane, start, stop, RowPlace(event.place.segment, event.place.offset + offset), checksum)
            for (lane, start, stop, offset), checksum in zip(extents, checksums, strict=True)
        ]
        if isinstance(event, ChunkCommitted):
            require_same_exploration(event, self._setting.geometry)
            made = [part.transitions for part in event.lanes]
            if any(made):
                self.chunks += 1
                self._consider(number, event, stretches)
            self._carries[event.group] = event.incarnation, tuple(part.carry for part in event.lanes)
        else:
            made = [part.salvaged for part in event.lanes]
            if any(made):
                self.chunks += 1
                self.skipped[Skipped.SALVAGED] += 1
        for stretch, transitions in zip(stretches, made, strict=True):
            self._transitions[stretch.lane] += transitions
            if stretch.stop > stretch.start:
                recent = [*self._recent[stretch.lane], stretch]
                self._recent[stretch.lane] = _newest(recent, self._setting.geometry.frame_stack - 1)

    def _consider(self, number: int, event: ChunkCommitted, stretches: Sequence[Stretch]) -> None:
        pairs = zip(stretches, event.lanes, strict=True)
        after = [self._transitions[stretch.lane] + part.transitions for stretch, part in pairs]
        random = max(after) <= self._setting.random_steps
        if not random and event.version not in self._kept:
            self.skipped[Skipped.POLICY] += 1
        elif event.place.segment not in self._segments:
            self.skipped[Skipped.ROWS] += 1
        else:
            incarnation, carries = self._carries.get(event.group, (-1, ()))
            candidate = Candidate(
                number=number,
                event=event,
                stretches=tuple((*self._recent[stretch.lane], stretch) for stretch in stretches),
                carries=carries if incarnation == event.incarnation else None,
                random=random,
                published=self._published.get(event.version),
                machine=len(self.machines) - 1,
            )
            (self._random if random else self._acted).offer(candidate)


class StoredRows:
    """Reads chunks back from the row log, and looks whether they are what was committed.

    Args:
        folder: ``record/`` of the run.
        geometry: Of its lanes.
    """

    def __init__(self, folder: Path, geometry: Geometry) -> None:
        self.reader = RowReader(folder)
        self._geometry = geometry

    def chunk(self, candidate: Candidate) -> GroupChunk | Skipped:
        """A chunk as it is stored, or why it cannot be read.

        Raises:
            RecordDamaged: Its rows are not those that were committed.
        """
        lanes = []
        for place, stretches in enumerate(candidate.stretches):
            rows = self._with_stack(stretches)
            if isinstance(rows, Skipped):
                return rows
            carry = None if candidate.carries is None else np.frombuffer(candidate.carries[place], np.float32)
            lanes.append(LaneChunk(stretches[-1].lane, rows, carry))
        return GroupChunk(candidate.event.incarnation, candidate.event.chunk, tuple(lanes))

    def _with_stack(self, stretches: Sequence[Stretch]) -> Rows | Skipped:
        """Rows of the last stretch, behind those a stack may reach back to."""
        *before, own = stretches
        rows = self._read(own)
        if rows is None:
            return Skipped.ROWS
        depth = self._geometry.frame_stack - 1
        parts, have = [rows], 0
        for stretch in reversed(before):
            found = self._read(stretch)
            if found is None:
                break
            parts.insert(0, found)
            have += len(found)
        if len(rows) and have < min(depth, int(rows["t"][0])):
            return Skipped.STACK
        parts.insert(0, np.zeros(depth, rows.dtype))
        whole: NDArray[np.void] = np.concatenate(parts)
        return whole[len(whole) - len(rows) - depth :]

    def _read(self, stretch: Stretch) -> Rows | None:
        """Rows of a stretch; None if they are not kept, or no longer."""
        size = self._geometry.dtype.itemsize
        if stretch.place.segment < 0:
            return None
        try:
            data = self.reader.read(stretch.place, (stretch.stop - stretch.start) * size)
        except RecordDamaged:
            if stretch.place.segment not in segments_in(self.reader.folder):
                return None  # a live run drops what its replay no longer holds
            raise
        if zlib.crc32(data) != stretch.checksum:
            raise RecordDamaged(
                f"rows {stretch.start:,} to {stretch.stop:,} of lane {stretch.lane} in the record differ from what was "
                "committed",
                lane=stretch.lane,
                segment=stretch.place.segment,
                expected=f"checksum {stretch.checksum:08x}",
                found=f"checksum {zlib.crc32(data):08x}",
                fix="the disk or somebody else has changed record/rows-*.bin; copy the record again, whole",
            )
        rows: NDArray[np.void] = np.frombuffer(data, self._geometry.dtype)
        return rows


def _newest(stretches: Sequence[Stretch], depth: int) -> list[Stretch]:
    """The last stretches, as many as it takes for ``depth`` rows."""
    rows = 0
    for place in range(len(stretches) - 1, -1, -1):
        if rows >= depth:
            return list(stretches[place + 1 :])
        rows += stretches[place].stop - stretches[place].start
    return list(stretches)


def _without_rows(geometry: Geometry) -> LaneBlock:
    """A block of the same rows that holds next to none."""
    small = replace(geometry, capacity=geometry.lanes, chunk_steps=1, window_chunks=1)
    return LaneBlock(small, memoryview(bytearray(small.nbytes)))
