"""Draws tokens: one uniform number each, so that nobody's draw depends on who else draws."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(logits: Tensor, temperature: Tensor, top_p: Tensor | None, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each row, by the inverse of its cumulative distribution.

    Args:
        logits: [B, V]; any floating type.
        temperature: [B, 1]; 0 takes the likeliest token.
        top_p: [B, 1]; None where all are 1.
        uniform: [B] float64 in [0, 1).

    Returns:
        Tokens [B], and their log-probabilities [B] float32 under the distribution they were drawn from; at temperature 0
        under that of temperature 1.
    """
    greedy = temperature == 0
    logprobs = torch.log_softmax(logits.float() / temperature.masked_fill(greedy, 1.0), dim=-1)
    drawn_from = logprobs if top_p is None else within_nucleus(logprobs, top_p.masked_fill(greedy, 1.0))
    cumulative = drawn_from.exp().double().cumsum(-1)
    total = cumulative[:, -1:]
    # Below the total even after rounding, so that the first entry above it has a probability above 0.
    level = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, level, right=True)
    tokens = torch.where(greedy, logits.argmax(-1, keepdim=True), tokens).clamp_max_(logits.shape[-1] - 1)
    return tokens.squeeze(1), drawn_from.gather(1, tokens).squeeze(1)


def within_nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Only the likeliest tokens that together reach ``top_p``, renormalised; -inf for the others.  # [B, V]."""
    ordered, places = logprobs.sort(dim=-1, descending=True, stable=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    beyond = (before >= top_p) & (before > 0.0)  # the likeliest stays, also where a tiny top_p has become 0 in float32
    kept = ordered.masked_fill(beyond & (top_p < 1.0), -torch.inf)
    kept = torch.where(top_p < 1.0, torch.log_softmax(kept, dim=-1), kept)
    return torch.empty_like(logprobs).scatter_(1, places, kept)
