"""What an environment may answer, and what becomes of anything else: a failed rollout that says what was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.envs.text.answers import judgement_of, reply_of
from headrace.envs.text.asking import words_of
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply
from orchestration_support import Bench, SumGame, rl_config

WRONG_REPLIES: list[tuple[Any, str]] = [
    (None, "NoneType instead of Reply"),
    (Reply(("hello",)), "a Reply with str instead of Message"),  # type: ignore[arg-type]
    (Reply(None), "a Reply whose messages are NoneType instead of a tuple"),  # type: ignore[arg-type]
    (Reply((Message("user", 7),)), "a Reply with a Message whose content is int instead of str"),  # type: ignore[arg-type]
    (Reply((Message("user", "a\ud800"),)), "a Reply with a Message that is no text: surrogates not allowed"),
]
WRONG_JUDGEMENTS: list[tuple[Any, str]] = [
    (0.5, "float instead of Judgement"),
    (Judgement(None, solved=False), "a Judgement whose terms are NoneType instead of a mapping"),  # type: ignore[arg-type]
    (Judgement({"a": "x"}, solved=False), "a Judgement whose terms hold 'x' for a, which is no number"),  # type: ignore[dict-item]
    (Judgement({"a": "1"}, solved=False), "a Judgement whose terms hold '1' for a, which is no number"),  # type: ignore[dict-item]
    (Judgement({"a": b"1"}, solved=False), "a Judgement whose terms hold b'1' for a, which is no number"),  # type: ignore[dict-item]
    (
        Judgement({"a": 1.0}, solved=False, facts={"n": "word"}),
        "a Judgement whose facts hold 'word' for n, which is no number",
    ),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("answer", "wrong"), WRONG_REPLIES)
def test_a_reply_that_is_none_is_said_to_be(answer: Any, wrong: str) -> None:
    assert reply_of(answer) == wrong


@pytest.mark.parametrize(("answer", "wrong"), WRONG_JUDGEMENTS)
def test_a_judgement_that_is_none_is_said_to_be(answer: Any, wrong: str) -> None:
    assert judgement_of(answer) == wrong


def test_numbers_of_other_libraries_become_python_s() -> None:
    found = judgement_of(Judgement({"a": np.float32(0.5)}, solved=np.bool_(1), facts={"n": np.int64(2)}))  # type: ignore[arg-type]
    assert found == Judgement({"a": 0.5}, solved=True, facts={"n": 2.0})
    assert isinstance(found, Judgement)
    assert [type(value) for value in (found.terms["a"], found.solved, found.facts["n"])] == [float, bool, float]


def test_an_exception_without_a_text_has_words_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError

    assert words_of(Mute()) == "Mute: its text raised LookupError"
    assert len(words_of(ValueError("x" * 9_000_000))) < 3000


class Sloppy(SumGame):
    """Wrong about one problem."""

    def reward(self, problem: Problem, transcript: Sequence[Message]) -> Judgement:
        if problem.id == "p3":
            return Judgement({"even": "much"}, solved=False)  # type: ignore[dict-item]
        return super().reward(problem, transcript)


def test_a_wrong_answer_fails_its_rollout_and_not_the_run() -> None:
    bench = Bench(rl_config(steps=4), environment=Sloppy()).run()
    assert set(bench.books["failed"]) == {"environment"}
    text = bench.reports("retry")[0]["text"]
    assert text == "reward() of problem p3 returned a Judgement whose terms hold 'much' for even, which is no number"
