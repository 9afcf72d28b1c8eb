"""Between messages and tokens, by the tokenizer's own chat template.

What a model has said is never tokenised again: its tokens stay as they were drawn, and only what others say is put
between them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message
from headrace.llm.decoding import Decoder

_STAND_IN = "Stand7in"
"""What the model is supposed to have said where only that which follows it is wanted; nothing that stands before it has this."""

_CACHED = 4096
"""Texts that are remembered as tokens, and tokens that are remembered as text."""

_SHORT = 128
"""Characters or tokens that each of them has at most."""

_OPENINGS = 128
"""Openings of any length that are remembered beside those."""

_Result = TypeVar("_Result")


class Renderer:
    """Turns messages into tokens, and tokens into what was said.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.

    Raises:
        ConfigError: It has no template; or a conversation put together message by message differs from the same
            conversation rendered as a whole, so that the model would be trained on something else than it was asked.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template",
                tokenizer=type(tokenizer).__name__,
                fix="take that of an instruction-tuned model, or set chat_template in tokenizer_config.json",
            )
        self._tokenizer = tokenizer
        # The same few answers are given again and again, and a template costs a tenth of a millisecond.
        self._opened = functools.lru_cache(_OPENINGS)(functools.partial(self._render, None))  # of a group, all have one
        self._rendered = _remembering(self._render, lambda _, messages: sum(len(one.content) for one in messages))
        self._encoded = _remembering(self._ids, len)
        self._decoded = _remembering(Decoder(tokenizer, hidden=frozenset()).text, len)
        self._characters = _characters_of(tokenizer)
        self._stop_ids = stop_ids_of(tokenizer)
        self._check_agreement()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens with which the model ends a message: that of the template first, then the tokenizer's own."""
        return self._stop_ids

    @property
    def pad_id(self) -> int:
        """A token to fill rows with; any will do, it is never looked at."""
        pad = self._tokenizer.pad_token_id
        return int(pad) if pad is not None else self._stop_ids[0]

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens of a conversation that the model is to answer, up to where its message begins."""
        return self._opened(tuple(messages))

    def following(self, messages: Sequence[Message], *, ended: bool = True) -> tuple[int, ...]:
        """Tokens that come after a message of the model, up to where its next message begins.

        Args:
            messages: What was said to it; at least one.
            ended: Whether its message has a stop token. False: it was cut, and what ends a message is put in front.
        """
        return self._rendered(ended, tuple(messages))

    def completion(self, text: str) -> tuple[int, ...]:
        """Tokens with which a model would say ``text``, the stop token included. For examples to learn from."""
        return (*self._encoded(text), self._stop_ids[0])

    def unknown(self, messages: Sequence[Message]) -> str:
        """Characters in these messages that would become the token of all that is unknown, where a token is a character."""
        if self._characters is None:
            return ""
        lacking: set[str] = set()
        for message in messages:
            if not self._characters.issuperset(
                message.content
            ):  # special tokens, which a model may have said, are rare
                specials = "|".join(map(re.escape, self._tokenizer.all_special_tokens))
                lacking |= set(re.sub(specials, "", message.content)) - self._characters
        return "".join(sorted(lacking))

    def text(self, ids: Sequence[int]) -> str:
        """What the model said, without the token that ended it.

        Any other special token is shown as it is: hidden, it would be rewarded as if it were not there.
        """
        said = ids[:-1] if ids and ids[-1] in self._stop_ids else ids
        return self._decoded(tuple(said))

    def _render(self, ended: bool | None, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """An opening where ``ended`` is None, else what follows."""
        if ended is None:
            return self._ids(rendered(self._tokenizer, _turns(messages), prompt=True))
        end, rest = _after_stand_in(self._tokenizer, messages)
        return self._ids(rest if ended else end + rest)

    def _ids(self, text: str) -> tuple[int, ...]:
        return _encoded(self._tokenizer, text)

    def _check_agreement(self) -> None:
        """That tokenizer and template agree: message by message, and as a whole, the tokens are the same."""
        first, said, answer = Message("user", "cab"), Message("assistant", "bad"), Message("user", "dab")
        parts = (*self.opening((first,)), *self.completion(said.content), *self.following((answer,)))
        whole = self.opening((first, said, answer))
        if parts != whole:
            raise _disagree(
                "a conversation put together message by message is not the one that the chat template renders",
                self._tokenizer.decode(list(parts)),
                self._tokenizer.decode(list(whole)),
                first_difference=_first_difference(parts, whole),
            )


def stop_ids_of(tokenizer: Any) -> tuple[int, ...]:
    """Tokens with which a model ends a message: that of the chat template first, then the tokenizer's own.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.

    Raises:
        ConfigError: The template has no token for it, or refuses a conversation.
    """
    end, own = _after_stand_in(tokenizer, ())[0], tokenizer.eos_token_id
    return tuple(dict.fromkeys((*_encoded(tokenizer, end)[:1], *(() if own is None else (int(own),)))))


def rendered(tokenizer: Any, turns: Sequence[Mapping[str, str]], *, prompt: bool) -> str:
    """A conversation as the chat template has it.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.
        turns: Of each message ``role`` and ``content``.
        prompt: Whether it ends where the model's next message begins.

    Raises:
        ConfigError: The template refuses it.
    """
    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=prompt))
    except Exception as error:  # a template is somebody's program, and some refuse a role or an order of roles
        raise ConfigError(
            f"the chat template refuses a conversation: {error}",
            roles=", ".join(turn["role"] for turn in turns),
            fix="use an environment without such messages, or a template that takes them",
        ) from error


def _turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    # Not verbose: it warns that a long text will break the model, which is not asked about one that has no room.
    return tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _after_stand_in(tokenizer: Any, messages: Sequence[Message]) -> tuple[str, str]:
    """What ends a message of the model; and what comes after that, to the beginning of its next one."""
    begun = (Message("user", "c"), Message("assistant", _STAND_IN))
    whole = rendered(tokenizer, _turns((*begun, *messages)), prompt=bool(messages))
    _, found, rest = whole.partition(_STAND_IN)
    if not found:
        raise ConfigError(
            "the chat template leaves out what the model has said",
            rendered=repr(whole[:200]),
            fix="use a template that keeps messages of the role assistant",
        )
    alone = rendered(tokenizer, _turns(begun), prompt=False)
    end = _end_of_message(tokenizer, alone.partition(_STAND_IN)[2])
    if not rest.startswith(end):
        raise _disagree("what ends a message depends on what follows it", end, rest[:200])
    return end, rest.removeprefix(end)


def _end_of_message(tokenizer: Any, tail: str) -> str:
    """The text of the special token that begins ``tail``, which follows the model's last message."""
    specials = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    for token in (*specials, *sorted(added, key=len, reverse=True)):
        if token and tail.startswith(token):
            return str(token)
    raise ConfigError(
        "the chat template ends a message of the model with no token of its own, so nothing tells when it is over",
        tail=repr(tail[:200]),
        fix="use a template that puts a special token after messages of the role assistant",
    )


def _remembering(work: Callable[..., _Result], size: Callable[..., int]) -> Callable[..., _Result]:
    """``work``, of which what is short is remembered. What is long comes once, and four thousand of it are a gigabyte."""
    remembered = functools.lru_cache(_CACHED)(work)

    def short_or_anew(*asked: Any) -> _Result:
        return remembered(*asked) if size(*asked) <= _SHORT else work(*asked)

    return short_or_anew


def _characters_of(tokenizer: Any) -> frozenset[str] | None:
    """Those that have a token, if every token but the special ones is one character, and others have none."""
    if tokenizer.unk_token_id is None:
        return None
    words = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    return frozenset(words) if all(len(word) == 1 for word in words) else None


def _first_difference(parts: Sequence[int], whole: Sequence[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(parts, whole, strict=False)) if a != b), min(len(parts), len(whole)))
    return f"token {at}: {list(parts[at : at + 3])} instead of {list(whole[at : at + 3])}"


def _disagree(what: str, parts: str, whole: str, **facts: object) -> ConfigError:
    return ConfigError(
        what,
        by_message=repr(parts),
        as_a_whole=repr(whole),
        **facts,
        fix="use a template that renders earlier messages the same whatever follows them, e.g. one that keeps reasoning",
    )
