"""What a person asks of one host besides its declaration: to take it over, and to keep one look at it.

Called by `controller` for the API, and by `stoker record -f` without any daemon.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from daemon import __version__
from daemon.declared import HostDeclaration, declaration
from daemon.domain.errors import NotFound, TransportError, VerbFailed
from daemon.domain.host import HostSpec
from daemon.domain.observation import Fence, Observation, Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Event, Reason
from daemon.lease import take_fence
from daemon.memory import HostMemory
from daemon.observe import LEFTOVERS_FROM, Wanted, observe
from daemon.planner.world import Declared
from daemon.probes.report import Cut, Section, parse_partial
from daemon.reconcile import wanted
from daemon.recording.keep import recording_json
from daemon.store import Store
from daemon.store.rows import StoredObject
from daemon.verbs import Asks, request

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ByHand:
    """Clocks, and how long a look may take."""

    clock: Callable[[], float]
    wall: Callable[[], datetime]
    look_timeout_s: float


async def take_over(store: Store, road: Asks, host: StoredObject, ours: Fence, by: ByHand, *, actor: str) -> Json:
    """Swap the host's fence for ours whoever holds it, and take its present identity for good. Raises: StokerError."""
    name = host.name
    look = await observe(road, name, Wanted(), at_s=by.clock(), timeout_s=by.look_timeout_s)
    if isinstance(look, Unknown):
        raise TransportError(look.reason, f"{name} could not be looked at: {look.detail}")
    if isinstance(look.fence, Unknown):
        raise VerbFailed(1, f"the fence on {name} could not be read: {look.fence.detail}")
    uuids = () if isinstance(look.gpus, Unknown) else tuple(gpu.uuid for gpu in look.gpus)
    identity = look.identity
    await store.note_identity(host.uid, identity.machine_id, identity.container, uuids, by.wall(), replace=True)
    refused = None if look.fence == ours else await take_fence(road, look.fence, ours)
    if refused is not None:
        raise VerbFailed(1, f"{name} refused the takeover: {refused}")
    said = Event(Reason.OK, f"{actor} took {name} over", "Host", name, action="takeover", result="ok")
    await store.add_event(said, by.wall())
    before = None if look.fence is None else asdict(look.fence)
    return {"host": name, "before": before, "now": asdict(ours)}


async def record_look(store: Store, road: Asks, name: str, memory: HostMemory, by: ByHand) -> Json:
    """One look for what is declared here, and what the store and this daemon know. Raises: StokerError."""
    declared = await declaration(store, name)
    if declared is None:
        raise NotFound(f"Host {name} does not exist")
    helper = memory.look.helper if isinstance(memory.look, Observation) else 0
    asked = whole(wanted(declared.declared, declared.retired), helper)
    return await look_json(road, name, asked, by, _knows(store.uid, declared, memory))


def whole(asked: Wanted, helper: int) -> Wanted:
    """With all that this version of the helper can tell, also what the daemon asks for at times only."""
    return replace(asked, leftovers=helper >= LEFTOVERS_FROM)


async def look_json(road: Asks, name: str, asked: Wanted, by: ByHand, knows: Json) -> Json:
    """One look as a recording, also one that was cut on the way. Raises: TransportError when nothing came at all."""
    nonce, began = secrets.token_hex(16), by.clock()
    lines = asked.lines(int(by.look_timeout_s * 500))
    raw = await road.call("observe", request(nonce, lines), by.look_timeout_s)
    took_ms, found = round((by.clock() - began) * 1000), parse_partial(raw, nonce)
    cut = isinstance(found, Cut)
    sections: Mapping[str, Section] = found.sections
    if isinstance(found, Cut) and not sections:
        raise TransportError(found.why.reason, found.why.detail)
    head = {"takenAt": by.wall().isoformat(), "takenBy": f"stoker {__version__}", "tookMs": took_ms}
    if not isinstance(found, Cut):
        head["exitStatus"] = found.exit_status
    return recording_json(name, sections, complete=not cut, helper=found.version, head=head, knows=knows)


def _knows(store_uid: str, declared: HostDeclaration, memory: HostMemory) -> Json:
    return {
        "store": store_uid,
        "manifests": [_host(declared), *_specs(declared)],
        "instances": [found for one in declared.declared if (found := _instance(one)) is not None],
        "held": sorted(memory.held_before),
        "serves": {str(one.pid): fact.serves for one, fact in memory.strays.items() if fact.serves is not None},
        "gpus": list(memory.known_gpus),
    }


def _host(declared: HostDeclaration) -> Json:
    return _manifest("Host", declared.object.name, declared.object.uid, declared.object.generation, declared.spec)


def _specs(declared: HostDeclaration) -> list[Json]:
    found = {one.spec_uid: one for one in declared.declared}
    return [_manifest("ServingSpec", one.spec_name, uid, one.generation, one.spec) for uid, one in found.items()]


def _manifest(kind: str, name: str, uid: str, generation: int, spec: HostSpec | ServingSpec) -> Json:
    said = spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    metadata = {"name": name, "uid": uid, "generation": generation}
    return {"apiVersion": "stoker/v1", "kind": kind, "metadata": metadata, "spec": said}


def _instance(one: Declared) -> Json | None:
    if one.record is None:
        return None
    record = one.record
    return {
        "spec": one.spec_uid,
        "role": one.role,
        "unit": record.unit,
        "path": record.path,
        "gpus": [list(pair) for pair in record.gpus],
        "writtenSha256": record.written_sha256,
        "writtenLaunch": record.written_launch,
        "startedLaunch": record.started_launch,
        "stopped": record.stopped,
        "readyInvocation": record.ready_invocation,
        "inherited": None if record.inherited is None else list(record.inherited),
    }
