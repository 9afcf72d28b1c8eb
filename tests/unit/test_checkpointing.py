"""Which rows of a record a run keeps, and which it reads again: those of its replay, and of episodes that go on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import RecordDamaged
from headrace.lanes.lane import LaneBlock
from headrace.learners.checkpoints import Checkpoint, CheckpointStore
from headrace.record.events import ChunkCommitted
from headrace.record.rows import RowLog, RowReader, segments_in
from headrace.record.trace import Trace
from headrace.runtime import recording
from headrace.runtime.payloads import Basics, EnvSpaces, group_lanes
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.refill import Extents, Refilled, refill
from headrace.runtime.replayer import Replayer, replay
from headrace.runtime.rundir import RunDirectory
from headrace.weights.policy_file import load_policy_arrays, policy_versions
from record_here import record_here

SETTINGS: dict[str, Any] = {
    "checkpoint__enabled": True, "checkpoint__every_steps": 64, "checkpoint__keep": 1, "replay__capacity": 160,
}  # fmt: skip
"""Four lanes of 40 rows, and 120 steps each, which are all of one episode."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MIB", 64)  # 64 of them make a segment of 4 KiB


@pytest.mark.parametrize("restored", [True, False])
def test_only_episodes_that_will_be_brought_back_keep_their_rows(tmp_path: Path, restored: bool):
    run = record_here(tmp_path / "run", **SETTINGS, checkpoint__restore_episodes=restored)
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    kept = segments_in(run / "record")
    assert newest.oldest_segment == kept[0]
    if restored:
        assert (newest.facts["running_from"], kept[0]) == ([newest.facts["running_from"][0]] * 4, 0)
    else:
        assert (newest.facts["running"], newest.facts["running_from"]) == ([True] * 4, [-1] * 4)
        assert kept[0] > len(kept), "the record keeps about as much as the replay"


@pytest.mark.parametrize("rows", ["resident", "all"])
def test_without_checkpoints_rows_go_when_the_replay_holds_them_no_longer(tmp_path: Path, rows: str):
    run = record_here(tmp_path / "run", **{**SETTINGS, "checkpoint__enabled": False}, record__rows=rows)
    kept = segments_in(run / "record")
    assert len(kept) > 2
    if rows == "all":
        assert kept == list(range(len(kept)))
    else:
        assert kept[0] > 2, "the record keeps about as much as the replay"
    found = replay(run)
    assert (found.ended, found.env_steps) == (True, 480)


def test_a_disk_that_does_not_delete_costs_the_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(log: RowLog, segment: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(RowLog, "drop_before", refuse)
    run = record_here(tmp_path / "run", **{**SETTINGS, "checkpoint__enabled": False})
    assert segments_in(run / "record")[0] == 0
    assert replay(run).ended


def test_the_last_checkpoint_holds_the_policy_of_the_updates_it_names(tmp_path: Path):
    """Also where nobody evaluates, and no policy was due to be published since the first."""
    settings: dict[str, Any] = {"run__schedule": "async", "learn__publish_every": 1000, "checkpoint__enabled": True}
    folder = record_here(tmp_path / "run", **settings) / "checkpoints"
    arrays, facts = load_policy_arrays(folder, policy_versions(folder)[-1])
    with Replayer(tmp_path / "run") as again:
        assert again.run() is None
        assert int(facts["updates"]) == again.learner.updates > 0
        expected = again.learner.algorithm.policy_arrays()
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[name], name)


@pytest.mark.parametrize("wanted", [True, False])
def test_episodes_that_are_to_be_cut_are_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
):
    run = record_here(tmp_path / "run", **SETTINGS)
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    nbytes, read = [], RowReader.read
    monkeypatch.setattr(RowReader, "read", lambda *given: nbytes.append(given[2]) or read(*given))
    block, found = refilled(run, newest, episodes=wanted)
    geometry = block.geometry
    size = geometry.dtype.itemsize
    assert {lane: len(one) for lane, one in found.episodes.items()} == (dict.fromkeys(range(4), 121) if wanted else {})
    assert (sum(nbytes) < 4 * 60 * size) is not wanted, "no more than what is resident, in whole chunks"
    np.testing.assert_array_equal(block.committed[:, 4], geometry.first_row + 120)


@pytest.mark.parametrize(("restored", "rows"), [(True, 121), (False, 0)])
def test_episodes_whose_rows_were_not_kept_are_known_to_run(tmp_path: Path, restored: bool, rows: int):
    """Their lanes' rows alone need not tell it, and then nothing would tell of their end; earlier versions did not say it."""
    run = record_here(tmp_path / "run", **SETTINGS, checkpoint__restore_episodes=restored)
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    _, found = refilled(run, newest)
    assert {lane: len(one) for lane, one in found.episodes.items()} == dict.fromkeys(range(4), rows)
    before = {name: value for name, value in newest.facts.items() if name != "running"}
    _, found = refilled(run, replace(newest, facts=before))
    assert {lane: len(one) for lane, one in found.episodes.items()} == (
        dict.fromkeys(range(4), 121) if restored else {}
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_a_bit_that_has_changed_on_the_disk_is_found_or_is_of_no_use(tmp_path: Path, wanted: bool):
    """In whatever lies at either end of rows of a chunk, and in what follows them."""
    run = record_here(tmp_path / "run", **SETTINGS)
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    sound, whole = refilled(run, newest, episodes=wanted)
    row, last, outcomes = sound.geometry.dtype.itemsize, set(), set()
    for event, lane, start, stop, at in rows_on_disk(run, sound):
        rows = (stop - start) * row
        newer = stop == sound.geometry.first_row + 120
        needed = wanted or stop >= int(sound.committed[lane, 5])
        for place, counts in ((0, needed), (rows - 1, needed), (rows, newer), (rows + 11, newer)):
            with flipped(run / "record" / f"rows-{event.place.segment:06d}.bin", at + place) as path:
                if counts:
                    with pytest.raises(
                        RecordDamaged, match=rf"of lane {lane} in the record .*\n  file: record/{path.name}"
                    ):
                        refilled(run, newest, episodes=wanted)
                else:
                    block, found = refilled(run, newest, episodes=wanted)
                    assert bytes(block.buffer) == bytes(sound.buffer)
                    assert {lane: one.tobytes() for lane, one in found.episodes.items()} == {
                        lane: one.tobytes() for lane, one in whole.episodes.items()
                    }
            outcomes.add((counts, newer))
        last |= {lane} if newer else set()
    assert last == set(range(4))
    assert outcomes == {(True, True), (True, False), (False, False)}


def test_a_checkpoint_of_before_says_nothing_of_the_observation_behind_its_rows(tmp_path: Path):
    run = record_here(tmp_path / "run", **SETTINGS)
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    facts = {name: value for name, value in newest.facts.items() if name != "following"}
    assert len(facts) == len(newest.facts) - 1
    block, _ = refilled(run, replace(newest, facts=facts))
    assert bytes(block.buffer) == bytes(refilled(run, newest)[0].buffer)


def refilled(run: Path, newest: Checkpoint, *, episodes: bool = True) -> tuple[LaneBlock, Refilled]:
    """New lanes with what a checkpoint of a run held."""
    block, groups = lanes_of(run)
    with RowReader(run / "record") as rows, Trace.open(run / "record" / TRACE_FILE) as trace:
        return block, refill(block, groups, trace, rows, newest.facts, lambda: None, episodes=episodes)


def lanes_of(run: Path) -> tuple[LaneBlock, list[tuple[int, ...]]]:
    """New lanes as a run had them, and which of them are a group."""
    config = RunDirectory.open(run).read_config()
    geometry = EnvSpaces.of(Basics(config, Path())).geometry(config)
    block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    block.begin()
    return block, [group_lanes(config, group) for group in range(config.env.groups)]


def rows_on_disk(run: Path, block: LaneBlock) -> Iterator[tuple[ChunkCommitted, int, int, int, int]]:
    """Chunks that are still kept: event, lane, first row and last, and where in its file the lane's rows begin."""
    extents = Extents(block, lanes_of(run)[1])
    with Trace.open(run / "record" / TRACE_FILE) as trace:
        events = [(event, extents.of(event)) for _, event in trace if isinstance(event, ChunkCommitted)]
    for event, places in events[::3] + events[-4:]:
        for lane, start, stop, offset in places:
            yield event, lane, start, stop, event.place.offset + offset


@contextmanager
def flipped(path: Path, at: int) -> Iterator[Path]:
    """A file, meanwhile with another bit in one of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :])
    yield path
    path.write_bytes(data)
