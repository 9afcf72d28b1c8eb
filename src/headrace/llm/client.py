"""Completions from our server over HTTP: lists of prompts, few connections, patience with a server that starts again.

The server's socket is bound and listens before it runs, and while it is started again: whoever connects then waits. A call
that was on its way when the server died is made again, until the time of its requests is over; what a completion is follows
from the request alone, so that nothing is lost or drawn twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from headrace.core.errors import ComponentError, ComponentStalled, StaleWeights
from headrace.llm.calls import Calls, Refused, reading, said
from headrace.llm.messages import ANSWER_SHARE, Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights


class HttpGenerator:
    """`headrace.llm.messages.Generator` over HTTP. Made in the event loop in which it is used; a context manager.

    Args:
        endpoint: Root of the server, e.g. ``http://127.0.0.1:8123``.
        server: Its id, for errors.
        per_call: Most requests in one call; None: all that are given together, which lag 0 needs to be reproducible.
        connections: Most that are open at the same time.
    """

    def __init__(
        self, endpoint: str, *, server: str = "inference", per_call: int | None = 128, connections: int = 64
    ) -> None:
        self._server = server
        self._per_call = per_call
        self._calls = Calls(endpoint, server, connections)

    @property
    def retries(self) -> int:
        """Calls that were made again."""
        return self._calls.retries

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._calls.__aexit__(exc_type, exc, tb)

    async def wait_ready(self, timeout_s: float) -> int:
        """Wait until the server has generated something; the version it serves.

        Raises:
            ComponentStalled: It has not within ``timeout_s`` seconds.
            ComponentError: What answers there is not our server.
        """
        answer = await self._ask("GET", "/health", None, timeout_s, "become ready")
        version = answer.get("version")
        if answer.get("status") != "ok" or not isinstance(version, int):
            raise self._calls.error(
                "answered /health with something else than our server does", answer=str(answer)[:200]
            )
        return version

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        """See `Generator.generate`."""
        size = self._per_call or max(1, len(requests))
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        answers = await asyncio.gather(*(self._generate(part, timeout_s) for part in parts))
        return [answer for part in answers for answer in part]

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        """See `Generator.update_weights`.

        Raises:
            StaleWeights: It knows no such route, so that it would serve what it has for ever.
            ComponentStalled: It did not answer in time.
            ComponentError: It refused.
        """
        body = {
            "weight_dir": str(published.folder),
            "version": published.version,
            "sha256": published.sha256,
            "run_id": published.run_id,
        }
        answer = await self._ask("POST", "/update_weights", body, timeout_s, f"load version {published.version}")
        version, sha256 = answer.get("version"), answer.get("sha256", "")
        if not isinstance(version, int) or not isinstance(sha256, str):
            raise StaleWeights(
                f"{self._server} took version {published.version} and does not say what it serves now",
                answer=str(answer)[:200],
                fix="use a server whose /update_weights answers with version and sha256",
            )
        return ServedWeights(version=version, sha256=sha256)

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        """See `Generator.score`."""
        answer = await self._ask("POST", "/score", {"token_ids": list(token_ids)}, timeout_s, "score the probe")
        try:
            with reading():
                return tuple(map(_number, answer["logprobs"]))
        except ValueError as error:
            raise self._calls.error("answered /score without log-probabilities", answer=str(answer)[:200]) from error

    async def _generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        """One call; whatever goes wrong is the answer to each of its requests."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        wanted = [_as_json(request) for request in requests]

        def body(left_s: float) -> dict[str, Any]:
            return {"requests": wanted, "timeout_s": max(ANSWER_SHARE * left_s, 1e-3)}

        failure: Failure
        try:
            answer = await self._calls.patiently("POST", "/generate", body, deadline_s)
            return _completions(answer, len(requests))
        except Refused as refused:
            lasting = 400 <= refused.status < 500
            failure = Failure("refused" if lasting else "server", str(refused), may_retry=not lasting)
        except TimeoutError as error:
            reason, last = ("connection", f": {error}") if str(error) else ("timeout", "")
            what = f"{self._server} gave no answer within {timeout_s:.3g} s{last}"
            failure = Failure(reason, what, may_retry=False)
        except (aiohttp.ClientError, OSError) as error:
            failure = Failure("connection", f"{type(error).__name__}: {error}")
        except ValueError as error:
            failure = Failure("malformed", f"{self._server}: {type(error).__name__}: {error}")
        return [failure] * len(requests)

    async def _ask(self, method: str, route: str, body: Any, timeout_s: float, what: str) -> Mapping[str, Any]:
        """One question that has to be answered; every other outcome is an error in our words."""
        try:
            answer = await self._calls.patiently(method, route, body, asyncio.get_running_loop().time() + timeout_s)
        except Refused as refused:
            raise self._refusal(route, refused, what) from refused
        except TimeoutError as error:
            raise ComponentStalled(
                f"{self._server} did not {what} within {timeout_s:g} s",
                route=f"{method} {self._calls.endpoint}{route}",
                last=str(error) or "no answer",
                fix=f"see what {self._server} is doing: `headrace doctor RUN`, and its log",
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._calls.error(
                f"could not be asked to {what}", route=route, error=f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(answer, dict):
            raise self._calls.error(
                f"answered {route} with something else than our server does", answer=str(answer)[:200]
            )
        return answer

    def _refusal(self, route: str, refused: Refused, what: str) -> ComponentError:
        facts = {"route": self._calls.endpoint + route, "status": refused.status, "answer": said(refused.text)}
        if refused.status in {404, 405, 501} and route == "/update_weights":
            return StaleWeights(
                f"{self._server} has no route to {what}, and would go on with the weights it has",
                **facts,
                fix="set inference.backend to what this server is, or give the endpoint of a server that can update",
            )
        if refused.status == 409:
            return self._calls.error(f"serves another run, and did not {what}", **facts)
        return self._calls.error(f"refused to {what}", **facts)


def _as_json(request: GenerationRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "prompt_ids": request.prompt_ids,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_ids": request.stop_ids,
        "seed": request.seed,
        "session": request.session,
    }


def _completions(answer: Any, wanted: int) -> list[Completion | Failure]:
    """What the server's answer holds.

    Raises:
        ValueError: It is not one answer per request.
    """
    with reading():
        found = answer["completions"]
        if len(found) != wanted:
            raise ValueError(f"{len(found)} answers to {wanted} requests")
        return [_completion(one) for one in found]


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")  # float() would read texts, too
    return float(value)


def _completion(one: Mapping[str, Any]) -> Completion | Failure:
    error = one.get("error")
    if error is not None:
        return Failure(str(error["reason"]), str(error.get("detail", "")), bool(error.get("may_retry", True)))
    if one["finish_reason"] not in {"stop", "length"}:
        raise ValueError(f"finish_reason {one['finish_reason']!r}")
    return Completion(
        token_ids=tuple(map(int, one["token_ids"])),
        logprobs=tuple(map(float, one["logprobs"])),
        versions=tuple(map(int, one["versions"])),
        finish_reason=one["finish_reason"],
    )
