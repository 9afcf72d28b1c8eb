"""How much one call may ask of the server: bytes, texts, wrong items; and that all that is legal still fits."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import aiohttp
import pytest
from pydantic import ValidationError

from headrace.envs.text.protocol import Message
from headrace.llm.client import _as_json
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.scheduling import Limits
from headrace.llm.messages import GenerationRequest
from headrace.llm.rendering import Renderer
from headrace.llm.server import reading
from headrace.llm.server.asked import ChatBody, ChatMessage, CompletionsBody, Unseeded, asked_completions
from headrace.llm.server.following import GrowingText
from headrace.llm.server.native import GenerateBody, ScoreBody
from headrace.llm.server.reading import LEAST_BODY_BYTES, MOST_BODY_BYTES, BodyLimits
from headrace.llm.server.texts import Texts, TooManyTokens
from llm_serving_support import CONTEXT, llama, served, single_thread, tokenizer


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def engine(**settings: Any) -> Engine:
    return Engine(llama(), **{"slots": 4, "context_tokens": CONTEXT, **settings})


def asked(path: str, body: Any, over: Engine | None = None) -> tuple[int, Any]:
    """What the server answers; a body of bytes is sent in chunks, without its length."""

    async def main() -> tuple[int, Any]:
        async def chunks() -> AsyncIterator[bytes]:
            yield body

        async with served(over or engine()) as (url, driver), aiohttp.ClientSession() as session:
            data = chunks() if isinstance(body, bytes) else io.BytesIO(json.dumps(body).encode())
            async with session.post(url + path, data=data) as answer:
                told = answer.status, await answer.json()
            assert driver.outstanding == 0
            return told

    return asyncio.run(main())


def byte_level() -> Any:
    """A tokenizer over bytes that merges some, as most models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "ca", "abab", "aa", "aaaa", "<|im_start|>"]
    merges = [("a", "b"), ("c", "a"), ("ab", "ab"), ("a", "a"), ("aa", "aa")]
    tokens = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=merges))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokens, additional_special_tokens=["<|im_start|>"])


class Counting:
    """A tokenizer that knows how many characters it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **settings: Any) -> Sequence[int]:
        self.characters += len(text)
        return self._tokenizer.encode(text, **settings)  # type: ignore[no-any-return]


# --- bytes


@pytest.mark.parametrize("path", ["/generate", "/score", "/update_weights", "/v1/completions", "/v1/chat/completions"])
def test_a_length_beyond_the_limit_is_refused_before_anything_was_sent(path: str) -> None:
    async def main() -> bytes:
        async with served(engine()) as (url, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" % path.encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await asyncio.wait_for(reader.readexactly(length), 30)
            writer.close()
            assert head.startswith(b"HTTP/1.1 413 ")
            return body

    limits = BodyLimits.of(Limits(slots=4, context_tokens=CONTEXT, max_waiting=4096))
    most = limits.many if path in {"/generate", "/v1/completions"} else limits.one
    assert json.loads(asyncio.run(main()))["error"] == {
        "message": f"{path} takes at most {most:,} bytes, and the body has 99,999,999,999 bytes; fix: send less in one call",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_long",
    }


def test_a_body_without_a_length_is_read_up_to_the_limit() -> None:
    status, answer = asked("/score", b" " * (LEAST_BODY_BYTES + 1))
    assert (status, answer["error"]["code"]) == (413, "body_too_long")
    assert "/score takes at most 4,194,304 bytes, and the body is longer; fix:" in answer["error"]["message"]


def test_a_client_that_sends_all_of_a_body_that_is_too_long_reads_the_answer() -> None:
    messages = [{"role": "user", "content": "a" * 2 * LEAST_BODY_BYTES}]
    status, answer = asked("/v1/chat/completions", {"model": "policy", "messages": messages})
    assert (status, answer["error"]["code"]) == (413, "body_too_long")


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 413), ("/v1/chat/completion", 404)])
def test_a_client_that_reads_nothing_before_all_is_sent_reads_the_answer(path: str, status: int) -> None:
    size = 5 * 2**20

    def call(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as there:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
            there.sendall(head.encode() + b"x" * size)
            return b"".join(iter(lambda: there.recv(2**16), b""))

    async def main() -> bytes:
        async with served(engine()) as (url, _):
            return await asyncio.to_thread(call, int(url.rpartition(":")[2]))

    answer = asyncio.run(main())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("limits", [{"BODY_S": 0.1}, {"_MOST_THROWN_BYTES": 1000}])
def test_what_comes_after_the_answer_is_not_read_for_ever(
    limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(reading, name, limit)
    size = 5 * 2**20

    async def main() -> bytes:
        async with served(engine()) as (url, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            head = f"POST /score HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")  # it is answered; now something more, and then nothing
            writer.write(b"x" * 1001)
            rest = await asyncio.wait_for(reader.read(), 30)  # until the server closes
            writer.close()
            return rest

    assert json.loads(asyncio.run(main()))["error"]["code"] == "body_too_long"


@pytest.mark.parametrize(
    ("slots", "waiting", "context"), [(1, 0, 8), (16, 64, 96), (8, 128, 2048), (256, 256, 4096), (4, 4, 131_072)]
)
def test_all_that_can_be_served_at_once_may_be_sent(slots: int, waiting: int, context: int) -> None:
    limits = BodyLimits.of(Limits(slots=slots, context_tokens=context, max_waiting=waiting))
    request = GenerationRequest(
        id="g12345.15/t31",
        prompt_ids=(299_999,) * context,
        max_tokens=context,
        temperature=0.123456789012345,
        top_p=0.123456789012345,
        stop_ids=tuple(range(299_900, 299_916)),
        seed=2**63 - 1,
        session="g12345.15/0",
    )
    one = len(json.dumps(_as_json(request)))  # with spaces, which our client leaves out
    assert one * (slots + waiting) + 1000 <= limits.many
    assert len(json.dumps({"token_ids": request.prompt_ids})) <= limits.one
    assert LEAST_BODY_BYTES <= limits.one <= limits.many <= MOST_BODY_BYTES


def test_no_limit_is_beyond_what_the_process_survives() -> None:
    limits = BodyLimits.of(Limits(slots=256, context_tokens=10**6, max_waiting=4096))
    assert limits == BodyLimits(one=16_001_024, many=MOST_BODY_BYTES)
    assert reading.MOST_BODY_BYTES == 2**28


# --- texts


@pytest.mark.parametrize(
    ("path", "given", "tokens"),
    [
        ("/v1/completions", {"prompt": ["ab", "a" * 1_000_000]}, 256),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, 253),
    ],
)
def test_a_text_that_is_much_too_long_is_refused_by_its_beginning(
    path: str, given: dict[str, Any], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers: list[Counting] = []
    plain = Texts.__init__

    def counting(self: Texts, tokenizer: Any) -> None:
        tokenizers.append(Counting(tokenizer))
        plain(self, tokenizers[0])

    monkeypatch.setattr(Texts, "__init__", counting)
    status, answer = asked(path, {"model": "policy", **given})
    assert status == 400
    assert answer["error"] == {
        "message": f"a prompt of at least {tokens} tokens leaves no room in the model's context length of {CONTEXT}",
        "type": "invalid_request_error",
        "param": next(iter(given)),
        "code": "context_length_exceeded",
    }
    assert tokenizers[0].characters < 10 * CONTEXT


@pytest.mark.thin(6)
@pytest.mark.parametrize("make", [tokenizer, byte_level])
@pytest.mark.parametrize("most", [8, 96, 1000])
def test_a_text_that_fits_is_never_refused_and_has_the_tokens_it_has(make: Any, most: int) -> None:
    whole = make()
    texts = Texts(whole)
    for unit in ("a", "ab", "cab ", "bad", "é", "😀", "<user>", "<|im_start|>"):
        for count in (0, 1, most // 2, most, 2 * most, 40 * most):
            expected = whole.encode(unit * count, verbose=False)
            found = encoded(texts, unit * count, most)
            assert found == expected or (isinstance(found, int) and most < found <= len(expected))


def encoded(texts: Texts, text: str, most: int) -> list[int] | int:
    """Tokens, or at least how many."""
    try:
        return texts.encode(text, most)
    except TooManyTokens as error:
        return error.at_least


def test_a_tokenizer_that_leaves_out_characters_is_asked_about_more_of_them() -> None:
    class Squeezing(Counting):
        def encode(self, text: str, **settings: Any) -> Sequence[int]:
            return super().encode(" ".join(text.split()), **settings)

    squeezing = Squeezing(tokenizer())
    assert Texts(squeezing).encode("a" + " " * 100_000 + "b", CONTEXT) == tokenizer().encode("a b")


def test_more_messages_than_the_context_has_tokens_are_refused_before_the_template() -> None:
    texts = Texts(tokenizer())
    assert len(texts.chat([{"role": "user", "content": ""}] * 10, 10)) == 11
    with pytest.raises(TooManyTokens, match="at least 11 tokens"):
        texts.chat([{"role": "user", "content": ""}] * 11, 10)


def test_what_has_no_room_is_told_before_it_becomes_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Texts, "encode", None)
    body = {"model": "policy", "prompt": ["ab"] * 5, "n": 2}
    status, answer = asked("/v1/completions", body, engine(max_waiting=5))
    assert (status, answer["error"]["code"]) == (400, "refused")


def test_requests_share_the_tokens_of_their_prompt() -> None:
    body = CompletionsBody(model="policy", prompt=[[1, 2, 3], [4]], n=1024)
    limits = Limits(slots=4, context_tokens=CONTEXT, max_waiting=4)
    made = asyncio.run(asked_completions(body, Texts(tokenizer()), Unseeded(0, 0), limits))
    assert len({id(one.prompt_ids) for one in made.requests}) == 2
    assert len({id(one.stop_ids) for one in made.requests}) == 1


def test_texts_are_made_tokens_of_in_turn_with_what_others_ask() -> None:
    async def main() -> int:
        turns = 0
        loop = asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        turn()
        body = CompletionsBody(model="policy", prompt=["ab"] * 20)
        await asked_completions(
            body, Texts(tokenizer()), Unseeded(0, 0), Limits(slots=4, context_tokens=CONTEXT, max_waiting=40)
        )
        return turns

    assert asyncio.run(main()) >= 20


def test_nobody_is_warned_of_a_long_text_that_the_model_never_sees() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")  # it keeps its records to itself
    logger.addHandler(handler)
    try:
        texts = Texts(tokenizer())
        texts.encode("a" * (CONTEXT + 1), CONTEXT)
        with pytest.raises(TooManyTokens):
            texts.encode("a" * 1000, CONTEXT)
        texts.chat([{"role": "user", "content": "a" * (CONTEXT + 1)}], CONTEXT)
        Renderer(tokenizer()).opening((Message("user", "a" * (CONTEXT + 1)),))
        assert records == []
        tokenizer().encode("a" * (CONTEXT + 1))
        assert "longer than" in records[0].getMessage()  # so the records are those that would tell
    finally:
        logger.removeHandler(handler)


# --- what is wrong with a body


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionsBody, {"model": "policy", "prompt": [1] * 1000 + ["x"]}),
        (CompletionsBody, {"model": "policy", "prompt": [["x"] * 1000] * 10}),
        (CompletionsBody, {"model": "policy", "prompt": "a", "stop": [1] * 1000}),
        (CompletionsBody, {"model": "policy", "prompt": "a", "stop_token_ids": ["x"] * 1000}),
        (ChatBody, {"model": "policy", "messages": [1] * 1000}),
        (ChatBody, {"model": "policy", "messages": [{"role": "user", "content": [1] * 1000}]}),
        (GenerateBody, {"requests": [1] * 1000}),
        (GenerateBody, {"requests": [{"id": "a", "prompt_ids": ["x"] * 1000, "max_tokens": 1}]}),
        (GenerateBody, {"requests": [{"id": "a", "prompt_ids": [1], "max_tokens": 1, "stop_ids": ["x"] * 1000}]}),
        (ScoreBody, {"token_ids": ["x"] * 1000}),
    ],
)
def test_what_is_wrong_is_told_once_and_not_for_each_item(kind: Any, body: Any) -> None:
    with pytest.raises(ValidationError) as told:
        kind.model_validate_json(json.dumps(body))
    assert told.value.error_count() <= 4  # one for each branch of a union


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({f"a{place}": 1 for place in range(1000)} | {"requests": []}, "a0"),
        (
            {"requests": [{"id": "a", "prompt_ids": [1], "max_tokens": 1, "b" * 1000: 1, "c": 1}]},
            "requests.0." + "b" * 189,
        ),
    ],
)
def test_the_first_field_that_nobody_knows_is_told(body: Any, param: str) -> None:
    status, answer = asked("/generate", body)
    assert status == 400
    assert answer["error"]["param"] == param
    assert answer["error"]["message"] == f"{param}: there is no such field"


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"n": 1025}, "n"), ({"messages": [{"role": "critic", "content": "ab"}]}, "messages.0.role")],
)
def test_more_than_a_setting_takes_is_400(changes: dict[str, Any], param: str) -> None:
    plain = {"model": "policy", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}
    status, answer = asked("/v1/chat/completions", plain | changes)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_value", param)


@pytest.mark.parametrize("role", get_args(ChatMessage.model_fields["role"].annotation))
def test_as_many_as_it_takes_pass(role: str) -> None:
    ChatBody.model_validate({"model": "policy", "n": 1024, "messages": [{"role": role, "content": "ab"}]})
    assert f"`{role}`" in (Path(__file__).parents[2] / "docs" / "guides" / "llm.md").read_text()


def test_more_stops_than_may_be_are_400() -> None:
    status, answer = asked("/v1/completions", {"model": "policy", "prompt": "ab", "stop": ["x"] * 1025})
    assert (status, answer["error"]["param"]) == (400, "stop")
    assert answer["error"]["message"] == "stop: 1,025 texts, of 1,024 at most"


def test_a_stop_is_held_back_also_in_front_of_half_a_character() -> None:
    said = ["ab", "ab\n\n", "ab\n\n\ufffd", "ab\n\n\u2014", "ab\n\n\u2014 and"]
    texts: Any = SimpleNamespace(decode=lambda tokens: said[len(tokens)])
    growing = GrowingText(texts, ["\n\n\u2014"])
    assert [growing.grow([0] * place, over=False) for place in range(5)] == ["ab", "", "", "", ""]
    assert growing.stopped
    other = GrowingText(texts, ["\n\n!"])
    assert [other.grow([0] * place, over=False) for place in range(5)] == ["ab", "", "", "\n\n\u2014", " and"]


def test_a_stop_is_compared_with_no_more_than_was_said() -> None:
    class Stop(str):
        compared = 0

        def __getitem__(self, place: Any) -> str:
            type(self).compared += 1
            return super().__getitem__(place)

    stop = Stop("ab" * 50_000)
    growing = GrowingText(Texts(tokenizer()), [stop])
    assert growing.grow(tokenizer().encode("cab"), over=False) == "c"
    assert Stop.compared <= 4
