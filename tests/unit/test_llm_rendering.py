"""Messages as tokens: what is put together turn by turn is what the template renders as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message
from headrace.llm import tiny
from headrace.llm.rendering import Renderer
from llm_serving_support import CHATML, byte_level

FORGETFUL = CHATML.replace("m['content']", "('' if m['role'] == 'assistant' else m['content'])")
ENDLESS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def characters() -> Any:
    return tiny.make_tokenizer("abcdefghijklmnopqrstuvwxyzGYX?345", 96)


@pytest.fixture(scope="module")
def chatml() -> Renderer:
    return Renderer(byte_level(CHATML))


@pytest.fixture(scope="module")
def brief() -> Renderer:
    return Renderer(characters())


TEXTS = st.text(alphabet="abcd", min_size=1, max_size=6)


@given(TEXTS, st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_turn_by_turn_is_the_same_as_a_whole(
    brief: Renderer, chatml: Renderer, first: str, turns: list[tuple[str, str]]
) -> None:
    for renderer in (brief, chatml):
        ids = list(renderer.opening([Message("user", first)]))
        messages = [Message("user", first)]
        for said, answer in turns:
            ids += (*renderer.completion(said), *renderer.following([Message("user", answer)]))
            messages += [Message("assistant", said), Message("user", answer)]
        assert tuple(ids) == renderer.opening(messages)


def test_a_message_that_was_cut_is_ended_first(brief: Renderer, chatml: Renderer) -> None:
    for renderer in (brief, chatml):
        answer = [Message("user", "ab")]
        assert renderer.following(answer, ended=False) == (renderer.stop_ids[0], *renderer.following(answer))


def test_what_follows_in_so_many_words(brief: Renderer, chatml: Renderer) -> None:
    assert chatml.text(chatml.following([Message("user", "ab")])) == (
        "\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        brief.text(brief.following([Message("system", "d"), Message("user", "ab")])) == "<system>d<user>ab<assistant>"
    )


def test_a_default_system_message_is_rendered_once(chatml: Renderer) -> None:
    opening = chatml.text(chatml.opening([Message("user", "ab")]))
    assert opening.count("Be brief.") == 1
    assert "Be brief." not in chatml.text(chatml.following([Message("user", "ab")]))


def test_stop_tokens_are_the_templates_and_the_tokenizers(brief: Renderer, chatml: Renderer) -> None:
    tokenizer = byte_level(CHATML)
    assert chatml.stop_ids == tuple(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert brief.stop_ids == (characters().eos_token_id,)


@pytest.mark.parametrize(
    ("ask", "length", "times"),
    [
        ("opening", 20, 1), ("completion", 20, 1), ("text", 20, 1),
        ("opening", 2_000, 1), ("completion", 2_000, 2), ("text", 2_000, 2),
    ],
)  # fmt: skip
def test_openings_and_what_is_short_are_remembered_and_nothing_else_that_is_long(
    ask: str, length: int, times: int
) -> None:
    class Counting:
        def __init__(self) -> None:
            self.asked = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

        def encode(self, *given: Any, **named: Any) -> Any:
            self.asked += 1
            return own.encode(*given, **named)

        def decode(self, *given: Any, **named: Any) -> Any:
            self.asked += 1
            return own.decode(*given, **named)

    own = characters()
    counting = Counting()
    renderer = Renderer(counting)
    text = "a" * length
    given = {"opening": [Message("user", text)], "completion": text, "text": own.encode(text)}[ask]
    before = counting.asked
    assert getattr(renderer, ask)(given) == getattr(renderer, ask)(given)
    assert counting.asked - before == times


def test_only_the_stop_token_is_hidden_in_what_was_said(brief: Renderer) -> None:
    ids = brief.completion("cat")
    assert brief.text(ids) == "cat"
    assert brief.text(ids[:-1]) == "cat"
    user = characters().convert_tokens_to_ids("<user>")
    assert brief.text((*ids[:1], user, *ids[1:])) == "c<user>at"
    assert brief.text(()) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the tokenizer has no chat template"),
        (FORGETFUL, "the chat template leaves out what the model has said"),
        (ENDLESS, "with no token of its own"),
    ],
)
def test_a_template_that_cannot_be_used(template: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Renderer(byte_level(template))


def test_a_template_that_refuses_a_role_is_quoted() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    renderer = Renderer(byte_level(refusing))
    with pytest.raises(ConfigError, match="the chat template refuses a conversation: no system role"):
        renderer.opening([Message("system", "d"), Message("user", "ab")])


def test_a_template_that_changes_what_was_said_before_is_shown_beside_ours() -> None:
    with pytest.raises(ConfigError) as raised:
        Renderer(byte_level(CHATML.replace("m['content']", "(m['content'] if loop.last else m['content'].upper())")))
    assert "leaves out" in raised.value.what or "not the one that the chat template renders" in raised.value.what


def test_a_template_that_depends_on_what_follows_is_shown_beside_ours() -> None:
    template = CHATML.replace(
        "m['content'] + '", "m['content'] + (' ' if m['role'] == 'assistant' and m['content'] == 'bad' else '') + '"
    )
    with pytest.raises(ConfigError) as raised:
        Renderer(byte_level(template))
    text = str(raised.value)
    assert "a conversation put together message by message is not the one that the chat template renders" in text
    assert "bad<|im_end|>" in text
    assert "bad <|im_end|>" in text
    assert "first difference: token" in text


def test_characters_without_a_token_are_found(brief: Renderer, chatml: Renderer) -> None:
    assert brief.unknown((Message("user", "abc"), Message("user", "caf\u00e9, caf\u00e9"))) == " ,\u00e9"
    assert brief.unknown((Message("user", "abc?"),)) == ""
    assert brief.unknown((Message("user", "you said a<pad><unk>b"),)) == " "  # what a model said may be quoted
    assert chatml.unknown((Message("user", "caf\u00e9"),)) == ""  # bytes make up every text
