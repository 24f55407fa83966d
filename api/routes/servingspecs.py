"""ServingSpecs: declared, shown, deleted (or abandoned), and their history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from api.bodies import document_of
from api.routes.objects import actor_of, listed, put, show, shown
from api.schemas import API_VERSION, load_spec, parse_spec
from api.seams import Context, context_of
from daemon.domain.errors import NotFound
from daemon.domain.spec import ServingSpec
from daemon.engines.check import warnings
from daemon.planner.admission import admit_spec, hosts_of
from daemon.store import Leftovers, Revision, StoredObject, Tombstone

router = APIRouter(tags=["servingspecs"])


@router.get("/servingspecs")
async def list_specs(request: Request, labelSelector: str = "") -> dict[str, Any]:
    """All specs, by name. `labelSelector`: `rack=r1,tier=gold`, all must hold."""
    return await listed(context_of(request), "ServingSpec", labelSelector)


@router.get("/servingspecs/{name}")
async def get_spec(request: Request, name: str) -> dict[str, Any]:
    """One spec: declaration, conditions, instances, drift."""
    return await shown(context_of(request), "ServingSpec", name)


@router.put("/servingspecs/{name}")
async def put_spec(request: Request, name: str) -> JSONResponse:
    """Declare what should serve. An identical one changes nothing. `warnings` in the answer are for a person."""
    context = context_of(request)
    manifest = parse_spec(await document_of(request))
    answer, before = await put(
        context,
        request,
        name,
        manifest,
        lambda all_: admit_spec(name, manifest.spec, all_.specs, all_.hosts, all_.leaving),
        warnings(manifest.spec),
    )
    _poke(context, {*hosts_of(manifest.spec), *(_hosts_of_stored(before) if before else ())})
    return answer


@router.delete("/servingspecs/{name}")
async def delete_spec(request: Request, name: str, abandon: bool = False) -> JSONResponse:
    """Stop and remove what this spec runs; answered at once, done when the object is gone.

    `abandon=true` drops the object now and lists what was left on hosts: nothing is stopped, nothing more is tried.
    """
    context = context_of(request)
    async with context.admission:
        item = await context.store.delete("ServingSpec", name, context.now(), actor=actor_of(request))
        left = await _abandon(context, item, actor_of(request)) if abandon else None
    _poke(context, _hosts_of_stored(item))
    if left is not None:
        return JSONResponse({"abandoned": name, "left": left})
    return JSONResponse(show(item, await context.store.status("ServingSpec", item.uid)), status_code=202)


@router.get("/servingspecs/{name}/history")
async def spec_history(request: Request, name: str) -> dict[str, Any]:
    """Every generation ever declared under this name, oldest first, and how earlier objects of that name ended."""
    store = context_of(request).store
    revisions = await store.history("ServingSpec", name)
    if not revisions:
        raise NotFound(f"no ServingSpec was ever named {name[:60]}")
    ended = [item for item in await store.tombstones() if item.kind == "ServingSpec" and item.name == name]
    return {
        "apiVersion": API_VERSION,
        "kind": "History",
        "revisions": [_revision(item) for item in revisions],
        "deletions": [_deletion(item) for item in ended],
    }


def _poke(context: Context, hosts: Iterable[str]) -> None:
    for host in hosts:
        context.hands.poke(host)


def _hosts_of_stored(item: StoredObject) -> tuple[str, ...]:
    spec = load_spec(item.kind, item.spec)
    return hosts_of(spec) if isinstance(spec, ServingSpec) else ()


async def _abandon(context: Context, item: StoredObject, actor: str) -> list[dict[str, str]]:
    """End the deletion now; what is left on hosts, as this store last knew it."""
    instances = await context.store.instances(spec_uid=item.uid)
    left = [{"host": its.host, "unit": its.unit, "role": its.role, "path": its.path} for its in instances]
    leftovers = Leftovers(
        units=tuple(its.unit for its in instances),
        hosts=tuple(dict.fromkeys(its.host for its in instances)),
        abandoned=True,
        detail={"by": actor, "left": left},
    )
    await context.store.finish_delete("ServingSpec", item.uid, leftovers, now=context.now())
    return left


def _revision(item: Revision) -> dict[str, Any]:
    return {
        "uid": item.uid,
        "generation": item.generation,
        "actor": item.actor,
        "timestamp": item.at.isoformat(),
        "spec": item.spec,
    }


def _deletion(item: Tombstone) -> dict[str, Any]:
    return {
        "uid": item.uid,
        "generation": item.generation,
        "timestamp": item.at.isoformat(),
        "abandoned": item.abandoned,
        "units": list(item.units),
        "hosts": list(item.hosts),
        "leftovers": item.leftovers,
    }
