"""Our own routes: tokens in, tokens out, many requests in one call; weights; scores; health; metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace.core.errors import ComponentError
from headrace.llm.messages import Completion, Failure, GenerationRequest, Probe, PublishedWeights
from headrace.llm.server.asked import MOST_COMPLETIONS
from headrace.llm.server.driver import Driver
from headrace.llm.server.errors import SHOWN, ApiError
from headrace.llm.server.reading import BodyLimits, FastList, body_of
from headrace.llm.server.waiting import answers


class Body(BaseModel):
    """Base of what routes take. Fields that nobody knows are refused by `parsed`: pydantic would tell of each of a million."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    def unknown(self) -> str | None:
        """Where the first field is that nobody knows."""
        return next(iter(self.model_extra or ()), None)


_Kind = TypeVar("_Kind", bound=Body)


class WantedBody(Body):
    """One completion, see `headrace.llm.messages.GenerationRequest`."""

    id: str
    prompt_ids: FastList[int]
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop_ids: FastList[int] = []
    seed: int = Field(default=0, ge=0)
    session: str = ""


class GenerateBody(Body):
    """``POST /generate``."""

    requests: FastList[WantedBody] = Field(max_length=MOST_COMPLETIONS)
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def unknown(self) -> str | None:
        """Here, or in one of the requests."""
        own = super().unknown()
        if own is not None:
            return own
        inner = ((place, one.unknown()) for place, one in enumerate(self.requests) if one.model_extra)
        return next((f"requests.{place}.{name}" for place, name in inner), None)


class ScoreBody(Body):
    """``POST /score``."""

    token_ids: FastList[int] = Field(min_length=1)


class UpdateBody(Body):
    """``POST /update_weights``."""

    weight_dir: str
    version: int = Field(ge=0)
    sha256: str
    run_id: str


async def parsed(request: Request, kind: type[_Kind], most_bytes: int) -> _Kind:
    """The body of a request, of ``most_bytes`` at most.

    Raises:
        ApiError: It is not what the route takes, or longer.
    """
    try:
        body = kind.model_validate_json(await body_of(request, most_bytes))
    except ValidationError as error:
        raise ApiError.of_validation(error) from None
    unknown = body.unknown()
    if unknown is not None:
        param = unknown[:SHOWN]
        raise ApiError(400, f"{param}: there is no such field", param=param, code="invalid_value")
    return body


@dataclass(frozen=True, slots=True)
class NativeRoutes:
    """Handlers.

    Args:
        driver: Of the engine.
        run_id: Of the run whose weights are served; empty: those of any.
        timeout_s: For calls that do not say.
    """

    driver: Driver
    run_id: str
    timeout_s: float

    async def generate(self, request: Request) -> Response:
        """``POST /generate``."""
        body = await parsed(request, GenerateBody, self._limits.many)
        wanted = [
            GenerationRequest(
                id=one.id,
                prompt_ids=tuple(one.prompt_ids),
                max_tokens=one.max_tokens,
                temperature=one.temperature,
                top_p=one.top_p,
                stop_ids=tuple(one.stop_ids),
                seed=one.seed,
                session=one.session,
            )
            for one in body.requests
        ]
        call = self.driver.submit(wanted)
        done = await answers(self.driver, request, call, body.timeout_s or self.timeout_s)
        if done and all(isinstance(answer, Failure) and answer.reason in {"busy", "stopping"} for answer in done):
            raise ApiError.of_failure(done[0])  # type: ignore[arg-type]
        return _json({"completions": [completion_json(answer) for answer in done]})

    async def score(self, request: Request) -> Response:
        """``POST /score``."""
        body = await parsed(request, ScoreBody, self._limits.one)
        try:
            logprobs = self.driver.score(body.token_ids)
        except ComponentError as error:
            raise ApiError(400, str(error), param="token_ids", code=error.code) from error
        return _json({"logprobs": logprobs, "version": self.driver.engine.served.version})

    async def update_weights(self, request: Request) -> Response:
        """``POST /update_weights``."""
        body = await parsed(request, UpdateBody, self._limits.one)
        if self.run_id and body.run_id != self.run_id:
            raise ApiError(
                409,
                f"these are weights of run {body.run_id}, this server is part of run {self.run_id}",
                param="run_id",
                code="other_run",
            )
        published = PublishedWeights(
            version=body.version,
            folder=Path(body.weight_dir),
            sha256=body.sha256,
            run_id=body.run_id,
            probe=Probe(token_ids=(), logprobs=()),
        )
        self.driver.load(published)
        return self._served()

    async def weights(self, request: Request) -> Response:
        """``GET /weights``."""
        del request
        return self._served()

    async def health(self, request: Request) -> Response:
        """``GET /health``: whether completions are generated, not whether this process is alive."""
        del request
        engine = self.driver.engine
        stalled_s = self.driver.stalled_for_s()
        if not engine.proven:
            return JSONResponse({"status": "starting"}, status_code=503)
        if engine.wrong_weights:
            return JSONResponse({"status": "wrong weights", "detail": engine.wrong_weights}, status_code=503)
        if stalled_s:
            facts = {"status": "stalled", "outstanding": self.driver.outstanding, "no_token_for_s": stalled_s}
            return JSONResponse(facts, status_code=503)
        return JSONResponse({"status": "ok", "version": engine.served.version})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``, as Prometheus reads it."""
        del request
        return PlainTextResponse(metrics_text(self.driver), media_type="text/plain; version=0.0.4")

    @property
    def _limits(self) -> BodyLimits:
        return BodyLimits.of(self.driver.engine.limits)

    def _served(self) -> Response:
        served = self.driver.engine.served
        return JSONResponse({"version": served.version, "sha256": served.sha256})


def completion_json(answer: Completion | Failure) -> dict[str, Any]:
    """As ``/generate`` answers it."""
    if isinstance(answer, Failure):
        return {"error": {"reason": answer.reason, "detail": answer.detail, "may_retry": answer.may_retry}}
    return {
        "token_ids": answer.token_ids,
        "logprobs": answer.logprobs,
        "versions": answer.versions,
        "finish_reason": answer.finish_reason,
    }


def metrics_text(driver: Driver) -> str:
    """Everything that is counted, one number a line."""
    engine, counts = driver.engine, driver.engine.counts
    facts: list[tuple[str, str, int]] = [
        ("requests_running", "gauge", engine.running),
        ("requests_waiting", "gauge", engine.waiting),
        ("policy_version", "gauge", engine.served.version),
        ("requests_total", "counter", counts.requests),
        ("completions_total", "counter", counts.completed),
        ("failed_total", "counter", counts.failed),
        ("cancelled_total", "counter", counts.cancelled),
        ("refused_total", "counter", counts.refused),
        ("forward_passes_total", "counter", counts.passes),
        ("generated_tokens_total", "counter", counts.generated_tokens),
        ("prompt_tokens_total", "counter", counts.prompt_tokens),
        ("prefix_hits_total", "counter", counts.prefix_hits),
        ("reused_tokens_total", "counter", counts.reused_tokens),
        ("evictions_total", "counter", engine.evictions),
        ("weight_updates_total", "counter", counts.updates),
    ]
    return "".join(f"# TYPE headrace_{name} {kind}\nheadrace_{name} {value}\n" for name, kind, value in facts)


def _json(content: object) -> Response:
    """Shorter than `JSONResponse`, which checks more and takes longer."""
    return Response(json.dumps(content, separators=(",", ":")), media_type="application/json")
