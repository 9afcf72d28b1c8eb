"""Policies on disk."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import RunDirectoryError
from headrace.learners.checkpoint import STATE_FILE, LearnerState
from headrace.weights.policy_file import holds, load_policy_arrays, policy_versions, read_policy, save_policy

ARRAYS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "bias": np.array(0.5)}


def test_what_was_saved_is_loaded(tmp_path):
    path = save_policy(tmp_path, 12, ARRAYS, {"env_steps": 3400})
    assert path == tmp_path / "12" / "policy.safetensors"
    arrays, facts = load_policy_arrays(tmp_path, 12)
    assert facts == {"env_steps": "3400", "version": "12"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_versions_are_numbers_in_order_and_complete(tmp_path):
    for version in (9, 10, 2):
        save_policy(tmp_path, version, ARRAYS, {})
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / ".policy.safetensors.77").write_text("the writer was killed here")
    assert policy_versions(tmp_path) == [2, 9, 10]


@pytest.mark.parametrize("content", [None, "not a policy", "in the way"])
def test_policy_that_cannot_be_read(tmp_path, content):
    save_policy(tmp_path, 1, ARRAYS, {})
    path, happened = tmp_path / "3" / "policy.safetensors", "is missing"
    if content == "in the way":
        path.mkdir(parents=True)
        happened = "cannot be read"
    elif content is not None:
        path.parent.mkdir()
        path.write_text(content)
        happened = "is damaged"
    with pytest.raises(RunDirectoryError, match=f"policy 3 of this run {happened}\n") as caught:
        load_policy_arrays(tmp_path, 3)
    assert (caught.value.facts["file"], caught.value.facts["other_versions"]) == (path, "1")
    with pytest.raises(RunDirectoryError, match=f"policy.safetensors {happened}\n"):
        read_policy(path)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("policy.safetensors", lambda path: load_policy_arrays(path.parents[1], 12)[0]),
        ("policy.safetensors", lambda path: read_policy(path)[0]),
        ("learner.safetensors", lambda path: LearnerState.load(path).arrays),
    ],
    ids=["of a run", "of its own", "state of a learner"],
)
def test_a_byte_that_has_changed_on_the_disk_is_found_by_whoever_reads(tmp_path, name, read):
    """In every eighth of the file; the format itself tells of none but its header."""
    arrays = ARRAYS | {"large": np.linspace(0, 1, 300)}
    path = save_policy(tmp_path, 12, arrays, {}).with_name(name)
    if name == STATE_FILE:
        LearnerState(arrays, {"updates": 3}).save(path)
    sound = path.read_bytes()
    for eighth in range(8):
        at = len(sound) * eighth // 8 + len(sound) // 16
        path.write_bytes(sound[:at] + bytes((sound[at] ^ 0x10,)) + sound[at + 1 :])
        with pytest.raises(RunDirectoryError) as caught:
            read(path)
        assert caught.value.facts["file"] == path
        assert not holds(path, arrays)
    path.write_bytes(sound)
    assert holds(path, arrays)
    np.testing.assert_array_equal(read(path)["large"], arrays["large"], strict=True)


def test_a_run_that_was_moved_away_is_not_made_anew(tmp_path):
    with pytest.raises(FileNotFoundError):
        save_policy(tmp_path / "run" / "checkpoints", 1, {"w": np.zeros(2, np.float32)}, {})
    assert not (tmp_path / "run").exists()
