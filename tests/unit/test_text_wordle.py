"""Wordle: feedback against its own definition, moves, rewards, players, splits."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message, Problem, Transcript
from headrace.envs.text.wordle import WordleEnvironment
from headrace.envs.text.wordle.game import Game, Rules, consistent, feedback, played
from headrace.envs.text.wordle.words import LETTERS, word_list

FEW_LETTERS = st.text(alphabet="abc", min_size=5, max_size=5)


def said(problem: Problem, *guesses: str) -> Transcript:
    """An episode in which the model said these; what it was told in between is of no interest."""
    turns = [turn for guess in guesses for turn in (Message("assistant", guess), Message("user", "?"))]
    return (*problem.opening, *turns[:-1])


def problem_of(env: WordleEnvironment, secret: str) -> Problem:
    both = (*env.dataset("train"), *env.dataset("eval"))
    return next(problem for problem in both if problem.facts["secret"] == secret)


@given(FEW_LETTERS, FEW_LETTERS)
def test_each_letter_is_told_as_often_as_the_secret_has_it(secret: str, guess: str) -> None:
    marks = feedback(secret, guess)
    assert [mark == "G" for mark in marks] == [a == b for a, b in zip(secret, guess, strict=True)]
    in_both = Counter(secret) & Counter(guess)
    told = Counter(letter for letter, mark in zip(guess, marks, strict=True) if mark in "GY")
    assert told == in_both
    for letter in set(guess):  # what is not enough for all is told of the ones further left
        others = "".join(mark for said, mark in zip(guess, marks, strict=True) if said == letter and mark != "G")
        assert others == "Y" * others.count("Y") + "X" * others.count("X")


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("abbey", "babes", "YYGGX"),
        ("lever", "eerie", "YGYXX"),
        ("cat", "act", "YYG"),
        ("sees", "esse", "YYYY"),
        ("mood", "oops", "YGXX"),
    ],
)
def test_feedback_of_words_that_have_letters_twice(secret: str, guess: str, marks: str) -> None:
    assert feedback(secret, guess) == marks


@given(st.lists(st.sampled_from(word_list(3)[:30]), min_size=1, max_size=4), st.sampled_from(word_list(3)[:30]))
def test_the_secret_always_fits_what_was_answered(guesses: list[str], secret: str) -> None:
    game = played(Rules(3, 4, None), secret, guesses)
    fitting = consistent(word_list(3)[:30], game)
    assert secret in fitting
    assert not set(fitting) & set(game.guessed) - {secret}


@pytest.mark.parametrize(("letters", "least"), [(3, 150), (4, 300), (5, 600)])
def test_the_lists_hold_different_words_of_their_length(letters: int, least: int) -> None:
    words = word_list(letters)
    assert len(words) >= least
    assert len(set(words)) == len(words)
    assert all(len(word) == letters and word.isascii() and word.isalpha() and word.islower() for word in words)


@pytest.mark.parametrize("letters", LETTERS)
@pytest.mark.parametrize("held_out", [0.1, 0.2, 0.5])
def test_no_secret_is_both_trained_on_and_held_out(letters: int, held_out: float) -> None:
    env = WordleEnvironment(letters=letters, held_out=held_out)
    training, held = ({problem.facts["secret"] for problem in env.dataset(split)} for split in ("train", "eval"))
    assert not training & held
    assert training | held == set(env.words)
    assert len(held) == round(held_out * len(env.words))
    assert not env.evaluates_seen


def test_evaluation_of_words_that_are_trained_on_says_so() -> None:
    env = WordleEnvironment(held_out=0)
    assert [problem.facts for problem in env.dataset("eval")] == [problem.facts for problem in env.dataset("train")]
    assert all(problem.id == f"seen:{problem.facts['secret']}" for problem in env.dataset("eval"))
    assert len(env.dataset("train")) == 30
    assert env.evaluates_seen


def test_the_split_is_the_same_wherever_it_is_made() -> None:
    assert [problem.id for problem in WordleEnvironment().dataset("eval")] == [
        "eval:dog",
        "eval:pen",
        "eval:cup",
        "eval:run",
        "eval:egg",
        "eval:pig",
    ]


def test_a_game_that_is_won_ends_and_is_worth_more_the_sooner() -> None:
    env = WordleEnvironment(held_out=0)
    problem = problem_of(env, "cat")
    won = said(problem, "dog", "hat", "cat")
    assert env.step(problem, won).done
    judgement = env.reward(problem, won)
    assert judgement.solved
    assert judgement.terms == {"exact": 1.0, "partial": 0.0, "few_guesses": 1 / 3, "format": 0.2}
    assert env.reward(problem, said(problem, "cat")).reward == pytest.approx(2.2)


def test_a_game_that_is_lost_is_worth_the_marks_of_its_last_guess() -> None:
    env = WordleEnvironment(held_out=0)
    problem = problem_of(env, "cat")
    lost = said(problem, "dog", "sun", "cow", "bat" if "bat" in env.words else "hat")
    assert env.step(problem, lost).done
    judgement = env.reward(problem, lost)
    assert not judgement.solved
    assert judgement.terms == {"exact": 0.0, "partial": pytest.approx(0.4), "few_guesses": 0.0, "format": 0.2}
    yellow = env.reward(problem, said(problem, "ant"))
    assert yellow.terms["partial"] == pytest.approx(0.1 + 0.2)


@pytest.mark.parametrize(
    ("move", "refusal"),
    [("ca", "length"), ("cats", "length"), ("zzz", "unknown"), ("dog", "repeated"), ("C A T", "unreadable"), ("", "unreadable")],
)  # fmt: skip
def test_one_invalid_move_is_tolerated_and_the_second_ends_the_game(move: str, refusal: str) -> None:
    env = WordleEnvironment(held_out=0)
    problem = problem_of(env, "cat")
    once = said(problem, "dog", move)
    assert env.game(problem, once).refusals == (refusal,)
    reply = env.step(problem, once)
    assert reply.messages == (Message("user", "?"),)
    assert env.game(problem, once).guesses_left == 3
    twice = said(problem, "dog", move, move)
    assert env.step(problem, twice).done
    judgement = env.reward(problem, twice)
    assert judgement.facts == {"guesses": 1.0, "invalid_moves": 2.0}
    assert judgement.terms["partial"] == 0.0
    assert env.step(problem, said(problem, move, "dog", "hat")).messages == (Message("user", "XGG"),)


def test_form_counts_messages_up_to_the_end_of_the_game() -> None:
    env = WordleEnvironment(held_out=0)
    problem = problem_of(env, "cat")
    assert env.reward(problem, said(problem, "DOG!", "cat")).terms["format"] == pytest.approx(0.1)
    assert env.reward(problem, said(problem, "cat", "nonsense")).terms["format"] == pytest.approx(0.2)
    assert env.reward(problem, problem.opening).reward == 0.0


def test_what_is_said_after_the_end_changes_nothing() -> None:
    game = played(Rules(3, 4, None), "cat", ["cat", "dog", None])
    assert game == Game(Rules(3, 4, None), "cat", ("cat",), ("GGG",), 1)


def test_the_guide_reads_the_last_field_and_explains_an_invalid_move() -> None:
    env = WordleEnvironment(letters=5, dialect="guide", held_out=0)
    problem = problem_of(env, "crane")
    thought = "It may be <guess>[snake]</guess>. No: <guess> [CRANE] </guess>"
    assert env.game(problem, said(problem, thought)).solved
    assert env.reward(problem, said(problem, thought)).terms["format"] == 0.0
    (answer,) = env.step(problem, said(problem, "<guess>grape</guess>")).messages
    assert answer.content == "G R A P E\nX G G X G\nYou have 5 guesses left."
    (answer,) = env.step(problem, said(problem, "I give up")).messages
    assert answer.content == (
        "This was an invalid move: no guess was found in your message. Another one ends the game. You have 6 guesses left."
    )


@pytest.mark.parametrize(
    ("text", "format_term"),
    [
        ("I put my guess in <guess> tags. <guess>[crane]</guess>", 0.2),
        ("So I answer with <GUESS>.\n<guess>\ncrane\n</Guess>", 0.2),
        ("<guess> and </guess>: <guess>crane</guess>", 0.0),
        ("<guess>snake</guess> no, <guess>crane</guess>", 0.0),
        ("<guess>[crane]</guess> is what I put in <guess>", 0.2),
        ("<guess>[crane]</guess> is what I put before </guess>", 0.2),
    ],
)
def test_a_tag_that_is_only_spoken_of_takes_no_guess_away(text: str, format_term: float) -> None:
    env = WordleEnvironment(letters=5, dialect="guide", held_out=0)
    problem = problem_of(env, "crane")
    judged = env.reward(problem, said(problem, text))
    assert (judged.solved, judged.terms["format"]) == (True, pytest.approx(format_term))


@pytest.mark.parametrize("text", ["<guess>crane", "crane</guess>", "</guess>crane<guess>", "<guess><guess></guess>"])
def test_what_stands_in_no_field_is_no_guess(text: str) -> None:
    env = WordleEnvironment(letters=5, dialect="guide", held_out=0)
    assert env.game(problem_of(env, "crane"), said(problem_of(env, "crane"), text)).refusals == ("unreadable",)


def test_any_letters_may_be_guessed_where_the_list_is_no_dictionary() -> None:
    open_env = WordleEnvironment(only_words=False, held_out=0)
    problem = problem_of(open_env, "cat")
    assert open_env.game(problem, said(problem, "tac")).marks == ("YGY",)


@functools.cache
def chance_of_winning(words: tuple[str, ...], guesses: int) -> float:
    """Of a player who says any word that still fits, exactly, the secret being any of ``words``."""
    if guesses >= len(words):
        return 1.0
    if guesses == 0:
        return 0.0
    won = 0.0
    for guess in words:
        answers: dict[str, list[str]] = {}
        for secret in words:
            answers.setdefault(feedback(secret, guess), []).append(secret)
        rest = [tuple(left) for marks, left in answers.items() if marks != "GGG"]
        won += 1 + sum(len(left) * chance_of_winning(left, guesses - 1) for left in rest)
    return won / len(words) ** 2


def share_of_wins(env: WordleEnvironment, play: Callable[[Problem, int], Transcript], rounds: int) -> float:
    games = [(problem, play(problem, seed)) for seed in range(rounds) for problem in env.dataset("train")]
    return sum(env.reward(problem, transcript).solved for problem, transcript in games) / len(games)


def test_the_expert_wins_as_often_as_can_be_computed() -> None:
    env = WordleEnvironment(held_out=0)
    exact = chance_of_winning(env.words, 4)
    assert exact == pytest.approx(0.8178, abs=1e-4)
    assert share_of_wins(env, env.demonstration, 40) == pytest.approx(exact, abs=0.035)  # 3 sigma of 1200 games


def test_the_novice_wins_as_often_as_four_of_thirty_words_are_right() -> None:
    env = WordleEnvironment(held_out=0)
    assert share_of_wins(env, env.attempt, 40) == pytest.approx(4 / 30, abs=0.03)


def test_a_demonstration_is_what_the_environment_itself_would_have_answered() -> None:
    for env in (WordleEnvironment(), WordleEnvironment(letters=5, dialect="guide")):
        problem = env.dataset("train")[0]
        shown = env.demonstration(problem, 7)
        assert shown == env.demonstration(problem, 7)
        for place, message in enumerate(shown):
            if message.role == "assistant":
                reply = env.step(problem, shown[: place + 1])
                assert reply.messages == tuple(shown[place + 1 : place + 2])
                assert reply.done == (place == len(shown) - 1)
        assert env.reward(problem, shown).facts["invalid_moves"] == 0.0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"letters": 6}, "there is no list of words of 6 letters"),
        ({"words": 1}, "Wordle has not so many words"),
        ({"words": 10_000}, "Wordle has not so many words"),
        ({"guesses": 0}, "Wordle needs from one guess"),
        ({"held_out": 1.0}, "held_out is the share"),
        ({"dialect": "breif"}, 'set dialect = "brief"'),
    ],
)
def test_what_makes_no_game_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WordleEnvironment(**kwargs)
