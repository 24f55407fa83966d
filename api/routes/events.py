"""What happened, and whether anything may happen at all: events and the pause."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from api.routes.objects import actor_of
from api.schemas import API_VERSION, Kind
from api.seams import Context, context_of
from daemon.store import StoredEvent

router = APIRouter(tags=["events"])
Limit = Annotated[int, Query(ge=1, le=1000)]
# SQLite's integers end there.
After = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


@router.get("/events")
async def list_events(
    request: Request, kind: Kind | None = None, name: str | None = None, limit: Limit = 100, after: After = None
) -> dict[str, Any]:
    """The last events, newest first; with `after` (an event's id) those first said after it, oldest first."""
    found = await context_of(request).store.events(kind, name, limit=limit, after_id=after)
    return {"apiVersion": API_VERSION, "kind": "EventList", "items": [_event(item) for item in found]}


@router.get("/pause")
async def get_pause(request: Request) -> dict[str, Any]:
    """Whether everything is paused, since when and by whom."""
    return await _pause(context_of(request))


@router.put("/pause")
async def pause(request: Request) -> dict[str, Any]:
    """Change nothing on any host until resumed; looking goes on. Pausing again keeps the first time."""
    context = context_of(request)
    await context.store.set_paused(True, actor_of(request), context.now())
    await _poke_all(context)
    return await _pause(context)


@router.delete("/pause")
async def resume(request: Request) -> dict[str, Any]:
    """Let changes be made again."""
    context = context_of(request)
    await context.store.set_paused(False, actor_of(request), context.now())
    await _poke_all(context)
    return await _pause(context)


async def _poke_all(context: Context) -> None:
    for host in await context.store.list("Host"):
        context.hands.poke(host.name)


async def _pause(context: Context) -> dict[str, Any]:
    found = await context.store.paused()
    if found is None:
        return {"paused": False}
    return {"paused": True, "by": found.by, "since": found.since.isoformat()}


def _event(item: StoredEvent) -> dict[str, Any]:
    return {
        "id": item.id,
        "kind": item.kind,
        "name": item.name,
        "severity": item.severity,
        "reason": item.reason,
        "message": item.message,
        "action": item.action,
        "result": item.result,
        "evidence": item.evidence,
        "count": item.count,
        "firstTimestamp": item.first_seen.isoformat(),
        "lastTimestamp": item.last_seen.isoformat(),
    }
