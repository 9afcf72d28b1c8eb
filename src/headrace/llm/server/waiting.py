"""Waits for the answers of a call: until they are there, its deadline passes, or the client has left."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import Request

from headrace.llm.messages import Completion, Failure
from headrace.llm.server.driver import Call, Driver


class ClientGone(Exception):
    """The client has left; whatever is answered, nobody reads it."""


async def answers(driver: Driver, request: Request, call: Call, timeout_s: float) -> list[Completion | Failure]:
    """One answer per request of ``call``; its slots are free when this returns or raises.

    Args:
        driver: That took the call.
        request: Whose body was read.
        call: What is waited for.
        timeout_s: Those that are not complete by then have failed.

    Raises:
        ClientGone: It has left.
    """
    leaves = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({call.complete, leaves}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = leaves.done() and not call.complete.done()
        leaves.cancel()
        driver.abandon(call)
    if left:
        raise ClientGone
    return call.all_answers(Failure("timeout", f"no answer within {timeout_s:g} s"))


_Result = TypeVar("_Result")


async def unless_gone(request: Request, work: asyncio.Task[_Result], timeout_s: float) -> _Result:
    """The result of ``work``, which keeps the deadline itself; it is cancelled when the client leaves.

    Raises:
        ClientGone: It has left.
    """
    leaves = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({work, leaves}, timeout=2 * timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return await work
    finally:
        leaves.cancel()
        work.cancel()


async def gone(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
