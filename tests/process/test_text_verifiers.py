"""An environment of verifiers in a process of its own; what plays verifiers here is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import (
    ComponentDied,
    ComponentStalled,
    ConfigError,
    EnvironmentFault,
    EnvironmentNotBuilt,
    EnvironmentRaised,
)
from headrace.envs.text.building import build_text_environment, check_environment
from headrace.envs.text.protocol import Message, Problem, Reply
from headrace.envs.text.verifiers import VerifiersEnvironment

pytestmark = pytest.mark.process

FAKE = str(Path(__file__).resolve().parents[1] / "fake_verifiers")


@contextmanager
def played(**kwargs: Any) -> Iterator[VerifiersEnvironment]:
    env = VerifiersEnvironment(environment="hi-lo", path=[FAKE], kwargs=kwargs)
    try:
        yield env
    finally:
        env.close()


def talk(env: VerifiersEnvironment, problem: Problem, *texts: str) -> tuple[tuple[Message, ...], Reply]:
    """What was said by both, and the answer to the last of ``texts``."""
    transcript, reply = problem.opening, Reply()
    for text in texts:
        transcript = (*transcript, *reply.messages, Message("assistant", text))
        reply = env.step(problem, transcript)
    return transcript, reply


def test_its_rollouts_are_played_message_by_message() -> None:
    with played() as env:
        first, second = env.dataset("train")
        assert first.opening == (Message("user", "guess a digit"),)
        transcript, reply = talk(env, first, "1")
        assert reply == Reply((Message("user", "higher"),))
        other, answer = talk(env, second, "9", "5")  # in between: another one
        assert answer == Reply(done=True)
        assert env.reward(second, other).facts == {"turns": 1.0}
        transcript = (*transcript, *reply.messages, Message("assistant", "3"))
        assert env.step(first, transcript) == Reply(done=True)
        judgement = env.reward(first, transcript)
        assert (judgement.reward, judgement.solved) == (1.0, True)


def test_many_rollouts_of_one_problem_and_any_of_them_told_again() -> None:
    with played() as env:
        problem = env.dataset("train")[0]
        begun = [talk(env, problem, "1") for _ in range(3)]
        for said, expected in (("9", "lower"), ("2", "higher"), ("0", "higher"), ("2", "higher")):
            transcript, reply = begun[0]
            again = env.step(problem, (*transcript, *reply.messages, Message("assistant", said)))
            assert again.messages == (Message("user", expected),)


def test_an_episode_that_was_cut_is_judged_as_far_as_it_went() -> None:
    with played() as env:
        problem = env.dataset("train")[0]
        transcript, reply = talk(env, problem, "1", "4")
        judgement = env.reward(problem, (*transcript, *reply.messages))
        assert (judgement.reward, judgement.facts) == (0.0, {"turns": 2.0})
        assert env.reward(problem, transcript) == judgement


def test_it_passes_the_check_of_every_environment() -> None:
    with played() as env:
        check = check_environment(env)
        assert (check.train_problems, check.eval_problems, check.notes) == (2, 1, ())
    with played(separate=False) as env:
        assert check_environment(env).notes == ("evaluation asks for 2 problems that are trained on, as configured",)
    with played(leaks=True) as env, pytest.raises(EnvironmentFault, match="evaluates 1 of 1 problems"):
        check_environment(env)


def test_a_rollout_that_failed_there_is_an_error_and_no_reward_of_zero() -> None:
    with played(fault="errs") as env:
        problem = env.dataset("train")[0]
        transcript, reply = talk(env, problem, "1", "2")
        assert reply == Reply(done=True)
        with pytest.raises(EnvironmentRaised, match="a rollout of verifiers failed") as raised:
            env.reward(problem, transcript)
        assert "ToolError" in str(raised.value)


def test_an_environment_that_raises_is_quoted_and_goes_on() -> None:
    with played(fault="raises") as env:
        problem = env.dataset("train")[0]
        with pytest.raises(EnvironmentRaised, match=r"verifiers raised in say\(\)") as raised:
            talk(env, problem, "1", "2")
        assert "ValueError: planted" in str(raised.value)
        assert talk(env, problem, "3")[1] == Reply(done=True)


def test_one_that_rewrites_what_was_said_fails_and_is_given_up() -> None:
    with played(fault="rewrites") as env:
        problem = env.dataset("train")[0]
        with pytest.raises(EnvironmentRaised, match="goes on from other messages than were said") as raised:
            talk(env, problem, "1", "2")
        assert raised.value.facts["place"] == 2
        assert raised.value.facts["said"] == Message("user", "higher")
        assert raised.value.facts["asked"] == Message("user", "(left out)")
        assert not env._standing


def test_a_rollout_that_stands_still_is_ended_in_order(tmp_path: Path) -> None:
    marker = tmp_path / "ended"
    with played(marker=str(marker)) as env:
        talk(env, env.dataset("train")[0], "1")
        assert not marker.exists()
    assert marker.exists()


def test_one_that_dies_or_hangs_is_named() -> None:
    """And what it has started ends with it, says the fixture no_leaks."""
    with played(fault="dies") as env, pytest.raises(ComponentDied, match=r"verifiers's process ended in say\(\)"):
        talk(env, env.dataset("train")[0], "1", "2")
    with played(fault="hangs") as env:
        problem = env.dataset("train")[0]
        transcript, reply = talk(env, problem, "1")
        env._call_s = 0.2  # only now, so that a slow machine is not blamed before
        with pytest.raises(ComponentStalled, match="verifiers did not answer within"):
            env.step(problem, (*transcript, *reply.messages, Message("assistant", "2")))


def test_what_cannot_be_loaded() -> None:
    with pytest.raises(EnvironmentNotBuilt, match="verifiers could not be built") as raised:
        VerifiersEnvironment(environment="other", path=[FAKE])
    assert "there is no other" in str(raised.value)
    with pytest.raises(ConfigError, match="verifiers's interpreter cannot be started"):
        build_text_environment("verifiers", None, {"environment": "hi-lo", "python": "/nowhere/python"})
    with pytest.raises(ConfigError, match="at least one problem"):
        VerifiersEnvironment(environment="hi-lo", path=[FAKE], most=0)
