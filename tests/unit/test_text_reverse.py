"""Reverse-text: texts, judgement, demonstration."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message
from headrace.envs.text.reverse import ReverseEnvironment


def test_texts_are_different_and_held_out_ones_are_not_trained_on() -> None:
    env = ReverseEnvironment(problems=300, held_out=50)
    training, held = ([problem.opening[0].content for problem in env.dataset(split)] for split in ("train", "eval"))
    assert (len(set(training)), len(set(held))) == (300, 50)
    assert not set(training) & set(held)
    assert {len(text) for text in training} == {4, 5, 6, 7}
    assert env.dataset("train") == ReverseEnvironment(problems=300, held_out=50).dataset("train")


def test_long_texts_are_never_too_few() -> None:
    env = ReverseEnvironment(shortest=9, longest=9, problems=3, held_out=1)
    assert [len(problem.facts["answer"]) for problem in env.dataset("train")] == [9, 9, 9]


@pytest.mark.parametrize("dialect", ["brief", "guide"])
def test_the_right_answer_is_worth_one_and_any_other_less(dialect: str) -> None:
    env = ReverseEnvironment(dialect=dialect)
    problem = env.dataset("train")[0]
    shown = env.demonstration(problem, 0)
    right = env.reward(problem, shown)
    assert (right.reward, right.solved) == (1.0, True)
    assert env.step(problem, shown).done
    wrong = env.reward(problem, (*problem.opening, Message("assistant", "unlike")))
    assert not wrong.solved
    assert wrong.reward < 1.0
    assert env.reward(problem, problem.opening).reward == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "The answer goes between <reversed_text> tags. <reversed_text>{}</reversed_text>",
        "<reversed_text>no</reversed_text> Better:\n<Reversed_Text>\n{}\n</reversed_text>",
        "<reversed_text>{}</reversed_text> is what I put in <reversed_text>",
    ],
)
def test_a_tag_that_is_only_spoken_of_takes_no_answer_away(text: str) -> None:
    env = ReverseEnvironment(dialect="guide")
    problem = env.dataset("train")[0]
    message = Message("assistant", text.format(problem.facts["answer"]))
    assert env.reward(problem, (*problem.opening, message)).solved


def test_the_reward_is_the_share_of_what_matches() -> None:
    env = ReverseEnvironment()
    problem = env.dataset("train")[0]
    answer = problem.facts["answer"]
    half = env.reward(problem, (*problem.opening, Message("assistant", answer[: len(answer) // 2])))
    matching = len(answer) // 2
    assert half.reward == pytest.approx(2 * matching / (matching + len(answer)))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"shortest": 0}, "no lengths to draw from"),
        ({"shortest": 5, "longest": 4}, "no lengths to draw from"),
        ({"shortest": 1, "longest": 1, "problems": 20, "held_out": 6}, "not so many texts"),
        ({"held_out": 0}, "not so many texts"),
        ({"dialect": "long"}, 'set dialect = "brief"'),
    ],
)
def test_what_makes_no_task_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReverseEnvironment(**kwargs)
