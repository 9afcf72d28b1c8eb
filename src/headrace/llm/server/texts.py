"""Between text and tokens, for clients that send text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from headrace.core.errors import ConfigError
from headrace.llm.decoding import BYTE_PIECE, Decoder, special_ids
from headrace.llm.rendering import rendered, stop_ids_of

_CUT_TOKENS = 128
"""Tokens that the end of a text may have more where it is cut, with much to spare."""

_SPACE = "\u2581"
"""Stands for a space where pieces are written as they are."""


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
        self._special = special_ids(tokenizer)
        self._decoder = Decoder(tokenizer, self._special)
        self._added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        end = tokenizer.eos_token_id
        self.end_ids: tuple[int, ...] = () if end is None else (int(end),)
        """Tokens that end a text."""
        self.stop_ids = self._stop_ids()
        """Tokens that end what the model says in a conversation: the same as in training."""

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

    def _stop_ids(self) -> tuple[int, ...]:
        if not self.chats:
            return self.end_ids
        try:
            return stop_ids_of(self._tokenizer)
        except ConfigError:  # a template that nothing can be trained with may still be asked something
            return self.end_ids

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
            ConfigError: The model's template refuses it.
        """
        if len(messages) > most_tokens:  # a message without a token is no message; templates take long over many
            raise TooManyTokens(len(messages))
        return self._ids(rendered(self._tokenizer, messages, prompt=True), most_tokens, special=False)

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
        """What was said, without special tokens. With further tokens it only grows, but for U+FFFD at its end."""
        return self._decoder.text(ids)

    def bytes_of(self, token_id: int) -> bytes:
        """What one token is, also a special one: some are no whole character, some begin with a space."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = (
            self._tokenizer.convert_ids_to_tokens(token_id) or ""
        )  # a model may have more rows than there are tokens
        if self._byte_level and _BYTE_OF.keys() >= set(piece):
            return bytes(_BYTE_OF[letter] for letter in piece)
        fallback = BYTE_PIECE.fullmatch(piece)
        return bytes([int(fallback[1], 16)]) if fallback else piece.replace(_SPACE, " ").encode()

    def shown(self, token_id: int, piece: bytes, *, begins: bool) -> bytes:
        """What `decode` shows of a token, of which ``piece`` is `bytes_of`; ``begins``: nothing is shown before it."""
        if token_id in self._special:
            return b""
        # Tokenizers whose pieces have a space in front of each word leave out the first.
        dropped = begins and piece.startswith(b" ") and not self.decode([token_id]).startswith(" ")
        return piece[1:] if dropped else piece


def _byte_letters() -> dict[str, int]:
    """Which byte each letter stands for where pieces are written byte by byte: those that cannot be printed come after 255."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
