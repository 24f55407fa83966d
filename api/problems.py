"""Every refusal as RFC 9457 problem+json: what, where, what to do. The one place where `api` catches errors broadly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from daemon.domain.errors import (
    AdmissionError,
    Conflict,
    NotFound,
    Problem,
    StokerError,
    TransportError,
    VerbFailed,
    VerbRefused,
)

MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "bad request",
    401: "not authenticated",
    404: "not found",
    405: "method not allowed",
    409: "conflict",
    413: "body too large",
    415: "unsupported media type",
    422: "refused",
    500: "internal error",
    502: "the host did not do it",
    503: "not ready",
}


class RequestError(StokerError):
    """A request that is wrong before its manifest is looked at: its size, media type, address."""

    def __init__(self, status: int, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.hint = hint


def problem(status: int, detail: str, *, problems: Iterable[Problem] = (), hint: str = "") -> JSONResponse:
    """One problem+json answer; `errors` names every place that is wrong."""
    body: dict[str, Any] = {"type": "about:blank", "title": TITLES.get(status, "error"), "status": status}
    body["detail"] = detail[:4096]
    if hint:
        body["hint"] = hint
    if errors := [member(item) for item in problems]:
        body["errors"] = errors
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE)


def member(item: Problem) -> dict[str, str]:
    """One wrong place as it is sent."""
    return {"path": item.path, "message": item.message} | ({"hint": item.hint} if item.hint else {})


def handle_problems(app: FastAPI) -> None:
    """Make every error of `app` a problem."""
    app.add_exception_handler(StokerError, _stoker_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


async def _stoker_error(request: Request, error: Exception) -> JSONResponse:
    match error:
        case RequestError():
            return problem(error.status, str(error), hint=error.hint)
        case AdmissionError():
            return problem(422, str(error), problems=error.problems)
        case NotFound():
            return problem(404, str(error), hint="stoker get shows what is declared")
        case Conflict() | VerbRefused():
            return problem(409, str(error))
        case TransportError() | VerbFailed():
            return problem(502, str(error))
        case _:
            structlog.get_logger().error("request failed", path=request.url.path, error=str(error))
            return problem(500, str(error))


async def _bad_request(request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    problems = [Problem(".".join(map(str, item["loc"])), str(item["msg"])[:300]) for item in found]
    return problem(400, "; ".join(map(str, problems)), problems=problems)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "internal error"
    hint = "the routes are at /openapi.json" if status in (404, 405) else ""
    answer = problem(status, f"{request.method} {request.url.path[:200]}: {detail}", hint=hint)
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer


async def _bug(request: Request, error: Exception) -> JSONResponse:
    structlog.get_logger().exception("request failed", path=request.url.path, exc_info=error)
    return problem(500, f"{type(error).__name__}; the daemon's log has the traceback")
