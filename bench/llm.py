"""Generated tokens and completions a second of our engine and server, on one thread.

The model is a Llama of 0.155 M parameters with random weights, float32, prompts of 32 tokens. The engine is measured beside
`generate()` of transformers with the same model and prompts, which are all of one length, so that it need not pad. Over HTTP,
with our own client in this process and the server in another, lists of prompts are measured beside one prompt a request;
conversations of three turns beside the same without keeping what was computed for a session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing as mp
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
import transformers
from _processes import cpu_s
from _report import arguments, compare, report, take_turns

from headrace.llm.client import HttpGenerator
from headrace.llm.config import ModelConfig
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, Failure, GenerationRequest
from headrace.llm.server.application import build_application
from headrace.llm.server.driver import Driver
from headrace.llm.serving import build_server
from headrace.llm.tiny import make_model

VOCABULARY, PROMPT, CONTEXT = 40, 32, 96
LIMIT_S = 300.0
SPAWN = mp.get_context("spawn")


def model() -> Any:
    """The same in every process."""
    torch.set_num_threads(1)
    return make_model(ModelConfig(context_tokens=CONTEXT), VOCABULARY, seed=0)


def wanted(count: int, new_tokens: int) -> list[GenerationRequest]:
    """Prompts that nobody has seen before; nothing but their length ends an answer."""
    prompts = np.random.default_rng(time.monotonic_ns()).integers(0, VOCABULARY, (count, PROMPT)).tolist()
    return [
        GenerationRequest(id=str(place), prompt_ids=tuple(prompt), max_tokens=new_tokens, seed=place)
        for place, prompt in enumerate(prompts)
    ]


def engine_rate(engine: Engine, batch: int, new_tokens: int) -> float:
    """Tokens a second of so many requests at once."""
    answers: dict[int, Completion | Failure] = {}
    requests = wanted(batch, new_tokens)
    start = time.perf_counter()
    engine.submit(requests, answers.__setitem__)
    while engine.step():
        pass
    taken = time.perf_counter() - start
    return tokens_of([answers[place] for place in range(batch)], batch * new_tokens) / taken


def tokens_of(answers: Sequence[Completion | Failure], expected: int) -> int:
    """How many tokens were generated; all that were asked for, or the figure would be of something else."""
    found = sum(len(answer.token_ids) for answer in answers if isinstance(answer, Completion))
    if found != expected:
        raise SystemExit(f"{found} tokens instead of {expected}: {answers[:1]}")
    return found


def generate_rate(of: Any, batch: int, new_tokens: int) -> float:
    """The same by `generate()`."""
    prompts = torch.tensor([request.prompt_ids for request in wanted(batch, new_tokens)])
    start = time.perf_counter()
    with torch.inference_mode():
        whole = of.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
        )
    taken = time.perf_counter() - start
    assert whole.shape == (batch, PROMPT + new_tokens)
    return batch * new_tokens / taken


def serve(listening: socket.socket, slots: int, kv_reuse: bool) -> None:
    """A process of its own: the server."""

    async def main() -> None:
        driver = Driver(Engine(model(), slots=slots, context_tokens=CONTEXT, kv_reuse=kv_reuse))
        server = build_server(build_application(driver, timeout_s=LIMIT_S))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(driver.run())
            tasks.create_task(server.serve([listening]))

    asyncio.run(main())


class Served:
    """A server in a process of its own; a context manager."""

    def __init__(self, slots: int, *, kv_reuse: bool = True) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._process = SPAWN.Process(target=serve, args=(self._listening, slots, kv_reuse), daemon=True)
        self.root = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(LIMIT_S)
        self._listening.close()

    def cpu_s(self) -> float:
        """CPU seconds it has used."""
        return cpu_s([self._process.pid or 0])


def http_rates(server: Served, work: Callable[[HttpGenerator], Any], per_call: int) -> tuple[float, float]:
    """Completions a second, and per CPU second of the server, of what ``work`` asks for; it returns how many."""

    async def main() -> tuple[float, float]:
        async with HttpGenerator(server.root, per_call=per_call, connections=128) as client:
            await client.generate(wanted(1, 1), LIMIT_S)
            start, cpu = time.perf_counter(), server.cpu_s()
            completions = await work(client)
            return completions / (time.perf_counter() - start), completions / (server.cpu_s() - cpu)

    return asyncio.run(main())


def short(completions: int) -> Callable[[HttpGenerator], Any]:
    """Answers of 4 tokens."""

    async def work(client: HttpGenerator) -> int:
        answers = await client.generate(wanted(completions, 4), LIMIT_S)
        tokens_of(answers, 4 * completions)
        return completions

    return work


def conversations(count: int) -> Callable[[HttpGenerator], Any]:
    """Three turns each: an answer of 4 tokens, then 4 of the environment."""

    async def work(client: HttpGenerator) -> int:
        mark = time.monotonic_ns()
        requests = [dataclasses.replace(one, session=f"{mark}/{one.id}") for one in wanted(count, 4)]
        for _ in range(3):
            answers = await client.generate(requests, LIMIT_S)
            tokens_of(answers, 4 * count)
            requests = [
                dataclasses.replace(one, prompt_ids=(*one.prompt_ids, *said.token_ids, 1, 2, 3, 4))
                for one, said in zip(requests, answers, strict=True)
                if isinstance(said, Completion)
            ]
        return 3 * count

    return work


def engine_rows(given: Any) -> list[Any]:
    """The engine beside `generate()`."""
    peer = ("transformers generate()", transformers.__version__)
    of, rows = model(), []
    # A model of its own: ours lays its weights out anew.
    apart = model()
    for batch in (64, 128, 256):
        engine = Engine(of, slots=batch, context_tokens=CONTEXT)
        rates = take_turns(
            given.rounds,
            lambda engine=engine, batch=batch: engine_rate(engine, batch, given.tokens),  # type: ignore[misc]
            lambda batch=batch: generate_rate(apart, batch, given.tokens),  # type: ignore[misc]
        )
        rows.append(compare(f"{batch} at once", f"{given.tokens} new tokens", peer, (rates[0], rates[1]), "tokens/s"))
    return rows


def http_rows(given: Any) -> list[Any]:
    """Over HTTP."""
    rows = []
    with Served(256) as ours, Served(256, kv_reuse=False) as forgetful:
        sides = {
            ("lists of 128 prompts", "one prompt a request"): (
                lambda: http_rates(ours, short(given.completions), 128),
                lambda: http_rates(ours, short(given.completions), 1),
            ),
            ("conversations of 3 turns", "the same without KV reuse"): (
                lambda: http_rates(ours, conversations(256), 128),
                lambda: http_rates(forgetful, conversations(256), 128),
            ),
        }
        for (name, peer), turns in sides.items():
            left, right = take_turns(given.rounds, *turns)
            for at, unit in enumerate(["completions/s", "completions per CPU second of the server"]):
                samples = [found[at] for found in left], [found[at] for found in right]
                rows.append(compare(name, "answers of 4 tokens", (peer, "headrace"), samples, unit))
    return rows


def main() -> None:
    given = arguments("Tokens and completions a second.", rounds=5, tokens=48, completions=1024)
    report(engine_rows(given) + http_rows(given), as_json=given.json, torch=torch.__version__, threads=1)


if __name__ == "__main__":
    main()
