"""Policies of a record, and who is given which."""

from __future__ import annotations

import numpy as np

from headrace.runtime.policies import PinnedPolicy, Policies
from headrace.weights.snapshot import SnapshotLayout

LAYOUT = SnapshotLayout.of({"bias": np.zeros(3, np.float32)})


def kept(versions: int, last_use: dict[int, int]) -> Policies:
    policies = Policies(last_use)
    for version in range(1, versions + 1):
        policies.keep(version, LAYOUT, {"bias": np.full(3, version, np.float32)})
    return policies


def test_a_policy_is_copied():
    policies, arrays = Policies({}), {"bias": np.ones(3, np.float32)}
    policies.keep(1, LAYOUT, arrays)
    arrays["bias"][:] = 9.0
    assert policies.of(1)["bias"].tolist() == [1.0, 1.0, 1.0]
    assert policies.of(1)["bias"].ctypes.data % 64 == 0, "matrix products depend on the alignment"
    assert policies.of(2) is None


def test_those_the_record_refers_to_are_kept_and_the_newest_eight():
    policies = kept(12, {2: 50, 3: 60})
    policies.forget_before(50)
    assert policies.versions == [12, 11, 10, 9, 8, 7, 6, 5, 3, 2]
    policies.forget_before(51)
    assert policies.versions == [12, 11, 10, 9, 8, 7, 6, 5, 3]


def test_a_collector_gets_the_version_that_is_pinned_when_it_asks():
    policy = PinnedPolicy(kept(3, {}))
    assert not policy.refresh()
    policy.pin(2)
    assert policy.version == 0
    assert policy.refresh()
    assert (policy.version, policy.arrays["bias"][0]) == (2, 2.0)
    assert not policy.refresh()
    policy.pin(7)
    assert not policy.refresh()
    assert policy.version == 2, "that one is not on record: what the replay makes will differ, and be told"
