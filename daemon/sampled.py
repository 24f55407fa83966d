"""What metrics show of hosts and objects, made when it may have changed: a host after its pass, an object when told.

Called by `controller`. Reads memories and the store; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daemon.domain.observation import Gpu, Observation, Unknown
from daemon.memory import HostMemory
from daemon.metrics.families import Blocks, host_blocks, object_blocks
from daemon.metrics.samples import GpuSample, HostSample, InstanceSample, ObjectSample
from daemon.planner.holders import Holders
from daemon.planner.plan import Plan
from daemon.planner.states import InstanceState, instance_state, unplaced_state
from daemon.planner.world import World
from daemon.store import Store, StoredInstance
from daemon.store.rows import Change, Kind

KINDS: tuple[Kind, ...] = ("Host", "ServingSpec")
# Of several owners on one card the worst is shown.
_OWNERS = ("foreign", "orphan-proven", "orphan-likely", "unknown", "managed")


def host_sample(name: str, memory: HostMemory) -> HostSample | None:
    """The host as its last pass left it; None before the first."""
    plan, world = memory.plan, memory.world
    if plan is None or world is None:
        return None
    look = world.observation
    known = isinstance(look, Observation)
    return HostSample(
        host=name,
        up=known,
        mode=world.host.mode,
        withheld=str(world.withheld or ""),
        look_s=memory.look_took_s,
        look_bytes=memory.look_bytes,
        strays=_strays(plan),
        drift=_drift(plan, world) if known else None,
        gpus=tuple(_gpus(look, plan)) if isinstance(look, Observation) else (),
        instances=tuple(_instances(plan, world, memory)),
    )


def _strays(plan: Plan) -> dict[str, int] | None:
    if not isinstance(plan.holders, Holders):
        return None
    found = {"ghost": len(plan.holders.ghosts)}
    for holder in plan.holders.all:
        kind = "defunct" if holder.process.state == "Z" else holder.ownership.owner
        found[kind] = found.get(kind, 0) + 1
    return found


def _drift(plan: Plan, world: World) -> list[tuple[str, str, str]]:
    units = {d.unit: d.declared.spec_name for d in world.desired}
    return [(units.get(d.unit, ""), d.layer, d.field) for d in plan.drift]


def _gpus(look: Observation, plan: Plan) -> Iterable[GpuSample]:
    for gpu in () if isinstance(look.gpus, Unknown) else look.gpus:
        yield GpuSample(
            index=gpu.index,
            uuid=gpu.uuid,
            product=gpu.name,
            driver=gpu.driver,
            memory_total_mib=gpu.memory_total_mib,
            memory_used_mib=gpu.memory_used_mib,
            utilization_pct=gpu.utilization_pct,
            temperature_c=gpu.temperature_c,
            fault=str(gpu.fault or ""),
            owner=_owner(gpu, plan),
        )


def _owner(gpu: Gpu, plan: Plan) -> str | None:
    if not isinstance(plan.holders, Holders):
        return None
    owners = {h.ownership.owner for h in plan.holders.all if any(uuid == gpu.uuid for uuid, _, _ in h.gpus)}
    ghost = any(uuid == gpu.uuid for uuid, _, _ in plan.holders.ghosts)
    return next((owner for owner in _OWNERS if owner in owners), "unseen" if ghost else "free")


def _instances(plan: Plan, world: World, memory: HostMemory) -> Iterable[InstanceSample]:
    rows = {(row.spec_uid, row.role): row for row in memory.rows}
    for desired in world.desired:
        one = desired.declared
        state = instance_state(desired, plan, world)
        yield _instance(one.spec_name, state, rows.get((one.spec_uid, one.role)), world, memory)
    for unplaced in world.unplaced:
        one = unplaced.declared
        state = unplaced_state(unplaced, world)
        yield _instance(one.spec_name, state, rows.get((one.spec_uid, one.role)), world, memory)


def _instance(
    spec: str, state: InstanceState, row: StoredInstance | None, world: World, memory: HostMemory
) -> InstanceSample:
    look = world.observation
    unit = look.unit(state.unit) if isinstance(look, Observation) else None
    seen = None if unit is None or isinstance(unit, Unknown) else unit
    return InstanceSample(
        spec=spec,
        role=state.role,
        active="" if seen is None else seen.active_state,
        ready=state.ready,
        loaded=state.loaded,
        available=state.available,
        reason=str(state.reason),
        generation=state.generation,
        ready_generation=0 if row is None else row.ready_generation,
        ready_at_s=None if row is None or row.ready_at is None else row.ready_at.timestamp(),
        systemd_restarts=None if seen is None else seen.restarts,
        restarts=memory.restarts.get(state.unit, 0),
        startup_s=memory.startup_s.get(state.unit),
    )


def startup_s(memory: HostMemory, unit_name: str, invocation: str, now_s: float) -> float | None:
    """How long ago the process of that invocation started, by the host's clock; None when the last look cannot tell."""
    look = memory.look
    unit = look.unit(unit_name) if isinstance(look, Observation) else None
    if not isinstance(look, Observation) or unit is None or isinstance(unit, Unknown):
        return None
    if unit.invocation_id != invocation or not unit.exec_main_start_us:
        return None
    return (look.identity.monotonic_us - unit.exec_main_start_us) / 1e6 + now_s - look.at_s


class Shown:
    """The lines of all hosts and objects. Objects are read from the store one by one, when a change names them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hosts: dict[str, Blocks] = {}
        self._objects: dict[tuple[str, str], Blocks] = {}
        self._unread: set[Change] = set()
        self.paused = False

    def blocks(self) -> Sequence[Blocks]:
        """All lines, hosts and then objects by name."""
        hosts = [self._hosts[name] for name in sorted(self._hosts)]
        return [*hosts, *(self._objects[key] for key in sorted(self._objects))]

    def passed(self, name: str, memory: HostMemory) -> None:
        """A pass over the host ended."""
        sample = host_sample(name, memory)
        if sample is not None:
            self._hosts[name] = host_blocks(sample)

    def forget(self, name: str) -> None:
        """The host is gone."""
        self._hosts.pop(name, None)

    async def read_all(self) -> None:
        """Everything, once. Raises StoreError."""
        self.paused = await self._store.paused() is not None
        for kind in KINDS:
            for found in await self._store.list(kind):
                await self._read(kind, found.name)

    async def follow(self, change: Change) -> None:
        """Read what the change names, and what could not be read before. Raises StoreError."""
        self._unread.add(change)
        for one in tuple(self._unread):
            if one.kind is None:
                self.paused = await self._store.paused() is not None
            else:
                await self._read(one.kind, one.name)
            self._unread.discard(one)

    async def _read(self, kind: Kind, name: str) -> None:
        found = await self._store.find(kind, name)
        if found is None:
            self._objects.pop((kind, name), None)
            return
        said = await self._store.status(kind, found.uid)
        conditions = () if said is None else tuple((c.type, c.status, c.reason) for c in said.conditions)
        observed = None if said is None else said.status.get("observedGeneration")
        self._objects[kind, name] = object_blocks(ObjectSample(kind, name, found.generation, observed, conditions))
