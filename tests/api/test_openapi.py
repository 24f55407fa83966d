"""The OpenAPI document says of every route what it is for, what it takes, what it answers and how it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from api.openapi import ROUTES
from tests.api.api_stage import Api
from tests.api.documented import documented

OPERATIONS = sorted(ROUTES)


@pytest.fixture
async def schema(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.http.get("/openapi.json")).json()
    return found


async def test_every_route_is_documented_and_nothing_else(schema: dict[str, Any]) -> None:
    assert {(path, method) for path, its in schema["paths"].items() for method in its} == set(ROUTES)
    assert documented("GET", "/api/v1/hosts/gpu-a/strays") is ROUTES["/api/v1/hosts/{name}/strays", "get"]


async def test_every_operation_says_what_it_is_for_and_how_it_refuses(schema: dict[str, Any]) -> None:
    for path, method in OPERATIONS:
        operation = schema["paths"][path][method]
        assert 2 < len(operation["summary"]) < 110, operation["summary"]
        assert "\n" not in operation["summary"]
        statuses = set(operation["responses"])
        assert statuses & {"200", "202", "204"}, (path, method)
        assert ("401" in statuses) == (path not in ("/livez", "/readyz"))
        assert ("404" in statuses) == ("{name}" in path and method != "put"), (path, method)
        if path in ("/livez", "/readyz"):
            assert operation["security"] == []


async def test_every_schema_that_is_named_is_there(schema: dict[str, Any]) -> None:
    named = set(_refs(schema))
    there = {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}
    assert named == there
    assert "#/components/schemas/HTTPValidationError" not in there


async def test_the_examples_of_bodies_are_accepted(api: Api, schema: dict[str, Any]) -> None:
    for kind, name, status in (("hosts", "gpu-a", 201), ("servingspecs", "llama", 201)):
        put = schema["paths"][f"/api/v1/{kind}/{{name}}"]["put"]
        example = put["requestBody"]["content"]["application/json"]["example"]
        answer = await api.http.put(f"/api/v1/{kind}/{name}", json=example)
        assert answer.status_code == status, answer.text
    clear = schema["paths"]["/api/v1/hosts/{name}/strays/clear"]["post"]["requestBody"]["content"]["application/json"]
    refused = await api.http.post("/api/v1/hosts/gpu-a/strays/clear", json=clear["example"])
    assert (refused.status_code, refused.json()["detail"]) == (409, "gpu-a has not been looked at yet: try again")


def _refs(node: Any) -> list[str]:
    if isinstance(node, dict):
        here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return here + [ref for value in node.values() for ref in _refs(value)]
    return [ref for value in node for ref in _refs(value)] if isinstance(node, list) else []
