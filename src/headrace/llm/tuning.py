"""Supervised training on demonstrations. Knows no file, process or deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from headrace.core.errors import NonFiniteValue
from headrace.llm.config import SFTConfig
from headrace.llm.demonstrations import DemonstrationBatch

_MAX_GRAD_NORM = 1.0
_WARMUP_SHARE = 0.05
_FINAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class TunedStep:
    """What one step was."""

    step: int
    """Counts from 1."""
    loss: float
    """Mean over the teacher's tokens, in nats."""
    tokens: int
    """Of the batch, without padding."""
    episodes: int
    """Of the batch."""
    cut: int
    """Episodes of it that were longer than the context."""


def learning_rate(config: SFTConfig, step: int) -> float:
    """Of a step, which counts from 0: a short linear rise, then half a cosine down to a tenth."""
    rise = max(1, round(_WARMUP_SHARE * config.steps))
    if step < rise:
        return config.lr * (step + 1) / rise
    done = (step - rise) / max(1, config.steps - rise)
    return config.lr * (_FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


def tune(
    model: nn.Module, config: SFTConfig, batch_of: Callable[[int], DemonstrationBatch], device: str
) -> Iterator[TunedStep]:
    """Train, one step for each value that is taken.

    Args:
        model: A causal language model of transformers, float32, on ``device``.
        config: How long and how fast.
        batch_of: The batch of a step, which counts from 0.
        device: Where the model is.

    Raises:
        NonFiniteValue: A loss is NaN or infinite; the weights are those of the step before.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    for step in range(config.steps):
        batch = batch_of(step)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        loss = demonstration_loss(model, batch, device)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteValue(
                f"the loss of step {step} of the supervised warm start is {value}", fix="lower sft.lr", lr=config.lr
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRAD_NORM)
        optimiser.step()
        yield TunedStep(step + 1, value, batch.tokens, len(batch.token_ids), batch.cut)


def demonstration_loss(model: nn.Module, batch: DemonstrationBatch, device: str) -> torch.Tensor:
    """Mean negative log-likelihood of the tokens that the teacher said; what others said is only read."""
    ids = torch.from_numpy(batch.token_ids).to(device)  # [B, T]
    wanted = torch.from_numpy(batch.trained[:, 1:]).to(device)  # [B, T - 1]
    # Padding lies behind everything that counts, and nothing looks ahead, so no mask is needed.
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # [B, T - 1, V]
    return functional.cross_entropy(logits[wanted].float(), ids[:, 1:][wanted])
