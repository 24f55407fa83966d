"""Holds every answer that a test gets to what the OpenAPI document says of its route."""

from __future__ import annotations

import re

import httpx

from api.answers import ProblemAnswer
from api.openapi import ROUTES, Documented


def documented(method: str, path: str) -> Documented | None:
    """What is said of that route; None when there is none."""
    for (template, its), said in ROUTES.items():
        if its == method.lower() and re.fullmatch(template.replace("{name}", "[^/]+"), path):
            return said
    return None


async def hold(answer: httpx.Response) -> None:
    """Its status is among those named, and its body is what stands there, without a key more."""
    said = documented(answer.request.method, answer.request.url.path)
    if said is None:
        return
    await answer.aread()
    if answer.status_code in said.errors:
        ProblemAnswer.model_validate_json(answer.content)
        return
    assert answer.status_code in said.answers, (answer.request.method, answer.request.url, answer.status_code)
    model = said.answers[answer.status_code]
    if model is not None:
        model.model_validate_json(answer.content)
