"""Policies on disk."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import RunDirectoryError
from headrace.weights.policy_file import load_policy_arrays, policy_versions, save_policy

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


@pytest.mark.parametrize("content", [None, "not a policy"])
def test_policy_that_cannot_be_read(tmp_path, content):
    save_policy(tmp_path, 1, ARRAYS, {})
    if content is not None:
        (tmp_path / "3").mkdir()
        (tmp_path / "3" / "policy.safetensors").write_text(content)
    with pytest.raises(RunDirectoryError, match="policy 3 of this run cannot be read") as caught:
        load_policy_arrays(tmp_path, 3)
    assert caught.value.facts["versions"] == ("1" if content is None else "1, 3")


def test_a_run_that_was_moved_away_is_not_made_anew(tmp_path):
    with pytest.raises(FileNotFoundError):
        save_policy(tmp_path / "run" / "checkpoints", 1, {"w": np.zeros(2, np.float32)}, {})
    assert not (tmp_path / "run").exists()
