"""The envelope of every object, and pydantic's errors as problems with paths people can follow.

Called by the routes and by the tests of `manifests/`. Stores nothing and asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from api.manifest import path_text
from daemon.domain.errors import AdmissionError, Problem
from daemon.domain.host import HostSpec
from daemon.domain.spec import ServingSpec
from daemon.domain.text import Model, ObjectName

API_VERSION = "stoker/v1"
Kind = Literal["Host", "ServingSpec"]
KINDS: dict[str, Kind] = {"hosts": "Host", "servingspecs": "ServingSpec"}
MAX_PROBLEMS = 50

_LABEL_PART = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_PART}\Z")
_LABEL_VALUE = re.compile(rf"({_LABEL_PART})?\Z")
_PARTS = {"": "apiVersion, kind, metadata and spec", "ClearRequest": "bootId and processes"}
_MESSAGES = {
    "extra_forbidden": "unknown key",
    "missing": "is needed",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
}
_PREFIXES = (
    ("Input should be ", "must be "),
    ("String should have at most", "must have at most"),
    ("String should have at least", "must have at least"),
    ("String should match pattern", "has characters or a form that is not allowed; it must match"),
    ("Tuple should have", "must have"),
    ("Dictionary should have", "must have"),
)


def _label_key(text: str) -> str:
    if not _LABEL_KEY.match(text):
        raise ValueError("a label's key is [prefix/]name of at most 63 letters, digits, '-', '_' and '.'")
    return text


def _label_value(text: str) -> str:
    if not _LABEL_VALUE.match(text):
        raise ValueError("a label's value is at most 63 letters, digits, '-', '_' and '.'")
    return text


LabelKey = Annotated[str, Field(max_length=317), AfterValidator(_label_key)]
LabelValue = Annotated[str, Field(max_length=63), AfterValidator(_label_value)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]

Spec = TypeVar("Spec", HostSpec, ServingSpec)


class Metadata(Model):
    """Name and labels. The rest is the daemon's: accepted so that what `get` printed can be applied, and checked."""

    name: ObjectName
    labels: Labels = Field(default_factory=dict)
    uid: Annotated[str, Field(max_length=64)] | None = None
    resource_version: Annotated[int, Field(ge=0)] | None = None
    generation: Annotated[int, Field(ge=0)] | None = None
    creation_timestamp: Annotated[str, Field(max_length=40)] | None = None
    update_timestamp: Annotated[str, Field(max_length=40)] | None = None
    deletion_timestamp: Annotated[str, Field(max_length=40)] | None = None


class Envelope(Model, Generic[Spec]):
    """One object as people write it. `status` is the daemon's alone: accepted and dropped."""

    api_version: Literal["stoker/v1"]
    kind: Kind
    metadata: Metadata
    spec: Spec
    status: dict[str, Any] | None = None


class HostManifest(Envelope[HostSpec]):
    """A Host as applied."""

    kind: Literal["Host"]


class SpecManifest(Envelope[ServingSpec]):
    """A ServingSpec as applied."""

    kind: Literal["ServingSpec"]


class ProcessIdentity(Model):
    """A process as `strays` listed it: the pid alone may be another process by now."""

    pid: Annotated[int, Field(ge=2, le=2**22, examples=[41233])]
    start_ticks: Annotated[int, Field(ge=0, le=2**63 - 1, examples=[8812345])]


class ClearRequest(Model):
    """Which processes a person asks to clear, of which boot of the host."""

    boot_id: Annotated[
        str,
        Field(max_length=64, pattern=r"^[0-9a-fA-F-]{8,64}$", examples=["2b0a9a9f-6f0c-4c58-9c22-6d1f0a3f7c11"]),
    ]
    processes: Annotated[list[ProcessIdentity], Field(min_length=1, max_length=256)]


Manifest = HostManifest | SpecManifest
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "Host": TypeAdapter(HostManifest),
    "ClearRequest": TypeAdapter(ClearRequest),
    "ServingSpec": TypeAdapter(SpecManifest),
}


def parse_host(document: Any) -> HostManifest:
    """A document as Host. Raises: AdmissionError."""
    result: HostManifest = _parse("Host", document)
    return result


def parse_spec(document: Any) -> SpecManifest:
    """A document as ServingSpec. Raises: AdmissionError."""
    result: SpecManifest = _parse("ServingSpec", document)
    return result


def parse_clear(document: Any) -> ClearRequest:
    """A document as what a person asks to clear. Raises: AdmissionError."""
    result: ClearRequest = _parse("ClearRequest", document)
    return result


def parse_manifest(document: Any) -> Manifest:
    """A document as whatever kind it names. Raises: AdmissionError."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "Host":
        return parse_host(document)
    if kind == "ServingSpec":
        return parse_spec(document)
    raise AdmissionError([Problem("kind", "must be Host or ServingSpec")])


def dump_spec(spec: HostSpec | ServingSpec) -> dict[str, Any]:
    """The spec with every default written in, as it is stored and shown."""
    dumped: dict[str, Any] = spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    return dumped


def load_spec(kind: str, stored: Mapping[str, Any]) -> HostSpec | ServingSpec:
    """A stored spec read back. Raises: pydantic.ValidationError when the store holds what this version refuses."""
    model = HostSpec if kind == "Host" else ServingSpec
    return model.model_validate(dict(stored), by_alias=True, by_name=False)


def _parse(kind: str, document: Any) -> Any:
    if not isinstance(document, dict):
        raise AdmissionError([Problem("", f"must be one object with {_PARTS.get(kind, _PARTS[''])}")])
    try:
        return _ADAPTERS[kind].validate_python(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise AdmissionError(problems_of(error, document)) from None


def problems_of(error: ValidationError, document: Any) -> list[Problem]:
    """One problem for each wrong place, in the document's own words; bounded in number and length."""
    places: dict[str, list[dict[str, Any]]] = {}
    for item in error.errors(include_url=False, include_context=False):
        places.setdefault(path_text(_place(item, document)), []).append(dict(item))
    return [_problem(path, items) for path, items in list(places.items())[:MAX_PROBLEMS]]


def _place(item: Mapping[str, Any], document: Any) -> tuple[str | int, ...]:
    """pydantic's location without the names of union members, which are not in the document."""
    node, path = document, []
    for part in item["loc"]:
        if _holds(node, part):
            node = node[part]
        elif item["type"] != "missing" or part != item["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _holds(node: Any, part: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(part, int) and part < len(node)
    return isinstance(node, dict) and part in node


def _problem(path: str, items: list[dict[str, Any]]) -> Problem:
    """Of a union's several complaints about one value, the one about its content is the useful one."""
    telling = [item for item in items if not item["type"].endswith("_type")]
    if not telling and len(items) > 1:
        return Problem(path, "must be text, a number, true, false or a list of texts")
    item = (telling or items)[0]
    return Problem(path, _message(item), _hint(item))


def _message(item: Mapping[str, Any]) -> str:
    if (fixed := _MESSAGES.get(item["type"])) is not None:
        return fixed
    text = str(item["msg"]).removeprefix("Value error, ")
    for prefix, ours in _PREFIXES:
        if text.startswith(prefix):
            text = ours + text.removeprefix(prefix)
    return text[:300]


def _hint(item: Mapping[str, Any]) -> str:
    if item["type"] == "string_type" and isinstance(item.get("input"), int | float | bool):
        return 'quote it, as in "1"'
    if item["type"] == "extra_forbidden" and "_" in str(item["loc"][-1])[:64]:
        return "keys are camelCase"
    return ""
