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
from daemon.planner.titles import BUILT_IN, Shapes, is_engine, is_interactive_shell, is_shell

Owner = Literal["unknown", "managed", "orphan-proven", "orphan-likely", "foreign"]

_SCOPE = re.compile(
    r"(docker|libpod|cri-containerd|crio)-[^/]*\.scope|/(lxc|lxc\.payload|machine\.slice|docker|kubepods)[./]"
)
_OWN_SCOPE = re.compile(r"(?:/[^/]+\.slice)*/((?:docker|libpod|cri-containerd|crio)-[^/]*\.scope)(?:/|$)")
_SESSION = re.compile(r"session-([^/]+)\.scope")
_UNIT = re.compile(r"[^/]+\.(?:service|scope)$")
_SLICES = re.compile(r"(?:/[^/]+\.slice)*/")
_DOWN = frozenset({"inactive", "failed"})
_GENERATIONS = 64  # of ancestors that are followed


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


SERVING = Ownership("foreign", "a port of its tree serves")


@dataclass(frozen=True, slots=True)
class Ledger:
    """What attribution reads: one look, and what the store knows. Built once for a look.

    `mark_units` maps a spec uid to the names of its units on this host, `launch_units` the name of a launch to the one
    unit that it is of; `managed` are the units this store declares or
    retires, as seen; `uids` the uid each of them runs as, None where that could not be read, without those that do not
    exist; `serves` what the serve probes found; `shapes` what engines look like here.
    """

    look: Observation
    processes: Mapping[int, Process]
    managed: tuple[Unit, ...]
    mark_units: Mapping[str, tuple[str, ...]]
    store_uid: str
    uids: Mapping[str, int | None]
    serves: Mapping[ProcessId, bool | None]
    launch_units: Mapping[str, str] = field(default_factory=dict)
    shapes: Shapes = BUILT_IN


def in_cgroup(process: Process, unit: Unit) -> bool:
    """Whether the process is in the unit's control group or below it.

    A unit that is down has none to show: what it left sits under its name in whichever slice it had.
    """
    if unit.control_group:
        return process.cgroup == unit.control_group or process.cgroup.startswith(unit.control_group + "/")
    slices = _SLICES.match(process.cgroup)
    below = process.cgroup[slices.end() :] if slices is not None else ""
    return below == unit.name or below.startswith(unit.name + "/")


def attribute(process: Process, ledger: Ledger) -> Ownership:
    """The owner of one candidate process, by the first row of the table that holds."""
    home = _home(process, ledger)
    return home if home is not None else _homeless(process, ledger)


def _home(process: Process, ledger: Ledger) -> Ownership | None:
    """Rows one to four as far as its cgroup tells; None when that holds it no more."""
    if not process.cgroup:
        return Ownership("unknown", "its cgroup could not be read")
    unit = next((unit for unit in ledger.managed if in_cgroup(process, unit)), None)
    if unit is not None:
        return _in_managed_cgroup(process, unit, ledger)
    if _SCOPE.search(process.cgroup) is not None:
        return _in_container(process, ledger.look)
    return _foreign_home(process, ledger)


def _in_managed_cgroup(process: Process, unit: Unit, ledger: Ledger) -> Ownership:
    said = f"in the cgroup of {unit.name}"
    if between_starts(unit, ledger.look):
        return Ownership("unknown", f"{unit.name} is {unit.active_state}/{unit.sub_state}", unit.name)
    if unit.active_state in _DOWN:
        return Ownership("orphan-proven", f"{said}, but the unit is {unit.active_state}", unit.name)
    if unit.inactive_exit_us <= 0:
        return Ownership("unknown", f"{said}, whose start is not known", unit.name)
    own = process.id.start_ticks >= unit.inactive_exit_us // 10_000 or _systemds_own(process, unit, ledger)
    if own is None:
        return Ownership("unknown", f"{said}, and its parent was not seen", unit.name)
    if own:
        return Ownership("managed", f"{said}, started with it", unit.name)
    return Ownership("orphan-proven", f"{said}, but older than its current start", unit.name)


def _systemds_own(process: Process, unit: Unit, ledger: Ledger) -> bool | None:
    """The main or control process of now, or a descendant: systemd forks it some ms before it stamps the start.

    None when an ancestor was not seen.
    """
    for _ in range(_GENERATIONS):
        if process.id.pid in (unit.main_pid, unit.control_pid):
            return True
        if process.ppid <= 1:
            return False
        parent = ledger.processes.get(process.ppid)
        if parent is None:
            return None
        process = parent
    return None


def between_starts(unit: Unit, look: Observation) -> bool:
    """Stopping, reloading or between two automatic starts, and its stop timeout has not passed, as far as is known.

    systemd 254 and newer call the moments before an automatic start inactive or failed, by a sub state of their own.
    """
    if unit.active_state not in ("deactivating", "reloading", "refreshing") and "auto-restart" not in unit.sub_state:
        return False
    age_us = look.identity.monotonic_us - unit.state_change_us
    return unit.state_change_us <= 0 or age_us < max(unit.timeout_stop_us, 1_000_000)


def _in_container(process: Process, look: Observation) -> Ownership | None:
    """A container holds what is in it, whatever its inner units are called; None when its scope is gone (case B20)."""
    scope = _OWN_SCOPE.match(process.cgroup)
    if scope is not None:
        if isinstance(look.other_units, Unknown):
            return Ownership("unknown", "units could not be read")
        state = dict(look.other_units).get(scope[1])
        if state is None:
            return Ownership("unknown", f"the state of {scope[1]} is not known")
        if state in _DOWN:
            return None
    return Ownership("foreign", f"in container group {process.cgroup}")


def _foreign_home(process: Process, ledger: Ledger) -> Ownership | None:
    """Another live unit or attended session holds it; Unknown inputs make the verdict unknown."""
    look = ledger.look
    if isinstance(look.other_units, Unknown) or isinstance(look.sessions, Unknown) or isinstance(look.units, Unknown):
        return Ownership("unknown", "units or sessions could not be read")
    states = {**dict(look.other_units), **{unit.name: _state(unit, look) for unit in look.units}}
    unsure = ""
    for part in reversed(process.cgroup.split("/")):
        session = _SESSION.fullmatch(part)
        if session is not None:
            if _attended(session[1], look.sessions, ledger.processes):
                return Ownership("foreign", f"in login session {session[1]} with a living leader")
        elif _UNIT.match(part) is not None:
            state = states.get(part, "")
            if not state:
                unsure = unsure or part
            elif state not in _DOWN:
                return Ownership("foreign", f"in the cgroup of live unit {part}")
    return Ownership("unknown", f"the state of {unsure} is not known") if unsure else None


def _state(unit: Unit, look: Observation) -> str:
    """Of a unit that another store's or nobody's declaration is for; not known while it moves."""
    return "" if between_starts(unit, look) else unit.active_state


def _attended(session: str, sessions: tuple[Session, ...], processes: Mapping[int, Process]) -> bool:
    """A session counts as attended while logind keeps it with a leader (its own candidate state tells death)."""
    for known in sessions:
        if known.id == session and known.leader_pid > 0:
            leader = processes.get(known.leader_pid)
            return leader is None or leader.state != "Z"
    return False


def _homeless(process: Process, ledger: Ledger) -> Ownership:
    """Rows four to seven for what no cgroup holds: our mark, then a declared engine that nobody attends."""
    if process.marks is None:
        return Ownership("unknown", "its environment could not be read")
    ours, units = _ours(process, ledger), marked_units(process, ledger)
    if not ours and not is_engine(process, ledger.shapes):
        return Ownership("foreign", "not started by Stoker")
    found = _other_user(process, units, ledger) or (
        _at_work(process, units, ledger) if ours else attended_by(process, ledger)
    )
    if found is not None:
        return found
    serves = ledger.serves.get(process.id)
    if serves:
        return SERVING
    if serves is None:
        return Ownership("unknown", "whether a port of its tree serves is not known yet")
    if ours:
        return Ownership("orphan-proven", "carries our mark and its unit is not live", units[0] if units else "")
    return Ownership("orphan-likely", "an engine's process that nobody attends")


def _other_user(process: Process, units: tuple[str, ...], ledger: Ledger) -> Ownership | None:
    """Row four: another uid than the unit's. A mark of a unit that exists no more proves enough; a title does not."""
    expected = {ledger.uids[name] for name in (units or ledger.uids) if name in ledger.uids}
    if process.uid in expected or (not expected and _ours(process, ledger)):
        return None
    if None in expected:
        return Ownership("unknown", "as which user its unit runs could not be read")
    if not expected:
        return Ownership("foreign", "no unit of ours runs as its user")
    return Ownership("foreign", f"runs as uid {process.uid}, not as the unit's user")


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


def _at_work(process: Process, units: tuple[str, ...], ledger: Ledger) -> Ownership | None:
    """The verdict on a marked process while a unit of its mark lives or moves, or a person copied the mark."""
    for name in units:
        unit = ledger.look.unit(name)  # also one that this store does not know
        if unit is None or isinstance(unit, Unknown):
            return Ownership("unknown", f"the state of {name} is not known", name)
        if between_starts(unit, ledger.look):
            return Ownership("unknown", f"{name} is {unit.active_state}/{unit.sub_state}", name)
        if _live(unit):
            return Ownership("foreign", f"carries our mark, but {name} is live", name)
    # systemd gives each service a session of its own, so a unit's process is never in that of a terminal's shell.
    leader = ledger.processes.get(process.session)
    if leader is not None and leader.state != "Z" and is_interactive_shell(leader):
        return Ownership("foreign", f"started from the shell of a terminal, pid {leader.id.pid}, with a copied mark")
    return None


def _live(unit: Unit) -> bool:
    """It has a main process, or needs none to be up. In the gate nothing of this start was executed yet."""
    return unit.running or unit.active_state not in ("inactive", "failed", "activating", "deactivating")


def attended_by(process: Process, ledger: Ledger) -> Ownership | None:
    """Who looks after an engine's process without our mark: row six holds when nobody does (None).

    No living launcher but PID 1, a user manager or a shell without a session. Engines and shells are looked through
    to who launched them, as long as nothing holds them either.
    """
    for _ in range(_GENERATIONS):
        if process.ppid == 1:
            return None
        if process.ppid <= 0:
            return Ownership("foreign", "started from outside this machine's process namespace")
        parent = ledger.processes.get(process.ppid)
        if parent is None:
            return Ownership("unknown", f"its parent, pid {process.ppid}, was not seen")
        if _user_manager(parent):
            return None
        if not is_shell(parent) and not (is_engine(parent, ledger.shapes) and parent.uid == process.uid):
            return Ownership("foreign", f"an engine's process with a living launcher, pid {parent.id.pid}")
        home = _home(parent, ledger)
        if home is not None and not home.orphan:
            owner: Owner = "unknown" if home.owner == "unknown" else "foreign"
            return Ownership(owner, f"launched by pid {parent.id.pid}, {home.proof}")
        process = parent
    return Ownership("unknown", "its launchers are too many to follow")


def _user_manager(process: Process) -> bool:
    return process.argv[:1] != () and posixpath.basename(process.argv[0]) == "systemd" and "--user" in process.argv
