"""Reads what a client sends, up to a limit: a body that is collected whatever its size can end the process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import FailFast
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.llm.engine.scheduling import Limits
from headrace.llm.server.errors import ApiError
from headrace.llm.server.waiting import ClientGone

MOST_BODY_BYTES = 256 * 2**20
"""Of any call, whatever the server has room for: what is made of a body takes several times as much memory."""

LEAST_BODY_BYTES = 4 * 2**20
"""May always be sent: texts with long tokens, settings that mean nothing here."""

TOKEN_BYTES = 16
"""A token takes in JSON, as an id or as text, with some to spare."""

REQUEST_BYTES = 1024
"""A request takes besides."""

BODY_S = 60.0
"""Seconds in which all of it has to arrive; and, of one that was answered before, in which the rest is thrown away."""

_MOST_THROWN_BYTES = 2 * MOST_BODY_BYTES


class FirstFault(FailFast):
    """Of a list: the first item that is wrong is told, and no other.

    Pydantic makes an object for each otherwise, in every branch of a union: 250 MB of token ids became 30 GB of what is wrong
    with them as texts.
    """

    def __hash__(self) -> int:  # for unions, which look for branches that are the same
        return hash((type(self), self.fail_fast))


_Item = TypeVar("_Item")
FastList = Annotated[list[_Item], FirstFault()]
"""For bodies, in place of ``list``."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Most bytes that a body may have, by what its route takes: more cannot be served anyway."""

    one: int
    """One request, one conversation, one text."""
    many: int
    """As many requests as are generated and wait at the same time."""

    @classmethod
    def of(cls, limits: Limits) -> BodyLimits:
        """Those of an engine with these limits."""
        request_bytes = limits.context_tokens * TOKEN_BYTES + REQUEST_BYTES

        def most(requests: int) -> int:
            return min(max(requests * request_bytes, LEAST_BODY_BYTES), MOST_BODY_BYTES)

        return cls(most(1), most(limits.slots + limits.max_waiting))


class ThrowsAwayTheRest:
    """Reads what a client still sends when it has been answered, up to a limit, before its connection may be closed.

    Many send all before they read, and to close a connection in which something is unread takes the answer with it.

    Args:
        application: That answers.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it; the answer is sent before the rest is read, and is over afterwards."""
        names = {name for name, _ in scope.get("headers", ())}
        more = not names.isdisjoint({b"content-length", b"transfer-encoding"})

        async def received() -> Message:
            nonlocal more
            message = await receive()
            more = bool(message.get("more_body", False))
            return message

        async def sent(message: Message) -> None:
            if not more or message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            await send({**message, "more_body": True})
            rest: Message = {"more_body": True}
            thrown_bytes = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BODY_S):
                    while rest.get("more_body", False) and thrown_bytes <= _MOST_THROWN_BYTES:
                        rest = await receive()
                        thrown_bytes += len(rest.get("body", b""))
            await send({"type": "http.response.body"})

        await self._application(scope, received, sent)


async def body_of(request: Request, most_bytes: int) -> bytes:
    """The whole body.

    Args:
        request: Of which nothing was read.
        most_bytes: It may have; one that says it has more is not read at all.

    Raises:
        ApiError: It is longer than may be, or takes longer; what is left of it is not kept.
        ClientGone: The client has left in the middle of it.
    """
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > most_bytes:
        raise _too_long(request, most_bytes, f"has {int(told):,} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            return await _collected(request, most_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body was not complete after {BODY_S:g} s", code="body_too_slow") from None
    except ClientDisconnect:
        raise ClientGone from None


async def _collected(request: Request, most_bytes: int) -> bytes:
    pieces, held = [], 0
    async for piece in request.stream():
        held += len(piece)
        if held > most_bytes:
            raise _too_long(request, most_bytes, "is longer")
        pieces.append(piece)
    return b"".join(pieces)


def _too_long(request: Request, most_bytes: int, what: str) -> ApiError:
    text = f"{request.url.path} takes at most {most_bytes:,} bytes, and the body {what}; fix: send less in one call"
    return ApiError(413, text, code="body_too_long")
