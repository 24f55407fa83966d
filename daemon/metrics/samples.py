"""What is state-like, as metrics show it: plain values, made by `daemon.sampled`. None stands for "not known"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Truth = str  # True, False, Unknown


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One card of a look. `owner` is whose processes hold it, None when that is not known; `fault` "" for none."""

    index: int
    uuid: str
    product: str
    driver: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    utilization_pct: int | None
    temperature_c: int | None
    fault: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class InstanceSample:
    """One declared role on its host. `active` is "" while systemd's state is unknown; `ready_at_s` is Unix time."""

    spec: str
    role: str
    active: str
    ready: Truth
    loaded: Truth
    available: Truth
    reason: str
    generation: int
    ready_generation: int
    ready_at_s: float | None
    systemd_restarts: int | None
    restarts: int
    startup_s: float | None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One host as its last pass left it. `drift` is (spec, layer, field); what an incomplete look hides is None.

    `withheld` is why nothing may be changed there, "" when the way is free.
    """

    host: str
    up: bool
    mode: str
    withheld: str
    look_s: float | None = None
    look_bytes: int | None = None
    strays: Mapping[str, int] | None = None
    drift: Sequence[tuple[str, str, str]] | None = None
    gpus: Sequence[GpuSample] = ()
    instances: Sequence[InstanceSample] = ()


@dataclass(frozen=True, slots=True)
class ObjectSample:
    """What is said of one object. `conditions` are (type, status, reason); `observed` is None before the first word."""

    kind: str
    name: str
    generation: int
    observed: int | None
    conditions: Sequence[tuple[str, Truth, str]] = ()


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The daemon itself. `connects` counts dials by how they ended."""

    queue: int = 0
    oldest_wait_s: float = 0.0
    open_connections: int = 0
    connects: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class HostNow:
    """The part of a host that moves between passes. `age_s` is None before the first complete look."""

    host: str
    age_s: float | None
    watched: bool = False
    signals: int = 0
