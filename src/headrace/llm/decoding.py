"""From tokens to text: in training and in answers the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_BYTE = "<0x{:02X}>"
"""Stands for a byte where pieces are written as they are."""

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
"""Such a piece."""


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that are left out where special ones are hidden: those with a name, and whatever else was added as special."""
    added = (number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset((*tokenizer.all_special_ids, *added))


class Decoder:
    """What tokens say.

    Args:
        tokenizer: A Hugging Face one.
        hidden: Tokens that are left out: `special_ids`, or none.
    """

    def __init__(self, tokenizer: Any, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        falls_back = "ByteFallback" in repr(getattr(self._backend, "decoder", None))
        self._bytes = self._byte_tokens() if falls_back else {}

    def text(self, ids: Sequence[int]) -> str:
        """With further tokens it only grows, but for U+FFFD at its end."""
        if self._bytes.keys().isdisjoint(ids):
            # Spaces stay: what takes some away once more is said takes from what was shown.
            hides = bool(self._hidden)
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=hides, clean_up_tokenization_spaces=False))
        return str(self._backend.decoder.decode(list(self._sound_pieces(ids))))

    def _byte_tokens(self) -> dict[int, int]:
        """Tokens that stand for a byte, where others are whole pieces of text."""
        found = ((self._backend.token_to_id(_BYTE.format(byte)), byte) for byte in range(256))
        return {token: byte for token, byte in found if token is not None}

    def _sound_pieces(self, ids: Sequence[int]) -> Iterator[str]:
        """Pieces, of bytes that are no character U+FFFD: for one such byte the decoder gives up all that stand beside it."""
        run = bytearray()
        for token in ids:
            if token in self._hidden:
                continue
            if token in self._bytes:
                run.append(self._bytes[token])
                continue
            yield from _in_characters(run)
            run.clear()
            piece = self._backend.id_to_token(token)
            if piece is not None:  # a model may have more rows than there are tokens
                yield piece
        yield from _in_characters(run)


def _in_characters(run: bytearray) -> Iterator[str]:
    """A run of bytes as pieces: of characters the bytes, for the rest U+FFFD."""
    for character in run.decode(errors="replace"):
        yield from [character] if character == "\ufffd" else map(_BYTE.format, character.encode())
