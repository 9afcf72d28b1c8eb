"""The official client against OpenAI's routes, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import openai
import pytest
from starlette.requests import ClientDisconnect

from headrace.llm.config import OrchestratorConfig, RLConfig
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.rows import OnDone
from headrace.llm.messages import GenerationRequest
from headrace.llm.server.application import build_application
from headrace.llm.server.driver import Driver
from headrace.llm.server.texts import Texts
from headrace.llm.serving import build_driver
from llm_serving_support import CONTEXT, llama, plain_logprobs, served, single_thread, tokenizer, until, wanted

Work = Callable[[openai.AsyncOpenAI, Driver], Awaitable[None]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def ask(work: Work, *, generating: bool = True, life: int | None = None) -> None:
    async def main() -> None:
        over = Engine(llama(), slots=16, context_tokens=CONTEXT)
        async with (
            served(over, generating=generating, life=life) as (url, driver),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            await work(client, driver)

    asyncio.run(main())


def test_models() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == ["policy"]
        assert await client.models.retrieve("policy") == listed[0]

    ask(work)


@pytest.mark.parametrize("name", ["gpt-4", "meta/llama", "policy/"])
def test_a_model_that_there_is_not(name: str) -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        with pytest.raises(openai.NotFoundError) as told:
            await client.models.retrieve(name)
        assert told.value.body == {
            "message": f"there is no model {name!r} here, but policy",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }

    ask(work)


def test_completions_of_a_text() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        answer = await client.completions.create(model="policy", prompt="hello", max_tokens=10, seed=1, logprobs=0)
        (choice,) = answer.choices
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        said = tokenizer().convert_tokens_to_ids(choice.logprobs.tokens)
        expected = plain_logprobs(llama(), tokenizer().encode("hello"), said).tolist()
        assert choice.logprobs.token_logprobs == pytest.approx(expected, abs=1e-5)
        assert choice.model_extra is not None
        assert choice.model_extra["policy_versions"] == [0] * len(said)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, len(said))
        again = await client.completions.create(model="policy", prompt="hello", max_tokens=10, seed=1)
        assert again.choices[0].text == choice.text
        echoed = await client.completions.create(model="policy", prompt="hello", max_tokens=10, seed=1, echo=True)
        assert echoed.choices[0].text == "hello" + choice.text

    ask(work)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("ab", 1), (["ab", "cd"], 2), ([7, 8, 9], 1), ([[7, 8], [9]], 2)],
)
def test_prompts_of_every_kind(prompt: Any, prompts: int) -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        answer = await client.completions.create(
            model="policy", prompt=prompt, n=3, max_tokens=6, extra_body={"return_token_ids": True}
        )
        assert [choice.index for choice in answer.choices] == list(range(3 * prompts))
        assert len({tuple(choice.model_extra["token_ids"]) for choice in answer.choices}) > 1  # type: ignore[index]

    ask(work)


def chat(client: openai.AsyncOpenAI, **settings: Any) -> Any:
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    facts = {"model": "policy", "messages": messages, "max_tokens": 12, "seed": 3}
    return client.chat.completions.create(**{**facts, **settings})


def test_chat_with_logprobs() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        answer = await chat(client, logprobs=True, n=2)
        assert [choice.index for choice in answer.choices] == [0, 1]
        (first, _) = answer.choices
        assert first.message.role == "assistant"
        told = [entry.token for entry in first.logprobs.content]
        said = tokenizer().convert_tokens_to_ids(told)
        prompt = tokenizer().encode("<system>be good<user>hi<assistant>", add_special_tokens=False)
        assert [entry.logprob for entry in first.logprobs.content] == pytest.approx(
            plain_logprobs(llama(), prompt, said).tolist(), abs=1e-5
        )
        assert answer.usage.prompt_tokens == len(prompt)

    ask(work)


def test_a_stream_is_the_whole_in_pieces() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        whole = (await chat(client)).choices[0]
        stream = await chat(client, stream=True, stream_options={"include_usage": True}, logprobs=True)
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.message.content
        )
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.finish_reason
        assert len(chunks) > 5
        assert chunks[-1].usage.completion_tokens == sum(
            len(chunk.choices[0].logprobs.content) for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
        )
        plain = await client.completions.create(model="policy", prompt="ab", max_tokens=9, seed=2, n=2)
        parts: dict[int, str] = {}
        pieces = await client.completions.create(model="policy", prompt="ab", max_tokens=9, seed=2, n=2, stream=True)
        async for piece in pieces:
            for choice in piece.choices:
                parts[choice.index] = parts.get(choice.index, "") + choice.text
        assert parts == {choice.index: choice.text for choice in plain.choices}

    ask(work)


def test_a_server_that_is_started_again_says_something_else_unless_it_is_given_a_seed() -> None:
    unseeded: list[str] = []
    seeded: list[str] = []

    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        settings = {"model": "policy", "prompt": "hello", "max_tokens": 40}
        for seed, said in ((None, unseeded), (None, unseeded), (0, seeded), (1, seeded)):
            given = {} if seed is None else {"seed": seed}
            said.append((await client.completions.create(**settings, **given)).choices[0].text)

    ask(work, life=0)  # which is no client's seed either
    ask(work, life=1)
    ask(work)
    assert len({*unseeded, *seeded}) == 6 + 2
    assert seeded == seeded[:2] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_ends_it_is_no_part_of_it(stream: bool) -> None:
    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        settings = {"model": "policy", "prompt": "hello", "max_tokens": 40, "seed": 5}
        long = (await client.completions.create(**settings)).choices[0].text
        stop = long[6:8]
        answer = await client.completions.create(**settings, stop=["\u00e9", stop], stream=stream)
        if stream:
            chunks = [chunk.choices[0] async for chunk in answer if chunk.choices]
            text, reason = "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason
        else:
            text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        assert text == long[: long.index(stop)]
        assert reason == "stop"
        assert (driver.engine.running, driver.outstanding) == (0, 0)
        counts = driver.engine.counts
        assert (counts.requests, counts.completed, counts.cancelled) == (2, 2, 0)

    ask(work)


@pytest.mark.thin(15)
@pytest.mark.parametrize(
    ("settings", "kind", "param"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model"),
        ({"prompt": "a" * CONTEXT}, openai.BadRequestError, "prompt"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"prompt": []}, openai.BadRequestError, "prompt"),
        ({"prompt": [[1, 2], "ab"]}, openai.BadRequestError, "prompt"),
        ({"prompt": [99]}, openai.BadRequestError, "prompt"),
        ({"prompt": [[1], [-1]]}, openai.BadRequestError, "prompt"),
        ({"extra_body": {"stop_token_ids": [99]}}, openai.BadRequestError, "stop_token_ids"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"top_p": 0.0}, openai.BadRequestError, "top_p"),
        ({"presence_penalty": 1.0}, openai.BadRequestError, "presence_penalty"),
        ({"logprobs": 5}, openai.BadRequestError, "logprobs"),
    ],
)
def test_errors_are_those_that_the_client_knows(
    settings: dict[str, Any], kind: type[openai.APIStatusError], param: str | None
) -> None:
    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        with pytest.raises(kind) as told:
            await client.completions.create(**{"model": "policy", "prompt": "ab", **settings})
        body: Any = told.value.body
        assert body["message"]
        assert (body["param"] or "").partition(".")[0] == (param or "")
        assert driver.outstanding == 0

    ask(work)


REFUSED: dict[str, Any] = {
    "add_generation_prompt": False,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "documents": [{"text": "a"}],
    "functions": [{"name": "f"}],
    "include_stop_str_in_output": True,
    "logits_processors": ["x"],
    "prompt_logprobs": 0,
    "reasoning_effort": "low",
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "tool_choice": "required",
    "truncate_prompt_tokens": 4,
    "top_k": 3,
    "temprature": 0.5,
}


@pytest.mark.thin(16)
@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_we_do_not_have_are_refused(name: str) -> None:
    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        settings = {"model": "policy", "extra_body": {name: REFUSED[name]}}
        for asked in (client.completions.create(prompt="ab", **settings), chat(client, **settings)):
            with pytest.raises(openai.BadRequestError) as told:
                await asked
            assert (told.value.param, told.value.code) == (name, "unsupported")
        assert driver.outstanding == 0

    ask(work)


def test_whether_tokens_are_added_is_not_the_clients_choice() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        with pytest.raises(openai.BadRequestError, match="add_special_tokens is not supported"):
            await client.completions.create(model="policy", prompt="ab", extra_body={"add_special_tokens": False})
        with pytest.raises(openai.BadRequestError, match="add_special_tokens is not supported"):
            await chat(client, extra_body={"add_special_tokens": True})

    ask(work)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": "a", "name": "ann"}], "messages.0.name"),
        ([{"role": "tool", "content": "a", "tool_call_id": "1"}], "messages.0.tool_call_id"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}], "messages.1.tool_calls"),
        ([{"role": "assistant", "content": "a", "reasoning_content": "b"}], "messages.0.reasoning_content"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "image_url": "b"}]}], "messages.0.content.0.image_url"),
    ],
)  # fmt: skip
def test_parts_of_a_message_that_no_template_would_see_are_refused(messages: list[Any], param: str) -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        with pytest.raises(openai.BadRequestError) as told:
            await chat(client, messages=messages)
        assert (told.value.param, told.value.code) == (param, "unsupported")

    ask(work)


def test_what_changes_nothing_may_be_sent() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        plain = (await chat(client)).choices[0].message.content
        harmless = {
            "user": "ann", "metadata": {"a": "b"}, "store": False, "logit_bias": {}, "top_k": -1, "best_of": 1, "min_p": 0.0,
            "chat_template": None, "tools": [], "tool_choice": "none", "skip_special_tokens": True, "repetition_penalty": 1.0,
            "add_special_tokens": False, "add_generation_prompt": True, "prompt_logprobs": None, "anything": None,
        }  # fmt: skip
        messages = [
            {"role": "system", "content": "be good", "name": None},
            {"role": "user", "content": [{"type": "text", "text": "hi"}], "tool_calls": []},
        ]
        assert (await chat(client, messages=messages, extra_body=harmless)).choices[0].message.content == plain
        with pytest.raises(openai.BadRequestError, match="continuous_usage_stats is not supported"):
            await chat(client, stream=True, stream_options={"continuous_usage_stats": True})
        stream = await chat(client, stream=True, stream_options={"include_obfuscation": False})
        assert [chunk async for chunk in stream]

    ask(work)


def test_a_chat_that_is_too_long_is_about_its_messages() -> None:
    async def work(client: openai.AsyncOpenAI, _: Driver) -> None:
        with pytest.raises(openai.BadRequestError) as told:
            await chat(client, messages=[{"role": "user", "content": "a" * CONTEXT}])
        assert (told.value.param, told.value.code) == ("messages", "context_length_exceeded")

    ask(work)


def test_a_stream_whose_reader_leaves_frees_its_slot() -> None:
    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        stream = await chat(client, stream=True)
        assert driver.outstanding == 1
        await stream.close()
        await until(lambda: not driver.outstanding)
        assert driver.engine.counts.cancelled == 1

    ask(work, generating=False)


@pytest.mark.parametrize("version", ["2.3", "2.4"])  # by which the server tells that the reader has left
def test_a_stream_whose_reader_leaves_before_its_first_event_frees_its_slot(version: str) -> None:
    """Its events are never asked for, so nothing in them can notice."""
    body = b'{"model": "policy", "prompt": "ab", "stream": true}'
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
        "headers": [(b"content-length", str(len(body)).encode())], "asgi": {"version": "3.0", "spec_version": version},
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(_: Any) -> None:
        if version == "2.4":
            raise OSError("connection lost")
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        driver = Driver(Engine(llama(), slots=16, context_tokens=CONTEXT))
        application = build_application(driver, run_id="", timeout_s=60.0, texts=Texts(tokenizer()))
        with contextlib.suppress(ClientDisconnect):
            await application(scope, receive, send)
        await until(lambda: not driver.outstanding)
        assert (driver.engine.waiting, driver.engine.counts.cancelled) == (0, 1)

    asyncio.run(main())


def test_a_stream_tells_of_its_deadline() -> None:
    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        with pytest.raises(openai.APIError, match="no answer within"):
            async for _ in await chat(client, stream=True, extra_body={"timeout_s": 0.01}):
                pass
        for stop in (None, "zz"):
            with pytest.raises(openai.InternalServerError, match="no answer within") as told:
                await chat(client, stop=stop, extra_body={"timeout_s": 0.01})
            assert (told.value.status_code, told.value.code) == (504, "timeout")
        await until(lambda: not driver.outstanding)

    ask(work, generating=False)


@pytest.mark.parametrize(("lag", "apart"), [(0, True), (1, False)])
def test_who_asks_here_is_a_guest_where_the_run_is_to_stay_the_same(lag: int, apart: bool) -> None:
    """And has no session, of which only so many are kept; what the run asks for is no guest's."""

    async def work(client: openai.AsyncOpenAI, driver: Driver) -> None:
        config = RLConfig(orchestrator=OrchestratorConfig(max_policy_lag=lag))
        driver.guests_apart = build_driver(config, driver.engine, None).guests_apart
        seen: list[GenerationRequest] = []
        submit = driver.engine.submit

        def see(requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
            seen.extend(requests)
            submit(requests, on_done)

        driver.engine.submit = see  # type: ignore[method-assign]
        await client.completions.create(model="policy", prompt="ab", max_tokens=2, extra_body={"session": "s"})
        driver.submit([wanted(1, session="t")])
        assert [(one.guest, one.session) for one in seen] == [(apart, "" if apart else "s"), (False, "t")]

    ask(work)
