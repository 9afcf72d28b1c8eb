"""Answers of OpenAI's routes as JSON: whole, or piece by piece."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from headrace.llm.server.asked import Asked, ChatBody
from headrace.llm.server.following import Piece
from headrace.llm.server.texts import Texts


class Wording:
    """How the answers to one request are written.

    Args:
        asked: What was asked for.
        texts: Names tokens.
        answer_id: Of the answer.
        created_s: Since 1970.
    """

    def __init__(self, asked: Asked, texts: Texts, answer_id: str, created_s: int) -> None:
        self._asked = asked
        self._texts = texts
        self._chat = isinstance(asked.body, ChatBody)
        self._head = {"id": answer_id, "created": created_s, "model": asked.body.model}
        self._written = [_Written() for _ in asked.requests]
        self._generated = 0

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """All choices, each in one piece."""
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._choice(piece, "message") for piece in pieces]
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """What a stream begins with: who speaks, or what is echoed."""
        if self._chat:
            empty = {"role": "assistant", "content": ""}
            return [self._chunk({"index": i, "delta": empty}) for i in range(len(self._asked.requests))]
        if self._asked.echo:
            echoed = ((i, self._echoed(i)) for i in range(len(self._asked.requests)))
            return [self._chunk({"index": i, "text": text, "logprobs": None}) for i, text in echoed]
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """One piece of a stream."""
        return self._chunk(self._choice(piece, "delta"))

    def last(self) -> dict[str, Any] | None:
        """What a stream ends with, if usage was asked for."""
        options = self._asked.body.stream_options
        if options is None or not options.include_usage:
            return None
        return {**self._head, "object": self._chunk_kind, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        prompts = sum(map(len, self._asked.prompts))
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self._generated,
            "total_tokens": prompts + self._generated,
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self._chunk_kind, "choices": [{"finish_reason": None, **choice}]}

    def _choice(self, piece: Piece, part: str) -> dict[str, Any]:
        self._generated += len(piece.token_ids)
        choice: dict[str, Any] = {
            "index": piece.place,
            "finish_reason": piece.finish_reason,
            "logprobs": self._logprobs(piece) if self._asked.logprobs else None,
            "policy_versions": piece.versions,
        }
        if self._asked.body.return_token_ids:
            choice["token_ids"] = piece.token_ids
            choice["prompt_token_ids"] = self._prompt(piece.place)
        if self._chat:
            spoken = {"role": "assistant", "content": piece.text} if part == "message" else {"content": piece.text}
            return {**choice, part: spoken}
        echoed = self._echoed(piece.place) if self._asked.echo and part == "message" else ""
        return {**choice, "text": echoed + piece.text}

    def _prompt(self, place: int) -> tuple[int, ...]:
        return self._asked.prompts[place // (self._asked.body.n or 1)]

    def _echoed(self, place: int) -> str:
        return self._texts.decode(self._prompt(place))

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        pieces = [self._texts.bytes_of(token) for token in piece.token_ids]
        names = [one.decode(errors="replace") for one in pieces]
        if self._chat:
            entries = zip(names, pieces, piece.logprobs, strict=True)
            return {"content": [self._entry(*entry) for entry in entries], "refusal": None}
        written = self._written[piece.place]
        offsets = [
            written.add(self._texts.shown(token, one, begins=written.empty))
            for token, one in zip(piece.token_ids, pieces, strict=True)
        ]
        return {"tokens": names, "token_logprobs": piece.logprobs, "top_logprobs": None, "text_offset": offsets}

    @staticmethod
    def _entry(name: str, piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": name, "logprob": logprob, "bytes": list(piece), "top_logprobs": []}


class _Written:
    """Characters of a text of which bytes come one piece after the other."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

        self.empty = True

    def add(self, piece: bytes) -> int:
        """In which character it begins; one that is not whole yet counts once it is."""
        begins = self._characters
        self.empty = self.empty and not piece
        self._characters += len(self._decoder.decode(piece))
        return begins
