"""Whether the daemon lives and works, and its figures. `/livez` and `/readyz` need no token and say nothing else."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from api.problems import problem
from api.seams import context_of

router = APIRouter(tags=["daemon"])


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """The process answers."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse)
async def readyz(request: Request) -> Response:
    """The daemon looks at its hosts; 503 before, and while it stops."""
    if context_of(request).hands.ready():
        return PlainTextResponse("ok\n")
    return problem(503, "the daemon does not look at its hosts yet, or stops")


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(context_of(request).metrics(), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/v1/version")
async def version(request: Request) -> dict[str, str]:
    """The daemon's version, and the uid of the store it works on."""
    context = context_of(request)
    return {"version": context.version, "store": context.store.uid}
