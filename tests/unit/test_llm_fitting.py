"""Texts of an environment that a model cannot be shown: told by name before anything is learned from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message, Problem, Split, Transcript
from headrace.envs.text.reverse import ReverseEnvironment
from headrace.llm import tiny
from headrace.llm.demonstrations import Teaching
from headrace.llm.finding import Verdict
from headrace.llm.fitting import check_texts
from headrace.llm.loading import load_rl_config
from headrace.llm.rendering import Renderer
from headrace.llm.trying import tried, try_texts
from llm_support import Unguarded
from orchestration_support import Bench, SumGame, rl_config


class Accented(ReverseEnvironment):
    """Says one thing in letters that its alphabet lacks."""

    def __init__(self, where: str = "") -> None:
        super().__init__(shortest=2, longest=3, problems=20, held_out=4)
        self.where = where

    def dataset(self, split: Split) -> Any:
        problems = list(super().dataset(split))
        if split == self.where:
            problems[1] = Problem("p-odd", (Message("user", "caf\u00e9 \u2014"),), problems[1].facts)
        return problems

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        shown = tuple(super().demonstration(problem, seed))
        if self.where != "demonstration":
            return shown
        return tuple(replace(one, content="\u00e9") if one.role == "assistant" else one for one in shown)


def renderer() -> Renderer:
    return Renderer(tiny.make_tokenizer(Accented().alphabet, 48))


def test_characters_that_the_tokenizer_lacks_are_told_with_their_text() -> None:
    with pytest.raises(ConfigError) as caught:
        check_texts(renderer(), Accented("train").dataset("train"), 48)
    assert str(caught.value) == (
        "[CFG-001] the opening of problem p-odd has characters that the model's tokenizer lacks\n"
        "  characters:  \u00e9\u2014\n"
        "  text: 'caf\u00e9 \u2014'\n"
        "  fix: give the environment an attribute `alphabet`, a str of all characters that occur, or take a model "
        "(model.path) whose tokenizer has them; for a run that has begun, begin another"
    )


def test_openings_that_leave_no_room_are_told_with_what_they_need() -> None:
    problems = Accented().dataset("train")
    longest = check_texts(renderer(), problems, 48)
    with pytest.raises(ConfigError) as caught:
        check_texts(renderer(), problems, 3)
    assert caught.value.what == "no problem's opening leaves room for an answer"
    assert caught.value.facts["longest_opening_tokens"] == longest
    assert caught.value.fix.startswith(f"set model.context_tokens to {longest} and as many more as")


def test_a_teacher_that_uses_them_is_named() -> None:
    teaching = Teaching(Accented("demonstration"), renderer(), 1.0, 48)
    with pytest.raises(
        ConfigError, match=r"demonstration of problem \S+ has characters that the model's tokenizer lacks"
    ):
        teaching.batch(0, 0, 2)


@pytest.mark.parametrize("where", ["train", "eval", "demonstration"])
def test_the_check_finds_them_wherever_they_are(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.llm.trying.build_text_environment", lambda *_, **__: Accented(where))
    config = load_rl_config([], {"env.name": "reverse-text", "sft.steps": 1})
    (found,) = tried("texts", lambda: try_texts(config, tmp_path, Unguarded()))
    assert found.verdict is Verdict.FAILED
    assert "has characters that the model's tokenizer lacks (characters" in found.text
    assert "alphabet" in found.fix


class Exclaiming(SumGame):
    """Answers in a letter, where only numbers are tokens."""

    def step(self, problem: Problem, transcript: Transcript) -> Any:
        reply = super().step(problem, transcript)
        odd = problem.id == "p3" and not reply.done
        return replace(reply, messages=(Message("user", "0 x"),)) if odd else reply


def test_a_reply_that_uses_them_fails_its_rollout_and_is_told() -> None:
    bench = Bench(rl_config(steps=4), environment=Exclaiming()).run()
    assert set(bench.books["failed"]) == {"environment"}
    text = bench.reports("retry")[0]["text"]
    assert text == "step() of problem p3 said '0 x', of which the model's tokenizer lacks 'x'"
