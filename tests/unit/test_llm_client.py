"""The client of the server of completions, against a server that does what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentError, ComponentStalled, StaleWeights
from headrace.llm.client import HttpGenerator, _completions
from headrace.llm.messages import Completion, Failure, GenerationRequest, Probe, PublishedWeights, ServedWeights

Handler = Callable[[dict[str, Any]], Awaitable[web.StreamResponse] | web.StreamResponse]
PUBLISHED = PublishedWeights(
    version=3, folder=Path("/r/3"), sha256="abc", run_id="run", probe=Probe(token_ids=(1,), logprobs=())
)


class Told:
    """A server; each route answers what its handler says, in turn, the last one for ever."""

    def __init__(self, **routes: list[Handler]) -> None:
        self.routes = routes
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        self.bodies.append(body)
        handlers = self.routes.get(request.path.strip("/"), [])
        if not handlers:
            raise web.HTTPNotFound(text="no such route")
        handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        if handler is cut:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        answer = handler(body)
        return answer if isinstance(answer, web.StreamResponse) else await answer


def cut(_: dict[str, Any]) -> web.Response:
    raise AssertionError("the connection is cut instead")


def says(content: object, status: int = 200) -> Handler:
    return lambda _: web.json_response(content, status=status)


def silent(_: dict[str, Any]) -> Awaitable[web.StreamResponse]:
    return asyncio.get_running_loop().create_future()


def echo(body: dict[str, Any]) -> web.Response:
    """Each completion is its prompt's last token, as often as asked."""
    made = [
        {
            "token_ids": [one["prompt_ids"][-1]] * one["max_tokens"],
            "logprobs": [float(np.float32(-1 / 3))] * one["max_tokens"],
            "versions": [7] * one["max_tokens"],
            "finish_reason": "length",
        }
        for one in body["requests"]
    ]
    return web.json_response({"completions": made})


def asked(server: Told, question: Callable[[HttpGenerator], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    async def main() -> Any:
        runner = web.ServerRunner(web.Server(server), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0][:2]
            async with HttpGenerator(f"http://{host}:{port}/", **settings) as generator:
                return await question(generator)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def requests(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            id=f"g0.{n}/t0", prompt_ids=(1, n), max_tokens=2, stop_ids=(9,), seed=n, session=f"g0.{n}", top_p=0.5
        )
        for n in range(count)
    ]


def test_many_requests_go_in_few_calls_and_come_back_in_order() -> None:
    server = Told(generate=[echo])
    answers = asked(server, lambda one: one.generate(requests(10), 5.0), per_call=4)
    assert [answer.token_ids for answer in answers] == [(n, n) for n in range(10)]
    assert sorted(len(body["requests"]) for body in server.bodies) == [2, 4, 4]
    assert [float(np.float32(value)) for value in answers[0].logprobs] == list(answers[0].logprobs)
    assert answers[0] == Completion(
        token_ids=(0, 0), logprobs=answers[0].logprobs, versions=(7, 7), finish_reason="length"
    )


def test_all_go_in_one_call_where_that_is_wanted() -> None:
    server = Told(generate=[echo])
    asked(server, lambda one: one.generate(requests(300), 5.0), per_call=None)
    [body] = server.bodies
    assert [one["seed"] for one in body["requests"]] == list(range(300))
    assert body["requests"][1] == {
        "id": "g0.1/t0",
        "prompt_ids": [1, 1],
        "max_tokens": 2,
        "temperature": 1.0,
        "top_p": 0.5,
        "stop_ids": [9],
        "seed": 1,
        "session": "g0.1",
    }
    assert body["timeout_s"] == pytest.approx(4.0, rel=0.2)  # then it answers with what it has


def test_a_server_that_is_asked_again_is_told_how_much_time_is_left() -> None:
    """Or it would answer with what it has when nobody waits any more."""
    clock = FakeClock()

    async def starting(_: dict[str, Any]) -> web.Response:
        clock.advance(300.0)
        return web.json_response({}, status=503)

    async def question(one: HttpGenerator) -> Any:
        loop = asyncio.get_running_loop()
        own = loop.time
        loop.time = lambda: own() + clock.now()  # type: ignore[method-assign]
        return await one.generate(requests(1), 500.0)

    server = Told(generate=[starting, echo])
    [answer] = asked(server, question)
    assert isinstance(answer, Completion)
    first, second = (body["timeout_s"] for body in server.bodies)
    assert second == pytest.approx(first - 0.8 * 300, rel=0.2)


@pytest.mark.parametrize("first", [cut, says({"error": {"message": "starting"}}, 503)])
def test_a_server_that_starts_again_is_asked_again(first: Handler) -> None:
    async def question(one: HttpGenerator) -> tuple[int, list[Completion | Failure]]:
        answers = await one.generate(requests(2), 5.0)
        return one.retries, answers

    retries, answers = asked(Told(generate=[first, echo]), question)
    assert retries == 1
    assert all(isinstance(answer, Completion) for answer in answers)


def failures(server: Told, timeout_s: float = 5.0) -> set[tuple[str, bool]]:
    answers = asked(server, lambda one: one.generate(requests(2), timeout_s))
    assert len(answers) == 2
    assert all(isinstance(answer, Failure) for answer in answers)
    return {(answer.reason, answer.may_retry) for answer in answers}


def test_whatever_goes_wrong_is_an_answer_with_a_reason() -> None:
    assert failures(Told(generate=[silent]), 0.05) == {("timeout", False)}
    assert failures(Told(generate=[cut]), 0.05) == {("connection", False)}
    assert failures(Told(generate=[says({"error": {"message": "bad"}}, 400)])) == {("refused", False)}
    assert failures(Told(generate=[says({}, 500)])) == {("server", True)}
    assert failures(Told(generate=[says({"completions": []})])) == {("malformed", True)}
    assert failures(Told(generate=[says({"completions": [{"finish_reason": "x"}] * 2})])) == {("malformed", True)}
    assert failures(Told(generate=[lambda _: web.Response(text="<html>")])) == {("malformed", True)}
    assert failures(Told()) == {("refused", False)}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("token_ids", "logprobs", "versions", "finish_reason", "error", "reason", "detail")
NEARLY = st.dictionaries(st.sampled_from(FIELDS), VALUES | st.just("stop") | st.just({"reason": {}}), max_size=5)


@given(VALUES | st.fixed_dictionaries({"completions": VALUES | st.lists(VALUES | NEARLY, max_size=2)}))
def test_whatever_is_answered_is_completions_or_no_answer(answer: Any) -> None:
    with contextlib.suppress(ValueError):
        assert len(_completions(answer, 1)) == 1


def test_an_answer_of_another_kind_in_the_middle_is_a_failure() -> None:
    one = {"token_ids": [1], "logprobs": [0.0], "versions": [float("inf")], "finish_reason": "stop"}
    assert failures(Told(generate=[says({"completions": [["x"]] * 2})])) == {("malformed", True)}
    assert failures(Told(generate=[says({"completions": [one] * 2})])) == {("malformed", True)}
    assert failures(Told(generate=[lambda _: web.Response(text="[" * 200_000)])) == {("malformed", True)}
    assert failures(Told(generate=[lambda _: web.Response(text="[" * 4_000, status=400)])) == {("refused", False)}


def test_single_requests_fail_by_themselves() -> None:
    one = {"error": {"reason": "too_long", "detail": "99 tokens", "may_retry": False}}
    two = {"token_ids": [5], "logprobs": [-1.0], "versions": [0], "finish_reason": "stop"}
    answers = asked(Told(generate=[says({"completions": [one, two]})]), lambda one: one.generate(requests(2), 5.0))
    assert answers[0] == Failure("too_long", "99 tokens", may_retry=False)
    assert isinstance(answers[1], Completion)


def test_nobody_listening_is_a_failure_after_the_time_of_the_requests() -> None:
    async def main() -> list[Completion | Failure]:
        async with HttpGenerator("http://127.0.0.1:9") as generator:
            return await generator.generate(requests(1), 0.06)

    [answer] = asyncio.run(main())
    assert isinstance(answer, Failure)
    assert answer.reason == "connection"


def test_an_update_answers_with_what_is_served() -> None:
    server = Told(update_weights=[says({"version": 3, "sha256": "abc"})])
    assert asked(server, lambda one: one.update_weights(PUBLISHED, 5.0)) == ServedWeights(version=3, sha256="abc")
    assert server.bodies == [{"weight_dir": "/r/3", "version": 3, "sha256": "abc", "run_id": "run"}]


def update(server: Told, timeout_s: float = 5.0) -> Any:
    return asked(server, lambda one: one.update_weights(PUBLISHED, timeout_s))


def test_a_server_without_the_route_would_keep_its_weights() -> None:
    with pytest.raises(
        StaleWeights, match="inference has no route to load version 3, and would go on with the weights"
    ):
        update(Told())


def test_a_server_that_says_nothing_of_what_it_serves_proves_nothing() -> None:
    with pytest.raises(StaleWeights, match="inference took version 3 and does not say what it serves now"):
        update(Told(update_weights=[says({"status": "ok"})]))


def test_a_server_of_another_run_is_named() -> None:
    answer = says({"error": {"message": "run b here"}}, 409)
    with pytest.raises(ComponentError, match="inference serves another run, and did not load version 3") as caught:
        update(Told(update_weights=[answer]))
    assert caught.value.facts["answer"] == "run b here"


def test_an_update_that_is_not_answered_is_a_stall() -> None:
    with pytest.raises(ComponentStalled, match=r"inference did not load version 3 within 0\.05 s"):
        update(Told(update_weights=[silent]), 0.05)


def test_an_update_waits_for_a_server_that_starts_again() -> None:
    server = Told(update_weights=[cut, says({"version": 3, "sha256": ""})])
    assert update(server) == ServedWeights(version=3, sha256="")


def test_scores() -> None:
    server = Told(score=[says({"logprobs": [-0.5, -1], "version": 3})])
    assert asked(server, lambda one: one.score((1, 2, 3), 5.0)) == (-0.5, -1.0)
    with pytest.raises(ComponentError, match="inference answered /score without log-probabilities"):
        asked(Told(score=[says({"version": 3})]), lambda one: one.score((1, 2), 5.0))
    for other in (10**400, "1", None, [1]):
        with pytest.raises(ComponentError, match="inference answered /score without log-probabilities"):
            asked(Told(score=[says({"logprobs": [other]})]), lambda one: one.score((1, 2), 5.0))


def test_ready_is_who_has_generated_something() -> None:
    server = Told(health=[says({"status": "starting"}, 503), says({"status": "ok", "version": 2})])
    assert asked(server, lambda one: one.wait_ready(5.0)) == 2
    with pytest.raises(ComponentStalled) as caught:
        asked(Told(health=[says({"status": "starting"}, 503)]), lambda one: one.wait_ready(0.04))
    assert 'last: 503: {"status": "starting"}' in str(caught.value)
    with pytest.raises(ComponentError, match="something else than our server"):
        asked(Told(health=[says({"fine": True})]), lambda one: one.wait_ready(5.0))
