"""What the store declares for one host: its instances with their records, and what is retired there.

Called by `reconcile` at the start of each pass. Reads the store, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from daemon.domain.host import HostSpec
from daemon.domain.spec import Role, ServingSpec
from daemon.engines.launch import Peer
from daemon.planner.desired import unit_name
from daemon.planner.world import Declared, Record, Retired
from daemon.store import Store
from daemon.store.rows import StoredInstance, StoredObject


@dataclass(frozen=True, slots=True)
class HostDeclaration:
    """Everything declared for one host. `vanished` are rows whose unit this store never wrote: only to be forgotten."""

    object: StoredObject
    spec: HostSpec
    declared: tuple[Declared, ...]
    retired: tuple[Retired, ...]
    vanished: tuple[StoredInstance, ...]
    peers: dict[str, tuple[Peer, ...]]
    rows: tuple[StoredInstance, ...]

    def row(self, spec_uid: str, role: str) -> StoredInstance | None:
        """The stored instance of that role here."""
        return next((row for row in self.rows if row.spec_uid == spec_uid and row.role == role), None)


async def declaration(store: Store, name: str) -> HostDeclaration | None:
    """What is declared for the host of that name, None when there is no such host."""
    host = await store.find("Host", name)
    if host is None:
        return None
    rows = tuple(await store.instances(host=name))
    specs = await store.list("ServingSpec")
    hosts = {h.name: HostSpec.model_validate(h.spec) for h in await store.list("Host")}
    declared: list[Declared] = []
    peers: dict[str, tuple[Peer, ...]] = {}
    known = {spec.uid: spec for spec in specs}
    told = {spec.uid for spec in specs if ServingSpec.model_validate(spec.spec).strays.kill == "report"}
    for stored in specs:
        if stored.deleted_at is None:
            spec = ServingSpec.model_validate(stored.spec)
            declared += _instances(stored, spec, name, rows)
            peers[stored.uid] = tuple(peers_of(spec, hosts))
    kept = {(d.spec_uid, d.role) for d in declared}
    gone = [row for row in rows if (row.spec_uid, row.role) not in kept]
    return HostDeclaration(
        object=host,
        spec=HostSpec.model_validate(host.spec),
        declared=tuple(declared),
        retired=tuple(_retired(row, known.get(row.spec_uid), told) for row in gone if row.written_sha256),
        vanished=tuple(row for row in gone if not row.written_sha256),
        peers=peers,
        rows=rows,
    )


def _instances(
    stored: StoredObject, spec: ServingSpec, host: str, rows: Sequence[StoredInstance]
) -> Iterable[Declared]:
    for role in spec.role_names():
        view = spec.role_view(role)
        if view.placement is None or view.placement.host != host:
            continue
        row = next((row for row in rows if row.spec_uid == stored.uid and row.role == role), None)
        if row is not None and row.written_sha256 and row.unit != unit_name(stored.name, role, view.unit):
            continue  # the unit of the earlier name is retired first, or nobody would ever stop it
        yield Declared(
            spec_name=stored.name,
            spec_uid=stored.uid,
            generation=stored.generation,
            role=role,
            spec=spec,
            view=view,
            record=record_of(row) if row is not None else None,
        )


def record_of(row: StoredInstance) -> Record:
    """The planner's part of a stored instance."""
    return Record(
        unit=row.unit,
        path=row.path,
        gpus=row.gpus,
        written_sha256=row.written_sha256,
        written_launch=row.written_launch,
        started_launch=row.extra.get("started", ""),
        stopped=row.extra.get("started") == "",
        ready_invocation=row.ready_invocation_id,
        silent_invocation=row.extra.get("silent", ""),
        unclean=row.extra.get("unclean", ""),
        inherited=tuple(row.extra["inherited"]) if "inherited" in row.extra else None,
    )


def _retired(row: StoredInstance, stored: StoredObject | None, told: set[str]) -> Retired:
    return Retired(
        spec_name=row.spec_uid if stored is None else stored.name,
        spec_uid=row.spec_uid,
        record=record_of(row),
        clears=row.spec_uid not in told,
        generation=0 if stored is None else stored.generation,
    )


def peers_of(spec: ServingSpec, hosts: Mapping[str, HostSpec]) -> Iterable[Peer]:
    """Addresses of the other roles, for a router: the host's SSH address, loopback for a local one."""
    roles: tuple[Role, ...] = spec.role_names()
    for role in roles:
        view = spec.role_view(role)
        if role == "router" or view.placement is None or view.port is None or role == "server":
            continue
        host = hosts.get(view.placement.host)
        address = host.ssh.address if host is not None and host.ssh is not None else "127.0.0.1"
        over = (spec.roles or {}).get(role)
        yield Peer(role=role, address=address, port=view.port, bootstrap_port=over.bootstrap_port if over else None)
