"""Questions to a server over HTTP: a deadline each, patience with one that starts, errors in our words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from headrace.core.errors import ComponentError, ComponentStalled

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_BUSY = frozenset({502, 503})  # it starts, or has no room: the same question may be answered later
_BODY_BYTES = 4096  # of an error, as much as helps


class Refused(Exception):
    """The server answered with an error.

    Args:
        status: HTTP.
        text: What it said.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {said(text)}")
        self.status = status
        self.text = text


class Calls:
    """Asks one server. Made in the event loop in which it is used; a context manager.

    Args:
        endpoint: Its root, e.g. ``http://127.0.0.1:8123``.
        server: Its id, for errors.
        connections: Most that are open at the same time.
    """

    def __init__(self, endpoint: str, server: str, connections: int) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.server = server
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self.retries = 0
        """Calls that were made again."""

    async def __aenter__(self) -> Self:
        # Limits are each call's own; a default of the library must not end a long one.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections), timeout=aiohttp.ClientTimeout(total=None)
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, method: str, route: str, body: Any, timeout_s: float, what: str) -> Any:
        """One question that has to be answered, once, in time.

        Args:
            method: Of HTTP.
            route: With its query.
            body: Sent as JSON; None: nothing.
            timeout_s: Until the answer is complete.
            what: Completes "the server did not …".

        Raises:
            ComponentStalled: It did not answer in time.
            ComponentError: It refused, or is gone.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.once(method, route, body)
        except Refused as refused:
            raise self.error(
                f"refused to {what}", route=self.endpoint + route, status=refused.status, answer=str(refused)
            ) from refused
        except TimeoutError as error:
            raise ComponentStalled(
                f"{self.server} did not {what} within {timeout_s:.3g} s",
                route=f"{method} {self.endpoint}{route}",
                fix=f"see what {self.server} is doing: `headrace doctor RUN`, and its log",
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.error(
                f"could not be asked to {what}", route=route, error=f"{type(error).__name__}: {error}"
            ) from error

    async def patiently(self, method: str, route: str, body: Any, deadline_s: float) -> Any:
        """The answer. A connection that is lost, and a server that has no room, are tried again until ``deadline_s``.

        Args:
            method: Of HTTP.
            route: With its query.
            body: Sent as JSON; None: nothing. One that says how much time there is, is a function of the seconds that are left.
            deadline_s: Of the event loop's clock.

        Raises:
            TimeoutError: The time, of the event loop's clock, is over; it says what happened last, if anything did.
            Refused: The server answered with an error.
            ClientError: Anything else went wrong.
            ValueError: The answer is no JSON.
        """
        loop = asyncio.get_running_loop()
        pause_s, last = _FIRST_PAUSE_S, ""
        while True:
            asked = body(deadline_s - loop.time()) if callable(body) else body
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await self.once(method, route, asked)
            except Refused as refused:
                if refused.status not in _BUSY:
                    raise
                last = str(refused)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
                last = f"{type(error).__name__}: {error}"
            except TimeoutError:
                raise TimeoutError(last) from None
            if loop.time() + pause_s >= deadline_s:
                raise TimeoutError(last)
            self.retries += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def once(self, method: str, route: str, body: Any) -> Any:
        """The answer to one request; None if it is empty.

        Raises:
            Refused: The server answered with an error.
            ClientError: The connection failed.
            ValueError: The answer is no JSON.
        """
        if self._session is None:
            raise RuntimeError("Calls are used outside of their context")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"} if data is not None else None
        async with self._session.request(method, self.endpoint + route, data=data, headers=headers) as response:
            text = await response.read()
        if response.status >= 400:
            raise Refused(response.status, text[:_BODY_BYTES].decode(errors="replace"))
        with reading():
            return json.loads(text) if text else None

    def error(self, what: str, **facts: object) -> ComponentError:
        """What it did wrong."""
        return ComponentError(f"{self.server} {what}", **facts, fix=f"read logs/{self.server}.log")


@contextmanager
def reading() -> Iterator[None]:
    """Takes apart what somebody else has answered: there may be anything in it.

    Raises:
        ValueError: It is not what it should be, whatever that led to.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:  # any kind: what is wrong is in the answer, and not here
        raise ValueError(f"{type(error).__name__}: {error}") from error


def said(text: str) -> str:
    """The message of an error in OpenAI's form; anything else as it is, cut."""
    try:
        with reading():
            return str(json.loads(text)["error"]["message"])[:500]
    except ValueError:
        return text[:200]
