"""Whose a process is: the table of design section 2, row by row, the first that holds wins.

`attribute` is asked for each candidate of a look; names, titles and PPID 1 alone prove nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from daemon.domain.observation import Observation, Process, ProcessId, Session, Unit, Unknown

Owner = Literal["unknown", "managed", "orphan-proven", "orphan-likely", "foreign"]

_ENGINE = re.compile(
    r"(^|[ /])(sglang::|VLLM::|sgl_diffusion::|smg::router|sglang serve|sglang\.launch_server|sglang\.srt|sglang_router"
    r"|vllm serve|vllm\.entrypoints|vllm\.v1|vllm-rs )"
)
_SCOPE = re.compile(
    r"(docker|libpod|cri-containerd|crio)-[^/]*\.scope|/(lxc|lxc\.payload|machine\.slice|docker|kubepods)[./]"
)
_OWN_SCOPE = re.compile(r"(?:/[^/]+\.slice)*/((?:docker|libpod|cri-containerd|crio)-[^/]*\.scope)(?:/|$)")
_SESSION = re.compile(r"/session-([^/]+)\.scope")
_UNIT = re.compile(r"[^/]+\.(?:service|scope)$")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh"})
_LIVE = frozenset({"active", "reloading", "activating", "deactivating", "refreshing", "maintenance"})


@dataclass(frozen=True, slots=True)
class Ownership:
    """The verdict with its proof; `unit` is the managed unit it belongs or belonged to, if any."""

    owner: Owner
    proof: str
    unit: str = ""

    @property
    def orphan(self) -> bool:
        """Proven or likely."""
        return self.owner.startswith("orphan")


@dataclass(frozen=True, slots=True)
class Ledger:
    """What attribution reads: one look, and what the store knows. Built once for a look.

    `mark_units` maps a spec uid to the names of its units on this host, `launch_units` the name of a launch to the one
    unit that it is of; `managed` are the units this store declares or
    retires, as seen; `uids` the uid each of them runs as, where known; `serves` what the serve probes found.
    """

    look: Observation
    processes: Mapping[int, Process]
    managed: tuple[Unit, ...]
    mark_units: Mapping[str, tuple[str, ...]]
    store_uid: str
    uids: Mapping[str, int]
    serves: Mapping[ProcessId, bool | None]
    launch_units: Mapping[str, str] = field(default_factory=dict)


def in_cgroup(process: Process, unit: Unit) -> bool:
    """Whether the process is in the unit's control group or below it."""
    group = unit.control_group or f"/system.slice/{unit.name}"
    return process.cgroup == group or process.cgroup.startswith(group + "/")


def attribute(process: Process, ledger: Ledger) -> Ownership:
    """The owner of one candidate process, by the first row of the table that holds."""
    if not process.cgroup:
        return Ownership("unknown", "its cgroup could not be read")
    home = next((unit for unit in ledger.managed if in_cgroup(process, unit)), None)
    if home is not None:
        return _in_managed_cgroup(process, home, ledger)
    container = _SCOPE.search(process.cgroup) is not None
    foreign = _in_container(process, ledger.look) if container else _foreign_home(process, ledger)
    if foreign is not None:
        return foreign
    return _homeless(process, ledger)


def _in_managed_cgroup(process: Process, unit: Unit, ledger: Ledger) -> Ownership:
    if _between_starts(unit, ledger.look):
        return Ownership("unknown", f"{unit.name} is {unit.active_state}/{unit.sub_state}", unit.name)
    started = unit.active_state in ("active", "activating", "reloading", "deactivating") and unit.inactive_exit_us > 0
    if started and (process.id.start_ticks >= unit.inactive_exit_us // 10_000 or _systemds_own(process, unit, ledger)):
        return Ownership("managed", f"in the cgroup of {unit.name}, started with it", unit.name)
    why = "older than its current start" if started else f"the unit is {unit.active_state}"
    return Ownership("orphan-proven", f"in the cgroup of {unit.name}, but {why}", unit.name)


def _systemds_own(process: Process, unit: Unit, ledger: Ledger) -> bool:
    """The main or control process of now, or a descendant: systemd forks it some ms before it stamps the start."""
    for _ in range(64):
        if process.id.pid in (unit.main_pid, unit.control_pid):
            return True
        parent = ledger.processes.get(process.ppid)
        if parent is None or parent.id.pid <= 1:
            return False
        process = parent
    return False


def _between_starts(unit: Unit, look: Observation) -> bool:
    moving = unit.active_state in ("deactivating", "reloading") or unit.sub_state == "auto-restart"
    age_us = look.identity.monotonic_us - unit.state_change_us
    return moving and age_us < max(unit.timeout_stop_us, 1_000_000)


def _in_container(process: Process, look: Observation) -> Ownership | None:
    """A container holds what is in it, whatever its inner units are called; None when its scope is gone (case B20)."""
    scope = _OWN_SCOPE.match(process.cgroup)
    if scope is not None:
        if isinstance(look.other_units, Unknown):
            return Ownership("unknown", "units could not be read")
        state = dict(look.other_units).get(scope[1])
        if state is None:
            return Ownership("unknown", f"the state of {scope[1]} is not known")
        if state not in _LIVE:
            return None
    return Ownership("foreign", f"in container group {process.cgroup}")


def _foreign_home(process: Process, ledger: Ledger) -> Ownership | None:
    """Another live unit or attended session holds it; Unknown inputs make the verdict unknown."""
    look = ledger.look
    if isinstance(look.other_units, Unknown) or isinstance(look.sessions, Unknown):
        return Ownership("unknown", "units or sessions could not be read")
    session = _SESSION.search(process.cgroup)
    if session is not None:
        if _attended(session[1], look.sessions, ledger.processes):
            return Ownership("foreign", f"in login session {session[1]} with a living leader")
        return None
    states = dict(look.other_units)
    for part in reversed(process.cgroup.split("/")):
        if _UNIT.match(part) is None:
            continue
        state = states.get(part)
        if state is None:
            return Ownership("unknown", f"the state of {part} is not known")
        if state in _LIVE:
            return Ownership("foreign", f"in the cgroup of live unit {part}")
    return None


def _attended(session: str, sessions: tuple[Session, ...], processes: Mapping[int, Process]) -> bool:
    """A session counts as attended while logind keeps it with a leader (its own candidate state tells death)."""
    for known in sessions:
        if known.id == session and known.leader_pid > 0:
            leader = processes.get(known.leader_pid)
            return leader is None or leader.state != "Z"
    return False


def _homeless(process: Process, ledger: Ledger) -> Ownership:
    """Rows five to seven: our mark, then a declared engine that nobody attends, else somebody else's."""
    if process.marks is None:
        return Ownership("unknown", "its environment could not be read")
    ours = _ours(process, ledger)
    units = marked_units(process, ledger)
    engine = is_engine(process)
    if not ours and not engine:
        return Ownership("foreign", "not started by Stoker")
    expected = {ledger.uids[name] for name in (units or ledger.uids) if name in ledger.uids}
    if expected and process.uid not in expected:
        return Ownership("foreign", f"runs as uid {process.uid}, not as the unit's user")
    if ours and (attended := _marked_live(units, ledger)) is not None:
        return attended
    serves = ledger.serves.get(process.id)
    if serves:
        return Ownership("foreign", "a port of its tree serves")
    if serves is None:
        return Ownership("unknown", "whether a port of its tree serves is not known yet")
    if ours:
        return Ownership("orphan-proven", "carries our mark and its unit is not live", units[0] if units else "")
    if not expected:
        return Ownership("foreign", "no unit of ours runs as its user")
    if _unattended(process, ledger.processes):
        return Ownership("orphan-likely", "an engine's process that nobody attends")
    return Ownership("foreign", "an engine's process with a living launcher")


def _ours(process: Process, ledger: Ledger) -> bool:
    marks = dict(process.marks or ())
    return marks.get("STOKER_STORE") == ledger.store_uid and bool(marks.get("STOKER_SPEC"))


def marked_units(process: Process, ledger: Ledger) -> tuple[str, ...]:
    """The units that a process with our mark was started by: the one of its launch, else all of its spec here."""
    if not _ours(process, ledger):
        return ()
    marks = dict(process.marks or ())
    units = ledger.mark_units.get(marks["STOKER_SPEC"], ())
    started_by = ledger.launch_units.get(marks.get("STOKER_LAUNCH", ""))
    return (started_by,) if started_by is not None and started_by in units else units


def _marked_live(units: tuple[str, ...], ledger: Ledger) -> Ownership | None:
    """The verdict while a unit of the mark lives or moves; None when none does."""
    for name in units:
        unit = ledger.look.unit(name)  # also one that this store does not know
        if unit is None or isinstance(unit, Unknown):
            return Ownership("unknown", f"the state of {name} is not known", name)
        if _between_starts(unit, ledger.look):
            return Ownership("unknown", f"{name} is {unit.active_state}/{unit.sub_state}", name)
        if unit.running:
            return Ownership("foreign", f"carries our mark, but {name} is live", name)
    return None


def is_engine(process: Process) -> bool:
    """Whether its command line or title is an engine's. `comm` is cut at 15 characters and only a prefix."""
    line = " ".join(process.argv)[:4096]
    return bool(_ENGINE.search(line)) or process.comm.startswith(("sglang::", "VLLM::"))


def _unattended(process: Process, processes: Mapping[int, Process]) -> bool:
    """No living launcher but PID 1, a user manager or a shell without a session; engine parents are looked through."""
    parent = processes.get(process.ppid)
    for _ in range(64):
        if process.ppid == 1:
            return True
        if parent is None:
            return False
        if parent.id.pid == 1 or (parent.argv[:1] and posixpath.basename(parent.argv[0]) == "systemd"):
            return True
        if parent.argv and posixpath.basename(parent.argv[0]).lstrip("-") in _SHELLS:
            return _SESSION.search(parent.cgroup) is None
        if not is_engine(parent):
            return False
        process, parent = parent, processes.get(parent.ppid)
    return False
