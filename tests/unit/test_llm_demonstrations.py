"""Demonstrations as tokens, and the loss on them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.errors import ConfigError, NonFiniteValue
from headrace.envs.text.protocol import Message, Problem, Transcript
from headrace.envs.text.reverse import ReverseEnvironment
from headrace.envs.text.wordle import WordleEnvironment
from headrace.llm import tiny
from headrace.llm.config import ModelConfig, SFTConfig
from headrace.llm.demonstrations import DemonstrationBatch, Teaching, tokens_of
from headrace.llm.rendering import Renderer
from headrace.llm.tuning import demonstration_loss, learning_rate, tune

SMALL = ModelConfig(hidden=16, layers=1, heads=2, context_tokens=48)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that share a core wait for each other in every operation of so small a model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def env() -> WordleEnvironment:
    return WordleEnvironment(held_out=0)


@pytest.fixture(scope="module")
def tokenizer(env: WordleEnvironment) -> Any:
    return tiny.make_tokenizer(env.alphabet, 48)


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


def test_an_episode_is_rendered_as_a_whole_and_only_the_players_tokens_are_trained(
    env: WordleEnvironment, tokenizer: Any, renderer: Renderer
) -> None:
    problem = env.dataset("train")[0]
    shown = env.demonstration(problem, 3)
    ids, trained = tokens_of(shown, problem, renderer)
    assert tokenizer.decode(ids) == "".join(
        f"<{turn.role}>{turn.content}{'<end>' * (turn.role == 'assistant')}" for turn in shown
    )
    said = "".join(f"{turn.content}<end>" for turn in shown if turn.role == "assistant")
    assert tokenizer.decode([one for one, mine in zip(ids, trained, strict=True) if mine]) == said


def test_what_comes_after_the_last_message_of_the_player_is_left_out(
    env: WordleEnvironment, renderer: Renderer
) -> None:
    problem = env.dataset("train")[0]
    shown = next(one for seed in range(99) if len(one := env.demonstration(problem, seed)) > 3)
    assert tokens_of(shown[:3], problem, renderer) == tokens_of(shown[:2], problem, renderer)


def test_a_batch_is_made_of_seed_and_step_alone(env: WordleEnvironment, renderer: Renderer) -> None:
    teaching = Teaching(env, renderer, 0.5, 48)
    first, again, next_one, other = (teaching.batch(*key, 8) for key in ((1, 4), (1, 4), (1, 5), (2, 4)))
    assert np.array_equal(first.token_ids, again.token_ids)
    assert np.array_equal(first.trained, again.trained)
    for different in (next_one, other):
        assert first.token_ids.tolist() != different.token_ids.tolist()


class Counting(WordleEnvironment):
    """Counts whom it asks to play."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = self.novices = 0

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        self.experts += 1
        return super().demonstration(problem, seed)

    def attempt(self, problem: Problem, seed: int) -> Transcript:
        self.novices += 1
        return super().attempt(problem, seed)


@pytest.mark.parametrize(("fraction", "within"), [(0.0, 0.0), (0.3, 0.09), (1.0, 0.0)])
def test_the_expert_shows_his_share(renderer: Renderer, fraction: float, within: float) -> None:
    env = Counting()
    Teaching(env, renderer, fraction, 48).batch(0, 0, 256)
    assert env.experts + env.novices == 256
    assert env.experts / 256 == pytest.approx(fraction, abs=within)


def test_an_episode_that_is_too_long_is_cut_and_counted(env: WordleEnvironment, renderer: Renderer) -> None:
    teaching = Teaching(env, renderer, 0.0, 12)
    batch = teaching.batch(0, 0, 16)
    assert batch.token_ids.shape == (16, 12)
    assert batch.cut > 10
    assert batch.tokens <= 16 * 12


class Long(WordleEnvironment):
    """Of which some problems, or all, begin with more than the context has room for."""

    def __init__(self, every: int) -> None:
        super().__init__(held_out=0)
        self._every = every

    def dataset(self, split: Any) -> Any:
        long = (Message("user", "a" * 60),)
        return [
            dataclasses.replace(one, opening=long) if place % self._every == 0 else one
            for place, one in enumerate(super().dataset(split)[:20])
        ]


def test_a_problem_whose_opening_leaves_no_room_is_passed_over(renderer: Renderer) -> None:
    batch = Teaching(Long(2), renderer, 1.0, 48).batch(0, 0, 64)
    assert batch.trained.any(axis=1).all()


def test_a_context_without_room_for_a_word_of_the_teacher_is_named(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match="no room for anything that the teacher says") as raised:
        Teaching(Long(1), renderer, 1.0, 48).batch(0, 0, 4)
    assert raised.value.facts["model_context_tokens"] == 48


def test_an_environment_without_a_teacher_is_refused(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match=r"set sft\.steps = 0"):
        Teaching(object(), renderer, 1.0, 48).check()
    with pytest.raises(ConfigError, match=r"set sft\.expert_fraction = 1"):
        Teaching(ReverseEnvironment(), renderer, 0.5, 48).check()
    Teaching(ReverseEnvironment(), renderer, 1.0, 48).check()


@pytest.mark.table
def test_the_loss_is_the_mean_over_what_the_teacher_said(tokenizer: Any) -> None:
    model = tiny.make_model(SMALL, len(tokenizer), 0)
    token_ids = np.array([[3, 6, 4, 9, 5, 0], [3, 7, 4, 8, 9, 5]])
    trained = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]], bool)
    loss = demonstration_loss(model, DemonstrationBatch(token_ids, trained, 11, 0), "cpu")
    alone = []
    for ids, mine in zip(token_ids.tolist(), trained.tolist(), strict=True):
        for place, wanted in enumerate(mine):
            if wanted:
                logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1]
                alone.append(-torch.log_softmax(logits, -1)[ids[place]].item())
    assert loss.item() == pytest.approx(np.mean(alone), abs=1e-5)


def test_the_rate_rises_shortly_and_falls_to_a_tenth() -> None:
    config = SFTConfig(steps=100, lr=1.0)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0)
    assert all(a >= b for a, b in itertools.pairwise(rates[5:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert learning_rate(SFTConfig(steps=1, lr=1.0), 0) == 1.0


def test_tuning_lowers_the_loss_and_repeats_bit_for_bit(env: WordleEnvironment, renderer: Renderer) -> None:
    teaching = Teaching(env, renderer, 1.0, 48)
    config = SFTConfig(steps=30, batch_size=8, lr=1e-2)
    vocabulary = len(env.alphabet) + 6

    def tuned() -> tuple[list[float], list[torch.Tensor]]:
        model = tiny.make_model(SMALL, vocabulary, 0)
        losses = [done.loss for done in tune(model, config, lambda step: teaching.batch(0, step, 8), "cpu")]
        return losses, list(model.state_dict().values())

    losses, weights = tuned()
    assert losses[-1] < 0.7 * losses[0]
    again, same_weights = tuned()
    assert losses == again
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights, strict=True))


def test_a_loss_that_is_no_number_ends_it(env: WordleEnvironment, renderer: Renderer) -> None:
    model = tiny.make_model(SMALL, len(env.alphabet) + 6, 0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    teaching = Teaching(env, renderer, 1.0, 48)
    with pytest.raises(NonFiniteValue, match="the loss of step 0"):
        next(tune(model, SFTConfig(steps=1), lambda step: teaching.batch(0, step, 2), "cpu"))
