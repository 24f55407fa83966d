"""The families of state: name, type, labels and what each is for; and samples turned into lines of the text format.

A host's and an object's lines are made once, when they may have changed, and joined at each scrape: at a thousand hosts
a scrape stays a join. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from daemon.metrics.samples import FleetSample, GpuSample, HostNow, HostSample, InstanceSample, ObjectSample

STRAY_KINDS = ("orphan-proven", "orphan-likely", "foreign", "unknown", "ghost", "defunct")
LAYERS = ("file", "loaded", "running", "effective", "placement", "inventory")
TRUTHS = ("True", "False", "Unknown")
MAX_DRIFT = 64  # series a host; stoker_drift_fields counts them all
MAX_LABEL = 128  # letters; hosts choose some of the texts
_MIB = 1024 * 1024

Blocks = dict[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family of state. Labels are bounded: hosts, specs, cards are declared, reasons are enums."""

    name: str
    labels: tuple[str, ...]
    help: str
    type: Literal["gauge", "counter"] = "gauge"

    @property
    def head(self) -> str:
        """Its HELP and TYPE lines."""
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.type}\n"


_ROLE = ("host", "spec", "role")
_GPU = ("host", "gpu")
FAMILIES = (
    Family("stoker_build_info", ("version", "python"), "1; what runs"),
    Family("stoker_run_epoch", (), "Which run of this store's daemon this is"),
    Family("stoker_paused", (), "1 while a person has paused the whole fleet"),
    Family("stoker_queue_depth", (), "Hosts that wait for a worker"),
    Family("stoker_queue_oldest_seconds", (), "How long the first of them has been waiting"),
    Family("stoker_connections_open", (), "SSH connections that are up"),
    Family("stoker_connects_total", ("result",), "Connections dialled, by ok or the reason of the failure", "counter"),
    Family("stoker_host_up", ("host",), "1 when the last look at the host was complete"),
    Family("stoker_host_mode", ("host", "mode"), "1; how the host is declared: observe, enforce, cordoned"),
    Family("stoker_host_acting", ("host",), "1 when Stoker may change the host"),
    Family("stoker_host_withheld", ("host", "reason"), "1; why it may not: Held, FencedOff, Paused, ObserveOnly, …"),
    Family("stoker_observation_age_seconds", ("host",), "Age of the last complete look (absent before the first)"),
    Family("stoker_last_look_seconds", ("host",), "How long the last complete look took"),
    Family("stoker_last_look_bytes", ("host",), "Size of its answer"),
    Family("stoker_watch_up", ("host",), "1 while the host's systemd is heard"),
    Family("stoker_watch_signals_total", ("host",), "Signals of managed units that were heard", "counter"),
    Family("stoker_strays", ("host", "kind"), "Processes that hold what a spec may need, by owner"),
    Family("stoker_drift", ("host", "spec", "layer", "field"), "1 for each field that differs from the declared"),
    Family("stoker_drift_fields", ("host", "layer"), "Number of differing fields"),
    Family("stoker_gpu_info", (*_GPU, "uuid", "product", "driver"), "1; which card it is"),
    Family("stoker_gpu_memory_total_bytes", _GPU, "Memory of the card"),
    Family("stoker_gpu_memory_used_bytes", _GPU, "Memory in use"),
    Family("stoker_gpu_utilization_ratio", _GPU, "Share of time in which a kernel ran, 0 to 1"),
    Family("stoker_gpu_temperature_celsius", _GPU, "Temperature"),
    Family("stoker_gpu_usable", _GPU, "1 when nothing known makes the card unusable"),
    Family("stoker_gpu_fault", (*_GPU, "reason"), "1; what makes it unusable"),
    Family("stoker_gpu_owner", (*_GPU, "owner"), "1; who holds it: free, managed, unseen, or a kind of stray"),
    Family("stoker_instance_state", (*_ROLE, "state"), "1 for the present ActiveState of its unit"),
    Family("stoker_instance_condition", (*_ROLE, "type", "status"), "1 for the condition's present status"),
    Family("stoker_instance_reason", (*_ROLE, "reason"), "1 for why it is Ready or not"),
    Family("stoker_instance_generation", _ROLE, "Generation of its spec as declared"),
    Family("stoker_instance_ready_generation", _ROLE, "Generation of its spec that last generated"),
    Family("stoker_instance_last_ready_timestamp_seconds", _ROLE, "When a process last generated first"),
    Family("stoker_instance_startup_seconds", _ROLE, "Start of the process to its first generation, when seen whole"),
    Family("stoker_instance_systemd_restarts", _ROLE, "systemd's NRestarts; its own start sets it to 0"),
    Family("stoker_instance_restarts_total", _ROLE, "Restarts by this daemon since it started", "counter"),
    Family("stoker_condition", ("kind", "name", "type", "status"), "1 for the condition's present status"),
    Family("stoker_condition_reason", ("kind", "name", "type", "reason"), "1 for the condition's present reason"),
    Family("stoker_generation", ("kind", "name"), "Generation of the object as declared"),
    Family("stoker_observed_generation", ("kind", "name"), "Generation that its status speaks of"),
)  # fmt: skip
_LABELS = {family.name: family.labels for family in FAMILIES}


class Lines:
    """Collects lines by family. A value of None adds nothing: what is not known is absent, never 0."""

    def __init__(self) -> None:
        self._made: dict[str, list[str]] = {}

    def add(self, name: str, values: Iterable[str], value: float | None) -> None:
        """One sample; KeyError for a family that is not in the table, ValueError for labels that are not its own."""
        if value is None:
            return
        pairs = zip(_LABELS[name], values, strict=True)
        text = ",".join(f'{label}="{_escaped(one)}"' for label, one in pairs)
        named = f"{name}{{{text}}}" if text else name
        self._made.setdefault(name, []).append(f"{named} {float(value)}\n")

    def blocks(self) -> Blocks:
        """The lines of each family."""
        return {name: "".join(lines) for name, lines in self._made.items()}


def _escaped(text: str) -> str:
    text = text[:MAX_LABEL].encode("utf-8", "replace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def host_blocks(sample: HostSample) -> Blocks:
    """What stays of one host until its next pass."""
    lines, host = Lines(), sample.host
    lines.add("stoker_host_up", (host,), sample.up)
    lines.add("stoker_host_mode", (host, sample.mode), 1)
    lines.add("stoker_host_acting", (host,), not sample.withheld)
    lines.add("stoker_host_withheld", (host, sample.withheld), 1 if sample.withheld else None)
    lines.add("stoker_last_look_seconds", (host,), sample.look_s)
    lines.add("stoker_last_look_bytes", (host,), sample.look_bytes)
    for kind in STRAY_KINDS if sample.strays is not None else ():
        lines.add("stoker_strays", (host, kind), (sample.strays or {}).get(kind, 0))
    if sample.drift is not None:
        for spec, layer, name in sorted(set(sample.drift))[:MAX_DRIFT]:
            lines.add("stoker_drift", (host, spec, layer, name), 1)
        for layer in LAYERS:
            lines.add("stoker_drift_fields", (host, layer), sum(1 for _, of, _ in sample.drift if of == layer))
    for gpu in sample.gpus:
        _gpu(lines, host, gpu)
    for instance in sample.instances:
        _instance(lines, host, instance)
    return lines.blocks()


def _gpu(lines: Lines, host: str, gpu: GpuSample) -> None:
    at = (host, str(gpu.index))
    lines.add("stoker_gpu_info", (*at, gpu.uuid, gpu.product, gpu.driver), 1)
    lines.add("stoker_gpu_memory_total_bytes", at, _bytes(gpu.memory_total_mib))
    lines.add("stoker_gpu_memory_used_bytes", at, _bytes(gpu.memory_used_mib))
    lines.add("stoker_gpu_utilization_ratio", at, None if gpu.utilization_pct is None else gpu.utilization_pct / 100)
    lines.add("stoker_gpu_temperature_celsius", at, gpu.temperature_c)
    lines.add("stoker_gpu_usable", at, not gpu.fault)
    lines.add("stoker_gpu_fault", (*at, gpu.fault), 1 if gpu.fault else None)
    lines.add("stoker_gpu_owner", (*at, gpu.owner or ""), None if gpu.owner is None else 1)


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * _MIB


def _instance(lines: Lines, host: str, one: InstanceSample) -> None:
    at = (host, one.spec, one.role)
    lines.add("stoker_instance_state", (*at, one.active), 1 if one.active else None)
    for type_, status in (("Ready", one.ready), ("Loaded", one.loaded), ("Available", one.available)):
        for truth in TRUTHS:
            lines.add("stoker_instance_condition", (*at, type_, truth), status == truth)
    lines.add("stoker_instance_reason", (*at, one.reason), 1)
    lines.add("stoker_instance_generation", at, one.generation)
    lines.add("stoker_instance_ready_generation", at, one.ready_generation or None)
    lines.add("stoker_instance_last_ready_timestamp_seconds", at, one.ready_at_s)
    lines.add("stoker_instance_startup_seconds", at, one.startup_s)
    lines.add("stoker_instance_systemd_restarts", at, one.systemd_restarts)
    lines.add("stoker_instance_restarts_total", at, one.restarts)


def object_blocks(sample: ObjectSample) -> Blocks:
    """What is said of one object until it changes."""
    lines, at = Lines(), (sample.kind, sample.name)
    for type_, status, reason in sample.conditions:
        for truth in TRUTHS:
            lines.add("stoker_condition", (*at, type_, truth), status == truth)
        lines.add("stoker_condition_reason", (*at, type_, reason), 1)
    lines.add("stoker_generation", at, sample.generation)
    lines.add("stoker_observed_generation", at, sample.observed)
    return lines.blocks()


def now_blocks(fleet: FleetSample, hosts: Iterable[HostNow], build: tuple[str, str]) -> Blocks:
    """What is read at the scrape itself."""
    lines = Lines()
    lines.add("stoker_build_info", build, 1)
    lines.add("stoker_run_epoch", (), fleet.epoch)
    lines.add("stoker_paused", (), fleet.paused)
    lines.add("stoker_queue_depth", (), fleet.queue)
    lines.add("stoker_queue_oldest_seconds", (), fleet.oldest_wait_s)
    lines.add("stoker_connections_open", (), fleet.open_connections)
    for result, count in sorted(fleet.connects.items()):
        lines.add("stoker_connects_total", (result,), count)
    for host in hosts:
        lines.add("stoker_observation_age_seconds", (host.host,), host.age_s)
        lines.add("stoker_watch_up", (host.host,), host.watched)
        lines.add("stoker_watch_signals_total", (host.host,), host.signals)
    return lines.blocks()


def text_of(parts: Iterable[Mapping[str, str]]) -> str:
    """The families in order, each with the lines that all parts have of it."""
    taken = list(parts)
    found = []
    for family in FAMILIES:
        found.append(family.head)
        found += [part[family.name] for part in taken if family.name in part]
    return "".join(found)
