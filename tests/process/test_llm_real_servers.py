"""Servers, environments and processes that are alive and do not do their work: real components, one thing broken in one."""

from __future__ import annotations

import os
import signal

import pytest

from llm_real_support import real, real_server
from run_support import events

__all__ = ["real", "real_server"]

pytestmark = [pytest.mark.process, pytest.mark.table]


@pytest.mark.parametrize(
    ("fault", "version", "words"),
    [
        ("has_no_update_route", 0, "inference has no route to load version 0, and would go on with the weights it has"),
        ("keeps_its_weights", 1, "inference says that it serves version 1, and its log-probabilities are not that"),
        ("says_the_old_version", 1, "inference was given version 1 and says that it serves version 0"),
        ("stamps_the_version_before", 3, "an evaluation of version 3 was answered by version 2"),
    ],
)
def test_a_server_with_other_weights_is_named_before_anything_is_trained_on_them(real, fault, version, words):
    summary = real(targets={"inference": f"llm_fault_servers:{fault}"}, trainer__lr=0.05)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "inference")
    assert summary["error"].startswith(f"[LLM-001] {words}")
    assert "\n  found by: orchestrator\n" in summary["error"]
    assert summary["policy_version"] <= version + 1  # lag 1: the batch before was on its way
    assert summary["books"]["balanced"]


@pytest.mark.parametrize("fault", ["is_paused", "spins"])
def test_a_server_that_answers_health_and_generates_nothing_is_named_by_who_waits_for_it(real, fault):
    summary = real(
        targets={"inference": f"llm_fault_servers:{fault}"}, orchestrator__rollout_timeout_s=1.0, run__steps=50
    )
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "inference")
    assert "orchestrator has waited" in summary["error"]
    assert "for completions of inference" in summary["error"]
    assert "gave up: orchestrator waited 0.9 s for inference" in summary["error"]
    assert summary["books"]["balanced"]


def test_the_batch_is_not_waited_for_any_longer_than_declared_and_the_end_of_the_chain_is_named(real):
    summary = real(
        targets={"inference": "llm_fault_servers:is_paused"}, deadlines__batch_s=1.0, deadlines__evaluate_s=0.9,
        run__steps=50,
    )  # fmt: skip
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "inference")
    chain = summary["error"].splitlines()[0]
    assert chain.index("trainer has waited ") < chain.index("for a batch of orchestrator")
    assert chain.index("orchestrator has waited ") < chain.index("for completions of inference")
    assert "gave up: trainer waited 1 s for orchestrator" in summary["error"]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_request_that_is_never_answered_costs_nothing_but_itself(real, lag):
    summary = real(
        targets={"inference": "llm_fault_servers:loses_one"}, orchestrator__rollout_timeout_s=4.0,
        orchestrator__max_policy_lag=lag,
    )  # fmt: skip
    assert (summary["outcome"], summary["steps"]) == ("completed", 3), summary["error"]
    assert summary["books"]["failed_attempts"] == {"timeout": 1}
    assert summary["books"]["balanced"]


def test_a_server_that_ends_with_0_is_started_again(real):
    summary = real(targets={"inference": "llm_fault_servers:leaves"}, supervision__inference_restarts=1)
    assert (summary["outcome"], summary["steps"], summary["restarts"]) == ("completed", 3, 1), summary["error"]
    assert events(real.path, "fault")[0]["text"] == "inference exit code 0"


@pytest.mark.parametrize("component", ["orchestrator", "trainer"])
def test_a_component_that_is_frozen_ends_the_run_by_name(real, component):
    def strike(line):
        if line.component == "trainer" and line.text.startswith("Step 1/"):
            os.kill(real.pid_of(component), signal.SIGSTOP)

    summary = real(strike, run__steps=50, deadlines__generate_s=1.0)
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, component)
    assert "being stopped by a signal" in summary["error"]


def test_one_example_that_cannot_be_judged_is_counted_and_holds_nothing_up(real):
    summary = real(env__kwargs={"fault": "one"}, run__steps=12, orchestrator__backoff_s=0.0)
    assert (summary["outcome"], summary["steps"]) == ("completed", 12), summary["error"]
    books = summary["books"]
    assert books["balanced"]
    assert books["failed"]["environment"] % 4 == 0  # all of its groups, which others took the place of
    assert books["trained"] == 12 * 16
    assert books["attempts"] - books["requested"] == 2 * books["failed"]["environment"]  # max_retries


def test_rewards_that_are_all_equal_end_the_run_and_say_why(real):
    summary = real(
        env__kwargs={"fault": "equal"}, orchestrator__filter__zero_advantage=True,
        orchestrator__filter__give_up_after=3, run__steps=50,
    )  # fmt: skip
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "orchestrator")
    assert "zero_advantage" in summary["error"]
    assert summary["books"]["filtered"]["zero_advantage"] >= 3 * 16
    assert summary["books"]["balanced"]


def test_groups_of_which_too_few_are_left_end_the_run_with_the_failure_that_did_it(real):
    summary = real(
        env__kwargs={"fault": "raise", "at": 20}, orchestrator__backoff_s=0.0, orchestrator__filter__give_up_after=2,
        run__steps=50,
    )  # fmt: skip
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 3, "orchestrator")
    assert "reasons: too_few 8" in summary["error"]
    assert "corpus damaged, page 7" in summary["error"]
