"""Tiny models, and a server over one in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headrace.core.clock import Clock, MonotonicClock
from headrace.llm.config import ModelConfig
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, Failure, GenerationRequest
from headrace.llm.server.application import build_application
from headrace.llm.server.driver import Driver
from headrace.llm.server.texts import Texts
from headrace.llm.serving import build_server
from headrace.llm.tiny import make_tokenizer

VOCABULARY = 40
CONTEXT = 96

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """As in the process that serves; two threads on a busy machine wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def llama(seed: int = 0, *, heads: int = 4, shared: int = 4, tied: bool = False, layers: int = 2) -> Any:
    """A Llama whose scores differ enough for a choice to mean something."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return redrawn(LlamaForCausalLM(shape), seed)


def gpt2(seed: int = 0) -> Any:
    """Something that is not a Llama: learned positions, other names, biases."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    return redrawn(GPT2LMHeadModel(shape), seed)


def redrawn(model: Any, seed: int) -> Any:
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=draws) * 0.2)
    return model.eval()


def wanted(place: int, prompt: int = 20, **settings: Any) -> GenerationRequest:
    """A request with a prompt drawn from its number."""
    ids = np.random.default_rng(place).integers(0, VOCABULARY, prompt).tolist()
    facts = {"max_tokens": 8, "seed": place, **settings}
    return GenerationRequest(id=f"r{place}", prompt_ids=tuple(ids), **facts)


def ragged(count: int, **settings: Any) -> list[GenerationRequest]:
    """Requests of all lengths, short and long answers."""
    draws = np.random.default_rng(count)
    return [
        wanted(place, int(draws.integers(1, 60)), max_tokens=int(draws.integers(1, 30)), **settings)
        for place in range(count)
    ]


def run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """Generate them all."""
    answers: dict[int, Completion | Failure] = {}
    engine.submit(requests, answers.__setitem__)
    while engine.step():
        pass
    completions = [answers[place] for place in range(len(requests))]
    assert all(isinstance(one, Completion) for one in completions), completions
    return completions  # type: ignore[return-value]


def plain_logprobs(model: Any, prompt: Sequence[int], said: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """What a plain forward pass over the whole text says of each token that was said."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(list(said))[:, None])[:, 0]


def tokenizer() -> Any:
    letters = "abcdefghijklmnopqrstuvwxyz ,.!?\n[]0"
    made = make_tokenizer(letters[: VOCABULARY - 6], CONTEXT)
    assert len(made) == VOCABULARY
    return made


def byte_level(template: str | None) -> Any:
    """A tokenizer over bytes with the special tokens of ChatML, made here."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate([*letters, "ab", "ca", "Ġd", "bad"])}
    merges = [("a", "b"), ("c", "a"), ("Ġ", "d"), ("b", "a")]
    vocabulary["ba"] = len(vocabulary)
    tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(
        tokenizer_object=tokens,
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_config() -> ModelConfig:
    return ModelConfig(hidden=32, layers=2, heads=4, context_tokens=CONTEXT)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until something is so."""
    loop = asyncio.get_running_loop()
    while not condition():
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


@contextlib.asynccontextmanager
async def served(
    engine: Engine,
    *,
    run_id: str = "",
    stalled_s: float = 60.0,
    clock: Clock | None = None,
    generating: bool = True,
    texts: Texts | None = None,
    life: int | None = None,
) -> AsyncIterator[tuple[str, Driver]]:
    """The root of a server over ``engine``, and what drives it; nothing is generated unless ``generating``."""
    driver = Driver(engine, stalled_s=stalled_s, clock=clock or MonotonicClock())
    texts = texts or Texts(tokenizer())
    server = build_server(build_application(driver, run_id=run_id, timeout_s=60.0, texts=texts, life=life))
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        # No group: what a test asserts shall not come out as one of several exceptions.
        tasks = {asyncio.ensure_future(server.serve([listening]))}
        if generating:
            tasks.add(asyncio.ensure_future(driver.run()))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", driver
        finally:
            driver.stop()
            server.should_exit = True
            await asyncio.wait(tasks, timeout=60)
        for task in tasks:
            task.result()
