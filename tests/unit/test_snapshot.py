"""Published policies: whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import SnapshotCorrupt
from headrace.weights.snapshot import PLACES, SnapshotLayout, SnapshotReader, Snapshots


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.full((3, 5), value, np.float32), "scale": np.array(value), "count": np.array([int(value)])}


@pytest.fixture
def snapshots() -> Snapshots:
    layout = SnapshotLayout.of(arrays(0))
    return Snapshots(layout, memoryview(bytearray(layout.nbytes)))


def assert_holds(reader: SnapshotReader, value: float) -> None:
    assert reader.arrays.keys() == arrays(0).keys()
    for name, array in arrays(value).items():
        np.testing.assert_array_equal(reader.arrays[name], array, strict=True)


def test_every_array_is_aligned():
    layout = SnapshotLayout.of(arrays(0))
    assert all(offset % 64 == 0 for *_, offset in layout.entries)
    assert layout.payload_bytes == 64 * 3  # 60, 8 and 8 bytes


def test_versions_count_from_one_and_a_reader_takes_the_newest(snapshots):
    reader = SnapshotReader(snapshots)
    assert not reader.refresh()
    assert (snapshots.version, reader.version) == (0, 0)
    for value in range(1, 2 * PLACES):
        assert snapshots.publish(arrays(value)) == value
    assert reader.refresh()
    assert not reader.refresh()
    assert reader.version == 2 * PLACES - 1
    assert_holds(reader, 2 * PLACES - 1)


def test_copy_is_the_readers_own(snapshots):
    reader = SnapshotReader(snapshots)
    snapshots.publish(arrays(1))
    reader.refresh()
    for value in range(2, 2 + PLACES):
        snapshots.publish(arrays(value))
    assert_holds(reader, 1)


def test_copy_that_the_writer_disturbs_is_made_again(snapshots, monkeypatch):
    reader = SnapshotReader(snapshots)
    snapshots.publish(arrays(1))
    copy_payload = snapshots.copy_payload
    disturbances = iter(range(2, 2 + 2 * PLACES))

    def torn(place: int, out: np.ndarray) -> None:
        copy_payload(place, out)
        for value in disturbances:
            snapshots.publish(arrays(value))
        out[:10] = snapshots._payloads[place][:10]

    monkeypatch.setattr(snapshots, "copy_payload", torn)
    assert reader.refresh()
    assert reader.retries == 1
    assert reader.version == 1 + 2 * PLACES
    assert_holds(reader, 1 + 2 * PLACES)


def test_place_that_holds_another_version_is_not_taken(snapshots, monkeypatch):
    """The writer goes once around between the moment a version is chosen and the moment its place is read."""
    reader = SnapshotReader(snapshots)
    snapshots.publish(arrays(1))
    mark = snapshots.mark

    def overtaken(place: int) -> tuple[int, int]:
        monkeypatch.setattr(snapshots, "mark", mark)
        for value in range(2, 2 + PLACES):
            snapshots.publish(arrays(value))
        return mark(place)

    monkeypatch.setattr(snapshots, "mark", overtaken)
    assert reader.refresh()
    assert (reader.version, reader.retries) == (1 + PLACES, 1)
    assert_holds(reader, 1 + PLACES)


def test_version_that_is_prepared_is_nobodys_before_it_is_shown(snapshots):
    reader = SnapshotReader(snapshots)
    snapshots.publish(arrays(1))
    version, _ = snapshots.prepare(arrays(2))
    assert reader.refresh()
    assert (reader.version, snapshots.version) == (1, 1)
    assert_holds(reader, 1)
    snapshots.show(version)
    assert reader.refresh()
    assert_holds(reader, 2)


def test_damaged_policy_is_never_used(snapshots):
    reader = SnapshotReader(snapshots)
    snapshots.publish(arrays(1))
    reader.refresh()
    snapshots.publish(arrays(2))
    snapshots._payloads[2][0] ^= 1
    with pytest.raises(SnapshotCorrupt, match="does not match its checksum\n  version: 2\n  attempts: 100"):
        reader.refresh()
    assert reader.version == 1
    assert_holds(reader, 1)


def test_array_of_another_dtype_is_refused(snapshots):
    with pytest.raises(TypeError):
        snapshots.publish({**arrays(1), "weight": np.zeros((3, 5), np.float64)})
    assert snapshots.version == 0


def test_numbers_are_shown_after_what_they_tell_of(snapshots, monkeypatch):
    """Where the processor may reorder writes, a fence is between them; here, what each of them finds is looked at."""
    snapshots.publish(arrays(1))
    seen = []
    monkeypatch.setattr(
        "headrace.weights.snapshot.fence", lambda: seen.append((snapshots.version, snapshots.mark(2)[0]))
    )
    snapshots.publish(arrays(2))
    assert seen == [(1, -1), (1, -1), (1, 2)]
    reader = SnapshotReader(snapshots)
    seen.clear()
    assert reader.refresh()
    assert len(seen) == 2  # the number and the mark, and the copy, and the mark again
