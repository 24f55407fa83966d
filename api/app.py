"""The application: routes under `/api/v1`, errors as problems, the token in front. Made once, by `serve`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.auth import BearerAuth
from api.bodies import JSON_TYPES
from api.problems import handle_problems
from api.routes import events, health, hosts, servingspecs
from api.schemas import ClearRequest, HostManifest, SpecManifest
from api.seams import Context

PREFIX = "/api/v1"
_BODIES: dict[tuple[str, str], type[BaseModel]] = {
    (f"{PREFIX}/hosts/{{name}}", "put"): HostManifest,
    (f"{PREFIX}/servingspecs/{{name}}", "put"): SpecManifest,
    (f"{PREFIX}/hosts/{{name}}/strays/clear", "post"): ClearRequest,
}


class Application(FastAPI):
    """FastAPI with our schema: bodies are read by hand, bounded, so their schemas are written in by hand too."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = _with_bodies(super().openapi())
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


def _with_bodies(schema: dict[str, Any]) -> dict[str, Any]:
    refs, shared = models_json_schema(
        [(model, "validation") for model in _BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {}).update(shared.get("$defs", {}))
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    for (path, method), model in _BODIES.items():
        content = {"schema": refs[(model, "validation")]}
        schema["paths"][path][method]["requestBody"] = {
            "required": True,
            "content": {media: content for media in (*sorted(JSON_TYPES), "application/yaml")},
        }
    return schema
