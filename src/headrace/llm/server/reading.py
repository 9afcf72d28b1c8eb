"""Reads what a client sends, up to a limit: a body that is collected whatever its size can end the process."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from headrace.llm.server.errors import ApiError
from headrace.llm.server.waiting import ClientGone

MOST_BODY_BYTES = 256 * 2**20
"""Thousands of requests of a long context each."""

BODY_S = 60.0
"""Seconds in which all of it has to arrive."""


async def body_of(request: Request) -> bytes:
    """The whole body.

    Raises:
        ApiError: It is longer than may be, or takes longer; what is left of it is not read.
        ClientGone: The client has left in the middle of it.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await _collected(request)
    except TimeoutError:
        raise ApiError(408, f"the body was not complete after {BODY_S:g} s", code="body_too_slow") from None
    except ClientDisconnect:
        raise ClientGone from None


async def _collected(request: Request) -> bytes:
    pieces, held = [], 0
    async for piece in request.stream():
        held += len(piece)
        if held > MOST_BODY_BYTES:
            raise ApiError(413, f"the body has more than {MOST_BODY_BYTES:,} bytes", code="body_too_long")
        pieces.append(piece)
    return b"".join(pieces)
