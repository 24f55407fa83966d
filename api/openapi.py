"""The OpenAPI document: what each route takes, what it answers, and how it refuses.

Imported when the document is asked for. Bodies are read by hand, bounded, and answers are plain objects, so both are
written in here; tests/api holds every answer of its tests to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import answers
from api.bodies import JSON_TYPES
from api.problems import MEDIA_TYPE, TITLES
from api.schemas import ClearRequest, HostManifest, SpecManifest

_GOOD = {200: "done", 201: "created", 202: "begun; it ends later", 204: "done; nothing to show"}
_BODY_ERRORS = (409, 413, 415, 422)
_HOST = {
    "apiVersion": "stoker/v1",
    "kind": "Host",
    "metadata": {"name": "gpu-a", "labels": {"rack": "r1"}},
    "spec": {"ssh": {"address": "192.0.2.10", "user": "root"}, "gpus": {"count": 8}, "mode": "observe"},
}
_SPEC = {
    "apiVersion": "stoker/v1",
    "kind": "ServingSpec",
    "metadata": {"name": "llama"},
    "spec": {
        "engine": {"name": "sglang", "python": "/opt/venv/bin/python"},
        "model": {"path": "/models/Llama-3.1-8B-Instruct"},
        "placement": {"host": "gpu-a", "gpus": [0]},
        "port": 30000,
    },
}
_CLEAR = {
    "bootId": "2b0a9a9f-6f0c-4c58-9c22-6d1f0a3f7c11",
    "processes": [{"pid": 41233, "startTicks": 8812345}],
}


@dataclass(frozen=True, slots=True)
class Documented:
    """One route: its good answers by status (None: no document), the statuses of its refusals, and its body."""

    answers: dict[int, type[BaseModel] | None]
    errors: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    example: dict[str, Any] = field(default_factory=dict)


def _got(model: type[BaseModel], *errors: int) -> Documented:
    return Documented({200: model}, (401, *errors))


ROUTES: dict[tuple[str, str], Documented] = {
    ("/livez", "get"): Documented({200: None}),
    ("/readyz", "get"): Documented({200: None}, (503,)),
    ("/metrics", "get"): Documented({200: None}, (401,)),
    ("/api/v1/version", "get"): _got(answers.Version),
    ("/api/v1/hosts", "get"): _got(answers.HostList, 400),
    ("/api/v1/hosts/{name}", "get"): _got(answers.ShownHost, 404),
    ("/api/v1/hosts/{name}", "put"): Documented(
        {200: answers.ShownHost, 201: answers.ShownHost}, (401, *_BODY_ERRORS), HostManifest, _HOST
    ),
    ("/api/v1/hosts/{name}", "delete"): Documented({204: None}, (401, 404, 409)),
    ("/api/v1/hosts/{name}/takeover", "post"): _got(answers.TakenOver, 404, 409, 502),
    ("/api/v1/hosts/{name}/doctor", "post"): _got(answers.Checks, 404),
    ("/api/v1/hosts/{name}/record", "post"): _got(answers.Recording, 404, 502),
    ("/api/v1/hosts/{name}/strays", "get"): _got(answers.StrayList, 400, 404),
    ("/api/v1/hosts/{name}/strays/clear", "post"): Documented(
        {202: answers.Cleared}, (401, 404, *_BODY_ERRORS), ClearRequest, _CLEAR
    ),
    ("/api/v1/servingspecs", "get"): _got(answers.ServingSpecList, 400),
    ("/api/v1/servingspecs/{name}", "get"): _got(answers.ShownSpec, 404),
    ("/api/v1/servingspecs/{name}", "put"): Documented(
        {200: answers.ShownSpec, 201: answers.ShownSpec}, (401, *_BODY_ERRORS), SpecManifest, _SPEC
    ),
    ("/api/v1/servingspecs/{name}", "delete"): Documented(
        {200: answers.Abandoned, 202: answers.ShownSpec}, (400, 401, 404)
    ),
    ("/api/v1/servingspecs/{name}/history", "get"): _got(answers.History, 404),
    ("/api/v1/events", "get"): _got(answers.EventList, 400),
    ("/api/v1/pause", "get"): _got(answers.Paused),
    ("/api/v1/pause", "put"): _got(answers.Paused),
    ("/api/v1/pause", "delete"): _got(answers.Paused),
}
_OPEN = frozenset({"/livez", "/readyz"})


def document(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's document with what it cannot know written in."""
    models: set[type[BaseModel]] = {answers.ProblemAnswer}
    models.update(model for route in ROUTES.values() for model in _models(route))
    refs, shared = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda its: its.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {model: refs[(model, "validation")] for model in models}
    schema["components"] = {
        "schemas": shared.get("$defs", {}),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    schema["security"] = [{"token": []}]
    for (path, method), route in ROUTES.items():
        _write(schema["paths"][path][method], route, schemas)
        if path in _OPEN:
            schema["paths"][path][method]["security"] = []
    return schema


def _models(route: Documented) -> list[type[BaseModel]]:
    return [model for model in (*route.answers.values(), route.body) if model is not None]


def _write(operation: dict[str, Any], route: Documented, schemas: dict[type[BaseModel], Any]) -> None:
    """Summary, body, answers and refusals of one route."""
    operation["summary"] = re.split(r"[.:;]( |$)", " ".join(operation["description"].split()), maxsplit=1)[0]
    responses: dict[str, Any] = {}
    for status, model in route.answers.items():
        said = operation["responses"].get(str(status), {}).get("content", {})
        content = {media: one for media, one in said.items() if media.startswith("text/")}
        if model is not None:
            content = {"application/json": {"schema": schemas[model]}}
        responses[str(status)] = {"description": _GOOD[status]} | ({"content": content} if content else {})
    for status in sorted(route.errors):
        problem = {MEDIA_TYPE: {"schema": schemas[answers.ProblemAnswer]}}
        responses[str(status)] = {"description": TITLES[status], "content": problem}
    operation["responses"] = responses
    if route.body is not None:
        media = {"schema": schemas[route.body], "example": route.example}
        types = (*sorted(JSON_TYPES), "application/yaml")
        operation["requestBody"] = {"required": True, "content": dict.fromkeys(types, media)}
