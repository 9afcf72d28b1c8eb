"""The application: which route is whose, and what errors look like."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.core.errors import HeadraceError
from headrace.llm.server.driver import Driver
from headrace.llm.server.errors import (
    ApiError,
    answer_any_error,
    answer_api_error,
    answer_http_error,
    answer_our_error,
)
from headrace.llm.server.native import NativeRoutes
from headrace.llm.server.openai import OpenAIRoutes
from headrace.llm.server.reading import ThrowsAwayTheRest
from headrace.llm.server.texts import Texts
from headrace.llm.server.waiting import ClientGone


def _nobody_reads_it(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=499)


MODEL = "policy"
"""What the model is called."""


def build_application(
    driver: Driver,
    *,
    run_id: str = "",
    timeout_s: float = 60.0,
    texts: Texts | None = None,
    names: tuple[str, ...] = (MODEL,),
    life: int | None = None,
) -> Starlette:
    """An ASGI application over a driver, which somebody else runs.

    Args:
        driver: Of the engine.
        run_id: Of the run whose weights are served; empty: those of any.
        timeout_s: For calls that do not say.
        texts: Of the model; without it there are no routes of OpenAI's.
        names: By which clients may call the model.
        life: Names the random streams of calls of OpenAI's routes without a seed; None: it is drawn.
    """
    native = NativeRoutes(driver, run_id, timeout_s)
    routes = [
        Route("/health", native.health, methods=["GET"]),
        Route("/metrics", native.metrics, methods=["GET"]),
        Route("/weights", native.weights, methods=["GET"]),
        Route("/generate", native.generate, methods=["POST"]),
        Route("/score", native.score, methods=["POST"]),
        Route("/update_weights", native.update_weights, methods=["POST"]),
    ]
    if texts is not None:
        # Of the system, and no stream of the run's seed: after a start they shall not say what they said after the last one.
        drawn = secrets.randbits(64) if life is None else life
        openai = OpenAIRoutes(driver, texts, names, timeout_s, drawn)
        routes += [
            Route("/v1/models", openai.models, methods=["GET"]),
            Route("/v1/models/{name:path}", openai.model, methods=["GET"]),  # a name may have slashes
            Route("/v1/completions", openai.completions, methods=["POST"]),
            Route("/v1/chat/completions", openai.chat, methods=["POST"]),
        ]
    handlers: dict[Any, Any] = {
        ApiError: answer_api_error,
        HTTPException: answer_http_error,
        HeadraceError: answer_our_error,
        ClientGone: _nobody_reads_it,
        Exception: answer_any_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(ThrowsAwayTheRest)])
