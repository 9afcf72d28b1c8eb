"""Reads what a client sends, up to a limit: a body that is collected whatever its size can end the process."""

from __future__ import annotations

from starlette.requests import Request

from headrace.llm.server.errors import ApiError

MOST_BODY_BYTES = 256 * 2**20
"""Thousands of requests of a long context each."""


async def body_of(request: Request) -> bytes:
    """The whole body.

    Raises:
        ApiError: It is longer than may be; what is left of it is not read.
    """
    pieces, held = [], 0
    async for piece in request.stream():
        held += len(piece)
        if held > MOST_BODY_BYTES:
            raise ApiError(413, f"the body has more than {MOST_BODY_BYTES:,} bytes", code="body_too_long")
        pieces.append(piece)
    return b"".join(pieces)
