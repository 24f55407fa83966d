"""A request's body as one document: its size bounded while it arrives, JSON or YAML by its media type."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from api.manifest import MAX_BYTES, read_json, read_yaml, refuse
from api.problems import RequestError

JSON_TYPES = frozenset({"application/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})


async def document_of(request: Request) -> Any:
    """The one document of the body. Raises: RequestError (413, 415), AdmissionError on bad or several documents."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in JSON_TYPES | YAML_TYPES:
        raise RequestError(
            415, f"content type {media[:80]!r} is not known", "send application/json or application/yaml"
        )
    body = await bounded_body(request)
    if media in JSON_TYPES:
        return read_json(body)
    documents = read_yaml(body)
    if len(documents) != 1:
        raise refuse(
            (), f"{len(documents)} documents in one request", "send one object a request; stoker apply splits them"
        )
    return documents[0]


async def bounded_body(request: Request) -> bytes:
    """The body, never more than MAX_BYTES of it in memory. Raises: RequestError(413)."""
    too_large = RequestError(413, f"the body is larger than {MAX_BYTES} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > MAX_BYTES:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise too_large
    return bytes(body)
