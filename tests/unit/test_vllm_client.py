"""The client of vLLM, against a server that answers as vLLM 0.32 does, or does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from headrace.core.errors import ComponentError, ComponentStalled, StaleWeights
from headrace.llm.backends import vllm_client
from headrace.llm.backends.choosing import vllm_loader
from headrace.llm.backends.vllm_client import OURS, STOCK, UNPROVEN, VllmGenerator
from headrace.llm.messages import Completion, Failure, GenerationRequest, Probe, PublishedWeights

PROBE = Probe(token_ids=(5, 6, 7), logprobs=(-1.0, -2.0))
REQUEST = GenerationRequest(id="g0.0/t0", prompt_ids=(5, 6), max_tokens=4, temperature=0.5, stop_ids=(1,), seed=9)


class FakeVllm:
    """Routes of vLLM, and what was asked of them. ``answers`` replaces an answer by route."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.version = "default"
        self.paused = False
        self.spans: list[dict[str, Any]] | None = None
        self.answers: dict[str, tuple[int, Any]] = {}
        self.hangs: set[str] = set()
        self.dead_looks = 0
        """Looks at its health until it is well again; before, it answers everything with errors."""
        self.release = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        route = request.path_qs
        body = json.loads(await request.text() or "null")
        self.asked.append((route, body))
        if self.dead_looks:
            self.dead_looks -= request.path == "/health"
            return web.json_response({}, status=503 if request.path == "/health" else 500)
        if request.path in self.hangs:
            await self.release.wait()
        if request.path in self.answers:
            status, answer = self.answers[request.path]
            return web.json_response(answer, status=status)
        return web.json_response(self.answer(request.path, body))

    def answer(self, path: str, body: Any) -> Any:
        match path:
            case "/pause":
                self.paused = True
            case "/resume":
                self.paused = False
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/is_paused":
                return {"is_paused": self.paused}
            case "/weight_info":
                return {"weight_version": self.version}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/collective_rpc":
                return {"results": [{"sha256": "s", "repacked": 2}]}
            case "/v1/models":
                return {"data": [{"id": "policy", "owned_by": "vllm"}]}
            case "/inference/v1/generate":
                return self.completion()
        return {}

    def completion(self, tokens: tuple[int, ...] = (8, 9, 1), reason: str = "stop") -> dict[str, Any]:
        content = [{"token_id": token, "logprob": -0.25 * token} for token in tokens]
        spans = self.spans or [{"version": self.version, "start": 0, "end": len(tokens)}]
        choice = {
            "token_ids": list(tokens),
            "finish_reason": reason,
            "logprobs": {"content": content},
            "weight_versions": spans,
        }
        prompt = [None, {"6": {"logprob": -1.0}}, {"7": {"logprob": -2.0}}]
        return {"choices": [choice], "prompt_logprobs": prompt}

    def routes(self) -> list[str]:
        return [route for route, _ in self.asked]


def run(
    work: Callable[[FakeVllm, VllmGenerator], Awaitable[Any]], *, loader: str = OURS, before: Any = lambda fake: None
) -> Any:
    """``work`` with a server and its client; its result."""

    async def serve() -> Any:
        fake = FakeVllm()
        before(fake)
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", fake.handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            async with VllmGenerator(f"http://127.0.0.1:{port}", run_id="r", loader=loader) as generator:
                return await work(fake, generator)
        finally:
            fake.release.set()
            await runner.cleanup()

    return asyncio.run(serve())


def published(version: int = 3) -> PublishedWeights:
    return PublishedWeights(version=version, folder=Path("/w/3"), sha256="s" * 64, run_id="r", probe=PROBE)


def test_tokens_log_probabilities_and_versions_are_what_the_server_says() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.spans = [{"version": "r:4", "start": 0, "end": 2}, {"version": "r:5", "start": 2, "end": 3}]
        (answer,) = await generator.generate([REQUEST], 5.0)
        return answer, fake.asked[-1][1]

    answer, asked = run(work)
    assert answer == Completion(
        token_ids=(8, 9, 1), logprobs=(-2.0, -2.25, -0.25), versions=(4, 4, 5), finish_reason="stop"
    )
    assert asked["token_ids"] == [5, 6]
    sampling = asked["sampling_params"]
    assert (sampling["seed"], sampling["temperature"], sampling["stop_token_ids"]) == (9, 0.5, [1])
    assert sampling["ignore_eos"] is True


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([{"version": UNPROVEN, "start": 0, "end": 3}], "unversioned"),
        ([{"version": "r:4", "start": 0, "end": 2}], "unversioned"),
        ([{"version": "4", "start": 0, "end": 3}], "unversioned"),
        ([{"version": "another:4", "start": 0, "end": 3}], "unversioned"),
        ([{"version": "r:4", "start": 0, "end": 1}, {"version": "another:4", "start": 1, "end": 3}], "unversioned"),
        ([{"version": "r:4", "start": 0, "end": 1}, {"version": UNPROVEN, "start": 1, "end": 3}], "unversioned"),
    ],
)
def test_a_token_that_no_known_version_chose_is_never_a_sample(spans: Any, reason: str) -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.spans = spans
        return (await generator.generate([REQUEST], 5.0))[0]

    answer = run(work)
    assert isinstance(answer, Failure)
    assert answer.reason == reason
    assert answer.may_retry


def broken(**changes: Any) -> Callable[[FakeVllm], None]:
    """A completion with other fields in its choice."""

    def before(fake: FakeVllm) -> None:
        fake.version = "r:4"
        answer = fake.completion()
        answer["choices"][0].update(changes)
        fake.answers["/inference/v1/generate"] = (200, answer)

    return before


@pytest.mark.parametrize(
    ("before", "reason", "may_retry"),
    [
        (broken(token_ids=[8, 9, 2]), "malformed", True),  # log-probabilities of other tokens
        (broken(token_ids=[8, 9]), "malformed", True),
        (broken(logprobs=None), "malformed", True),
        (broken(finish_reason="length"), "malformed", True),  # and yet its last token is one to stop at
        (broken(finish_reason="abort"), "server", True),
        (lambda fake: fake.answers.update({"/inference/v1/generate": (200, {})}), "malformed", True),
        (lambda fake: fake.answers.update({"/inference/v1/generate": (400, {"error": {"message": "too long"}})}), "refused", False),
        (lambda fake: fake.answers.update({"/inference/v1/generate": (500, {})}), "server", True),
        (lambda fake: fake.answers.update({"/inference/v1/generate": (503, {})}), "timeout", False),
        (lambda fake: fake.hangs.add("/inference/v1/generate"), "timeout", False),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_failure_with_its_reason(before: Any, reason: str, may_retry: bool) -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        return await generator.generate([REQUEST, REQUEST], 0.2)

    answers = run(work, before=before)
    assert [(answer.reason, answer.may_retry) for answer in answers] == [(reason, may_retry)] * 2


def test_an_update_pauses_loads_empties_caches_and_only_then_bears_the_version() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        served = await generator.update_weights(published(), 5.0)
        await generator.generate([REQUEST], 5.0)
        return served, fake

    served, fake = run(work)
    assert (served.version, served.sha256) == (3, "")
    assert fake.routes()[:-1] == [
        "/pause?mode=keep",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache?reset_running_requests=true",
        "/update_weight_version",
        "/resume",
        "/is_paused",
        "/weight_info",
    ]
    bodies = [body for route, body in fake.asked if route == "/update_weight_version"]
    assert bodies == [{"new_version": UNPROVEN}, {"new_version": "r:3"}]
    assert dict(fake.asked)["/collective_rpc"] == {"method": OURS, "args": ["/w/3/model.safetensors", "s" * 64]}
    assert fake.asked[-1][1]["cache_salt"] == "version r:3"


def test_the_stock_route_is_given_the_folder() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.answers["/collective_rpc"] = (200, {"results": [None]})
        await generator.update_weights(published(), 5.0)
        return dict(fake.asked)["/collective_rpc"]

    assert run(work, loader=STOCK) == {"method": STOCK, "kwargs": {"weights_path": "/w/3"}}


@pytest.mark.parametrize(
    ("path", "answer", "text"),
    [
        ("/pause", (500, {"error": "no"}), "inference refused to pause for new weights"),
        ("/collective_rpc", (500, {}), f"inference refused to load version 3 by {OURS}"),
        ("/collective_rpc", (200, {"results": [{"error": "torn file"}]}), "inference could not load version 3"),
        ("/collective_rpc", (200, [1]), "inference did not say whether it loaded them"),
        ("/reset_prefix_cache", (200, {"success": False}), "inference kept what it had computed with the old weights"),
    ],
)
def test_an_update_that_fails_lets_the_server_go_on_without_a_version(path: str, answer: Any, text: str) -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.version = "r:2"
        fake.answers[path] = answer
        with pytest.raises(ComponentError) as raised:
            await generator.update_weights(published(), 5.0)
        return raised.value.what, fake

    what, fake = run(work)
    assert what == text
    assert not fake.paused
    assert fake.routes()[-2:] == ["/resume", "/health"]
    assert fake.version == (UNPROVEN if path != "/pause" else "r:2")


def test_one_whose_engine_has_died_is_waited_for_until_it_is_started_again() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.version, fake.dead_looks = "r:2", 3
        (answer,) = await generator.generate([REQUEST], 5.0)
        fake.dead_looks = 3
        served = await generator.update_weights(published(), 5.0)
        fake.dead_looks = 1_000
        with pytest.raises(ComponentStalled, match="inference died and did not come back to load version 3 in time"):
            await generator.update_weights(published(), 0.3)
        return answer, served.version, await generator.generate([REQUEST], 0.3)

    answer, version, (late,) = run(work)
    assert answer.versions == (2, 2, 2)
    assert version == 3
    assert (late.reason, late.may_retry) == ("timeout", False)


def test_a_load_that_never_answers_ends_at_its_deadline_and_the_server_goes_on() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.hangs.add("/collective_rpc")
        with pytest.raises(ComponentStalled, match="did not load version 3 by headrace_load_weights within"):
            await generator.update_weights(published(), 0.3)
        return fake

    fake = run(work)
    assert not fake.paused
    assert fake.version == UNPROVEN


def test_a_server_that_stays_paused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.answers["/resume"] = (200, {"status": "resumed"})  # and does not
        with pytest.raises(ComponentError) as raised:
            await generator.update_weights(published(), 5.0)
        fake.hangs.add("/resume")
        monkeypatch.setattr(vllm_client, "RESUME_S", 0.1)
        with pytest.raises(ComponentStalled) as stalled:
            await generator.update_weights(published(), 5.0)
        return raised.value.what, stalled.value.what

    assert run(work) == (
        "inference was told to go on, and is paused still",
        "inference did not go on after its weights were updated within 0.1 s",
    )


def test_a_server_that_somebody_else_updates_is_stale() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.answers["/weight_info"] = (200, {"weight_version": "r:4"})
        with pytest.raises(StaleWeights, match="given version 3 and says that it serves another"):
            await generator.update_weights(published(), 5.0)

    run(work)


def test_weights_of_another_run_are_not_taken_for_ones_own() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.version = "another:7"
        before = await generator.wait_ready(5.0)
        await generator.update_weights(published(), 5.0)
        fake.answers["/weight_info"] = (200, {"weight_version": "another:3"})  # which was quicker
        with pytest.raises(StaleWeights, match="given version 3 and says that it serves another"):
            await generator.update_weights(published(), 5.0)
        await generator.label(9, 5.0)
        return before, fake.version

    assert run(work) == (-1, "r:9")


def test_scores_are_those_of_the_given_tokens() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        scores = await generator.score(PROBE.token_ids, 5.0)
        with pytest.raises(ComponentError, match="answered without log-probabilities of the prompt"):
            await generator.score((5, 6, 8), 5.0)
        with pytest.raises(ComponentError, match="answered without log-probabilities of the prompt"):
            await generator.score((5, 6), 5.0)
        return scores

    assert run(work) == PROBE.logprobs


def test_ready_is_one_that_has_generated() -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.version = "r:7"
        version = await generator.wait_ready(5.0)
        fake.hangs.add("/inference/v1/generate")
        with pytest.raises(ComponentStalled, match="did not generate anything within"):
            await generator.wait_ready(0.2)
        fake.hangs.clear()
        fake.answers["/inference/v1/generate"] = (403, {"error": {"message": "scale-out is off"}})
        with pytest.raises(ComponentError) as raised:
            await generator.wait_ready(5.0)
        return version, raised.value.what

    assert run(work) == (7, "inference answers, and lacks a route that training needs")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({}, OURS),
        ({"/collective_rpc": (500, {"error": {"message": "'CPUWorker' object has no attribute"}})}, STOCK),
        ({"/v1/models": (200, {"data": [{"id": "policy", "owned_by": "headrace"}]})}, None),
        ({"/v1/models": (200, [])}, None),
    ],
)
def test_an_external_server_is_asked_what_it_is(answers: Any, found: str | None) -> None:
    async def work(fake: FakeVllm, generator: VllmGenerator) -> Any:
        fake.answers = answers
        return await vllm_loader(generator._calls.endpoint, 5.0)

    assert run(work) == found
