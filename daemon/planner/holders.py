"""Who holds what a spec needs: GPUs, ports and managed cgroups, each holder with its owner.

A GPU row names a process only if that pid here has a `/dev/nvidia*` file open; else its memory is unseen. Inside a
container the driver may show the host's pids, or none. There one row that names nobody makes all of them unseen, since
another may name a wrong process: who holds a card in use is then told only by our mark, of a unit bound to that card.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from daemon.domain.observation import Gpu, Observation, Process, ProcessId, Unit, Unknown
from daemon.engines.redact import redact_argv
from daemon.engines.unit import parse_unit
from daemon.planner.ownership import Ledger, Ownership, attribute, in_cgroup, marked_units
from daemon.planner.titles import BUILT_IN, Shapes, is_engine
from daemon.planner.world import StrayFact, World

SMALL_SHARE_MIB = 1024
NOBODY_HERE = -1
LINE_CHARS = 120  # of a command line within a sentence
MOST_TOLD = 3
_REACHED_APART = frozenset({"--uds", "--ssl-keyfile", "--ssl-certfile", "--tls-key-path", "--tls-cert-path"})
SERVES_GOOD_S = 30.0  # how long an answer to "does its tree serve" is believed, and when it is asked again
SERVES_STANDS_S = 90.0  # how long "it serves" stands while the next answer is on its way
SILENT_BEFORE_BELIEVED = 3  # answers in a row that it does not serve: a busy server is silent too


@dataclass(frozen=True, slots=True)
class Holder:
    """One process and what it holds; `gpus` are (uuid, index or -1, MiB or None), `unit_group` its managed cgroup.

    `child_group` is that of a defunct child of it, itself an orphan: the child goes when this one does.
    """

    process: Process
    ownership: Ownership
    gpus: tuple[tuple[str, int, int | None], ...] = ()
    ports: tuple[int, ...] = ()
    unit_group: str = ""
    child_group: str = ""

    def describe(self) -> str:
        """One line for a person: pid, command, user, GPU and port, and whose it is."""
        # no figure that moves: a steady host writes nothing
        held = [f"GPU {index}" if index >= 0 else f"GPU {uuid}" for uuid, index, _ in self.gpus]
        held += [f"port {port}" for port in self.ports]
        held = held or ([f"the cgroup of {self.unit_group}"] if self.unit_group else [])
        held += [f"a defunct child in the cgroup of {self.child_group}"] if self.child_group else []
        where = ", ".join(held)
        user = self.process.user or f"uid {self.process.uid}"
        return (
            f"pid {self.process.id.pid} ({command_of(self.process, LINE_CHARS)}) of {user} holds {where}: "
            f"{self.ownership.owner}, {self.ownership.proof}"
        )

    def waits_for(self) -> str:
        """One line for a person about a defunct process: who must reap it."""
        return f"{self.describe()}; its parent, pid {self.process.ppid}, must reap it"


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
        uids=_uids(units, world, look),
        serves=_serves(world, look),
        shapes=shapes_of(world),
    )


def shapes_of(world: World) -> Shapes:
    """What the specs of this host add to the built-in engines: their titles, and their own command lines."""
    views = [d.declared.view for d in world.desired] + [u.declared.view for u in world.unplaced]
    titles = {title for view in views for title in view.strays.titles}
    return Shapes(tuple(sorted(titles)), frozenset(d.launch.argv for d in world.desired))


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
    """What is known of each process: a tree without a listening port serves nothing; else what a probe found.

    Of a tree that was not seen whole nothing is known. An old "it serves" stands a while, since a verdict that turns
    with each answer's age helps nobody; "it does not" is no answer when it is old, nor about a port opened since.
    """
    if isinstance(look.listeners, Unknown):
        return {}
    shapes = shapes_of(world)
    found: dict[ProcessId, bool | None] = {}
    for process in _processes(look):
        fact, age_s = world.strays.get(process.id), answer_age_s(process, world)
        ports = tree_ports(process, look, shapes)
        if fact is not None and fact.serves and age_s < (SERVES_STANDS_S if ports != () else SERVES_GOOD_S):
            found[process.id] = True
        elif ports is not None and (ports == () or (age_s < SERVES_GOOD_S and _asked(fact, ports))):
            found[process.id] = False
    return found


def _asked(fact: StrayFact | None, ports: tuple[int, ...]) -> bool:
    return fact is not None and fact.serves is False and set(ports) <= set(fact.ports)


def answered(fact: StrayFact, ports: tuple[int, ...], serves: bool, now_s: float, *, marked: bool) -> StrayFact:
    """What is known after one more answer, about these ports. `marked`: the process carries our own mark.

    That it does not serve is believed when it was said often enough of all of them; of one that is ours and never
    served once is enough.
    """
    anew = not set(ports) <= set(fact.ports)
    silent = 0 if serves else 1 if anew else fact.silent + 1
    enough = silent >= SILENT_BEFORE_BELIEVED or (marked and fact.serves is not True)
    before = None if anew and fact.serves is False else fact.serves
    stands = True if serves else False if enough else before
    return replace(fact, serves=stands, asked_at_s=now_s, ports=ports, silent=silent)


def answer_age_s(process: Process, world: World) -> float:
    """How old the answer is to whether its tree serves; without end where there is none."""
    fact = world.strays.get(process.id)
    return math.inf if fact is None or fact.serves is None else world.now_s - fact.asked_at_s


def _uids(units: tuple[Unit, ...], world: World, look: Observation) -> dict[str, int | None]:
    """uid of each managed unit: of its main process, else of the user it is loaded or declared with.

    NOBODY_HERE where no process seen runs as that user: then none of them is the unit's. None where it could not be
    read; a unit that neither exists nor is declared is left out.
    """
    declared = {d.unit: d.declared.view.user for d in world.desired}
    uids: dict[str, int | None] = {}
    for unit in units:
        if unit.main is not None:
            uids[unit.name] = unit.main.uid
        elif unit.main_pid > 0 or isinstance(unit.loaded, Unknown):
            uids[unit.name] = None
        elif unit.loaded is not None:
            uids[unit.name] = _uid_of(unit.loaded.user, look)
        elif unit.name in declared:
            uids[unit.name] = _uid_of(declared[unit.name], look)
    return uids


def _uid_of(user: str | None, look: Observation) -> int:
    if not user or user == "root":
        return 0
    if user.isascii() and user.isdigit():
        return int(user)
    return next((p.uid for p in _processes(look) if p.user == user), NOBODY_HERE)


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
    owners = {pid: attribute(ledger.processes[pid], ledger) for pid in sorted(pids) if pid in ledger.processes}
    children = _defunct_children(owners, groups, ledger)
    owners |= {pid: attribute(ledger.processes[pid], ledger) for pid in children}
    found = [
        Holder(
            process=ledger.processes[pid],
            ownership=owners[pid],
            gpus=tuple(sorted(gpus.get(pid, ()), key=_by_card)),
            ports=tuple(sorted(ports.get(pid, ()))),
            unit_group=groups.get(pid, ""),
            child_group=children.get(pid, ""),
        )
        for pid in sorted(owners)
    ]
    return Holders(tuple(found), tuple(sorted(ghosts, key=_by_card)))


def _defunct_children(owners: Mapping[int, Ownership], groups: Mapping[int, str], ledger: Ledger) -> dict[int, str]:
    """Parents that are orphans themselves, by pid, of defunct orphans: with the managed cgroup that such a child is in.

    Nobody can end a defunct process; it goes when its parent reaps it or ends. A parent at work is only named.
    """
    found: dict[int, str] = {}
    for pid, ownership in owners.items():
        child = ledger.processes[pid]
        if child.state != "Z" or not ownership.orphan or pid not in groups:
            continue
        parent = ledger.processes.get(child.ppid)
        if parent is not None and parent.id.pid > 1 and attribute(parent, ledger).orphan:
            found[parent.id.pid] = groups[pid]
    return found


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
    """What carries our mark and has a card open, on those cards with memory in use that its unit is or was bound to."""
    bound = {r.record.unit: frozenset(uuid for _, uuid in r.record.gpus) & unseen for r in world.retired}
    bound |= {desired.unit: desired.gpu_uuids & unseen for desired in world.desired}
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


def tree_ports(process: Process, look: Observation, shapes: Shapes = BUILT_IN) -> tuple[int, ...] | None:
    """Listening ports of the engine's tree that the process is in, and of its group, among the candidates.

    None when they are not known: the listeners are not, an ancestor was not seen, or one of them says that it is
    reached by TLS or a socket of the file system, where it cannot be asked.
    """
    table = {p.id.pid: p for p in _processes(look)}
    root = process
    for _ in range(64):
        parent = table.get(root.ppid)
        if parent is None or parent.id.pid <= 1:
            break
        if not (is_engine(parent, shapes) or parent.pgrp == process.pgrp):
            break
        root = parent
    if isinstance(look.listeners, Unknown) or (root.ppid > 1 and root.ppid not in table):
        return None
    groups = {process.pgrp, root.pgrp if is_engine(root, shapes) else process.pgrp}
    family = {p.id.pid for p in table.values() if p.pgrp in groups and p.pgrp > 1} | {process.id.pid, root.id.pid}
    grown = True
    while grown:
        more = {p.id.pid for p in table.values() if p.ppid in family and p.id.pid > 1} - family
        family |= more
        grown = bool(more)
    if any(_apart(table[pid]) for pid in family & table.keys()):
        return None
    return tuple(sorted({x.port for x in look.listeners if family.intersection(x.pids)}))


def _apart(process: Process) -> bool:
    return any(word.partition("=")[0] in _REACHED_APART for word in process.argv)


def identities(holders: Iterable[Holder]) -> tuple[ProcessId, ...]:
    """The identities of these holders, in pid order."""
    return tuple(sorted((holder.process.id for holder in holders), key=lambda p: (p.pid, p.start_ticks)))
