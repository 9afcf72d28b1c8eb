"""What each of several policies has to learn from, and how often it does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.several import SeveralSamplers
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


def wanting(held: list[int], ready: list[bool], env_steps: int) -> None:
    """Whether an update that is due is refused: two policies with two lanes each, at a bound of 20 steps, and of 60."""
    samplers = SeveralSamplers([SimpleNamespace(ready=one, generator=None) for one in ready])  # type: ignore[misc]
    zeros = np.zeros(4, np.int64)
    books = SimpleNamespace(committed=np.array(held) + 7, salvaged=zeros, evicted=zeros + 7)
    replay = SimpleNamespace(env_steps=env_steps, books=books, geometry=SimpleNamespace(n_step=10))
    limiter = RateLimiter(10, 1.0, 10, 1_000, draw_steps=4 * 10)
    LearnedPolicies(("pack", "prey"), (0, 1, 0, 1)).refuse_endless_want(samplers, limiter, replay, 0)  # type: ignore[arg-type]


def test_a_policy_whose_agents_have_made_no_step_is_refused_once_no_more_may_be_collected():
    wanting([10, 0, 9, 0], [True, False], 19)
    with pytest.raises(
        ConfigError, match="policy prey has nothing to learn from: no step of its agents is in the replay"
    ):
        wanting([11, 0, 9, 0], [True, False], 20)
    with pytest.raises(ConfigError, match="policy prey has nothing to learn from"):  # another one has only too few
        wanting([11, 0, 9, 0], [False, False], 20)


def test_a_policy_whose_transitions_are_not_complete_is_waited_for_and_then_refused_with_the_reason():
    wanting([8, 2, 8, 2], [False, False], 20)
    wanting([30, 2, 25, 2], [True, False], 59)
    wanting([30, 2, 26, 2], [True, True], 60)
    with pytest.raises(ConfigError) as caught:
        wanting([30, 2, 26, 2], [True, False], 60)
    assert str(caught.value) == (
        "[CFG-001] policy prey has too little to learn from: no lane of its agents holds the 10 steps of one transition\n"
        "  n step: 10\n"
        "  env steps: 60\n"
        "  updates due: 51\n"
        "  steps held: prey 4\n"
        "  fix: lower replay.n_step, let these agents share a policy with others (agents.policies), or raise "
        "replay.learning_starts so that they make more steps before the first update"
    )
