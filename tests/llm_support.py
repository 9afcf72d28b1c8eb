"""Samples, batches and a tiny model, as the tests of language-model training want them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.core import seeding
from headrace.llm.guarding import Guard
from headrace.llm.messages import Batch, Sample

VOCABULARY = 33


def sample(index: int = 0, *, group: int = 0, prompt: int = 4, reply: int = 5, version: int = 0, **more: Any) -> Sample:
    """A rollout of a prompt and a reply, drawn from its index."""
    draw = seeding.generator(3, "sample", index, prompt, reply)
    tokens = prompt + reply
    trained = np.arange(tokens) >= prompt
    fields: dict[str, Any] = {
        "rollout": f"g{group}.{index}",
        "group": group,
        "problem": f"word-{group}",
        "token_ids": draw.integers(0, VOCABULARY, tokens).astype(np.int32),
        "trained": trained,
        "logprobs": np.where(trained, -draw.random(tokens), 0).astype(np.float32),
        "versions": np.where(trained, version, -1).astype(np.int32),
        "reward": float(draw.random()),
        "advantage": float(draw.normal()),
    }
    return Sample(**(fields | more))


def batch(step: int = 0, samples: int = 4, *, run_id: str = "run", **more: Any) -> Batch:
    """A batch of rollouts of differing lengths, in groups of two."""
    own = tuple(
        sample(index, group=index // 2, prompt=3 + index % 4, reply=2 + index % 5, version=step)
        for index in range(samples)
    )
    fields: dict[str, Any] = {"run_id": run_id, "step": step, "samples": own, "facts": {}, "carry": {}}
    return Batch(**(fields | more))


def same_batch(first: Batch, second: Batch) -> bool:
    """Whether two batches say the same, bit for bit."""
    return _plain(first) == _plain(second)


def _plain(whole: Batch) -> Any:
    samples = [
        (
            one.rollout, one.group, one.problem, one.reward, one.advantage,
            *((a.dtype.str, a.tobytes()) for a in (one.token_ids, one.trained, one.logprobs, one.versions)),
        )
        for one in whole.samples
    ]  # fmt: skip
    return whole.run_id, whole.step, samples, dict(whole.facts), dict(whole.carry)


def tiny_model(seed: int = 0, *, hidden: int = 16, layers: int = 2) -> Any:
    """A Llama with weights from a seed, large enough that its distributions differ from token to token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(shape)
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))
    return model.eval()


def alone_logprobs(model: Any, one: Sample, temperature: float = 1.0) -> Any:
    """Log-probability of each token after those before it, with no other sample beside it; the first one has none; [T]."""
    import torch

    ids = torch.from_numpy(one.token_ids.astype(np.int64))
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
    return torch.cat([logprobs.new_zeros(1), logprobs])


def sampled_by(model: Any, whole: Batch, temperature: float = 1.0) -> Batch:
    """The same batch, with the log-probabilities that ``model`` gives its tokens."""
    import dataclasses

    import torch

    with torch.no_grad():
        own = [
            dataclasses.replace(
                one,
                logprobs=np.where(one.trained, alone_logprobs(model, one, temperature).numpy(), 0).astype(np.float32),
            )
            for one in whole.samples
        ]
    return dataclasses.replace(whole, samples=tuple(own))


class Unguarded(Guard):
    """Sets no limit: it would be kept by ending this process."""

    def __init__(self) -> None:
        """There is nothing to keep."""

    @contextmanager
    def within(self, what: str, limit_s: float, key: str) -> Iterator[None]:
        yield
