"""Environments of real verifiers, answered through our protocol, as a run does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import EnvironmentNotBuilt, EnvironmentRaised
from headrace.envs.text.building import check_environment
from headrace.envs.text.protocol import Message, Problem, Reply, Transcript
from headrace.envs.text.verifiers import VerifiersEnvironment
from verifiers_support import interpreter

pytestmark = [pytest.mark.verifiers, pytest.mark.process, pytest.mark.timeout(600)]

HERE = str(Path(__file__).parent)

Playing = Callable[..., Any]


@pytest.fixture
def playing(request: pytest.FixtureRequest) -> Playing:
    @contextmanager
    def play(minor: str, environment: str, **kwargs: Any) -> Iterator[VerifiersEnvironment]:
        python = interpreter(request.config, minor)
        env = VerifiersEnvironment(environment=environment, python=python, path=[HERE], start_s=300.0, **kwargs)
        try:
            yield env
        finally:
            env.close()

    return play


def talk(env: VerifiersEnvironment, problem: Problem, *texts: str) -> tuple[Transcript, Reply]:
    transcript, reply = tuple(problem.opening), Reply()
    for text in texts:
        transcript = (*transcript, *reply.messages, Message("assistant", text))
        reply = env.step(problem, transcript)
    return transcript, reply


VERSIONS = [("0.3", "digits-v0"), ("0.4", "digits-v1")]


@pytest.mark.parametrize(("minor", "environment"), VERSIONS)
def test_a_digit_is_guessed(playing: Playing, minor: str, environment: str) -> None:
    with playing(minor, environment, most=2) as env:
        three, five = env.dataset("train")
        assert three.opening == (Message("system", "guess"), Message("user", "which digit?"))
        _, hint = talk(env, three, "1")
        _, other = talk(env, five, "9")
        assert (hint.messages, other.messages) == ((Message("user", "higher"),), (Message("user", "lower"),))
        transcript, reply = talk(env, three, "1", "5", "3")
        assert reply == Reply(done=True)
        judged = env.reward(three, transcript)
        assert (judged.reward, judged.solved, judged.facts["turns"]) == (1.0, True, 3.0)
        lost, reply = talk(env, five, "9", "8", "7", "6")
        assert reply == Reply(done=True)
        assert (env.reward(five, lost).reward, env.reward(five, lost).solved) == (0.0, False)


@pytest.mark.parametrize(("minor", "environment"), VERSIONS)
def test_it_passes_the_check_and_an_episode_that_is_cut_is_judged(
    playing: Playing, minor: str, environment: str
) -> None:
    with playing(minor, environment, most=2) as env:
        check = check_environment(env)
        assert check.notes == ("evaluation asks for 2 problems that are trained on, as configured",)
        problem = env.dataset("train")[0]
        transcript, reply = talk(env, problem, "1", "2")
        cut = env.reward(problem, (*transcript, *reply.messages))
        assert (cut.reward, cut.facts["turns"]) == (0.0, 2.0)


@pytest.mark.parametrize(("minor", "environment"), VERSIONS)
def test_many_stand_still_at_a_time(playing: Playing, minor: str, environment: str) -> None:
    with playing(minor, environment, most=1) as env:
        (three,) = env.dataset("train")
        begun = [talk(env, three, "1") for _ in range(100)]
        for place, (transcript, reply) in enumerate(begun):
            guess = str(2 + place % 3)
            said = (*transcript, *reply.messages, Message("assistant", guess))
            answer = env.step(three, said)
            expected = {"2": "higher", "4": "lower"}.get(guess)
            assert answer == (Reply(done=True) if expected is None else Reply((Message("user", expected),)))


def test_one_that_cannot_be_judged_is_an_error_and_no_zero(playing: Playing) -> None:
    with playing("0.4", "digits-v1") as env:
        two = env.dataset("train")[2]
        transcript, reply = talk(env, two, "2")
        assert reply == Reply(done=True)
        with pytest.raises(EnvironmentRaised, match="a rollout of verifiers failed") as raised:
            env.reward(two, transcript)
        assert "ValueError: planted" in str(raised.value)


def test_a_taskset_alone_is_one_question_and_one_answer(playing: Playing) -> None:
    with playing("0.4", "digits-plain-v1") as env:
        one, _ = env.dataset("train")
        assert one.opening == (Message("system", "talk"), Message("user", "say one"))
        transcript, reply = talk(env, one, "well")
        assert reply == Reply(done=True)
        assert env.reward(one, transcript).reward == pytest.approx(1.04)


def test_what_has_several_agents_is_refused(playing: Playing) -> None:
    with pytest.raises(EnvironmentNotBuilt, match="verifiers could not be built") as raised:  # noqa: SIM117
        with playing("0.4", "digits-plain-v1", kwargs={"id": "user-sim"}):
            pass
    assert "more than one agent" in str(raised.value)
