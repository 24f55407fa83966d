"""What the daemon makes of a recorded look: whose each process is, what differs, what it says and what it would do.

`replay` is pure: the recording and what is declared go in, a `Replayed` comes out. Called by `stoker replay` and by the
golden tests. It takes the daemon's own steps: the reader of looks, the memory between looks, `decide`, the conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from daemon.declared import peers_of
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, Unit, Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.engines.unit import parse_unit
from daemon.memory import HostMemory
from daemon.planner.desired import place
from daemon.planner.drift import file_sha256
from daemon.planner.plan import Plan, decide
from daemon.planner.states import InstanceState, instance_state, unplaced_state
from daemon.planner.world import Declared, Desired, Record, Unplaced, World
from daemon.probes.report import parse_observation
from daemon.recording.answer import answer_of
from daemon.recording.form import InstanceForm, ProcessForm, RecordingForm, UnitForm
from daemon.recording.simple import AsDeclared

FIRST_LOOK_S = 1000.0
BETWEEN_S = 1.0


@dataclass(frozen=True, slots=True)
class SpecOf:
    """A declared spec; `uid` None when its manifest does not say."""

    name: str
    spec: ServingSpec
    uid: str | None = None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Replayed:
    """All that was understood. `notes` tell what was left out or taken for granted."""

    world: World
    plan: Plan
    states: tuple[InstanceState, ...]
    specs: tuple[Declared, ...]
    notes: tuple[str, ...]
    looks: int = 1


def replay(
    form: RecordingForm, hosts: Mapping[str, HostSpec], specs: Sequence[SpecOf], *, looks: int = 1, store: str = ""
) -> Replayed:
    """The decision over this look, taken for the first (`looks` 1) or as seen twice, a second apart."""
    name, host, notes = _host(form, hosts, specs)
    first = _look(form, name, {})
    store = store or form.knows.store or _fence_store(first)
    here = [one for one in specs if name in _places(one.spec)]
    notes += [f"spec {one.name} is not placed on host {name}: left out" for one in specs if one not in here]
    declared = tuple(d for one in here for d in _known(one, name, form, first, store))
    peers = {one.name: tuple(peers_of(one.spec, hosts)) for one in here}
    placed = [place(d, first, store, peers[d.spec_name]) for d in declared]
    desired = tuple(one for one in placed if isinstance(one, Desired))
    look = _look(form, name, {one.unit: _as_declared(one) for one in desired})
    desired = tuple(_written(one) if one.unit in _said_declared(form) else one for one in desired)
    world = _world(name, host, store, look, desired, form, looks)
    world = replace(world, unplaced=tuple(one for one in placed if isinstance(one, Unplaced)))
    plan = decide(world)
    states = (
        *(instance_state(one, plan, world) for one in world.desired),
        *(unplaced_state(one, world) for one in world.unplaced),
    )
    return Replayed(world, plan, states, declared, (*notes, *_notes(form, world)), looks)


def _host(
    form: RecordingForm, hosts: Mapping[str, HostSpec], specs: Sequence[SpecOf]
) -> tuple[str, HostSpec, list[str]]:
    """The host that the recording is of: the one it names, else the only one there is."""
    if form.host in hosts:
        return form.host, hosts[form.host], []
    if len(hosts) == 1:
        name, host = next(iter(hosts.items()))
        return name, host, [f"taken for host {name}, the only one in the manifests"]
    named = {where for one in specs for where in _places(one.spec)}
    name = next(iter(named)) if len(named) == 1 and form.host not in named else form.host
    note = f"host {name} has no manifest: taken as not exclusive, with its strays' limit at orphans"
    return name, HostSpec.model_validate({"local": True}), [note]


def _places(spec: ServingSpec) -> list[str]:
    views = [spec.role_view(role) for role in spec.role_names()]
    return [view.placement.host for view in views if view.placement is not None]


def _look(form: RecordingForm, host: str, declared: Mapping[str, AsDeclared]) -> Observation | Unknown:
    answer = answer_of(form, declared)
    return answer if isinstance(answer, Unknown) else parse_observation(answer, host, FIRST_LOOK_S)


def _fence_store(look: Observation | Unknown) -> str:
    """The store that acts on the host, as its fence says."""
    if isinstance(look, Unknown) or look.fence is None or isinstance(look.fence, Unknown):
        return ""
    return look.fence.store


def declared_of(one: SpecOf, host: str) -> Iterable[Declared]:
    """The spec's instances on that host, as a store that has just heard of it would give them."""
    for role in one.spec.role_names():
        view = one.spec.role_view(role)
        if view.placement is not None and view.placement.host == host:
            yield Declared(one.name, one.uid or one.name, one.generation, role, one.spec, view)


def _known(one: SpecOf, host: str, form: RecordingForm, look: Observation | Unknown, store: str) -> Iterable[Declared]:
    """With what the recording knows of each."""
    uid = one.uid or _marked_uid(one, look, store) or one.name
    for declared in declared_of(replace(one, uid=uid), host):
        known = next((its for its in form.knows.instances if (its.spec, its.role) == (uid, declared.role)), None)
        yield declared if known is None else replace(declared, record=_record(known))


def _marked_uid(one: SpecOf, look: Observation | Unknown, store: str) -> str | None:
    """The uid that the spec's own unit files carry."""
    units = () if isinstance(look, Unknown) or isinstance(look.units, Unknown) else look.units
    for unit in units:
        if unit.file is None or unit.file.text is None or not unit.name.startswith(f"stoker-{one.name}."):
            continue
        env = dict(parse_unit(unit.file.text).env or ())
        if store and env.get("STOKER_STORE") == store:
            return env.get("STOKER_SPEC")
    return None


def _record(known: InstanceForm) -> Record:
    return Record(
        unit=known.unit,
        path=known.path,
        gpus=tuple((index, uuid) for index, uuid in known.gpus),
        written_sha256=known.written_sha256,
        written_launch=known.written_launch,
        started_launch=known.started_launch,
        stopped=known.stopped,
        ready_invocation=known.ready_invocation,
        inherited=None if known.inherited is None else tuple(known.inherited),
    )


def _as_declared(desired: Desired) -> AsDeclared:
    """The unit as it would be had Stoker just written it."""
    env = parse_unit(desired.text).env or ()
    return AsDeclared(desired.text, desired.path, desired.launch.argv, env, desired.launch.user or "")


def _said_declared(form: RecordingForm) -> set[str]:
    units = form.sections.units if isinstance(form.sections.units, list) else []
    return {one.name for one in units if isinstance(one, UnitForm) and one.as_declared}


def _written(desired: Desired) -> Desired:
    """With what the store would remember of a unit that it wrote and started, where nothing is recorded of it."""
    if desired.declared.record is not None:
        return desired
    record = Record(
        unit=desired.unit,
        path=desired.path,
        gpus=desired.gpus,
        written_sha256=file_sha256(desired.text),
        written_launch=desired.launch_hash,
        started_launch=desired.launch_hash,
        inherited=(),
    )
    return replace(desired, declared=replace(desired.declared, record=record))


def _world(
    name: str,
    host: HostSpec,
    store: str,
    look: Observation | Unknown,
    desired: tuple[Desired, ...],
    form: RecordingForm,
    looks: int,
) -> World:
    memory, now_s = HostMemory(), FIRST_LOOK_S
    if isinstance(look, Observation):
        memory.see(look, now_s)
        if looks > 1:
            now_s += BETWEEN_S
            look = replace(look, at_s=now_s)
            memory.see(look, now_s)
        _remember(memory, look, desired, form, now_s)
    return World(
        name=name,
        host=host,
        store_uid=store,
        now_s=now_s,
        observation=look,
        desired=desired,
        strays=dict(memory.strays),
        known_gpus=tuple(form.knows.gpus),
        held_before=frozenset(memory.held_before),
        cards=dict(memory.cards),
        withheld=_withheld(host, look),
    )


def _remember(
    memory: HostMemory, look: Observation, desired: Sequence[Desired], form: RecordingForm, now_s: float
) -> None:
    """What the daemon knew beside the look: as recorded, and what the look itself shows to be ours."""
    for one in desired:
        unit = look.unit(one.unit)
        if isinstance(unit, Unit) and unit.running:
            memory.note_held(one)
    cards = {} if isinstance(look.gpus, Unknown) else {f"gpu:{gpu.index}": gpu.uuid for gpu in look.gpus}
    memory.held_before |= {cards.get(held, held) for held in form.knows.held}
    serves = dict(form.knows.serves)
    for process in _by_hand(form):
        if process.serves is not None:
            serves[str(process.pid)] = process.serves
    ports = () if isinstance(look.listeners, Unknown) else tuple(listener.port for listener in look.listeners)
    for identity, fact in list(memory.strays.items()):
        if (answer := serves.get(str(identity.pid))) is not None:
            memory.strays[identity] = replace(fact, serves=answer, asked_at_s=now_s, ports=ports)
    _remember_signals(memory, form, now_s)


def _remember_signals(memory: HostMemory, form: RecordingForm, now_s: float) -> None:
    """What was signalled was seen well before the first of these looks."""
    told = {one.pid: one for one in form.knows.signalled}
    for identity, fact in list(memory.strays.items()):
        if (one := told.get(identity.pid)) is not None:
            longest = max(one.term_ago_s or 0.0, one.kill_ago_s or 0.0)
            memory.strays[identity] = replace(
                fact,
                first_seen_s=now_s - longest - BETWEEN_S,
                term_at_s=None if one.term_ago_s is None else now_s - one.term_ago_s,
                kill_at_s=None if one.kill_ago_s is None else now_s - one.kill_ago_s,
            )


def _by_hand(form: RecordingForm) -> list[ProcessForm]:
    processes = form.sections.processes
    return [one for one in processes if isinstance(one, ProcessForm)] if isinstance(processes, list) else []


def _withheld(host: HostSpec, look: Observation | Unknown) -> Reason | None:
    """Why the daemon would change nothing, as far as the recording and the manifest tell."""
    if isinstance(look, Unknown):
        return look.reason
    if look.identity.systemd < 249:
        return Reason.SYSTEMD_TOO_OLD if look.identity.systemd > 0 else Reason.NOT_SYSTEMD
    if host.mode == "observe":
        return Reason.OBSERVE_ONLY
    return Reason.HELD if isinstance(look.hold, str) else None


def _notes(form: RecordingForm, world: World) -> Iterable[str]:
    """What a person who wrote a recording by hand may have forgotten."""
    look = world.observation
    if isinstance(look, Unknown):
        return
    if form.sections.meta is None:
        yield "section meta is not recorded: taken as a machine with systemd 252, no container"
    known = () if isinstance(look.units, Unknown) else look.units
    for unit in [*(one.unit for one in world.desired), *(one.unit for one in world.unplaced)]:
        if not isinstance(look.units, Unknown) and not any(one.name == unit for one in known):
            yield f"unit {unit} is declared, but section units does not tell of it: add its name and what it is"
    for name in sorted(_said_declared(form) - {one.unit for one in world.desired}):
        yield f"unit {name} says asDeclared, but no manifest declares it"
