"""The server's own routes, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from pydantic import ValidationError

from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentError
from headrace.llm.engine import engine as engine_module
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights
from headrace.llm.server import asked, reading
from headrace.llm.server.driver import Driver
from headrace.llm.server.native import GenerateBody
from headrace.llm.weights import make_probe, publish
from llm_serving_support import CONTEXT, llama, ragged, run, served, single_thread, until, wanted

Client = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def engine(**settings: Any) -> Engine:
    return Engine(llama(), **{"slots": 16, "context_tokens": CONTEXT, **settings})


def ask(work: Callable[[Client, Driver], Awaitable[None]], over: Engine, **settings: Any) -> None:
    """Run ``work`` with a client of a server over an engine."""

    async def main() -> None:
        async with served(over, **settings) as (url, driver), aiohttp.ClientSession() as session:

            async def client(method: str, path: str, body: Any = None, data: bytes | None = None) -> tuple[int, Any]:
                async with session.request(method, url + path, json=body, data=data) as answer:
                    json = answer.content_type == "application/json"
                    return answer.status, await answer.json() if json else await answer.text()

            await work(client, driver)

    asyncio.run(main())


def wire(request: GenerationRequest) -> dict[str, Any]:
    """Who is a guest follows from the route."""
    return {name: value for name, value in dataclasses.asdict(request).items() if name != "guest"}


def test_generate_answers_as_the_engine_does_to_the_last_bit() -> None:
    expected = run(engine(), ragged(20))

    async def work(client: Client, _: Driver) -> None:
        status, body = await client("POST", "/generate", {"requests": [wire(one) for one in ragged(20)]})
        assert status == 200
        found = [
            Completion(
                token_ids=tuple(one["token_ids"]),
                logprobs=tuple(one["logprobs"]),
                versions=tuple(one["versions"]),
                finish_reason=one["finish_reason"],
            )
            for one in body["completions"]
        ]
        assert found == expected

    ask(work, engine())


def test_a_request_that_cannot_be_served_is_one_answer_of_its_call() -> None:
    async def work(client: Client, _: Driver) -> None:
        requests = [wire(wanted(0)), wire(wanted(1, CONTEXT)), wire(wanted(2))]
        status, body = await client("POST", "/generate", {"requests": requests})
        assert status == 200
        error = body["completions"][1]["error"]
        assert error["reason"] == "too_long"
        assert error["may_retry"] is False
        assert len(body["completions"][2]["token_ids"]) == 8

    ask(work, engine())


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_a_body_is_not_read_beyond_its_limit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BODY_BYTES", 1000)  # more than the least, which it limits as well

    async def work(client: Client, _: Driver) -> None:
        status, body = await client("POST", path, data=b" " * 1001)
        assert (status, body["error"]["code"]) == (413, "body_too_long")
        status, _ = await client("POST", "/generate", {"requests": [wire(wanted(0))]})
        assert status == 200

    ask(work, engine())


async def said_to(url: str, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which something was said that no client library would say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(text)
    await writer.drain()
    return reader, writer


HALF = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("path", [b"/generate", b"/v1/completions"])
def test_half_a_body_is_waited_for_until_its_limit(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.01)

    async def main() -> None:
        async with served(engine()) as (url, _):
            reader, writer = await said_to(url, HALF % path)
            assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 408 ")
            writer.close()

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with served(engine()) as (url, _):
            _, writer = await said_to(url, HALF % b"/generate")
            writer.close()
            async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
                assert answer.status == 200

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == []


def test_more_completions_than_a_call_may_ask_for_are_400(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MOST_COMPLETIONS", 2000)

    async def work(client: Client, driver: Driver) -> None:
        body = {"model": "policy", "prompt": ["a"] * 2, "n": 1024}
        status, answer = await client("POST", "/v1/completions", body)
        assert (status, answer["error"]["code"]) == (400, "too_many")
        assert answer["error"]["message"] == "n: 2,048 completions in one call, of 2,000 at most"
        assert driver.outstanding == 0

    ask(work, engine())
    with pytest.raises(ValidationError, match="at most 65536 items"):
        GenerateBody.model_validate({"requests": [{"id": "a", "prompt_ids": [], "max_tokens": 1}] * 65_537})


def test_128_clients_at_once() -> None:
    async def work(client: Client, driver: Driver) -> None:
        calls = [client("POST", "/generate", {"requests": [wire(wanted(place))]}) for place in range(128)]
        answers = await asyncio.gather(*calls)
        assert [status for status, _ in answers] == [200] * 128
        assert all(len(body["completions"][0]["token_ids"]) == 8 for _, body in answers)
        assert driver.engine.counts.completed == 128
        assert driver.outstanding == 0

    ask(work, engine())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"requests": 3}', "requests"),
        (b'{"requests": [{"id": "a", "prompt_ids": ["x"], "max_tokens": 1}]}', "requests.0.prompt_ids.0"),
        (b'{"requests": [{"id": "a", "prompt_ids": [1], "max_tokens": -1}]}', "requests.0.max_tokens"),
        (b'{"requests": [{"id": "a", "prompt_ids": [1], "max_tokens": 1.5}]}', "requests.0.max_tokens"),
        (b'{"requests": [{"id": "a", "prompt_ids": [1], "max_tokens": 1, "temprature": 1}]}', "requests.0.temprature"),
        (b'{"requests": [], "timeout_s": 0}', "timeout_s"),
    ],
)
def test_what_is_no_request_is_400_and_says_where(body: bytes, param: str | None) -> None:
    async def work(client: Client, driver: Driver) -> None:
        status, answer = await client("POST", "/generate", data=body)
        assert status == 400
        assert answer["error"].keys() == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"] == param
        assert driver.engine.counts.requests == 0

    ask(work, engine())


def test_unknown_routes_and_methods() -> None:
    async def work(client: Client, _: Driver) -> None:
        assert (await client("GET", "/nothing"))[0] == 404
        status, answer = await client("GET", "/generate")
        assert status == 405
        assert "message" in answer["error"]

    ask(work, engine())


def test_more_than_may_wait_is_503_and_more_than_ever_may_is_refused() -> None:
    async def work(client: Client, driver: Driver) -> None:
        requests = [wire(wanted(place)) for place in range(5)]
        status, answer = await client("POST", "/generate", {"requests": requests})
        assert status == 200
        assert [one["error"]["reason"] for one in answer["completions"]] == ["refused"] * 5
        driver.engine.submit([wanted(place) for place in range(4)], lambda *_: None)
        status, answer = await client("POST", "/generate", {"requests": requests[4:]})
        assert (status, answer["error"]["code"]) == (503, "busy")

    ask(work, engine(slots=2, max_waiting=2))


def test_a_deadline_that_passes_is_a_failure_and_frees_the_slot() -> None:
    async def work(client: Client, driver: Driver) -> None:
        body = {"requests": [wire(wanted(0))], "timeout_s": 0.01}
        status, answer = await client("POST", "/generate", body)
        assert status == 200
        assert answer["completions"][0]["error"] == {
            "reason": "timeout",
            "detail": "no answer within 0.01 s",
            "may_retry": True,
        }
        assert (driver.engine.waiting, driver.outstanding) == (0, 0)

    ask(work, engine(), generating=False)


def test_a_client_that_leaves_frees_its_slot() -> None:
    async def work(client: Client, driver: Driver) -> None:
        call = asyncio.ensure_future(client("POST", "/generate", {"requests": [wire(wanted(0)), wire(wanted(1))]}))
        await until(lambda: driver.engine.waiting)
        call.cancel()
        await until(lambda: not (driver.engine.waiting or driver.outstanding))
        assert driver.engine.counts.cancelled == 2

    ask(work, engine(), generating=False)


def test_health_is_of_generating_and_not_of_answering() -> None:
    clock = FakeClock()

    async def work(client: Client, driver: Driver) -> None:
        assert await client("GET", "/health") == (503, {"status": "starting"})
        call = driver.submit([wanted(0)])
        clock.advance(9.0)
        assert (await client("GET", "/health"))[1]["status"] == "starting"
        generating = asyncio.ensure_future(driver.run())
        await asyncio.wait({call.complete}, timeout=60)
        assert await client("GET", "/health") == (200, {"status": "ok", "version": 0})
        driver.engine.step = lambda: True  # type: ignore[method-assign] # alive, and generating nothing
        waiting = driver.submit([wanted(1)])
        clock.advance(9.0)
        assert (await client("GET", "/health"))[0] == 200
        clock.advance(2.0)
        status, body = await client("GET", "/health")
        assert status == 503
        assert body == {"status": "stalled", "outstanding": 1, "no_token_for_s": 11.0}
        driver.abandon(waiting)
        assert (await client("GET", "/health"))[0] == 200
        driver.stop()
        await generating

    ask(work, engine(), generating=False, stalled_s=10.0, clock=clock)


def published(tmp_path: Path, seed: int, version: int) -> PublishedWeights:
    model = llama(seed)
    return publish(
        model.state_dict(),
        version=version,
        weights_dir=tmp_path,
        run_id="run",
        probe=make_probe(model, list(range(20))),
        metadata={},
    )


def update(weights: PublishedWeights, **other: Any) -> dict[str, Any]:
    facts = {"weight_dir": str(weights.folder), "version": weights.version, "sha256": weights.sha256}
    return {**facts, "run_id": weights.run_id, **other}


@pytest.mark.table
def test_an_update_is_served_and_proven(tmp_path: Path) -> None:
    weights = published(tmp_path, 7, 3)

    async def work(client: Client, _: Driver) -> None:
        first = await client("POST", "/generate", {"requests": [wire(wanted(0, session="a"))]})
        answer = await client("POST", "/update_weights", update(weights))
        assert answer == (200, {"version": 3, "sha256": weights.sha256})
        assert await client("GET", "/weights") == answer
        _, scored = await client("POST", "/score", {"token_ids": list(weights.probe.token_ids)})
        torch.testing.assert_close(
            torch.tensor(scored["logprobs"]), torch.tensor(weights.probe.logprobs), atol=1e-5, rtol=0
        )
        assert scored["version"] == 3
        # The same session: nothing that was computed with other weights is used again.
        _, second = await client("POST", "/generate", {"requests": [wire(wanted(0, session="a"))]})
        assert second["completions"][0]["versions"] == [3] * 8
        assert second != first[1]
        fresh = run(Engine(llama(7), slots=16, context_tokens=CONTEXT), [wanted(0)])[0]
        assert tuple(second["completions"][0]["logprobs"]) == fresh.logprobs

    ask(work, engine(), run_id="run")


def test_tokens_tell_which_version_chose_them(tmp_path: Path) -> None:
    weights = published(tmp_path, 7, 3)
    over = engine()
    answers: list[Any] = []
    over.submit([wanted(0)], lambda _, answer: answers.append(answer))
    for _ in range(3):
        over.step()
    over.load(weights)
    while over.step():
        pass
    assert answers[0].versions == (0, 0, 0, 3, 3, 3, 3, 3)


@pytest.mark.table
def test_weights_that_are_not_the_announced_are_refused(tmp_path: Path) -> None:
    weights = published(tmp_path, 7, 3)

    async def work(client: Client, driver: Driver) -> None:
        status, answer = await client("POST", "/update_weights", update(weights, run_id="another"))
        assert (status, answer["error"]["code"]) == (409, "other_run")
        for wrong in ({"sha256": "0" * 64}, {"version": 4}, {"weight_dir": str(tmp_path / "4")}):
            status, answer = await client("POST", "/update_weights", update(weights, **wrong))
            assert status >= 400, wrong
            assert "fix:" in answer["error"]["message"]
        (weights.folder / "model.safetensors").write_bytes(b"damaged")
        status, answer = await client("POST", "/update_weights", update(weights))
        assert (status, answer["error"]["code"]) == (422, "DAT-002")
        assert driver.engine.served.version == 0
        assert run(driver.engine, [wanted(0)]) == run(engine(), [wanted(0)])

    ask(work, engine(), run_id="run")


def test_weights_of_another_shape_change_nothing(tmp_path: Path) -> None:
    model = llama(1, layers=1)
    probe = make_probe(model, [1, 2])
    weights = publish(model.state_dict(), version=1, weights_dir=tmp_path, run_id="run", probe=probe, metadata={})

    async def work(client: Client, driver: Driver) -> None:
        status, answer = await client("POST", "/update_weights", update(weights))
        assert status == 500
        assert "model.layers.1" in answer["error"]["message"]
        assert run(driver.engine, [wanted(0)]) == run(engine(), [wanted(0)])

    ask(work, engine())


@pytest.mark.parametrize("raises", [False, True])
def test_nobody_goes_on_with_weights_that_are_half_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """Tokens of such weights would bear the name of the version before."""
    weights = published(tmp_path, 7, 3)
    over = engine(slots=2)
    answers: dict[int, Any] = {}
    over.submit([wanted(place, max_tokens=30) for place in range(4)], answers.__setitem__)
    over.step()
    over.step()
    assert (over.running, over.waiting) == (2, 2)

    def broken(*_: Any) -> str:
        if raises:
            raise RuntimeError("out of memory")
        return "another"

    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "put", broken)
        with pytest.raises(RuntimeError if raises else ComponentError):
            over.load(weights)
    told = "the weights in memory are not those of version 3"
    assert answers == dict.fromkeys(range(4), Failure("weights", told))
    assert (over.running, over.waiting, over.counts.failed, over.served.version) == (0, 0, 4, 0)
    assert not over.step()
    over.load(weights)
    assert set(run(over, [wanted(0)])[0].versions) == {3}


def test_a_wrong_checksum_in_memory_ends_generating_until_a_load_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = published(tmp_path, 7, 3)
    real = engine_module.put

    def forgetful(model: Any, tensors: dict[str, torch.Tensor]) -> str:
        """As vLLM's reload, which answered 200: one layer keeps its old weights."""
        kept = model.model.layers[1].mlp.down_proj.weight.clone()
        real(model, tensors)
        model.model.layers[1].mlp.down_proj.weight.data.copy_(kept)
        return real(model, dict(model.state_dict()))

    async def work(client: Client, _: Driver) -> None:
        await client("POST", "/generate", {"requests": [wire(wanted(0))]})
        monkeypatch.setattr(engine_module, "put", forgetful)
        status, answer = await client("POST", "/update_weights", update(weights))
        assert status == 500
        assert "not those of version 3" in answer["error"]["message"]
        _, refused = await client("POST", "/generate", {"requests": [wire(wanted(0))]})
        assert refused["completions"][0]["error"]["reason"] == "weights"
        assert (await client("GET", "/health"))[0] == 503
        monkeypatch.setattr(engine_module, "put", real)
        assert (await client("POST", "/update_weights", update(weights)))[0] == 200
        assert (await client("GET", "/health"))[0] == 200

    ask(work, engine())


def test_metrics_are_what_was_done() -> None:
    async def work(client: Client, _: Driver) -> None:
        await client("POST", "/generate", {"requests": [wire(wanted(place)) for place in range(3)]})
        _, text = await client("GET", "/metrics")
        facts = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        assert facts["headrace_generated_tokens_total"] == "24"
        assert facts["headrace_completions_total"] == "3"
        assert facts["headrace_requests_running"] == "0"

    ask(work, engine())


def test_score_refuses_what_is_too_long() -> None:
    async def work(client: Client, _: Driver) -> None:
        status, answer = await client("POST", "/score", {"token_ids": [1] * (CONTEXT + 1)})
        assert status == 400
        assert "context tokens: 96" in answer["error"]["message"]

    ask(work, engine())


def test_an_engine_that_raises_ends_the_driver_and_every_call() -> None:
    async def work(client: Client, driver: Driver) -> None:
        def broken() -> bool:
            raise RuntimeError("out of memory")

        driver.engine.step = broken  # type: ignore[method-assign]
        generating = asyncio.ensure_future(driver.run())
        status, answer = await client("POST", "/generate", {"requests": [wire(wanted(0))]})
        assert (status, answer["error"]["code"]) == (503, "stopping")
        with pytest.raises(RuntimeError, match="out of memory"):
            await generating

    ask(work, engine(), generating=False)
