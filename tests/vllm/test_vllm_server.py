"""Our client, our loader and the weight proof, against real vLLM on a CPU."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.core.errors import ComponentError, StaleWeights
from headrace.llm import tiny, weights
from headrace.llm.backends.choosing import vllm_loader
from headrace.llm.backends.vllm_client import OURS, STOCK, VllmGenerator
from headrace.llm.backends.vllm_command import vllm_command
from headrace.llm.config import RLConfig
from headrace.llm.launch.children import free_port
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights
from headrace.llm.orchestration.policies import serve

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

CONTEXT = 128
END = 1
PROBE = (5, 6, 7, 8, 9, 12, 20, 3, 4, 4, 4, 11)
START_S, UPDATE_S, ANSWER_S, STOP_S = 600.0, 60.0, 60.0, 60.0
TOLERANCE_NATS = 1e-4
"""float32 here and there; logits of these models reach 40, and the largest difference seen was 5e-5."""


@dataclass
class Serving:
    """A server, and two versions that it may be given."""

    endpoint: str
    models: list[Any]
    published: list[PublishedWeights]
    saved: PublishedWeights
    """The second, as `save_pretrained` writes it."""

    def run(self, work: Callable[[VllmGenerator], Awaitable[Any]], loader: str = OURS) -> Any:
        """``work`` with a client."""

        async def ask() -> Any:
            async with VllmGenerator(self.endpoint, run_id="r", loader=loader) as generator:
                await generator.wait_ready(START_S)
                return await work(generator)

        return asyncio.run(ask())


async def _nothing(generator: VllmGenerator) -> None:
    del generator


def tied_model(seed: int) -> Any:
    """Output projection and embedding share a tensor, as those of small models mostly do; large enough to tell apart."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = LlamaConfig(
            vocab_size=36, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=END,
            pad_token_id=0, tie_word_embeddings=True, initializer_range=0.3,
        )  # fmt: skip
        return LlamaForCausalLM(shape).eval()


@pytest.fixture(scope="module")
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("vllm")
    models = [tied_model(seed) for seed in (0, 1)]
    published = [
        weights.publish(
            model.state_dict(),
            version=version,
            weights_dir=folder / "weights",
            run_id="r",
            probe=weights.make_probe(model, PROBE),
            metadata={},
        )
        for version, model in enumerate(models)
    ]
    models[0].save_pretrained(folder / "model")
    models[1].save_pretrained(folder / "saved")
    tensors = load_file(folder / "saved" / weights.MODEL)
    assert "lm_head.weight" not in tensors
    saved = replace(published[1], folder=folder / "saved", sha256=weights.tensors_sha256(tensors))
    tiny.make_tokenizer("abcdefghijklmnopqrstuvwxyz", CONTEXT).save_pretrained(folder / "model")
    config = RLConfig.model_validate(
        {
            "model": {"heads": 2, "context_tokens": CONTEXT},
            "inference": {"backend": "vllm", "slots": 64, "command": [request.config.getoption("--vllm"), "serve"]},
        }
    )
    port = free_port("127.0.0.1")
    command = vllm_command(config, folder / "model", port)
    environment = {**command.defaults, **os.environ, **command.env}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command.argv, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        found = Serving(f"http://127.0.0.1:{port}", models, published, saved)
        found.run(_nothing)  # all its processes are there before a test counts what it leaves
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=STOP_S)


def reference(model: Any, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float) -> list[float]:
    """What transformers says of ``tokens`` after ``prompt``."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
    return [logprobs[len(prompt) - 1 + index, token].item() for index, token in enumerate(tokens)]


def proof(published: PublishedWeights) -> Callable[[VllmGenerator], Awaitable[float]]:
    return lambda generator: serve(
        generator, published, server="inference", timeout_s=UPDATE_S, tolerance=TOLERANCE_NATS
    )


def test_the_proof_catches_what_stock_reload_weights_leaves_stale_and_our_loader_heals_it(serving: Serving) -> None:
    """The second version lies there as Hugging Face writes it: without the output projection, as that is tied."""
    with pytest.raises(StaleWeights, match="its log-probabilities are not that version's") as raised:
        serving.run(proof(serving.saved), STOCK)
    assert raised.value.facts["largest_difference_nats"] > 1.0

    async def what_it_serves(generator: VllmGenerator) -> tuple[float, ...]:
        return await generator.score(PROBE, ANSWER_S)

    # What it serves instead: everything new, but the output projection.
    old, new = serving.models
    with torch.no_grad():
        hidden = new.model(input_ids=torch.tensor([PROBE])).last_hidden_state[0, :-1]
        mixed = torch.log_softmax(hidden @ old.lm_head.weight.T, -1).gather(-1, torch.tensor(PROBE)[1:, None])[:, 0]
    assert serving.run(what_it_serves) == pytest.approx(mixed.tolist(), abs=TOLERANCE_NATS)

    assert serving.run(proof(serving.saved)) <= TOLERANCE_NATS
    assert serving.run(proof(serving.published[0])) <= TOLERANCE_NATS
    assert asyncio.run(vllm_loader(serving.endpoint, ANSWER_S)) == OURS


def test_stock_reload_weights_loads_what_names_every_tensor(serving: Serving) -> None:
    """Which Headrace's own files do; so that an external server without our loader can be trained with, and is proved."""
    assert serving.run(proof(serving.published[1]), STOCK) <= TOLERANCE_NATS
    assert serving.run(proof(serving.published[0]), STOCK) <= TOLERANCE_NATS


def test_tokens_and_log_probabilities_are_those_of_the_version_they_bear(serving: Serving) -> None:
    requests = [
        GenerationRequest(
            id=str(index),
            prompt_ids=(5, 6, 7, 8 + index % 5),
            max_tokens=20,
            stop_ids=(END,),
            seed=2**31 - 1 - index,
            temperature=(1.0, 0.7, 0.0)[index % 3],
        )
        for index in range(60)
    ]

    async def work(generator: VllmGenerator) -> Any:
        await proof(serving.published[1])(generator)
        return [await generator.generate(requests, ANSWER_S) for _ in range(2)]

    first, second = serving.run(work)
    for request, answer in zip(requests, first, strict=True):
        assert isinstance(answer, Completion), answer
        assert set(answer.versions) == {1}
        assert len(answer.token_ids) == len(answer.logprobs) == len(answer.versions)
        expected = reference(serving.models[1], request.prompt_ids, answer.token_ids, request.temperature or 1.0)
        assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE_NATS)
    assert {answer.finish_reason for answer in first} == {"stop", "length"}
    assert [answer.token_ids for answer in first] == [answer.token_ids for answer in second]


def test_completions_that_an_update_interrupts_say_which_version_chose_each_token(serving: Serving) -> None:
    requests = [
        GenerationRequest(id=str(index), prompt_ids=(5, 6, 7, 8 + index % 5), max_tokens=110, seed=index)
        for index in range(40)
    ]

    async def work(generator: VllmGenerator) -> Any:
        await proof(serving.published[0])(generator)
        first = asyncio.create_task(generator.generate(requests[:1], ANSWER_S))
        others = asyncio.create_task(generator.generate(requests[1:], ANSWER_S))
        await generator.generate([GenerationRequest(id="s", prompt_ids=(5,), max_tokens=8)], ANSWER_S)  # they run
        await proof(serving.published[1])(generator)
        return [*(await first), *(await others)]

    answers = serving.run(work)
    spanning = 0
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, Completion), answer
        spanning += len(set(answer.versions)) > 1
        assert list(answer.versions) == sorted(answer.versions)
        by_version = [reference(model, request.prompt_ids, answer.token_ids, 1.0) for model in serving.models]
        expected = [by_version[version][index] for index, version in enumerate(answer.versions)]
        assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE_NATS)
    assert spanning > 0


def test_what_cannot_be_loaded_leaves_no_version_and_what_is_wrong_is_refused(serving: Serving) -> None:
    good = serving.published[1]
    torn = replace(good, version=5, sha256="0" * 64)
    ask = GenerationRequest(id="x", prompt_ids=(5,), max_tokens=2)
    wrong = [
        GenerationRequest(id="long", prompt_ids=(5,) * CONTEXT, max_tokens=2),
        GenerationRequest(id="unknown", prompt_ids=(999,), max_tokens=2),
    ]

    async def work(generator: VllmGenerator) -> Any:
        with pytest.raises(ComponentError, match="could not load version 5") as raised:
            await generator.update_weights(torn, UPDATE_S)
        unproven = await generator.generate([ask], ANSWER_S)
        refused = await generator.generate(wrong, ANSWER_S)
        await proof(good)(generator)
        return str(raised.value), unproven + refused + await generator.generate([ask], ANSWER_S)

    said, (unproven, long, unknown, after) = serving.run(work)
    assert "holds tensors of sha256" in said
    assert isinstance(unproven, Failure)
    assert unproven.reason == "unversioned"
    assert (long.reason, long.may_retry) == (unknown.reason, unknown.may_retry) == ("refused", False)
    assert after.versions == (1, 1)
