"""What should be on one host: each declared instance bound to cards and rendered to argv, unit text and gate manifest.

Cards are bound by UUID at first placement and kept; an index that shows another card is `GPUBindingChanged`.
"""

from __future__ import annotations

from collections.abc import Sequence

from daemon.domain.health import Ailment
from daemon.domain.observation import Gpu, Observation, Unknown
from daemon.domain.spec import Role
from daemon.domain.status import Reason
from daemon.engines.launch import Launch, Peer, launch_hash, render
from daemon.engines.sglang import bootstrap_port
from daemon.engines.takes import derived_ports
from daemon.engines.unit import Marks, dropin_text, gate_manifest, unit_text
from daemon.planner.world import Declared, Desired, Unplaced

UNIT_FOLDER = "/etc/systemd/system"


def unit_name(spec_name: str, role: Role, adopted: str | None) -> str:
    """`stoker-SPEC.ROLE.service`, or the adopted unit's own name."""
    return adopted or f"stoker-{spec_name}.{role}.service"


def unit_path(unit: str, *, adopted: bool) -> str:
    """Where our text goes: the unit's own file, or our drop-in for an adopted unit."""
    return f"{UNIT_FOLDER}/{unit}.d/50-stoker.conf" if adopted else f"{UNIT_FOLDER}/{unit}"


def place(
    declared: Declared, look: Observation | Unknown, store_uid: str, peers: Sequence[Peer] = ()
) -> Desired | Unplaced:
    """Bind and render one instance, or say why that is not possible now."""
    unit = unit_name(declared.spec_name, declared.role, declared.view.unit)
    bound = _bind(declared, look)
    if isinstance(bound, Unplaced):
        return bound
    return _render(declared, unit, bound, store_uid, tuple(peers))


def _bind(declared: Declared, look: Observation | Unknown) -> tuple[tuple[int, str], ...] | Unplaced:
    unit = unit_name(declared.spec_name, declared.role, declared.view.unit)
    placement = declared.view.placement
    wanted = placement.gpus if placement is not None else ()
    record = declared.record
    if record is not None and tuple(index for index, _ in record.gpus) == tuple(wanted):
        return record.gpus
    if not wanted:
        return ()
    if isinstance(look, Unknown):
        return Unplaced(declared, unit, look.reason, look.detail)
    if isinstance(look.gpus, Unknown):
        return Unplaced(declared, unit, look.gpus.reason, f"GPUs are not known: {look.gpus.detail}")
    cards = {gpu.index: gpu for gpu in look.gpus}
    missing = [index for index in wanted if index not in cards]
    if missing:
        return Unplaced(declared, unit, Reason.GPU_MISSING, f"the host has no GPU {missing[0]} (it has {len(cards)})")
    return tuple((index, cards[index].uuid) for index in wanted)


def binding_problem(
    gpus: Sequence[tuple[int, str]], present: Sequence[Gpu], ailments: Sequence[Ailment] = ()
) -> tuple[Reason, str] | None:
    """What is wrong with a kept binding against the cards present: moved, missing or unusable; else None."""
    by_index = {gpu.index: gpu for gpu in present}
    for index, uuid in gpus:
        gpu = by_index.get(index)
        if gpu is None:
            return Reason.GPU_MISSING, f"GPU {index} ({uuid}) is gone"
        if gpu.uuid != uuid:
            return Reason.GPU_BINDING_CHANGED, f"index {index} was {uuid} and is {gpu.uuid} now"
        if gpu.fault is not None:
            return gpu.fault, unusable(gpu, ailments)
    return None


def unusable(gpu: Gpu, ailments: Sequence[Ailment]) -> str:
    """What a person is told of a card that nothing is started on."""
    why = "; ".join(one.detail for one in ailments if one.uuid == gpu.uuid and one.unusable)[:500]
    return f"GPU {gpu.index} ({gpu.uuid}) is not usable" + (f": {why}" if why else "")


def listens_on(declared: Declared, launch: Launch | None = None) -> tuple[int, ...]:
    """Every port one instance is known to take: its own, a prefill's bootstrap port, and derived ones (case B19)."""
    view = declared.view
    own = (view.port,) if view.port is not None else ()
    if declared.role == "router":
        return own
    if declared.role == "prefill" and view.engine.name == "sglang":
        own = (*own, bootstrap_port(declared.spec, declared.role))
    argv = (launch or render(view, declared.role, (), declared.spec)).argv
    more = derived_ports(view.engine.name, view.engine.version, argv, view.port)
    return tuple(dict.fromkeys((*own, *more)))


def _render(
    declared: Declared, unit: str, gpus: tuple[tuple[int, str], ...], store_uid: str, peers: tuple[Peer, ...]
) -> Desired:
    view = declared.view
    launch = render(view, declared.role, gpus, declared.spec, peers)
    digest = launch_hash(launch)
    marks = Marks(store=store_uid, spec=declared.spec_uid, launch_hash=digest)
    adopted = view.unit is not None
    text = dropin_text(launch, marks, view, unit) if adopted else unit_text(launch, marks, view, unit)
    ports = listens_on(declared, launch)
    return Desired(
        declared=declared,
        unit=unit,
        path=unit_path(unit, adopted=adopted),
        adopted=adopted,
        gpus=gpus,
        ports=ports,
        launch=launch,
        launch_hash=digest,
        text=text,
        gate=gate_manifest(gpus, ports),
    )
