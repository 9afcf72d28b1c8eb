"""Draws follow the distribution, one uniform number each."""

from __future__ import annotations

import torch

from headrace.llm.engine.sampling import draw, within_nucleus


def test_draws_by_the_inverse_of_the_cumulative_distribution() -> None:
    probabilities = torch.tensor([0.2, 0.0, 0.5, 0.3])
    uniform = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 1.0 - 2.0**-53], dtype=torch.float64)
    logits = probabilities.log().expand(6, 4)
    tokens, logprobs = draw(logits, torch.ones(6, 1), None, uniform)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    torch.testing.assert_close(logprobs, probabilities[tokens].log())


def test_nothing_of_probability_zero_is_drawn_at_either_end() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0]]).log().expand(2, 3)
    tokens, _ = draw(logits, torch.ones(2, 1), None, torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 1]


def test_greedy_tells_the_logprob_of_temperature_one() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    tokens, logprobs = draw(logits, torch.zeros(1, 1), torch.full((1, 1), 0.1), torch.tensor([0.999]).double())
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[:, 1])


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).expand(20000, 4)
    uniform = torch.rand(20000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, _ = draw(logits, torch.full((20000, 1), 2.0), None, uniform)
    found = tokens.bincount(minlength=4) / 20000
    torch.testing.assert_close(found, torch.softmax(logits[0] / 2, -1), atol=0.015, rtol=0)


def test_a_nucleus_is_the_likeliest_that_reach_it_renormalised() -> None:
    logprobs = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log().expand(3, 4)
    kept = within_nucleus(logprobs, torch.tensor([[0.7], [0.1], [1.0]])).exp()
    expected = torch.tensor([[0, 2 / 3, 0, 1 / 3], [0, 1, 0, 0], [0.1, 0.5, 0.15, 0.25]])
    torch.testing.assert_close(kept, expected)


def test_a_nucleus_too_small_for_float32_is_the_likeliest_token() -> None:
    logprobs = torch.tensor([[0.25, 0.75]]).log()
    assert within_nucleus(logprobs, torch.tensor([[1e-300]])).exp().tolist() == [[0.0, 1.0]]
