"""What a client is told when it does not get what it asked for, in the form of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.core.errors import HeadraceError, RunDirectoryError, SnapshotCorrupt
from headrace.llm.messages import Failure

SHOWN = 200
"""Characters of a name that nobody knows, told to whoever sent it."""

STATUS_OF = {
    "too_long": 400,
    "empty": 400,
    "refused": 400,
    "busy": 503,
    "stopping": 503,
    "weights": 503,
    "timeout": 504,
}
"""HTTP status by the reason of a failure; 500 for others."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP.
        message: For people.
        param: The field of the request it is about.
        code: For programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @classmethod
    def of_failure(cls, failure: Failure, params: Mapping[str, str] | None = None) -> ApiError:
        """That of a completion that did not come about.

        Args:
            failure: Why not.
            params: What the route calls the fields of a `GenerationRequest`, where it has another name for them.
        """
        code = "context_length_exceeded" if failure.reason == "too_long" else failure.reason
        param = (params or {}).get(failure.about, failure.about) or None
        return cls(STATUS_OF.get(failure.reason, 500), failure.detail or failure.reason, param=param, code=code)

    @classmethod
    def of_validation(cls, error: ValidationError) -> ApiError:
        """That of a body that is not what the route takes; the first thing that is wrong with it."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            return cls(400, f"the body is not JSON: {first['msg']}", code="invalid_json")
        # A union names its branch after the field, which nobody who sent the request knows.
        param = ".".join(str(part) for part in first["loc"] if "[" not in str(part)) or None
        return cls(400, f"{param or 'the body'}: {first['msg']}", param=param, code="invalid_value")

    def body(self) -> dict[str, Any]:
        """As JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """For the client."""
        return JSONResponse(self.body(), status_code=self.status)


def answer_api_error(request: Request, error: Exception) -> Response:
    """Handler for `ApiError`."""
    del request
    assert isinstance(error, ApiError)
    return error.response()


def answer_http_error(request: Request, error: Exception) -> Response:
    """Handler for what the router refuses."""
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()


def answer_our_error(request: Request, error: Exception) -> Response:
    """Handler for errors with a code of ours; the route did nothing, or says so."""
    del request
    assert isinstance(error, HeadraceError)
    status = 422 if isinstance(error, SnapshotCorrupt | RunDirectoryError) else 500
    return ApiError(status, str(error), code=error.code).response()


async def answer_any_error(request: Request, error: Exception) -> Response:
    """Handler for what nobody expected; its trace goes into the log."""
    del request
    return ApiError(500, f"{type(error).__name__}: {error}", code="unexpected").response()
