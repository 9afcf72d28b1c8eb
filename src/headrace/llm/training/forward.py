"""What a model says of the trained tokens of a pass, under the distribution they were sampled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.algorithms.grpo import entropy, nucleus
from headrace.llm.config import SamplingConfig
from headrace.llm.training.packing import Pass


@dataclass(frozen=True, slots=True)
class Device:
    """Where and how precisely a model is run."""

    name: str
    autocast: bool
    """Whether matrices are multiplied in bfloat16; weights, gradients and losses stay float32."""

    def tensor(self, array: Any) -> Tensor:
        """An array, there."""
        return torch.from_numpy(array).to(self.name)

    def running(self) -> torch.autocast:
        """The context in which a model is run."""
        return torch.autocast(torch.device(self.name).type, torch.bfloat16, enabled=self.autocast)


@dataclass(frozen=True, slots=True)
class Said:
    """About K trained tokens."""

    logprob: Tensor  # [K]
    logits: Tensor  # [K, V]
    """Of the distribution each was drawn from; minus infinity where nothing could be drawn."""

    def entropy(self) -> Tensor:
        """Of those distributions, in nats, [K]."""
        return entropy(self.logits)


def said(model: nn.Module, part: Pass, sampling: SamplingConfig, device: Device) -> Said:
    """Run a model over a pass.

    The distribution is that of the sampler: logits are divided by its temperature, and with ``top_p`` below 1 only its
    nucleus counts, as it is under *this* model. Where both models agree, so do their log-probabilities.

    Args:
        model: A causal language model of transformers, with `attention_kind` sdpa or eager.
        part: The pass.
        sampling: How the tokens were drawn.
        device: Where the model is.
    """
    with device.running():
        logits = model(
            input_ids=device.tensor(part.input_ids),
            position_ids=device.tensor(part.positions),
            attention_mask=_mask(model, device.tensor(part.attention())),
            use_cache=False,
        ).logits
    targets = device.tensor(part.targets)
    own = logits[device.tensor(part.rows), device.tensor(part.columns)].float() / sampling.temperature
    own = nucleus(own, sampling.top_p, targets)
    return Said(own.log_softmax(-1).gather(-1, targets[:, None])[:, 0], own)


def attention_kind(model: nn.Module) -> str:
    """How a model of transformers computes attention, e.g. ``sdpa``."""
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _mask(model: nn.Module, seen: Tensor) -> Tensor:
    """A mask as the model's attention takes it: eager attention adds it to its scores."""
    if attention_kind(model) == "sdpa":
        return seen
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, torch.finfo(torch.float32).min)
