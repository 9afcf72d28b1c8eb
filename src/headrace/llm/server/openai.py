"""OpenAI's routes: models, completions, chat completions; whole or as a stream."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.llm.messages import Failure
from headrace.llm.server.answered import Wording
from headrace.llm.server.asked import (
    Asked,
    AskedBody,
    ChatBody,
    CompletionsBody,
    Unseeded,
    asked_chat,
    asked_completions,
    count_completions,
    refuse_settings,
)
from headrace.llm.server.driver import Call, Driver
from headrace.llm.server.errors import SHOWN, ApiError
from headrace.llm.server.following import Follower, Piece
from headrace.llm.server.reading import BodyLimits, body_of
from headrace.llm.server.texts import Texts
from headrace.llm.server.waiting import answers, unless_gone


@dataclass(frozen=True, slots=True)
class OpenAIRoutes:
    """Handlers.

    Args:
        driver: Of the engine.
        texts: Of its model.
        names: By which clients may call the model; the first is the one it gives itself.
        timeout_s: For calls that do not say.
        life: Names, with a call's number, what is drawn where the client gives no seed.
    """

    driver: Driver
    texts: Texts
    names: tuple[str, ...]
    timeout_s: float
    life: int
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        del request
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.names]})

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/NAME``."""
        name = request.path_params["name"]
        self._check_name(name)
        return JSONResponse(self._model(name))

    async def completions(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        number = next(self._numbers)
        body = self._checked(await body_of(request, self._limits.many), CompletionsBody)
        assert isinstance(body, CompletionsBody)
        busy = self.driver.engine.busy(count_completions(body), guest=self.driver.guests_apart)
        if busy is not None:  # told before thousands of texts become tokens
            raise ApiError.of_failure(busy)
        asked = await asked_completions(body, self.texts, Unseeded(self.life, number), self.driver.engine.limits)
        return await self._answered(request, asked, f"cmpl-{number}")

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        number = next(self._numbers)
        body = self._checked(await body_of(request, self._limits.one), ChatBody)
        assert isinstance(body, ChatBody)
        asked = asked_chat(body, self.texts, Unseeded(self.life, number), self.driver.engine.limits)
        return await self._answered(request, asked, f"chatcmpl-{number}")

    @property
    def _limits(self) -> BodyLimits:
        return BodyLimits.of(self.driver.engine.limits)

    def _checked(self, data: bytes, kind: type[AskedBody]) -> AskedBody:
        try:
            body = kind.model_validate_json(data)
        except ValidationError as error:
            raise ApiError.of_validation(error) from None
        self._check_name(body.model)
        refuse_settings(body)
        return body

    def _check_name(self, name: str) -> None:
        if name not in self.names:
            text = f"there is no model {name[:SHOWN]!r} here, but {', '.join(self.names)}"
            raise ApiError(404, text, param="model", code="model_not_found")

    def _model(self, name: str) -> dict[str, Any]:
        longest = self.driver.engine.limits.context_tokens
        return {"id": name, "object": "model", "created": 0, "owned_by": "headrace", "max_model_len": longest}

    async def _answered(self, request: Request, asked: Asked, answer_id: str) -> Response:
        wording = Wording(asked, self.texts, answer_id, int(datetime.now(tz=UTC).timestamp()))
        call = self.driver.submit(asked.requests, guest=True)
        refused = next((answer for answer in call.answers if isinstance(answer, Failure)), None)
        if refused is not None:
            self.driver.abandon(call)
            raise ApiError.of_failure(refused, asked.params)
        timeout_s = asked.body.timeout_s or self.timeout_s
        follower = Follower(self.driver, call, self.texts, asked.body.stops)
        if asked.body.stream:
            return _Stream(_events(follower, wording, timeout_s), lambda: self.driver.abandon(call))
        if asked.body.stops:
            pieces = await unless_gone(request, asyncio.ensure_future(_joined(follower, timeout_s)), timeout_s)
        else:
            pieces = await self._whole(request, call, timeout_s)
        return JSONResponse(wording.whole(pieces))

    async def _whole(self, request: Request, call: Call, timeout_s: float) -> list[Piece]:
        pieces = []
        for place, answer in enumerate(await answers(self.driver, request, call, timeout_s)):
            if isinstance(answer, Failure):
                raise ApiError.of_failure(answer)
            text = self.texts.decode(answer.token_ids)
            facts = (answer.token_ids, answer.logprobs, answer.versions, answer.finish_reason)
            pieces.append(Piece(place, text, *facts))
        return pieces


async def _joined(follower: Follower, timeout_s: float) -> list[Piece]:
    """All there is of each choice."""
    parts: dict[int, list[Piece]] = {}
    async for pieces in follower.pieces(timeout_s):
        for piece in pieces:
            parts.setdefault(piece.place, []).append(piece)
    return [_one(parts[place]) for place in sorted(parts)]


def _one(parts: Sequence[Piece]) -> Piece:
    return Piece(
        parts[0].place,
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.token_ids),
        tuple(logprob for part in parts for logprob in part.logprobs),
        tuple(version for part in parts for version in part.versions),
        parts[-1].finish_reason,
    )


class _Stream(StreamingResponse):
    """Server-sent events, after which nothing is generated for them any more, however their sending ends.

    Of a client that leaves before the first one is sent, the iterator is never asked for anything, and so never ends by itself.

    Args:
        events: What is sent.
        over: Called when nobody reads any more.
    """

    def __init__(self, events: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it, or as much as the client stays for."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


async def _events(follower: Follower, wording: Wording, timeout_s: float) -> AsyncIterator[bytes]:
    """Server-sent events; an error in the middle is the last one before the end."""
    for opening in wording.opening():
        yield _event(opening)
    try:
        async for pieces in follower.pieces(timeout_s):
            for piece in pieces:
                yield _event(wording.chunk(piece))
        last = wording.last()
        if last is not None:
            yield _event(last)
    except ApiError as error:
        yield _event(error.body())
    yield b"data: [DONE]\n\n"


def _event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
