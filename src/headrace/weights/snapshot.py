"""Policy snapshots in shared memory: one writer publishes, anybody copies a whole version.

The block holds a few places; version ``v`` goes to place ``v % PLACES``, so a reader that is copying the newest
version is disturbed only when it takes longer than several publications. It notices by version and checksum,
and copies again.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.arrays import CACHE_LINE, aligned
from headrace.core.errors import SnapshotCorrupt
from headrace.ipc.fences import fence

PLACES = 4
_HEADER_BYTES = 64
_RETRIES = 100


@dataclass(frozen=True, slots=True)
class SnapshotLayout:
    """Which arrays a snapshot holds and where; the same in every process of a run."""

    entries: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name, dtype, shape and byte offset of each array."""
    payload_bytes: int

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> SnapshotLayout:
        """The layout that holds such arrays, each aligned to 64 bytes."""
        entries, end = [], 0
        for name, array in arrays.items():
            entries.append((name, array.dtype.str, array.shape, end))
            end = -(-(end + array.nbytes) // CACHE_LINE) * CACHE_LINE
        return cls(tuple(entries), end)

    @property
    def place_bytes(self) -> int:
        """Bytes of one place: a header line and the payload."""
        return _HEADER_BYTES + self.payload_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return _HEADER_BYTES + PLACES * self.place_bytes

    def views(self, payload: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The arrays inside a payload."""
        return {
            name: np.ndarray(shape, np.dtype(dtype), payload.data, offset)
            for name, dtype, shape, offset in self.entries
        }


class Snapshots:
    """The shared block of published policies.

    Args:
        layout: The same in every process.
        buffer: `SnapshotLayout.nbytes` writable bytes, zeroed when new.
    """

    def __init__(self, layout: SnapshotLayout, buffer: memoryview) -> None:
        self.layout = layout
        self._latest: NDArray[np.int64] = np.ndarray(1, np.int64, buffer)
        size = layout.place_bytes
        offsets = [_HEADER_BYTES + place * size for place in range(PLACES)]
        self._marks: list[NDArray[np.int64]] = [np.ndarray(2, np.int64, buffer, at) for at in offsets]
        self._payloads: list[NDArray[np.uint8]] = [
            np.ndarray(layout.payload_bytes, np.uint8, buffer, at + _HEADER_BYTES) for at in offsets
        ]
        self._views = [layout.views(payload) for payload in self._payloads]

    @property
    def version(self) -> int:
        """The newest complete version; 0 before the first."""
        return int(self._latest[0])

    def publish(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Write the next version, and show it. Only the one writer calls this.

        Args:
            arrays: As the layout was made of.

        Returns:
            The version, counted from 1.
        """
        version, _ = self.prepare(arrays)
        self.show(version)
        return version

    def prepare(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
        """Write the next version, which nobody takes before it is shown.

        Returns:
            The version and its checksum.
        """
        version = self.version + 1
        place = version % PLACES
        mark = self._marks[place]
        mark[0] = -1
        fence()  # here and below: whoever sees a number sees what was written before it
        for name, view in self._views[place].items():
            np.copyto(view, arrays[name], casting="no")
        mark[1] = zlib.crc32(self._payloads[place].data)
        fence()
        mark[0] = version
        return version, int(mark[1])

    def show(self, version: int) -> None:
        """Make a version that is prepared the newest one."""
        fence()
        self._latest[0] = version

    def newest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of the newest version, live until the fourth publication from now, and their checksum."""
        place = self.version % PLACES
        return self._views[place], self.mark(place)[1]

    def go_on(self, version: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Publish a version of an earlier process again, under its own number. Only before any reader has begun."""
        self._latest[0] = version - 1
        self.publish(arrays)

    def release(self) -> None:
        """Drop all views, so that the shared memory below can be closed."""
        del self._latest, self._marks, self._payloads, self._views

    def copy_payload(self, place: int, out: NDArray[np.uint8]) -> None:
        """The part of reading that a writer may disturb, apart so that a test can disturb it."""
        np.copyto(out, self._payloads[place])

    def mark(self, place: int) -> tuple[int, int]:
        """Version and checksum a place says it holds."""
        version, checksum = self._marks[place].tolist()
        return version, checksum


class SnapshotReader:
    """One reader's own copy of the newest snapshot."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._payload = aligned((snapshots.layout.payload_bytes,), np.uint8)
        self._spare = aligned((snapshots.layout.payload_bytes,), np.uint8)
        self.arrays = snapshots.layout.views(self._payload)
        """Views of the copy; replaced by `refresh` when it copies."""
        self.version = 0
        """Version of the copy; 0: none yet."""
        self.retries = 0
        """Copies that were disturbed by the writer and made again."""

    def refresh(self) -> bool:
        """Copy the newest version, if it is not the one at hand.

        Returns:
            Whether ``arrays`` now hold another version.

        Raises:
            SnapshotCorrupt: A hundred copies in a row did not match their checksum.
        """
        source = self._snapshots
        if source.version == self.version:
            return False
        for _ in range(_RETRIES):
            wanted = source.version
            place = wanted % PLACES
            fence()
            before = source.mark(place)
            source.copy_payload(place, self._spare)
            fence()
            if before[0] == wanted and source.mark(place) == before and zlib.crc32(self._spare.data) == before[1]:
                self._payload, self._spare = self._spare, self._payload
                self.arrays = source.layout.views(self._payload)
                self.version = wanted
                return True
            self.retries += 1
        raise SnapshotCorrupt(
            "the published policy does not match its checksum",
            version=source.version,
            attempts=_RETRIES,
            fix="see whether the learner is alive: its log is in logs/learner.log",
        )
