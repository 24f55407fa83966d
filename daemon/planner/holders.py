"""Who holds what a spec needs: GPUs, ports and managed cgroups, each holder with its owner.

A GPU row names a process only if that pid here has a `/dev/nvidia*` file open; else its memory is unseen. Inside a
container the driver may show the host's pids, or none. There one row that names nobody makes all of them unseen, since
another may name a wrong process: who holds a card in use is then told only by our mark, of a unit bound to that card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daemon.domain.observation import Gpu, Observation, Process, ProcessId, Unit, Unknown
from daemon.engines.redact import redact_argv
from daemon.engines.unit import parse_unit
from daemon.planner.ownership import Ledger, Ownership, attribute, in_cgroup, is_engine, marked_units
from daemon.planner.world import World

SMALL_SHARE_MIB = 1024
NOBODY_HERE = -1
LINE_CHARS = 120  # of a command line within a sentence
MOST_TOLD = 3
SERVES_GOOD_S = 30.0  # how long an answer to "does its tree serve" is believed


@dataclass(frozen=True, slots=True)
class Holder:
    """One process and what it holds; `gpus` are (uuid, index, MiB or None), `unit_group` its managed cgroup."""

    process: Process
    ownership: Ownership
    gpus: tuple[tuple[str, int, int | None], ...] = ()
    ports: tuple[int, ...] = ()
    unit_group: str = ""

    def describe(self) -> str:
        """One line for a person: pid, command, user, GPU and port, and whose it is."""
        held = [f"GPU {index}" for _, index, _ in self.gpus]  # no figure that moves: a steady host writes nothing
        held += [f"port {port}" for port in self.ports]
        where = ", ".join(held) or f"the cgroup of {self.unit_group}"
        user = self.process.user or f"uid {self.process.uid}"
        return (
            f"pid {self.process.id.pid} ({command_of(self.process, LINE_CHARS)}) of {user} holds {where}: "
            f"{self.ownership.owner}, {self.ownership.proof}"
        )


def command_of(process: Process, room: int) -> str:
    """Its command line without secrets, in at most `room` characters; its name in brackets where it has none."""
    return redact_argv(process.argv, room) or f"[{process.comm}]"


def described(details: Sequence[str]) -> str:
    """The first few of many lines of one kind, and how many there are: `stoker strays` lists all."""
    more = len(details) - MOST_TOLD
    return "; ".join(details[:MOST_TOLD]) + (f"; and {more} more, see `stoker strays`" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Holders:
    """The whole picture of one look. `ghosts` are (uuid, pid, MiB) rows that name nobody here."""

    all: tuple[Holder, ...]
    ghosts: tuple[tuple[str, int, int | None], ...]

    def on(self, uuids: frozenset[str], ports: Iterable[int]) -> tuple[Holder, ...]:
        """Those that hold one of these GPUs or ports."""
        wanted = set(ports)
        return tuple(
            holder
            for holder in self.all
            if any(uuid in uuids for uuid, _, _ in holder.gpus) or wanted.intersection(holder.ports)
        )


def ledger_of(world: World, look: Observation) -> Ledger:
    """What attribution needs, out of one look and the store's memory. Unknown units or processes give empty maps."""
    names = {d.unit for d in world.desired} | {r.record.unit for r in world.retired} | {u.unit for u in world.unplaced}
    units = () if isinstance(look.units, Unknown) else tuple(unit for unit in look.units if unit.name in names)
    processes = {} if isinstance(look.processes, Unknown) else {p.id.pid: p for p in look.processes}
    marks: dict[str, tuple[str, ...]] = {}
    known = [(d.declared.spec_uid, d.unit) for d in world.desired]
    known += [(u.declared.spec_uid, u.unit) for u in world.unplaced]
    known += [(r.spec_uid, r.record.unit) for r in world.retired]
    for uid, name in [*known, *_unclaimed_marks(look, names)]:
        marks[uid] = (*marks.get(uid, ()), name)
    return Ledger(
        look=look,
        processes=processes,
        managed=units,
        mark_units=marks,
        launch_units=_launches(world),
        store_uid=world.store_uid,
        uids=_uids(units, look),
        serves=_serves(world, look),
    )


def _launches(world: World) -> dict[str, str]:
    """Which unit each launch of now or before is of: it tells the roles of one spec apart."""
    found: dict[str, set[str]] = {}
    records = [(d.unit, d.declared.record) for d in world.desired] + [(r.record.unit, r.record) for r in world.retired]
    named = [(d.unit, d.launch_hash) for d in world.desired]
    for unit, record in records:
        named += [] if record is None else [(unit, record.written_launch), (unit, record.started_launch)]
    for unit, launch in named:
        found.setdefault(launch, set()).add(unit)
    return {launch: next(iter(units)) for launch, units in found.items() if launch and len(units) == 1}


def _unclaimed_marks(look: Observation, names: set[str]) -> Iterable[tuple[str, str]]:
    """(spec uid, unit) of marked unit files that this store does not know: what carries such a mark may be theirs."""
    for unit in () if isinstance(look.units, Unknown) else look.units:
        if unit.name not in names and unit.file is not None and unit.file.text is not None:
            uid = dict(parse_unit(unit.file.text).env or ()).get("STOKER_SPEC")
            if uid:
                yield uid, unit.name


def _serves(world: World, look: Observation) -> dict[ProcessId, bool | None]:
    """What is known of each process: a tree without a listening port serves nothing; else what a probe found."""
    if isinstance(look.listeners, Unknown):
        return {}
    found: dict[ProcessId, bool | None] = {}
    for process in _processes(look):
        fact = world.strays.get(process.id)
        if fact is not None and fact.serves is not None and world.now_s - fact.asked_at_s < SERVES_GOOD_S:
            found[process.id] = fact.serves
        elif not tree_ports(process, look):
            found[process.id] = False
    return found


def _uids(units: tuple[Unit, ...], look: Observation) -> dict[str, int]:
    """uid of each managed unit: of its main process, else 0 where it declares no user or root.

    NOBODY_HERE where no process seen runs as the unit's user: then none of them is the unit's.
    """
    uids: dict[str, int] = {}
    for unit in units:
        if unit.main is not None:
            uids[unit.name] = unit.main.uid
        elif unit.loaded is not None and not isinstance(unit.loaded, Unknown):
            user = unit.loaded.user or "root"
            if user == "root" or (user.isascii() and user.isdigit()):
                uids[unit.name] = 0 if user == "root" else int(user)
            else:
                uids[unit.name] = next((p.uid for p in _processes(look) if p.user == user), NOBODY_HERE)
    return uids


def _processes(look: Observation) -> tuple[Process, ...]:
    return () if isinstance(look.processes, Unknown) else look.processes


def holders_of(world: World, look: Observation, ledger: Ledger) -> Holders | Unknown:
    """Every holder of a GPU, a needed port or a managed cgroup; Unknown when an input of it is unknown.

    In an order that does not hang on the order of the tools' rows: it ends up in messages (case G03).
    """
    for section in (look.processes, look.listeners, look.units):
        if isinstance(section, Unknown):
            return section
    gpus, ghosts = _gpu_holders(look, ledger, world)
    ports = _port_holders(world, look)
    pids = set(gpus) | set(ports)
    groups: dict[int, str] = {}
    for process in ledger.processes.values():
        home = next((unit.name for unit in ledger.managed if in_cgroup(process, unit)), "")
        if home:
            groups[process.id.pid] = home
            pids.add(process.id.pid)
    found = [
        Holder(
            process=ledger.processes[pid],
            ownership=attribute(ledger.processes[pid], ledger),
            gpus=tuple(sorted(gpus.get(pid, ()), key=_by_card)),
            ports=tuple(sorted(ports.get(pid, ()))),
            unit_group=groups.get(pid, ""),
        )
        for pid in sorted(pids)
        if pid in ledger.processes
    ]
    return Holders(tuple(found), tuple(sorted(ghosts, key=_by_card)))


def _by_card(row: tuple[str, int, int | None]) -> tuple[int, str, int]:
    """Sorts rows of (uuid, index or pid, MiB), where MiB may be unknown."""
    uuid, number, mib = row
    return number, uuid, -1 if mib is None else mib


def _gpu_holders(
    look: Observation, ledger: Ledger, world: World
) -> tuple[dict[int, list[tuple[str, int, int | None]]], list[tuple[str, int, int | None]]]:
    held: dict[int, list[tuple[str, int, int | None]]] = {}
    ghosts: list[tuple[str, int, int | None]] = []
    if isinstance(look.apps, Unknown) or isinstance(look.gpus, Unknown):
        return held, ghosts
    index = {gpu.uuid: gpu.index for gpu in look.gpus}
    here = [app for app in look.apps if (p := ledger.processes.get(app.pid)) is not None and p.nvidia_open]
    if len(here) < len(look.apps) and in_container(look):
        here = []
    for app in look.apps:
        if app in here:
            held.setdefault(app.pid, []).append((app.gpu_uuid, index.get(app.gpu_uuid, -1), app.memory_mib))
        else:
            ghosts.append((app.gpu_uuid, app.pid, app.memory_mib))
    if in_container(look) and not here:
        held = _marked_holders(_unseen(look.gpus), index, world, ledger)
    return held, ghosts


def _unseen(gpus: Iterable[Gpu]) -> set[str]:
    """Cards of which more than a small share is in use."""
    return {gpu.uuid for gpu in gpus if (gpu.memory_used_mib or 0) >= SMALL_SHARE_MIB}


def _marked_holders(
    unseen: set[str], index: dict[str, int], world: World, ledger: Ledger
) -> dict[int, list[tuple[str, int, int | None]]]:
    """What carries our mark and has a card open, on those cards with memory in use that its unit is bound to."""
    bound = {desired.unit: desired.gpu_uuids & unseen for desired in world.desired}
    held: dict[int, list[tuple[str, int, int | None]]] = {}
    for process in ledger.processes.values():
        cards = {uuid for unit in marked_units(process, ledger) for uuid in bound.get(unit, ())}
        if cards and process.nvidia_open:
            held[process.id.pid] = [(uuid, index.get(uuid, -1), None) for uuid in sorted(cards)]
    return held


def in_container(look: Observation) -> bool:
    """Whether the host that was looked at is a container, so that the driver's pids may be of another namespace."""
    return look.identity.container not in ("", "none")


def _port_holders(world: World, look: Observation) -> dict[int, list[int]]:
    needed = {port for desired in world.desired for port in desired.ports}
    held: dict[int, list[int]] = {}
    if isinstance(look.listeners, Unknown):
        return held
    for listener in look.listeners:
        if listener.port in needed:
            for pid in listener.pids:
                if listener.port not in held.setdefault(pid, []):
                    held[pid].append(listener.port)
    return held


def unseen_listeners(look: Observation, ports: Iterable[int]) -> tuple[int, ...]:
    """Needed ports somebody listens on whose owner could not be seen."""
    wanted = set(ports)
    if isinstance(look.listeners, Unknown):
        return ()
    return tuple(sorted({x.port for x in look.listeners if x.port in wanted and not x.pids}))


def tree_ports(process: Process, look: Observation) -> tuple[int, ...]:
    """Listening ports of the engine's tree that the process is in, and of its group, among the candidates."""
    table = {p.id.pid: p for p in _processes(look)}
    root = process
    for _ in range(64):
        parent = table.get(root.ppid)
        if parent is None or parent.id.pid <= 1 or not (is_engine(parent) or parent.pgrp == process.pgrp):
            break
        root = parent
    groups = {process.pgrp, root.pgrp if is_engine(root) else process.pgrp}
    family = {p.id.pid for p in table.values() if p.pgrp in groups and p.pgrp > 1} | {process.id.pid, root.id.pid}
    grown = True
    while grown:
        more = {p.id.pid for p in table.values() if p.ppid in family and p.id.pid > 1} - family
        family |= more
        grown = bool(more)
    if isinstance(look.listeners, Unknown):
        return ()
    return tuple(sorted({x.port for x in look.listeners if family.intersection(x.pids)}))


def identities(holders: Iterable[Holder]) -> tuple[ProcessId, ...]:
    """The identities of these holders, in pid order."""
    return tuple(sorted((holder.process.id for holder in holders), key=lambda p: (p.pid, p.start_ticks)))
