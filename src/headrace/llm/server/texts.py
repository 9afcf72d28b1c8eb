"""Between text and tokens, for clients that send text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

_CUT_TOKENS = 128
"""Tokens that the end of a text may have more where it is cut, with much to spare."""


class TooManyTokens(Exception):
    """A text has more tokens than are wanted.

    Args:
        at_least: So many it has.
    """

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


class Texts:
    """A tokenizer, as the server uses it.

    Args:
        tokenizer: A Hugging Face one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        end = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = () if end is None else (int(end),)
        """Tokens that end what the model says."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """That of a model's folder.

        Raises:
            ConfigError: There is none.
        """
        from headrace.llm.tiny import load_tokenizer

        return cls(load_tokenizer(folder))

    @property
    def chats(self) -> bool:
        """Whether there is a template for conversations."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str, most_tokens: int) -> list[int]:
        """Tokens of a plain text.

        Args:
            text: Of any length.
            most_tokens: That are of use; a text of few more is given whole nevertheless.

        Raises:
            TooManyTokens: It has more.
        """
        return self._ids(text, most_tokens, special=True)

    def chat(self, messages: Sequence[Mapping[str, str]], most_tokens: int) -> list[int]:
        """Tokens of a conversation, up to where the model's next message begins; see `encode`.

        Raises:
            TooManyTokens: It has more, or more messages than that.
        """
        if len(messages) > most_tokens:  # a message without a token is no message; templates take long over many
            raise TooManyTokens(len(messages))
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self._ids(text, most_tokens, special=False)

    def _ids(self, text: str, most_tokens: int, *, special: bool) -> list[int]:
        """Tokens. Of a text that is much too long, only a beginning is looked at.

        No length in characters tells how many tokens there are, as some tokenizers leave out characters, so beginnings twice as
        long each time are tokenised. A beginning may have other tokens where it is cut, and hardly ever others before: with
        twice as many as are wanted, the whole has more than wanted.
        """
        enough = 2 * most_tokens + _CUT_TOKENS
        length = 4 * most_tokens + _CUT_TOKENS  # what fits is rarely longer, and then tokenised once
        while length < len(text):
            count = len(self._tokenised(text[:length], special))
            if count >= enough:
                raise TooManyTokens(count // 2)
            length *= 2
        return self._tokenised(text, special)

    def _tokenised(self, text: str, special: bool) -> list[int]:
        # Not verbose: it warns that a long text will break the model, which is refused or never sees it.
        return list(self._tokenizer.encode(text, add_special_tokens=special, verbose=False))

    def decode(self, ids: Sequence[int]) -> str:
        """What was said, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token(self, token_id: int) -> str:
        """One token, also a special one."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))
