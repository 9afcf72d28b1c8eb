"""Text and tokens as the server has them: what ends a message, what a token is in bytes, what a template refuses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from headrace.core.errors import ConfigError
from headrace.llm.engine.engine import Engine
from headrace.llm.rendering import Renderer
from headrace.llm.server.answered import Wording
from headrace.llm.server.asked import Asked, ChatBody, CompletionsBody
from headrace.llm.server.following import GrowingText, Piece
from headrace.llm.server.texts import Texts
from llm_serving_support import CHATML, CONTEXT, byte_level, llama, served, single_thread, tokenizer

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


# --- what ends a message


def test_a_conversation_ends_with_the_tokens_it_ended_with_in_training() -> None:
    own = byte_level(CHATML)
    texts = Texts(own)
    assert texts.stop_ids == Renderer(own).stop_ids
    assert texts.stop_ids[0] == own.convert_tokens_to_ids("<|im_end|>")
    assert texts.end_ids == (own.eos_token_id,)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m['content'] }}{% endfor %}"])
def test_without_a_token_of_the_template_the_tokenizers_own_ends_it(template: str | None) -> None:
    own = byte_level(template)
    assert Texts(own).stop_ids == Texts(own).end_ids == (own.eos_token_id,)


# --- bytes


def logprobs(own: Any, ids: list[int], *, chat: bool, at_once: bool = True) -> list[dict[str, Any]]:
    """What is told of these tokens, said in one piece or one after the other."""
    texts = Texts(own)
    body = (
        ChatBody.model_validate({"model": "policy", "messages": [{"role": "user", "content": "a"}], "logprobs": True})
        if chat
        else CompletionsBody.model_validate({"model": "policy", "prompt": "a", "logprobs": 0})
    )
    asked = Asked([None], [(1,)], body, logprobs=True)  # type: ignore[list-item]
    wording = Wording(asked, texts, "x", 0)
    parts = [tuple(ids)] if at_once else [(one,) for one in ids]
    told = []
    for part in parts:
        piece = Piece(0, texts.decode(part), part, (-1.0,) * len(part), (0,) * len(part), None)
        told.append(wording.chunk(piece)["choices"][0]["logprobs"])
    return told


TEXT = "ab \U0001f600 é cab"


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    own = byte_level(CHATML)
    ids = own.encode(TEXT, add_special_tokens=False)
    (told,) = logprobs(own, ids, chat=True)
    assert bytes(byte for entry in told["content"] for byte in entry["bytes"]).decode() == TEXT
    parts = [entry["bytes"] for entry in told["content"]]
    assert [0xF0] in parts  # of a character that four tokens make
    assert own.encode(TEXT)[0] == ids[0]


@pytest.mark.parametrize("at_once", [True, False])
def test_offsets_are_places_in_the_text(at_once: bool) -> None:
    own = byte_level(CHATML)
    ids = [*own.encode(TEXT, add_special_tokens=False), own.convert_tokens_to_ids("<|im_end|>")]
    offsets = [offset for told in logprobs(own, ids, chat=False, at_once=at_once) for offset in told["text_offset"]]
    whole = [len(own.decode(ids[:place], skip_special_tokens=True).rstrip("\ufffd")) for place in range(len(ids))]
    assert offsets == whole
    assert offsets[-1] == len(TEXT)


def pieces_with_spaces() -> Any:
    """A tokenizer whose pieces have a sign for the space in front of them, and single bytes for what it lacks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: place for place, name in enumerate(["▁ab", "▁cd", "<0xC3>", "<0xA9>", "</s>"])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokens, eos_token="</s>", clean_up_tokenization_spaces=False)


def test_spaces_in_front_of_words_and_bytes_for_what_is_lacking() -> None:
    own = pieces_with_spaces()
    ids = [0, 1, 2, 3, 0, 4]
    assert own.decode(ids, skip_special_tokens=True) == "ab cdé ab"
    (told,) = logprobs(own, ids, chat=False)
    assert told["tokens"] == [" ab", " cd", "\ufffd", "\ufffd", " ab", "</s>"]
    assert told["text_offset"] == [0, 2, 5, 5, 6, 9]
    (chat,) = logprobs(own, ids, chat=True)
    assert [bytes(entry["bytes"]) for entry in chat["content"]] == [b" ab", b" cd", b"\xc3", b"\xa9", b" ab", b"</s>"]


def falling_back_to_bytes(strips: bool) -> Any:
    """As those of Llama 2, which leaves out the first space, and of Gemma, which does not."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    pieces = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "é"]
    tokens = Tokenizer(models.BPE({name: place for place, name in enumerate(pieces)}, [("▁", "a")], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokens.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if strips else parts)
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokens, eos_token="</s>", clean_up_tokenization_spaces=False)


ENDING = "{% for m in messages %}{{ m['content'] + '[/INST]' }}{% endfor %}"


def with_added_tokens(*, template: str | None = None) -> Any:
    """One that falls back to bytes, as real ones are: tokens that are special, and have no name, and one that is not."""
    from tokenizers import AddedToken

    own = falling_back_to_bytes(strips=True)
    own.backend_tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("[INST]", "[/INST]")])
    own.backend_tokenizer.add_tokens([AddedToken("<plain>", special=False)])
    own.chat_template = template
    assert own.all_special_tokens == ["</s>"]
    return own


def drawn_tokens(draws: random.Random) -> list[int]:
    """Whole and broken characters, stray bytes, and pieces and ends between them."""
    parts: list[list[int]] = []
    for _ in range(draws.randrange(1, 9)):
        whole = [1 + byte for byte in draws.choice(["\U0001f600", "é", "▁", "a", "\ufffd", " "]).encode()]
        parts.append(
            draws.choice(
                [whole, whole, whole[: draws.randrange(4)], [1 + draws.randrange(256)], [257 + draws.randrange(4)], [0]]
            )
        )
    return [token for part in parts for token in part]


@pytest.mark.parametrize("strips", [True, False])
def test_a_text_of_bytes_is_the_same_whole_and_in_pieces(strips: bool) -> None:
    texts, draws = Texts(falling_back_to_bytes(strips)), random.Random(0)
    for _ in range(1000):
        ids = drawn_tokens(draws)
        growing, said, settled = GrowingText(texts, []), "", ""
        for count in range(1, len(ids) + 1):
            so_far = texts.decode(ids[:count])
            assert so_far.startswith(settled), (ids, count)  # nothing vanishes that was a character
            settled = so_far.rstrip("\ufffd")
            said += growing.grow(ids[:count], over=count == len(ids))
        assert said == texts.decode(ids), ids


@pytest.mark.parametrize("strips", [True, False])
def test_a_stop_ends_a_text_at_the_same_place_however_often_it_is_looked_at(strips: bool) -> None:
    """After each token, after some, and once at the end; stops are halves of characters and parts of each other, too."""
    texts, draws = Texts(falling_back_to_bytes(strips)), random.Random(4)
    parts = ["a", " ", "\u00e9", "\U0001f600", "\ufffd"]
    stopped = 0
    for _ in range(3000):
        ids = drawn_tokens(draws)
        stops = ["".join(draws.choices(parts, k=draws.randrange(1, 4))) for _ in range(draws.randrange(1, 4))]
        found = set()
        for share in (1.0, 0.5, 0.0):
            growing, said = GrowingText(texts, stops), ""
            for count in range(1, len(ids) + 1):
                over = count == len(ids)
                if not growing.stopped and (over or draws.random() < share):
                    said += growing.grow(ids[:count], over=over)
            found.add((said, growing.stopped))
        assert len(found) == 1, (ids, stops, found)
        [(said, ended)] = found
        assert texts.decode(ids).startswith(said)
        assert not any(stop in said for stop in stops)
        assert ended or said == texts.decode(ids)
        stopped += ended
    assert 300 < stopped < 2700


def test_half_a_character_is_no_stop() -> None:
    texts = Texts(falling_back_to_bytes(strips=False))
    smile, half = ([1 + byte for byte in "\U0001f600".encode()][:size] for size in (4, 2))
    for ids, text, ended in (([*smile, 258], "\U0001f600a", False), ([*half, 258], "", True), (half, "", True)):
        growing = GrowingText(texts, ["\ufffd"])
        said = [growing.grow(ids[:count], over=count == len(ids)) for count in range(1, len(ids) + 1)]
        assert ("".join(said), growing.stopped) == (text, ended)


@pytest.mark.parametrize("strips", [True, False])
def test_a_text_of_bytes_is_that_of_its_bytes(strips: bool) -> None:
    """As offsets count it, and as the tokenizer says it where all of it is text."""
    own = falling_back_to_bytes(strips)
    texts, draws = Texts(own), random.Random(1)
    for _ in range(1000):
        ids = drawn_tokens(draws)
        text = b"".join(texts.bytes_of(token) for token in ids if token).decode(errors="replace")
        text = text[1:] if strips and text.startswith(" ") else text
        assert texts.decode(ids) == text, ids
        if "\ufffd" not in text:
            assert text == own.decode(ids, skip_special_tokens=True), ids


def test_what_was_added_as_special_is_shown_at_no_length_of_a_text() -> None:
    """With a byte in it or without one."""
    own, draws = with_added_tokens(), random.Random(2)
    texts = Texts(own)
    added = [own.convert_tokens_to_ids(token) for token in ("[INST]", "[/INST]", "<plain>", "</s>")]
    parts = [*([token] for token in (*added, 257, 258, 259, 260)), [1 + 0x0A], [1 + byte for byte in "日".encode()]]
    for _ in range(300):
        ids = [token for part in draws.choices(parts, k=8) for token in part]
        growing, said = GrowingText(texts, []), ""
        for count in range(1, len(ids) + 1):
            sound = own.decode(ids[:count], skip_special_tokens=True)
            assert "\ufffd" in sound or texts.decode(ids[:count]) == sound, ids[:count]
            said += growing.grow(ids[:count], over=count == len(ids))
        assert said == own.decode(ids, skip_special_tokens=True), ids


def test_the_token_that_ends_a_chat_is_shown_after_no_line() -> None:
    own = with_added_tokens(template=ENDING)
    texts, end = Texts(own), own.convert_tokens_to_ids("[/INST]")
    assert end in texts.stop_ids
    for said, text in (([259, end], "a"), ([259, 1 + 0x0A, 258, end], "a\na")):
        assert texts.decode(said) == text
        (told,) = logprobs(own, said, chat=False)
        assert (told["tokens"][-1], told["text_offset"][-1]) == ("[/INST]", len(text))


def test_what_is_rewarded_is_what_is_answered() -> None:
    """Of bytes that are no text, too; special tokens, which are hidden from clients alone, are in neither."""
    own, draws = with_added_tokens(template=ENDING), random.Random(3)
    texts, renderer = Texts(own), Renderer(own)
    for _ in range(1000):
        ids = [token for token in drawn_tokens(draws) if token]
        assert renderer.text(ids) == texts.decode(ids), ids
    plain, begins = (own.convert_tokens_to_ids(token) for token in ("<plain>", "[INST]"))
    assert renderer.text([begins, plain, 1 + 0xF0, 259]) == "[INST]<plain>\ufffd a"
    assert texts.decode([begins, plain, 1 + 0xF0, 259]) == "<plain>\ufffd a"


# --- what goes wrong


def asked(texts: Texts, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async def main() -> tuple[int, dict[str, Any]]:
        over = Engine(llama(), slots=2, context_tokens=CONTEXT)
        async with (
            served(over, texts=texts) as (url, _),
            aiohttp.ClientSession() as session,
            session.post(url + path, json={"model": "policy", **body}) as answer,
        ):
            return answer.status, (await answer.json())["error"]

    return asyncio.run(main())


def test_a_conversation_that_the_template_refuses_is_the_clients_fault() -> None:
    own = tokenizer()
    own.chat_template = NO_SYSTEM + own.chat_template
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(ConfigError, match="System role not supported"):
        Texts(own).chat(messages, CONTEXT)
    status, error = asked(Texts(own), "/v1/chat/completions", {"messages": messages})
    assert (status, error["param"], error["code"]) == (400, "messages", "template_refused")
    assert error["message"] == "the chat template refuses a conversation: System role not supported"


def test_what_nobody_expected_has_the_form_of_an_error() -> None:
    class Broken(Texts):
        def encode(self, text: str, most_tokens: int) -> list[int]:
            raise LookupError("no such token")

    status, error = asked(Broken(tokenizer()), "/v1/completions", {"prompt": "a"})
    assert status == 500
    assert error == {
        "message": "LookupError: no such token",
        "type": "server_error",
        "param": None,
        "code": "unexpected",
    }
