"""Waits for the answers of a call: until they are there, its deadline passes, or the client has left."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import Request

from headrace.llm.messages import Completion, Failure
from headrace.llm.server.driver import Call, Driver
from headrace.llm.server.errors import ApiError


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
    return call.all_answers(late(timeout_s))


_Result = TypeVar("_Result")


async def unless_gone(request: Request, work: asyncio.Task[_Result], timeout_s: float) -> _Result:
    """The result of ``work``, which is cancelled when its time is over or the client leaves.

    Raises:
        ClientGone: It has left.
        ApiError: There is none after ``timeout_s`` seconds.
    """
    leaves = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({work, leaves}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return await work
        raise ClientGone if leaves.done() else ApiError.of_failure(late(timeout_s))
    finally:
        leaves.cancel()
        work.cancel()


def late(timeout_s: float) -> Failure:
    """What those are answered whose time is over."""
    return Failure("timeout", f"no answer within {timeout_s:g} s")


async def gone(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
