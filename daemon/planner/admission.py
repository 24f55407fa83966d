"""Rules between objects: what a spec or host may not declare beside the others. Called by `api` before it stores one.

Pure: it is given all other objects. `leaving` are specs being deleted: their cards and ports may be claimed (the gate
waits for them), their unit names may not, since a deletion still removes those units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from daemon.domain.errors import Problem
from daemon.domain.host import HostSpec
from daemon.domain.spec import Placement, Role, ServingSpec
from daemon.engines.check import check
from daemon.engines.sglang import bootstrap_port
from daemon.planner.desired import unit_name

MAX_JUMPS = 4
_SYSTEM_UNITS = frozenset(
    {"ssh", "sshd", "dbus", "dbus-broker", "stoker", "docker", "containerd", "cron", "networking"}
)
_SYSTEM_PREFIXES = ("systemd-", "nvidia-", "getty@", "user@", "NetworkManager", "serial-getty@", "pve-", "pve")


@dataclass(frozen=True, slots=True)
class _Seat:
    """One role of one spec: where it runs and what it takes there."""

    spec: str
    role: Role
    path: str
    placement: Placement
    ports: tuple[tuple[str, int], ...]
    unit: str
    unit_path: str

    def who(self, asks: str = "") -> str:
        """How to call it in a problem of the spec named `asks`."""
        if self.role == "server":
            return f"spec {self.spec}"
        return f"role {self.role}" if self.spec == asks else f"role {self.role} of spec {self.spec}"

    def hint(self, asks: str) -> str:
        """What to do about a clash with it."""
        return "choose another" if self.spec == asks else "choose another, or set run: false on one of them"


def admit_spec(
    name: str,
    spec: ServingSpec,
    specs: Mapping[str, ServingSpec],
    hosts: Mapping[str, HostSpec],
    leaving: Mapping[str, ServingSpec] | None = None,
) -> list[Problem]:
    """Everything wrong with `spec` beside the others; empty when it may be stored. `specs` may hold its old self."""
    seats = list(_seats(name, spec))
    others = [seat for other, its in specs.items() if other != name for seat in _seats(other, its)]
    going = [seat for other, its in (leaving or {}).items() if other != name for seat in _seats(other, its)]
    problems = [*_missing(spec), *check(spec)]
    for index, seat in enumerate(seats):
        earlier = seats[:index]
        problems += _on_host(seat, hosts)
        problems += _units(seat, [*earlier, *others, *going], hosts.get(seat.placement.host))
        if spec.run:
            running = [*earlier, *(other for other in others if specs[other.spec].run)]
            problems += _cards(seat, running)
            problems += _ports(seat, running)
    return list(dict.fromkeys(problems))


def admit_host(
    name: str, spec: HostSpec, hosts: Mapping[str, HostSpec], specs: Mapping[str, ServingSpec]
) -> list[Problem]:
    """Everything wrong with a host beside the others. `hosts` may hold its old self."""
    others = {other: its for other, its in hosts.items() if other != name}
    problems = [*_jump(name, spec, others), *_same_machine(spec, others)]
    for seat in (seat for other, its in specs.items() for seat in _seats(other, its) if seat.placement.host == name):
        highest = max(seat.placement.gpus, default=-1)
        if spec.gpus is not None and highest >= spec.gpus.count:
            problems.append(
                Problem("spec.gpus.count", f"{seat.who()} uses GPU {highest}", "move or delete that spec first")
            )
    return problems


def admit_host_deletion(name: str, hosts: Mapping[str, HostSpec], specs: Mapping[str, ServingSpec]) -> list[Problem]:
    """Who still needs the host. `specs` includes those being deleted: they still have units there."""
    users = sorted(
        {seat.spec for other, its in specs.items() for seat in _seats(other, its) if seat.placement.host == name}
    )
    through = sorted(other for other, its in hosts.items() if its.ssh is not None and its.ssh.jump == name)
    problems = [Problem("metadata.name", f"spec {user} is placed on host {name}", "delete it first") for user in users]
    hint = "give it another road first"
    return problems + [Problem("metadata.name", f"host {other} is reached through {name}", hint) for other in through]


def hosts_of(spec: ServingSpec) -> tuple[str, ...]:
    """Names of the hosts a spec is placed on, without repetition."""
    return tuple(dict.fromkeys(seat.placement.host for seat in _seats("", spec)))


def _seats(name: str, spec: ServingSpec) -> Iterator[_Seat]:
    for role in spec.role_names():
        view = spec.role_view(role)
        if view.placement is None:
            continue
        base = "spec" if role == "server" else f"spec.roles.{role}"
        own = spec.roles[role] if spec.roles is not None and role != "server" else None
        at = base if own is None or own.placement is not None else "spec"
        unit_path = base if own is None or own.unit is not None else "spec"
        yield _Seat(
            name,
            role,
            at,
            view.placement,
            _ports_of(spec, role, view, base),
            unit_name(name, role, view.unit),
            unit_path,
        )


def _ports_of(spec: ServingSpec, role: Role, view: ServingSpec, base: str) -> tuple[tuple[str, int], ...]:
    """What one role listens on: its port, and a prefill's bootstrap port."""
    ports = [(f"{base}.port", view.port)] if view.port is not None else []
    if role == "prefill" and spec.roles is not None and spec.engine.name == "sglang":
        ports.append((f"{base}.bootstrapPort", bootstrap_port(spec, role)))
    return tuple(ports)


def _missing(spec: ServingSpec) -> Iterator[Problem]:
    """Roles without a place or port of their own or of the spec."""
    for role in spec.role_names():
        if role == "server":
            continue
        view = spec.role_view(role)
        if view.placement is None:
            yield Problem(f"spec.roles.{role}.placement", "is needed", "give it here or in spec.placement")
        if view.port is None:
            yield Problem(f"spec.roles.{role}.port", "is needed", "give it here or in spec.port")


def _on_host(seat: _Seat, hosts: Mapping[str, HostSpec]) -> Iterator[Problem]:
    gpus = seat.placement.gpus
    host = hosts.get(seat.placement.host)
    if host is None:
        known = ", ".join(sorted(hosts)[:5]) or "none yet"
        yield Problem(
            f"{seat.path}.placement.host",
            f"host {seat.placement.host} does not exist",
            f"apply it first; known: {known}",
        )
        return
    for at, index in enumerate(gpus):
        if host.gpus is not None and index >= host.gpus.count:
            yield Problem(
                f"{seat.path}.placement.gpus[{at}]",
                f"GPU {index} is out of range: host {seat.placement.host} has {host.gpus.count}",
                f"0 to {host.gpus.count - 1}" if host.gpus.count else "",
            )
    if host.ssh is not None and host.via is None:
        yield from (
            Problem(path, f"port {port} is the host's SSH port") for path, port in seat.ports if port == host.ssh.port
        )


def _cards(seat: _Seat, others: list[_Seat]) -> Iterator[Problem]:
    for other in others:
        if other.placement.host != seat.placement.host:
            continue
        for at, index in enumerate(seat.placement.gpus):
            if index in other.placement.gpus:
                yield Problem(
                    f"{seat.path}.placement.gpus[{at}]",
                    f"GPU {index} of host {seat.placement.host} is taken by {other.who(seat.spec)}",
                    other.hint(seat.spec),
                )


def _ports(seat: _Seat, others: list[_Seat]) -> Iterator[Problem]:
    seen: dict[int, str] = {}
    for path, port in seat.ports:
        if port in seen:
            yield Problem(path, f"port {port} is also {seen[port]}")
        seen.setdefault(port, path)
        for other in others:
            if other.placement.host == seat.placement.host and port in (taken for _, taken in other.ports):
                yield Problem(
                    path,
                    f"port {port} on host {seat.placement.host} is taken by {other.who(seat.spec)}",
                    other.hint(seat.spec),
                )


def _units(seat: _Seat, others: list[_Seat], host: HostSpec | None) -> Iterator[Problem]:
    path = f"{seat.unit_path}.unit"
    for other in others:
        if other.placement.host == seat.placement.host and other.unit == seat.unit:
            yield Problem(path, f"unit {seat.unit} on host {seat.placement.host} belongs to {other.who(seat.spec)}")
    stem = seat.unit.removesuffix(".service")
    if stem in _SYSTEM_UNITS or stem.startswith(_SYSTEM_PREFIXES):
        yield Problem(path, f"{seat.unit} belongs to the system", "name the unit of an engine")
    if stem.endswith("@"):
        yield Problem(path, f"{seat.unit} is a template", "name an instance or a unit of its own")
    if host is not None and any(rule.unit == seat.unit for rule in host.protect):
        yield Problem(path, f"{seat.unit} is protected by host {seat.placement.host}")


def _jump(name: str, spec: HostSpec, others: Mapping[str, HostSpec]) -> Iterator[Problem]:
    """A jump host exists, is reached by SSH itself, and the chain ends."""
    seen, step = [name], spec.ssh.jump if spec.ssh is not None else None
    while step is not None:
        if step in seen:
            yield Problem("spec.ssh.jump", f"jump hosts form a cycle: {' -> '.join([*seen, step])}")
            return
        if (host := others.get(step)) is None:
            yield Problem("spec.ssh.jump", f"host {step} does not exist", "apply it first")
            return
        if host.ssh is None or host.via is not None:
            yield Problem(
                "spec.ssh.jump", f"host {step} is not reached by SSH alone, so nothing can be reached through it"
            )
            return
        seen.append(step)
        if len(seen) > MAX_JUMPS + 1:
            yield Problem("spec.ssh.jump", f"more than {MAX_JUMPS} jump hosts in a row")
            return
        step = host.ssh.jump


def _same_machine(spec: HostSpec, others: Mapping[str, HostSpec]) -> Iterator[Problem]:
    """Two hosts with one road are one machine; what only a look can tell is told by the host's conditions."""
    path = "spec.local" if spec.local else "spec.ssh.address"
    for other, its in sorted(others.items()):
        if _road(its) == _road(spec):
            yield Problem(path, f"is the same machine as host {other}", "two Host objects may not share one machine")


def _road(spec: HostSpec) -> tuple[object, ...]:
    container = None if spec.via is None else spec.via.proxmox_container
    if spec.ssh is None:
        return ("local", container)
    return (spec.ssh.address.lower(), spec.ssh.port, spec.ssh.jump, container)
