"""What the routes of both kinds share: showing, listing, and the order of an admission (read all, judge, write one)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from api.problems import RequestError, member
from api.schemas import API_VERSION, HostManifest, Kind, SpecManifest, dump_spec, load_spec
from api.seams import Context
from daemon.domain.errors import AdmissionError, Conflict, Problem, StoreError
from daemon.domain.host import HostSpec
from daemon.domain.spec import ServingSpec
from daemon.store import StoredObject, StoredStatus

MAX_ACTOR = 128


@dataclass(frozen=True, slots=True)
class Declared:
    """All that is declared now. `leaving` are the specs being deleted; they are not in `specs`."""

    hosts: Mapping[str, HostSpec]
    specs: Mapping[str, ServingSpec]
    leaving: Mapping[str, ServingSpec]


async def declared(context: Context) -> Declared:
    """Every declared object. Raises: StoreError when the store holds one this version cannot read."""
    hosts = [item for item in await context.store.list("Host") if item.deleted_at is None]
    specs = await context.store.list("ServingSpec")
    return Declared(
        hosts={item.name: spec for item in hosts if isinstance(spec := _spec_of(item), HostSpec)},
        specs=_serving([item for item in specs if item.deleted_at is None]),
        leaving=_serving([item for item in specs if item.deleted_at is not None]),
    )


async def put(
    context: Context,
    request: Request,
    name: str,
    manifest: HostManifest | SpecManifest,
    judge: Callable[[Declared], list[Problem]],
    warnings: Sequence[Problem] = (),
) -> tuple[JSONResponse, StoredObject | None]:
    """Admit and store one manifest; the answer, and the object as it was before. Raises: AdmissionError, Conflict."""
    if manifest.metadata.name != name:
        problem = Problem("metadata.name", f"is {manifest.metadata.name}, the address says {name[:60]}")
        raise AdmissionError([problem])
    async with context.admission:
        before = await context.store.find(manifest.kind, name)
        if before is not None:
            _check_current(before, manifest)
        if problems := judge(await declared(context)):
            raise AdmissionError(problems)
        result = await context.store.put(
            manifest.kind,
            name,
            _as_stored(manifest, before),
            dict(manifest.metadata.labels),
            actor=actor_of(request),
            now=context.now(),
        )
    body = show(result.object, await context.store.status(manifest.kind, result.object.uid))
    status = 201 if result.outcome == "created" else 200
    if warnings:
        body["warnings"] = [member(item) for item in warnings]
    return JSONResponse(body, status_code=status, headers={"Stoker-Outcome": result.outcome}), before


async def shown(context: Context, kind: Kind, name: str) -> dict[str, Any]:
    """One object with its status. Raises: NotFound."""
    item = await context.store.get(kind, name)
    return show(item, await context.store.status(kind, item.uid))


async def listed(context: Context, kind: Kind, selector: str) -> dict[str, Any]:
    """All objects of a kind whose labels match, by name."""
    items = await context.store.list(kind, selector_of(selector))
    statuses = await context.store.statuses(kind)
    found = [show(item, statuses.get(item.uid)) for item in items]
    return {"apiVersion": API_VERSION, "kind": f"{kind}List", "items": found}


def show(item: StoredObject, status: StoredStatus | None) -> dict[str, Any]:
    """An object as the API gives it."""
    metadata: dict[str, Any] = {
        "name": item.name,
        "labels": item.labels,
        "uid": item.uid,
        "generation": item.generation,
        "resourceVersion": item.resource_version,
        "creationTimestamp": item.created_at.isoformat(),
        "updateTimestamp": item.updated_at.isoformat(),
    }
    if item.deleted_at is not None:
        metadata["deletionTimestamp"] = item.deleted_at.isoformat()
    body = {"apiVersion": API_VERSION, "kind": item.kind, "metadata": metadata, "spec": item.spec}
    return body | {"status": _show_status(status)}


def selector_of(text: str) -> dict[str, str]:
    """`rack=r1,tier=gold` as a mapping; all must hold. Raises: RequestError."""
    wanted: dict[str, str] = {}
    for term in filter(None, (part.strip() for part in text.split(","))):
        key, sign, value = term.partition("=")
        if not sign or not key or "=" in value.removeprefix("=") or key.endswith("!"):
            raise RequestError(400, f"labelSelector: {term[:80]!r} is not KEY=VALUE", "write rack=r1,tier=gold")
        wanted[key] = value.removeprefix("=")
    return wanted


def actor_of(request: Request) -> str:
    """Who says they ask: kept in the history as said; the token alone decides what is allowed."""
    said = request.headers.get("stoker-actor", "")[:MAX_ACTOR]
    return said if said and said.isprintable() else "api"


def _as_stored(manifest: HostManifest | SpecManifest, before: StoredObject | None) -> dict[str, Any]:
    """What to store: as it is stored already where it says the same, since an older version did not know all keys."""
    said = dump_spec(manifest.spec)
    same = before is not None and dump_spec(_spec_of(before)) == said
    return before.spec if before is not None and same else said


def _check_current(before: StoredObject, manifest: HostManifest | SpecManifest) -> None:
    said = manifest.metadata
    if before.deleted_at is not None:
        raise Conflict(f"{before.kind} {before.name} is being deleted: apply it again when it is gone")
    if said.uid is not None and said.uid != before.uid:
        raise Conflict(
            f"{before.kind} {before.name} is another object of that name now: remove metadata.uid to change it"
        )
    if said.resource_version is not None and said.resource_version != before.resource_version:
        raise Conflict(
            f"{before.kind} {before.name} changed since it was read (resourceVersion {before.resource_version}, "
            f"given {said.resource_version}): read it again, or remove metadata.resourceVersion to overwrite it"
        )


def _show_status(status: StoredStatus | None) -> dict[str, Any]:
    if status is None:
        return {"conditions": []}
    conditions = [
        {
            "type": item.type,
            "status": item.status,
            "reason": item.reason,
            "message": item.message,
            "observedGeneration": item.observed_generation,
            "lastTransitionTime": item.last_transition_time.isoformat(),
        }
        for item in status.conditions
    ]
    return {**status.status, "conditions": conditions}


def _spec_of(item: StoredObject) -> HostSpec | ServingSpec:
    try:
        return load_spec(item.kind, item.spec)
    except ValidationError as error:
        raise StoreError(f"stored {item.kind} {item.name} cannot be read by this version: {error}") from error


def _serving(items: list[StoredObject]) -> dict[str, ServingSpec]:
    return {item.name: spec for item in items if isinstance(spec := _spec_of(item), ServingSpec)}
