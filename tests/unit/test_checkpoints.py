"""Checkpoints: whatever breaks, the newest sound one is found, whole, and it is said what was wrong with the others."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_support import POLICY, facts, newest, policy, put, state
from disk_support import contents
from headrace.core.errors import RunDirectoryError
from headrace.learners.checkpoint import LearnerState
from headrace.learners.checkpoints import Checkpoint, CheckpointStore, load_checkpoint
from headrace.learners.manifest import MANIFEST, seal, unseal
from headrace.weights.policy_file import load_policy_arrays, policy_versions, save_policy


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch) -> None:
    """That what is written gets there, and in which order, is shown by tests/unit/test_files.py."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    made = CheckpointStore(tmp_path / "checkpoints", keep=3)
    made.folder.mkdir()
    return made


# What is written


def test_what_was_written_is_found(store):
    assert newest(store.folder) is None
    folder = put(store, 12, wall_s=3.25, episodes=7)
    assert folder == store.folder / "12"
    assert sorted(contents(folder)) == [MANIFEST, POLICY, "state-1.safetensors"]
    (found,) = store.checkpoints()
    assert (found.version, found.saved, found.folder, found.oldest_segment) == (12, 1, folder, 4)
    assert found.facts == {**facts(12), "version": 12, "wall_s": 3.25, "episodes": 7}
    assert newest(store.folder) == (12, 12)
    assert load_checkpoint(folder).facts == state(12).facts
    assert pickle.loads(pickle.dumps(found)) == found
    assert load_policy_arrays(store.folder, 12)[1] == {"env_steps": "1200", "version": "12"}


def test_manifest_is_json_that_people_can_read(store):
    folder = put(store, 12)
    values = json.loads((folder / MANIFEST).read_text())
    sizes = {name: (folder / name).stat().st_size for name in (POLICY, "state-1.safetensors")}
    assert {name: mark["bytes"] for name, mark in values["files"].items()} == sizes
    assert list(values)[:3] == ["format", "headrace", "saved"]
    assert (values["format"], values["headrace"], values["saved"], values["rows"]) == (1, "0.1.0", 1, [4, 640])


def test_newest_is_the_one_saved_last_not_the_highest_version(store):
    for version in (30, 20, 25):
        put(store, version)
    assert [(found.version, found.saved) for found in store.checkpoints()] == [(25, 3), (20, 2), (30, 1)]


def test_numbers_rise_over_the_whole_run(store):
    put(store, 1)
    put(CheckpointStore(store.folder, 3), 2)
    later = CheckpointStore(store.folder, 3)
    put(later, 2, 5)
    (store.folder / "2" / MANIFEST).write_text("garbage")  # its number is used all the same
    put(CheckpointStore(store.folder, 3), 3)
    assert [found.saved for found in store.checkpoints()] == [4, 1]


def test_the_same_version_again_replaces_it(store):
    put(store, 12, 1)
    folder = put(store, 12, 2)
    assert sorted(contents(folder)) == [MANIFEST, POLICY, "state-2.safetensors"]
    assert newest(store.folder) == (12, 2)
    assert load_policy_arrays(store.folder, 12)[0]["actor"][0] == 2


def test_a_policy_that_is_there_with_the_same_arrays_stays_as_it_is(store):
    save_policy(store.folder, 12, policy(12), {"env_steps": 5, "spaces": "noted at its evaluation"})
    before = (store.folder / "12" / POLICY).stat()
    put(store, 12)
    save_policy(store.folder, 12, policy(12), {"env_steps": 9_999})  # evaluated later, more steps collected
    assert (store.folder / "12" / POLICY).stat().st_ino == before.st_ino
    assert newest(store.folder) == (12, 12)
    assert load_policy_arrays(store.folder, 12)[1]["env_steps"] == "5"


@pytest.mark.parametrize("found", ["another", "other_dtype", "damaged"])
def test_another_policy_is_replaced(store, found):
    if found == "damaged":
        (store.folder / "12").mkdir()
        (store.folder / "12" / POLICY).write_text("no policy")
    else:
        dtype = np.float64 if found == "other_dtype" else np.float32
        value = 12 if found == "other_dtype" else 3
        save_policy(store.folder, 12, {**policy(12), "actor": np.full(20, value, dtype)}, {})
    put(store, 12)
    assert newest(store.folder) == (12, 12)


def test_state_that_changes_after_it_was_written_changes_nothing(store):
    live = state(1)
    store.write(1, live, facts(1), policy(1), {})
    live.arrays["actor"][:] = 0
    assert newest(store.folder) == (1, 1)


# What breaks afterwards


def damaged(name: str, what: str) -> str:
    return f"{name} of checkpoint 9 {what}"


def two(store: CheckpointStore) -> Path:
    put(store, 8)
    return put(store, 9)


@pytest.mark.parametrize("name", ["state-2.safetensors", POLICY])
@pytest.mark.parametrize("left", [0, 1, 8, 100, -9, -1])
def test_a_file_that_is_cut_off(store, name, left):
    path = two(store) / name
    data = path.read_bytes()
    path.write_bytes(data[:left])
    has = len(data[:left])
    assert newest(store.folder, damaged(name, f"is cut off: {has} bytes instead of {len(data)}")) == (8, 8)
    path.write_bytes(data + b"x")
    assert newest(store.folder, damaged(name, f"has grown: {len(data) + 1} bytes instead of {len(data)}")) == (8, 8)


@pytest.mark.parametrize("name", ["state-2.safetensors", POLICY])
def test_any_byte_that_is_flipped(store, name):
    path = two(store) / name
    data = path.read_bytes()
    told = damaged(name, "is damaged: its bytes are not those that were written")
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert newest(store.folder, told) == (8, 8)
    path.write_bytes(data)
    assert newest(store.folder) == (9, 9)


@pytest.mark.parametrize("name", ["state-2.safetensors", POLICY])
def test_a_file_that_is_missing(store, name):
    (two(store) / name).unlink()
    assert newest(store.folder, damaged(name, "is missing")) == (8, 8)


def test_a_manifest_cut_off_anywhere(store):
    path = two(store) / MANIFEST
    data = path.read_bytes()
    for left in range(len(data)):
        path.write_bytes(data[:left])
        found, told = store.newest_sound()
        assert found is not None
        assert found.version == 8, left
        assert len(told) == 1
        assert "checkpoint 9" in told[0]


def test_any_byte_of_a_manifest_that_is_flipped(store):
    path = two(store) / MANIFEST
    data = path.read_bytes()
    for place in range(len(data)):
        bit = place % 8
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(RunDirectoryError, match="checkpoint 9"):
            Checkpoint.read(path.parent)
        if place % 9 == 0:
            found, told = store.newest_sound()
            assert found is not None
            assert (found.version, len(told)) == (8, 1), (place, bit)


def test_a_missing_manifest_makes_it_a_policy_only(store):
    (two(store) / MANIFEST).unlink()
    assert newest(store.folder) == (8, 8)
    with pytest.raises(RunDirectoryError, match=r"9 is no checkpoint: it has no checkpoint\.json"):
        load_checkpoint(store.folder / "9")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[]", "was changed or damaged after it was written"),
        (b"{}", "was changed or damaged after it was written"),
        (seal({"format": 1, "saved": 3}), "was changed or damaged after it was written"),
        (seal({"format": 1, "saved": 3, "version": 9, "files": []}), "was changed or damaged after it was written"),
        (seal({"format": "one"}), "was changed or damaged after it was written"),
    ],
)
def test_a_manifest_that_is_none(store, text, told):
    (two(store) / MANIFEST).write_bytes(text)
    found, problems = store.newest_sound()
    assert found is not None
    assert found.version == 8
    assert problems[0].startswith(f"checkpoint.json of checkpoint 9 {told}")


def test_a_format_that_is_not_known_is_left_alone(store):
    folder = two(store)
    values = unseal((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_bytes(seal({**values, "format": 2, "headrace": "3.1.0"}))
    before = contents(folder)
    assert newest(store.folder, "checkpoint 9 has format 2, and only 1 is known here") == (8, 8)
    with pytest.raises(RunDirectoryError) as caught:
        Checkpoint.read(folder)
    assert str(caught.value) == (
        "[CFG-002] checkpoint 9 has format 2, and only 1 is known here\n"
        f"  file: {folder / MANIFEST}\n"
        "  written by: Headrace 3.1.0\n"
        "  fix: go on from an older checkpoint; `headrace train --resume` takes the newest sound one"
    )
    for version in (10, 11, 12, 13):
        put(store, version)
        store.prune()
    assert contents(folder) == before


def test_a_checkpoint_moved_to_another_folder_is_none(store):
    shutil.copytree(two(store), store.folder / "7")
    told = "checkpoint.json of checkpoint 7 was changed or damaged after it was written"
    assert newest(store.folder, told) == (9, 9)


def test_a_file_that_cannot_be_read(store):
    path = two(store) / "state-2.safetensors"
    path.unlink()
    path.symlink_to(path.name)
    told = damaged(path.name, "cannot be read: Too many levels of symbolic links")
    assert newest(store.folder, told) == (8, 8)


def test_all_are_damaged(store):
    folder = two(store)
    (folder / MANIFEST).write_text("garbage")
    (store.folder / "8" / POLICY).unlink()
    found, told = store.newest_sound()
    assert found is None
    assert [sentence[:30] for sentence in told] == ["checkpoint.json of checkpoint ", "policy.safetensors of checkpoi"]


def test_a_checkpoint_whose_rows_are_gone_is_left_out(store):
    two(store)  # their rows begin in segment 2 and 3
    assert newest(store.folder, oldest_segment=3) == (9, 9)
    gone = "the rows of checkpoint {} are gone: they begin in segment {}, and the record begins with 4"
    assert newest(store.folder, gone.format(9, 3), gone.format(8, 2), oldest_segment=4) is None


def test_loading_a_damaged_state_never_gives_a_part_of_it(store):
    folder = two(store)
    (found, _) = store.checkpoints()
    path = folder / "state-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(RunDirectoryError, match="is damaged") as caught:
        found.load()
    assert caught.value.facts["expected"] != caught.value.facts["found"]


def test_seal_is_undone_by_unseal():
    values = {"a": [1, 2.5, None, True], "b": {"ü\n}": 1e300}, "c": float("inf"), "d": "}"}
    assert unseal(seal(values)) == values
    assert json.loads(seal(values))["b"] == values["b"]


# Which are kept


def kept(store: CheckpointStore) -> list[int]:
    return [found.version for found in store.checkpoints()]


def test_the_newest_and_the_best_are_kept(store):
    means = {1: -5.0, 2: 7.0, 3: 7.0, 4: -1.0, 5: 3.0, 6: 0.0, 9: 99.0}
    for version, mean in means.items():
        store.note_evaluation(version, mean)
    for version in range(1, 8):
        put(store, version)
        store.prune()
    assert kept(store) == [7, 6, 5, 3]
    assert store.best_version() == 3
    assert policy_versions(store.folder) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(contents(store.folder / "2")) == [POLICY]
    assert newest(store.folder) == (7, 7)


def test_the_best_is_known_after_a_restart_and_evaluated_before_or_after(store):
    put(store, 1)
    store.note_evaluation(1, 5.0)
    store.note_evaluation(2, 6.0)
    store.note_evaluation(3, float("nan"))
    put(store, 2)
    put(store, 3)
    again = CheckpointStore(store.folder, keep=1)
    assert again.best_version() == 2
    again.note_evaluation(1, 8.0)
    again.prune()
    assert kept(again) == [3, 1]


def test_the_best_may_be_named(store):
    for version in (1, 2, 3, 4, 5):
        put(store, version)
        store.note_evaluation(version, -version)
    store.prune(best_version=2)
    assert kept(store) == [5, 4, 3, 2]


def test_nothing_was_evaluated(store):
    for version in (1, 2, 3, 4):
        put(store, version)
    assert store.best_version() is None
    store.prune()
    assert kept(store) == [4, 3, 2]


def test_the_oldest_segment_is_that_of_the_newest_ones(store):
    assert store.oldest_segment() is None
    for version, segment in ((1, 0), (2, 2), (3, 5), (4, 4), (5, 6)):
        put(store, version, oldest_segment=segment)
    store.note_evaluation(1, 1.0)
    store.prune()
    assert kept(store) == [5, 4, 3, 1]
    assert store.oldest_segment() == 4


def test_what_is_newer_is_forgotten_when_a_run_goes_on_from_before(store):
    for version in (1, 2, 3, 4):
        put(store, version)
        store.note_evaluation(version, version)
    older = store.checkpoints()[2]
    store.forget_newer(older)
    assert kept(store) == [2, 1]
    assert policy_versions(store.folder) == [1, 2, 3, 4]
    put(store, 3, 30)
    assert newest(store.folder) == (3, 30)
    assert store.best_version() == 2  # what was evaluated as 3 was another policy
    assert store.checkpoints()[0].saved == 5


def test_evaluations_that_are_damaged_are_told_and_written_anew(store):
    put(store, 8)
    store.note_evaluation(8, 1.0)
    path = store.folder / "evaluations.json"
    path.write_text(path.read_text().replace("1.0", "9.0"))
    told = "evaluations.json cannot be read (not as it was written), so it is not known which checkpoint is the best"
    assert newest(store.folder, told) == (8, 8)
    store.note_evaluation(8, 2.0)
    assert newest(store.folder) == (8, 8)
    assert store.best_version() == 8


# What a long history costs


@pytest.fixture
def looked_at(monkeypatch) -> list[tuple[str, Path]]:
    """Every folder that is listed, and every file that is asked for or opened, with how."""
    found: list[tuple[str, Path]] = []

    def seam(owner: object, name: str) -> None:
        call = getattr(owner, name)

        def noted(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike):
                found.append((name, Path(path)))
            return call(path, *args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in ((os, "stat"), (os, "listdir"), (os, "scandir"), (os, "open"), (io, "open")):
        seam(owner, name)
    return found


def test_a_checkpoint_costs_the_same_however_many_policies_there_are(store, looked_at):
    for version in range(1, 61):
        if version % 4 == 0:
            put(store, version)
            store.prune()
        else:
            save_policy(store.folder, version, policy(version), {})
    assert kept(store) == [60, 56, 52]
    costs = []
    for version in (61, 62, 63, 64):
        looked_at.clear()
        put(store, version)
        store.prune()
        store.oldest_segment()
        costs.append(len(looked_at))
        assert [how for how, path in looked_at if path == store.folder and how != "stat"] == ["scandir", "open"]
        old = {store.folder / str(number) for number in range(1, 48)}
        assert not [path for _, path in looked_at if path in old or path.parent in old]
    assert kept(store) == [64, 63, 62]
    assert max(costs[1:]) == min(costs[1:])


def test_a_policy_that_becomes_a_checkpoint_is_one_also_for_who_has_looked_before(store):
    save_policy(store.folder, 3, policy(3), {})
    save_policy(store.folder, 4, policy(4), {})
    put(store, 1)
    put(store, 3)
    put(store, 5)
    put(store, 4)
    store.prune()
    assert kept(store) == [4, 5, 3]
    assert store.oldest_segment() == 1
    assert sorted(contents(store.folder / "1")) == [POLICY]


# The state of a learner alone


def test_state_of_a_learner_is_replaced_whole(tmp_path):
    path = tmp_path / "learner.safetensors"
    assert LearnerState.load(path) is None
    for number in (1, 2):
        state(number).save(path)
    loaded = LearnerState.load(path)
    assert loaded is not None
    assert loaded.facts == state(2).facts
    np.testing.assert_array_equal(loaded.arrays["actor"], state(2).arrays["actor"], strict=True)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunDirectoryError, match="the learner's saved state cannot be read"):
        LearnerState.load(path)
