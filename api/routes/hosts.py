"""Hosts: what is declared of them, and what a person asks of one: doctor, record, takeover, strays, to clear some."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.bodies import document_of
from api.problems import problem
from api.routes.objects import actor_of, declared, listed, put, shown
from api.schemas import API_VERSION, parse_clear, parse_host
from api.seams import context_of
from daemon.asked import Refusal
from daemon.domain.errors import Conflict, Problem
from daemon.domain.observation import ProcessId
from daemon.planner.admission import admit_host, admit_host_deletion

router = APIRouter(tags=["hosts"])


@router.get("/hosts")
async def list_hosts(request: Request, labelSelector: str = "") -> dict[str, Any]:
    """All hosts, by name. `labelSelector`: `rack=r1,tier=gold`, all must hold."""
    return await listed(context_of(request), "Host", labelSelector)


@router.get("/hosts/{name}")
async def get_host(request: Request, name: str) -> dict[str, Any]:
    """One host: declaration, conditions, and the plan that would run or runs."""
    return await shown(context_of(request), "Host", name)


@router.put("/hosts/{name}")
async def put_host(request: Request, name: str) -> JSONResponse:
    """Declare a host. A new one is in mode observe unless it says otherwise: looked at, never changed."""
    context = context_of(request)
    manifest = parse_host(await document_of(request))
    answer, _ = await put(
        context, request, name, manifest, lambda all_: admit_host(name, manifest.spec, all_.hosts, all_.specs)
    )
    context.hands.poke(name)
    return answer


@router.delete("/hosts/{name}")
async def delete_host(request: Request, name: str) -> Response:
    """Forget a host on which no spec is placed. Nothing is changed on it."""
    context = context_of(request)
    async with context.admission:
        item = await context.store.get("Host", name)
        all_ = await declared(context)
        if problems := admit_host_deletion(name, all_.hosts, {**all_.leaving, **all_.specs}):
            raise Conflict(f"host {name} is in use: " + "; ".join(f"{its.message}: {its.hint}" for its in problems))
        await context.store.delete("Host", name, context.now(), actor=actor_of(request))
        await context.store.finish_delete("Host", item.uid, now=context.now())
    context.hands.poke(name)
    return Response(status_code=204)


@router.post("/hosts/{name}/takeover")
async def take_host_over(request: Request, name: str) -> dict[str, Any]:
    """Take the host's fence whoever holds it: for a person who knows that the other daemon or store is gone."""
    context = context_of(request)
    await context.store.get("Host", name)
    result = await context.hands.takeover(name, actor=actor_of(request))
    context.hands.poke(name)
    return result


@router.post("/hosts/{name}/doctor")
async def examine_host(request: Request, name: str) -> dict[str, Any]:
    """Each thing a host needs: whether it is there, and what to do where it is not. Changes nothing."""
    context = context_of(request)
    await context.store.get("Host", name)
    return {"host": name, "checks": list(await context.hands.doctor(name))}


@router.get("/hosts/{name}/strays")
async def list_strays(request: Request, name: str, all: bool = False) -> dict[str, Any]:
    """Who holds GPUs, needed ports and managed cgroups there, as last seen.

    Each process with whose it is, by what proof, and what is done about it; `items` is null where that is not known.
    `all=true` adds the managed ones.
    """
    context = context_of(request)
    await context.store.get("Host", name)
    found = context.hands.strays.list(name, managed=all)
    return {"apiVersion": API_VERSION, "kind": "StrayList", **found}


@router.post("/hosts/{name}/strays/clear", status_code=202)
async def clear_strays(request: Request, name: str) -> JSONResponse:
    """Clear orphans by a person's word, which stands in for policy and budget alone: nothing else is ever signalled.

    Answered at once (202): list the strays to see them go. 409 when none of them may be cleared, with each reason.
    """
    context = context_of(request)
    asked = parse_clear(await document_of(request))
    await context.store.get("Host", name)
    wanted = [ProcessId(its.pid, its.start_ticks) for its in asked.processes]
    answer = await context.hands.strays.ask(name, asked.boot_id, wanted, actor_of(request))
    if not answer.accepted:
        errors = [_problem(wanted, refusal) for refusal in answer.refused]
        return problem(409, "nothing is cleared: " + "; ".join(map(str, answer.refused)), problems=errors)
    body = {
        "host": name,
        "accepted": [_identity(identity) for identity in answer.accepted],
        "refused": [
            {**_identity(its.process), "reason": str(its.reason), "detail": its.detail} for its in answer.refused
        ],
    }
    return JSONResponse(body, status_code=202)


def _identity(identity: ProcessId) -> dict[str, int]:
    return {"pid": identity.pid, "startTicks": identity.start_ticks}


def _problem(wanted: list[ProcessId], refusal: Refusal) -> Problem:
    return Problem(f"processes[{wanted.index(refusal.process)}]", str(refusal))


@router.post("/hosts/{name}/record")
async def record_host(request: Request, name: str) -> dict[str, Any]:
    """One look at the host, section by section, secrets taken out: what `stoker replay` reads. Changes nothing."""
    context = context_of(request)
    await context.store.get("Host", name)
    return await context.hands.record(name)
