"""Which rows of a record a run keeps, and which it reads again: those of its replay, and of episodes that go on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.lanes.lane import LaneBlock
from headrace.learners.checkpoints import CheckpointStore
from headrace.record.rows import RowLog, RowReader, segments_in
from headrace.record.trace import Trace
from headrace.runtime import recording
from headrace.runtime.payloads import Basics, EnvSpaces, group_lanes
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.refill import refill
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
    nbytes, read = [], RowReader.read
    monkeypatch.setattr(RowReader, "read", lambda *given: nbytes.append(given[2]) or read(*given))
    block, found = refilled(run, wanted=wanted)
    size = block.geometry.dtype.itemsize
    assert {lane: len(one) for lane, one in found.items()} == (dict.fromkeys(range(4), 121) if wanted else {})
    assert (sum(nbytes) < 4 * 60 * size) is not wanted, "no more than what is resident, in whole chunks"
    np.testing.assert_array_equal(block.committed[:, 4], block.geometry.first_row + 120)


def test_episodes_whose_rows_were_not_kept_are_known_to_run(tmp_path: Path):
    """Their lanes' rows alone need not tell it, and then nothing would tell of their end."""
    run = record_here(tmp_path / "run", **SETTINGS, checkpoint__restore_episodes=False)
    _, found = refilled(run, wanted=True)
    assert {lane: len(one) for lane, one in found.items()} == dict.fromkeys(range(4), 0)


def test_a_checkpoint_that_does_not_say_which_episodes_run_is_taken(tmp_path: Path):
    run = record_here(tmp_path / "run", **SETTINGS)
    _, found = refilled(run, wanted=True, without="running")
    assert {lane: len(one) for lane, one in found.items()} == dict.fromkeys(range(4), 121)


def refilled(run: Path, *, wanted: bool, without: str = "") -> tuple[LaneBlock, dict[int, np.ndarray]]:
    """Lanes as at the newest checkpoint, and the rows of its running episodes; ``without`` a fact of it."""
    (newest,) = CheckpointStore(run / "checkpoints", keep=1).checkpoints()
    facts = {name: value for name, value in newest.facts.items() if name != without}
    config = RunDirectory.open(run).read_config()
    geometry = EnvSpaces.of(Basics(config, Path())).geometry(config)
    block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
    block.begin()
    groups = [group_lanes(config, group) for group in range(config.env.groups)]
    with RowReader(run / "record") as rows, Trace.open(run / "record" / TRACE_FILE) as trace:
        return block, refill(block, groups, trace, rows, facts, lambda: None, episodes=wanted).episodes
