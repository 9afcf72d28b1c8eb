"""What rollouts of verifiers came to."""

from __future__ import annotations

import pytest

from headrace.envs.text.verifiers import Outcome, Tally, tally


def test_what_failed_has_no_reward_whatever_it_is_given() -> None:
    told = {"reward": 0.0, "metrics": {"turns": 1.0}, "error": "ModelError"}
    assert Outcome.of(told) == Outcome(None, {"turns": 1.0}, "ModelError")
    assert Outcome.of({"reward": None, "metrics": {}, "error": None}) == Outcome(None, {}, "it has no reward")
    assert Outcome.of({"reward": 0, "metrics": {}, "error": None}) == Outcome(0.0)


def test_the_mean_is_of_what_was_judged() -> None:
    outcomes = [
        Outcome(1.0),
        Outcome(None, error="a"),
        Outcome(0.0),
        Outcome(None, error="b"),
        Outcome(None, error="a"),
    ]
    found = tally(outcomes)
    assert found == Tally(2, 0.5, {"a": 2, "b": 1})
    assert tally(outcomes[1:2]).mean_reward is None
    assert tally([]).mean_reward is None
    assert found.mean_reward == pytest.approx(0.5)
