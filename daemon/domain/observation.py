"""What one host showed at one instant. Every value is known, or `Unknown` with a reason.

Written by `daemon.probes` from the text of `stoker-host observe`; read by `daemon.planner`. An `Unknown` is never
an empty list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from daemon.domain.health import Ailment, CardHealths, KernelLog, Space
from daemon.domain.status import Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, and why: `detail` is bounded text for a person (the tool's own words)."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. MiB as nvidia-smi's; `None` is the tool's "no value". `fault` makes the card unusable."""

    index: int
    uuid: str
    bus_id: str
    name: str
    driver: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    mig: bool = False
    fault: Reason | None = None
    warning: Reason | None = None


@dataclass(frozen=True, slots=True)
class GpuApp:
    """One row of compute-apps: a pid as the driver reports it (perhaps of another pid namespace)."""

    gpu_uuid: str
    pid: int
    name: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of a process within one boot: pid and start (boot clock, 1/100 s ticks of /proc/PID/stat field 22)."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One candidate process. `marks` are its STOKER_* variables, None when its environment could not be read.

    `cgroup` is the path in the unified hierarchy (or systemd's named one on v1). `argv` is empty for kernel threads and
    zombies. `nvidia_minors` are the N of its open `/dev/nvidiaN`; `nvidia_open` is true for any `/dev/nvidia*`.
    """

    id: ProcessId
    ppid: int
    pgrp: int
    session: int
    state: str
    uid: int
    comm: str
    cgroup: str
    argv: tuple[str, ...]
    marks: tuple[tuple[str, str], ...] | None
    nvidia_open: bool = False
    nvidia_minors: frozenset[int] = frozenset()
    user: str = ""


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket; `pids` is empty when its owner could not be seen."""

    address: str
    port: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file in /dev/shm of a name that engines give. `changed` is as the host spells it, `age_s` since then;
    `held`: some process has it open or mapped."""

    name: str
    uid: int
    user: str
    size: int
    inode: int
    changed: str
    age_s: float
    held: bool


@dataclass(frozen=True, slots=True)
class Environment:
    """A main process as /proc showed it: argv and environment (only the names and prefixes the look asked for, and our
    marks)."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str | None
    exe: str | None
    uid: int


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A unit's own file on disk. `text` is None when it does not exist, or when it is a link or no plain file."""

    path: str
    text: str | None
    sha256: str | None
    link: bool = False


@dataclass(frozen=True, slots=True)
class DropIn:
    """A drop-in in one of a unit's own folders, loaded or not yet."""

    path: str
    text: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What systemd has loaded: ExecStart's argv and Environment, over JSON, in the unit's own order."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    user: str
    working_directory: str


@dataclass(frozen=True, slots=True)
class Unit:
    """One systemd unit. Stamps are systemd's monotonic microseconds, 0 for never; states as systemctl spells them.

    `control_group` is "" when the unit has no cgroup. `loaded` is None for one that is not loaded. `main` is None when
    there is no main process or it could not be read. `dropins` lie in its own folders, None when that is not known.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    unit_file_state: str
    fragment_path: str
    dropin_paths: tuple[str, ...]
    need_daemon_reload: bool
    main_pid: int
    control_pid: int
    invocation_id: str
    restarts: int
    exec_main_code: int
    exec_main_status: int
    exec_main_start_us: int
    inactive_exit_us: int
    active_enter_us: int
    inactive_enter_us: int
    control_group: str
    timeout_stop_us: int
    job: int
    state_change_us: int = 0
    loaded: Loaded | Unknown | None = None
    file: UnitFile | None = None
    main: Environment | None = None
    dropins: tuple[DropIn, ...] | None = ()

    @property
    def running(self) -> bool:
        """A main process exists: the unit serves, loads or drains."""
        return self.main_pid > 0

    @property
    def waits_in_gate(self) -> bool:
        """The unit is in ExecStartPre: nothing of this start was executed yet."""
        return self.active_state == "activating" and self.sub_state == "start-pre"


@dataclass(frozen=True, slots=True)
class Fence:
    """Who may change this host: one store, its epoch (one more for each daemon start) and that run's id."""

    store: str
    epoch: int
    run: str


@dataclass(frozen=True, slots=True)
class Session:
    """A login session and its leader, as logind keeps it."""

    id: str
    leader_pid: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes the host this host. `gpu_uuids` sorted; empty while the GPUs are unknown."""

    machine_id: str
    boot_id: str
    container: str
    systemd: int
    uptime_s: float
    monotonic_us: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One complete look. An incomplete one (no end mark) is never built: the whole look is then `Unknown`.

    `at_s` is the daemon's monotonic clock at the look's start. `other_units` holds the units of the candidates' cgroups
    (name → active state). `unclaimed` are marked unit files the look found besides those asked for. `inherited` names
    the variables of systemd's own environment, which every unit inherits (`systemctl set-environment` adds to it).
    `ailments` are what is wrong with cards as far as `health` and `kernel` could be read; the defaults know of nothing.
    `leftovers` is None when the look did not ask for them; `helper` is the version of the script that answered.
    """

    host: str
    at_s: float
    identity: Identity
    gpus: tuple[Gpu, ...] | Unknown
    apps: tuple[GpuApp, ...] | Unknown
    processes: tuple[Process, ...] | Unknown
    listeners: tuple[Listener, ...] | Unknown
    units: tuple[Unit, ...] | Unknown
    other_units: tuple[tuple[str, str], ...] | Unknown
    sessions: tuple[Session, ...] | Unknown
    fence: Fence | Unknown | None
    hold: str | Unknown | None
    warnings: tuple[Unknown, ...] = ()
    inherited: frozenset[str] | Unknown = frozenset()
    ailments: tuple[Ailment, ...] = ()
    health: CardHealths | Unknown | None = None
    kernel: KernelLog | Unknown = field(default_factory=KernelLog)
    space: tuple[Space, ...] | Unknown = ()
    leftovers: tuple[Leftover, ...] | Unknown | None = None
    helper: int = 0

    def unit(self, name: str) -> Unit | Unknown | None:
        """The unit of that name, None when the look did not ask for it, Unknown when units are unknown."""
        if isinstance(self.units, Unknown):
            return self.units
        return next((unit for unit in self.units if unit.name == name), None)
