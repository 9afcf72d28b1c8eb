"""Disks that fail while a checkpoint is written, and writers that died: one checkpoint is sound at every moment."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from checkpoint_support import POLICY, facts, newest, number_of, policy, put, state
from disk_support import DeadDisk, Disk, contents, fails_once
from headrace.learners.checkpoint import LearnerState
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import MANIFEST
from headrace.weights.policy_file import load_policy_arrays, policy_versions, save_policy, whole_policies


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch) -> None:
    """That what is written gets there, and in which order, is shown by tests/unit/test_files.py."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    made = CheckpointStore(tmp_path / "checkpoints", keep=3)
    made.folder.mkdir()
    return made


def again(store):
    put(store, 5, 50)


def again_with_the_same_policy(store):
    store.write(5, state(50), facts(50), policy(5), {"env_steps": 500})


def new(store):
    put(store, 7)


def new_beside_its_policy(store):
    put(store, 6)


def new_beside_another_policy(store):
    put(store, 6, 60)


def prune(store):
    CheckpointStore(store.folder, keep=1).prune(best_version=2)


def forget(store):
    older = next(found for found in store.checkpoints() if found.version == 3)
    store.forget_newer(older)


def evaluate(store):
    store.note_evaluation(5, 3.0)


def prepared(folder: Path) -> CheckpointStore:
    """Three checkpoints, the policy of a fourth version, evaluations, and what two dead writers left."""
    folder.mkdir()
    store = CheckpointStore(folder, keep=3)
    for version in (2, 3, 5):
        put(store, version)
        store.note_evaluation(version, -version)
    save_policy(folder, 6, policy(6), {})
    (folder / "6" / "state-9.safetensors").write_text("its manifest was never written")
    (folder / "5" / ".state-4.safetensors.77").write_text("half")
    return store


ACTIONS = {
    again: (5, 50),
    again_with_the_same_policy: None,
    new: (7, 7),
    new_beside_its_policy: (6, 6),
    new_beside_another_policy: (6, 60),
    prune: (5, 5),
    forget: (3, 3),
    evaluate: (5, 5),
}
"""Version and number of the newest afterwards; None: of mixed content."""


def outcome(folder: Path) -> tuple[int, int]:
    found, told = CheckpointStore(folder, 3).newest_sound()
    assert told == []
    assert found is not None
    return found.version, found.load().facts["updates"]


def check_all(folder: Path) -> None:
    """Every checkpoint there is, not only the newest, is whole; and every policy can be played."""
    for checkpoint in CheckpointStore(folder, 3).checkpoints():
        if checkpoint.load().facts["updates"] != 50:  # of which one action mixes the content
            number_of(checkpoint)
    for version in policy_versions(folder):
        load_policy_arrays(folder, version)
    assert set(policy_versions(folder)) >= {2, 3, 5, 6}


@pytest.mark.thin(11)
@pytest.mark.parametrize(
    ("kind", "action"),
    [*((Disk, action) for action in ACTIONS), (DeadDisk, again), (DeadDisk, new_beside_its_policy), (DeadDisk, prune)],
    ids=lambda part: part.__name__,
)
def test_a_disk_that_fails_at_any_call(tmp_path, kind, action):
    """The first failure is told; the newest checkpoint is the one before or the new one, and the next try succeeds."""
    original = prepared(tmp_path / "original").folder
    done = shutil.copytree(original, tmp_path / "done")
    action(CheckpointStore(done, 3))
    after, seen = outcome(done), set()
    assert ACTIONS[action] in (None, after)
    for at in itertools.count():
        folder = shutil.copytree(original, tmp_path / "case")
        store = CheckpointStore(folder, 3)
        with pytest.MonkeyPatch.context() as patch:
            disk = kind(patch, at, fails_once)
            error = None
            try:
                action(store)
            except OSError as caught:
                error = caught
        if not disk.struck:
            break
        assert error is not None, f"{disk.calls[at]} failed, and nobody was told"
        now = outcome(folder)
        assert now in ((5, 5), (3, 3), after), disk.calls
        check_all(folder)
        seen.add(now)
        action(store)
        assert contents(folder) == contents(done) or renumbered(folder) == renumbered(done)
        shutil.rmtree(folder)
    assert at > 4
    assert (5, 5) in seen
    shutil.rmtree(folder)


def renumbered(folder: Path) -> dict[str, object]:
    """What there is, but for the number of the newest state, which a try that failed may have used up."""
    newest_one = CheckpointStore(folder, 3).checkpoints()[0]
    found = contents(folder)
    name = f"state-{newest_one.saved}.safetensors"
    manifest_of = f"{newest_one.version}/{MANIFEST}"
    found[f"{newest_one.version}/state"] = found.pop(f"{newest_one.version}/{name}")
    found[manifest_of] = found[manifest_of][:0]
    return found


@pytest.mark.parametrize("action", [again, new, new_beside_its_policy, new_beside_another_policy])
def test_a_failed_write_leaves_everything_as_it_was(tmp_path, action):
    original = prepared(tmp_path / "original").folder
    CheckpointStore(original, 3)._tidy_all()  # what others left is not put back
    before, unchanged = contents(original), 0
    for at in itertools.count():
        folder = shutil.copytree(original, tmp_path / "case")
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, at, fails_once)
            try:
                action(CheckpointStore(folder, 3))
            except OSError:
                if outcome(folder) == (5, 5):
                    assert contents(folder) == before, disk.calls[: at + 1]
                    assert sorted(path.name for path in folder.iterdir()) == sorted(
                        path.name for path in original.iterdir()
                    )
                    unchanged += 1
        shutil.rmtree(folder)
        if not disk.struck:
            break
    assert unchanged > 8


def test_a_full_disk(store):
    put(store, 8)
    before = contents(store.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = LearnerState({"actor": np.zeros(100_000)}, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write(9, big, facts(9), policy(9), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(store.folder) == before
    assert [path.name for path in store.folder.iterdir()] == ["8"]
    put(store, 9)
    assert newest(store.folder) == (9, 9)


def test_facts_that_are_not_json_leave_nothing(store):
    put(store, 8)
    before = contents(store.folder)
    with pytest.raises(TypeError):
        put(store, 9, episodes=np.int64(3))
    assert contents(store.folder) == before


def test_left_over_files_go_with_the_next_write(store):
    put(store, 8)
    folder = put(store, 9)
    (folder / "state-7.safetensors").write_text("no manifest names it")
    (folder / ".checkpoint.json.77").write_text("{")
    (store.folder / "4").mkdir()
    (store.folder / "4" / ".policy-3.safetensors.77").write_text("half")
    (store.folder / "notes.txt").write_text("of somebody else")
    put(store, 10)
    assert sorted(contents(store.folder)) == sorted(
        [f"{version}/{name}" for version in (8, 9, 10) for name in (MANIFEST, POLICY)]
        + ["8/state-1.safetensors", "9/state-2.safetensors", "10/state-3.safetensors", "notes.txt"]
    )
    assert not (store.folder / "4").exists()


def test_a_writer_that_died_before_the_policy_had_its_name(store, monkeypatch):
    put(store, 9, 1)
    monkeypatch.setattr("headrace.learners.checkpoints._tidy", lambda *_, **__: None)
    folder = put(store, 9, 2)
    assert sorted(contents(folder)) == [
        MANIFEST, "policy-2.safetensors", POLICY, "state-1.safetensors", "state-2.safetensors",
    ]  # fmt: skip
    assert newest(store.folder) == (9, 2)
    monkeypatch.undo()
    put(store, 10)
    assert sorted(contents(folder)) == [MANIFEST, POLICY, "state-2.safetensors"]
    assert load_policy_arrays(store.folder, 9)[0]["actor"][0] == 2


def test_policies_that_are_missing_or_damaged_are_not_among_the_whole_ones(tmp_path):
    for version in (1, 2):
        save_policy(tmp_path, version, {"actor": np.arange(8, dtype=np.float32)}, {})
    path = tmp_path / "2" / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert whole_policies(tmp_path, [1, 2, 3]) == {1}
