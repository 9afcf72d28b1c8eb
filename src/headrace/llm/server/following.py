"""Text as it grows: for streams, and for completions that end with a text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from headrace.ipc.channel import Deadline
from headrace.llm.messages import Failure
from headrace.llm.server.driver import Call, Driver
from headrace.llm.server.errors import ApiError
from headrace.llm.server.texts import Texts
from headrace.llm.server.waiting import late


class GrowingText:
    """What may be shown of a completion that is not over: nothing that could still become part of a stop.

    Args:
        texts: Decodes.
        stops: Texts that end it, and are no part of it.
    """

    def __init__(self, texts: Texts, stops: Sequence[str]) -> None:
        self._texts = texts
        self._stops = [stop for stop in stops if stop]
        self._shown = 0
        self.stopped = False
        """Whether one of the stops was said."""

    def grow(self, token_ids: Sequence[int], over: bool) -> str:
        """What is new, now that these are all the tokens; nothing is held back any more when it is ``over``."""
        text = self._texts.decode(token_ids)
        if not over:
            text = text.rstrip("\ufffd")  # may be the beginning of a character
        said = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if said:
            self.stopped = True
            _, place = min(said)  # of that which was complete first, however many tokens came since the last look
            text = text[:place]
        elif not over:
            text = text[: len(text) - self._held_back(text)]
        new = text[self._shown :]
        self._shown += len(new)
        return new

    def _held_back(self, text: str) -> int:
        """Characters at the end that may be the beginning of a stop."""
        longest = 0
        for stop in self._stops:
            sizes = range(min(len(stop), len(text) + 1))  # a stop may be a million times as long as the text
            longest = max(longest, *(size for size in sizes if text.endswith(stop[:size])))
        return longest


@dataclass(frozen=True, slots=True)
class Piece:
    """What was added to one choice."""

    place: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: str | None
    """None: it goes on."""


class Follower:
    """Follows the completions of a call while they grow.

    Args:
        driver: That took the call.
        call: See there.
        texts: Decodes.
        stops: Texts that end a completion.
    """

    def __init__(self, driver: Driver, call: Call, texts: Texts, stops: Sequence[str]) -> None:
        self._driver = driver
        self._call = call
        self._growing = {place: GrowingText(texts, stops) for place in range(len(call.requests))}
        self._seen = [0] * len(call.requests)

    async def pieces(self, timeout_s: float) -> AsyncIterator[list[Piece]]:
        """What each forward pass added; ends when all are over.

        Raises:
            ApiError: The deadline passed, or a completion failed.
        """
        deadline = Deadline(timeout_s)
        try:
            async for _ in self._driver.follow(self._call):
                yield self._added()
                if deadline.passed and self._growing:
                    raise ApiError.of_failure(late(timeout_s))
            yield self._added()
        finally:
            self._driver.abandon(self._call)

    def _added(self) -> list[Piece]:
        added = (self._piece(place, growing) for place, growing in list(self._growing.items()))
        return [piece for piece in added if piece is not None]

    def _piece(self, place: int, growing: GrowingText) -> Piece | None:
        answer = self._call.answers[place]
        if isinstance(answer, Failure):
            raise ApiError.of_failure(answer)
        if answer is None:
            tokens, logprobs, versions = self._driver.engine.so_far(self._call.requests[place].id)
        else:
            tokens, logprobs, versions = answer.token_ids, answer.logprobs, answer.versions
        seen = self._seen[place]
        if answer is None and len(tokens) == seen:
            return None
        text = growing.grow(tokens, over=answer is not None)
        reason: str | None = answer.finish_reason if answer is not None else None
        if growing.stopped:
            reason = "stop"
            self._driver.finish(self._call, place)
        if reason is not None:
            del self._growing[place]
        self._seen[place] = len(tokens)
        return Piece(place, text, tokens[seen:], logprobs[seen:], versions[seen:], reason)
