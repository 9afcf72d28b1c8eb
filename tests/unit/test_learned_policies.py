"""What each of several policies has to learn from, and how often it does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from headrace.learners.policies import LearnedPolicies


def test_ratios_are_of_each_policy_s_own_transitions():
    books = SimpleNamespace(committed=np.array([90, 3, 0, 100, 4, 0]), salvaged=np.array([10, 0, 0, 0, 1, 0]))
    policies = LearnedPolicies(("a", "b", "c"), (0, 1, 2, 0, 1, 2))
    assert policies.ratios(books, 40) == {"a": 40 / 200, "b": 40 / 8}
    assert LearnedPolicies().ratios(books, 40) == {}


def test_observations_are_told_by_policy():
    policies = LearnedPolicies(("a", "b"), (0, 1, 0, 1))
    assert policies.of([1, 2], [2, 3]).tolist() == [1, 1, 0, 0, 0]
    assert LearnedPolicies().of([1, 2], [2, 3]) is None


def test_metrics_are_told_by_the_name_of_the_policy():
    told = {"train/q_loss": 1.0, "train/0/q_loss": 2.0, "train/1/q_loss": 3.0, "train/epsilon": 0.5}
    policies = LearnedPolicies(("pack", "prey"), (0, 1))
    assert policies.named(told) == {
        "train/q_loss": 1.0, "train/pack/q_loss": 2.0, "train/prey/q_loss": 3.0, "train/epsilon": 0.5,
    }  # fmt: skip
    assert LearnedPolicies().named(told) == told
