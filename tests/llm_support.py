"""Samples, batches and a tiny model, as the tests of language-model training want them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core import seeding
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
