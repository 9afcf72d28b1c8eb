"""What a run leaves as summary.json."""

from __future__ import annotations

import pytest

from headrace.runtime.config import load_config
from headrace.runtime.scores import EvaluationQueue
from headrace.runtime.summary import audit, summarize, unbalanced

BALANCED = {
    "produced": 12, "committed": 8, "salvaged": 2, "rejected": 1, "evicted": 3, "resident": 7, "in_flight": 1,
}  # fmt: skip


class FakeBooks:
    def __init__(self, *lanes: dict[str, int]) -> None:
        self.lanes = lanes
        self.settled: list[int] = []

    def settle(self, number: int) -> None:
        self.settled.append(number)

    def lane(self, number: int) -> dict[str, int]:
        return dict(self.lanes[number])


def test_totals_are_the_sums_of_the_lanes():
    kept = FakeBooks(BALANCED, BALANCED)
    books = audit(kept, 2)
    assert kept.settled == [0, 1]  # what a killed learner had begun
    assert books == {
        "produced": 24, "committed": 16, "salvaged": 4, "evicted": 6, "resident": 14, "in_flight": 2,
        "rejected": {"not_finite": 2}, "balanced": True, "lanes": [BALANCED, BALANCED],
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(BALANCED))
def test_a_single_transition_too_many_anywhere_is_found_and_its_lane_named(name):
    wrong = {**BALANCED, name: BALANCED[name] + 1}
    books = audit(FakeBooks(BALANCED, wrong), 2)
    assert not books["balanced"]
    error = unbalanced(books)
    assert error.what == "the books of lane 1 do not balance"
    assert error.facts[name] == BALANCED[name] + 1
    assert error.exit_code == 4


def test_run_without_lanes_has_empty_books():
    books = audit(None, 6)
    assert books["balanced"]
    assert (books["produced"], books["lanes"]) == (0, [])


def test_what_has_no_source_is_null_and_never_zero():
    config = load_config("pendulum-td3")
    outcome = {
        "outcome": "failed", "error": "x", "exit_code": 1, "updates": 0, "wall_s": 1.23456, "training_s": None, "degraded": None,
        "lost_lines": {}, "culprit": "learner",
    }  # fmt: skip
    queue = EvaluationQueue(baseline=True, enabled=True)
    summary = summarize(config, outcome, {}, audit(None, 6), queue, {"died": 1, "restarts": 2})
    for name in ("episodes", "policy_lag", "policy_version", "first_update_at", "weights_sha256", "random_baseline"):
        assert summary[name] is None
    assert summary["culprit"] == "learner"
    assert summary["replay_ratio"] == {"declared": 1.0, "measured": None}
    assert summary["throughput"] == {"env_steps_per_s": None, "updates_per_s": None}
    assert (summary["faults"], summary["restarts"], summary["wall_s"]) == ({"died": 1}, 2, 1.235)


def test_throughput_is_over_training_alone():
    config = load_config("pendulum-td3", {"run.schedule": "inline", "replay.ratio": 0.5})
    outcome = {
        "outcome": "completed",
        "error": None,
        "culprit": None,
        "exit_code": 0,
        "updates": 30,
        "wall_s": 9.0,
        "training_s": 2.0,
        "degraded": None,
        "lost_lines": {"events": 0, "metrics": 0},
    }
    queue = EvaluationQueue(baseline=False, enabled=True)
    queue.finished({"version": 3, "env_steps": 60, "mean_reward": 1.5, "interval": None, "episodes": 1})
    summary = summarize(config, outcome, {"ratio": 0.5}, audit(FakeBooks(BALANCED), 1), queue, {})
    assert summary["env_steps"] == 10
    assert summary["throughput"] == {"env_steps_per_s": 5.0, "updates_per_s": 15.0}
    assert summary["collectors"] == 0
    (point,) = summary["evaluations"]
    assert (point["version"], point["env_steps"], point["mean_reward"], point["episodes"]) == (3, 60, 1.5, 1)


RESUMES = [
    {"env_steps": 4, "updates": 2, "lost_env_steps": 3, "lost_updates": 1},
    {"env_steps": 6, "updates": 10, "lost_env_steps": 0, "lost_updates": 0},
]
OUTCOME = {
    "outcome": "completed", "error": None, "culprit": None, "exit_code": 0, "updates": 30, "wall_s": 9.0, "training_s": 2.0, "degraded": None,
    "lost_lines": {"events": 0, "metrics": 3},
}  # fmt: skip


def test_speed_of_a_resumed_run_is_that_of_this_session():
    queue = EvaluationQueue(baseline=False, enabled=True)
    summary = summarize(load_config("pendulum-td3"), OUTCOME, {}, audit(FakeBooks(BALANCED), 1), queue, {}, RESUMES)
    assert (summary["env_steps"], summary["updates"]) == (10, 30)
    assert summary["throughput"] == {"env_steps_per_s": 2.0, "updates_per_s": 10.0}
    assert (summary["sessions"], summary["resumes"]) == (3, RESUMES)


def test_lines_that_could_not_be_written_are_told_by_file():
    queue = EvaluationQueue(baseline=False, enabled=True)
    assert summarize(load_config("pendulum-td3"), OUTCOME, {}, None, queue, {})["lost_lines"] == {"metrics": 3}


def test_run_that_was_never_resumed_has_one_session():
    queue = EvaluationQueue(baseline=False, enabled=True)
    summary = summarize(load_config("pendulum-td3"), OUTCOME, {}, audit(FakeBooks(BALANCED), 1), queue, {})
    assert (summary["sessions"], summary["resumes"]) == (1, [])


def test_session_that_ends_before_its_experience_is_there_again_keeps_the_counts_of_its_checkpoint():
    queue = EvaluationQueue(baseline=False, enabled=True)
    outcome = OUTCOME | {"outcome": "failed", "updates": 10, "training_s": None}
    summary = summarize(load_config("pendulum-td3"), outcome, {}, None, queue, {}, RESUMES)
    assert (summary["env_steps"], summary["updates"], summary["books"]) == (6, 10, None)
    assert summary["throughput"] == {"env_steps_per_s": None, "updates_per_s": None}


@pytest.mark.parametrize(
    ("settings", "ended", "why"),
    [
        (
            {"rollout.whole_episodes": True},
            {},
            "rollout.whole_episodes trains on episodes that are over, and none was; ",
        ),
        ({}, {}, ""),
        ({}, {"outcome": "interrupted"}, None),
        ({}, {"updates": 1}, None),
    ],
)
def test_a_run_that_ended_as_declared_and_learned_nothing_says_so(settings, ended, why):
    outcome = {
        "outcome": "completed", "error": None, "exit_code": 0, "updates": 0, "wall_s": 1.0, "training_s": 1.0,
        "degraded": None, "culprit": None, "lost_lines": {},
    } | ended  # fmt: skip
    queue = EvaluationQueue(baseline=True, enabled=True)
    books = audit(FakeBooks(BALANCED), 1)
    found = summarize(load_config("cartpole-ppo", settings), outcome, {}, books, queue, {})["warnings"]
    if why is None:
        assert found == []
        return
    (told,) = found
    assert (told["kind"], told["severity"]) == ("no_update", "warning")
    assert told["text"].startswith(f"no update was made in 10 environment steps: {why}make the run longer")
