"""The application: routes under `/api/v1`, errors as problems, the token in front. Made once, by `serve`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.auth import BearerAuth
from api.problems import handle_problems
from api.routes import events, health, hosts, servingspecs
from api.seams import Context

PREFIX = "/api/v1"


class Application(FastAPI):
    """FastAPI with our schema."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            from api.openapi import document  # noqa: PLC0415 - few ask for it, and its models take memory

            self.openapi_schema = document(super().openapi())
        return self.openapi_schema


def create_app(context: Context, token: str) -> Application:
    """The ASGI application over an open store and a running controller."""
    app = Application(title="Stoker", version=context.version, docs_url=None, redoc_url=None)
    app.state.context = context
    app.include_router(health.router)
    for router in (hosts.router, servingspecs.router, events.router):
        app.include_router(router, prefix=PREFIX)
    handle_problems(app)
    app.add_middleware(BearerAuth, token=token)
    return app
