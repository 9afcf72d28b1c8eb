"""How fast the trainer of language models trains, on one thread, by how samples are laid out.

    python bench/grpo.py [--rounds 9]

256 samples of 20 to 60 tokens, a Llama of 164,416 parameters, float32, CPU seconds (so that other processes count less), the
layouts in turn; the best and the median round of each. ``padded`` is what packing is compared with: a row for each sample,
sorted by length. ``step`` is all of `Trainer.step`: checks, packing, loss, clipping and AdamW included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from headrace.llm.config import RLConfig
from headrace.llm.messages import Batch, Sample
from headrace.llm.tiny import make_model
from headrace.llm.training.forward import Device, said
from headrace.llm.training.packing import pack
from headrace.llm.training.trainer import Trainer

VOCABULARY, SAMPLES, TOKENS_PER_PASS = 33, 256, 4096


class CpuClock:
    def now(self) -> float:
        return time.process_time()


def some_samples() -> list[Sample]:
    draw = np.random.default_rng(0)
    return [one_sample(draw, index) for index in range(SAMPLES)]


def one_sample(draw: np.random.Generator, index: int) -> Sample:
    """A dialogue: replies of four tokens, with six of the environment between them."""
    tokens = int(draw.integers(20, 61))
    trained = np.zeros(tokens, bool)
    for start in range(12, tokens, 10):
        trained[start : start + 4] = True
    return Sample(
        rollout=f"g{index // 8}.{index % 8}",
        group=index // 8,
        problem=str(index // 8),
        token_ids=draw.integers(0, VOCABULARY, tokens).astype(np.int32),
        trained=trained,
        logprobs=np.where(trained, -3.5, 0).astype(np.float32),
        versions=np.where(trained, 0, -1).astype(np.int32),
        reward=float(draw.random()),
        advantage=float(draw.normal()),
    )


def padded(model: nn.Module, samples: list[Sample]) -> Callable[[], None]:
    """Rows of one sample each, the longest first."""
    rows = sorted((torch.from_numpy(one.token_ids.astype(np.int64)) for one in samples), key=len, reverse=True)
    passes = []
    while rows:
        count = TOKENS_PER_PASS // len(rows[0])
        passes.append(nn.utils.rnn.pad_sequence(rows[:count], batch_first=True))
        del rows[:count]

    def run() -> None:
        for ids in passes:
            model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[..., 0].sum().backward()

    return run


def packed(model: nn.Module, samples: list[Sample], row_tokens: int, config: RLConfig) -> Callable[[], None]:
    def run() -> None:
        for part in pack(samples, TOKENS_PER_PASS, row_tokens):
            said(model, part, config.sampling, Device("cpu", autocast=False)).logprob.sum().backward()

    return run


def stepping(model: nn.Module, samples: list[Sample], config: RLConfig) -> Callable[[], None]:
    trainer = Trainer(model, config, run_id="bench", clock=CpuClock())

    def run() -> None:
        trainer.step(Batch(run_id="bench", step=trainer.version, samples=tuple(samples)))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    config = RLConfig.model_validate(
        {"trainer": {"tokens_per_pass": TOKENS_PER_PASS}, "orchestrator": {"max_policy_lag": 64}}
    )
    samples = some_samples()
    tokens = sum(len(one.token_ids) for one in samples)
    layouts = {"padded": padded(make_model(config.model, VOCABULARY, 0), samples)}
    for row_tokens in (64, 96, 128, 192):
        layouts[f"packed, rows of {row_tokens}"] = packed(
            make_model(config.model, VOCABULARY, 0), samples, row_tokens, config
        )
    layouts["step"] = stepping(make_model(config.model, VOCABULARY, 0), samples, config)
    took: dict[str, list[float]] = {name: [] for name in layouts}
    for _ in range(rounds):
        for name, run in layouts.items():
            began_s = time.process_time()
            run()
            took[name].append(time.process_time() - began_s)
    for name, seconds in took.items():
        best, median = min(seconds), statistics.median(seconds)
        print(f"{name:20s} best {tokens / best:7,.0f} tokens/s   median {tokens / median:7,.0f} tokens/s")


if __name__ == "__main__":
    main()
