"""The answer of `stoker-host probe`: one request, and whose process answered it. Called by `ready`, which judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daemon.domain.errors import ended
from daemon.domain.observation import Listener, Unknown
from daemon.domain.status import Reason
from daemon.probes import process, socket
from daemon.probes.report import Answer, Section, read

_UNIT_KEYS = ("InvocationID", "MainPID", "ControlGroup", "ActiveState")
_FAILURES = {
    7: Reason.CONNECTION_REFUSED,
    28: Reason.GENERATION_TIMEOUT,
    56: Reason.GENERATION_FAILED,
    127: Reason.TOOL_MISSING,
    27: Reason.TRUNCATED,
}


@dataclass(frozen=True, slots=True)
class UnitNow:
    """The unit at one instant of the probe."""

    invocation_id: str
    main_pid: int
    control_group: str
    active_state: str


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one probe showed. `http_status` and `body` are set when `failure` is None; `body` is at most 64 KiB.

    `listeners` have their owners' cgroups in `cgroups` (pid → path). `peers` are the pids at the far end of the probe's
    own connection, Unknown when they could not be looked for, empty when nobody here holds it. `mark` is STOKER_LAUNCH
    of the main process, None when it has none or could not be read.
    """

    before: UnitNow | Unknown
    after: UnitNow | Unknown
    listeners: tuple[Listener, ...] | Unknown
    peers: tuple[int, ...] | Unknown
    cgroups: Mapping[int, str] | Unknown
    argv: tuple[str, ...] | Unknown
    mark: str | None
    http_status: int
    body: bytes
    failure: Reason | None
    detail: str
    took_ms: int

    @property
    def strangers(self) -> tuple[int, ...] | Unknown:
        """Listeners and peers outside the unit's cgroup; Unknown when an owner or a cgroup is."""
        for part in (self.before, self.listeners, self.peers, self.cgroups):
            if isinstance(part, Unknown):
                return part
        assert not isinstance(self.before, Unknown)
        assert not isinstance(self.listeners, Unknown)
        assert not isinstance(self.peers, Unknown)
        assert not isinstance(self.cgroups, Unknown)
        home = self.before.control_group
        if not home or not self.peers or any(not listener.pids for listener in self.listeners):
            return Unknown(Reason.OWNERSHIP_UNKNOWN, "the owner of the port or of the far end could not be seen")
        pids = {pid for listener in self.listeners for pid in listener.pids} | set(self.peers)
        if not pids <= self.cgroups.keys():
            return Unknown(Reason.OWNERSHIP_UNKNOWN, "a cgroup could not be read")
        return self.seen_strangers

    @property
    def seen_strangers(self) -> tuple[int, ...]:
        """Those of them that were seen, whatever was not: enough to say whose story it is, not to call it ours."""
        if isinstance(self.before, Unknown) or isinstance(self.cgroups, Unknown) or not self.before.control_group:
            return ()
        listeners = () if isinstance(self.listeners, Unknown) else self.listeners
        peers = () if isinstance(self.peers, Unknown) else self.peers
        seen = {pid for listener in listeners for pid in listener.pids}.union(peers) & self.cgroups.keys()
        home = self.before.control_group + "/"
        return tuple(sorted(pid for pid in seen if not f"{self.cgroups[pid]}/".startswith(home)))


def parse_probe(answer: Answer) -> ProbeAnswer | Unknown:
    """The probe's answer; Unknown when the verb itself was refused."""
    if answer.verb != "probe" or answer.exit_status != 0:
        return Unknown(Reason.LOOK_INCOMPLETE, f"{answer.verb} ended with {answer.exit_status}: {answer.error}")
    status, body, failed, detail, took_ms = _response(answer)
    mark = read(answer, "mark", lambda section: section.text.rstrip("\0"))
    return ProbeAnswer(
        before=read(answer, "before", _unit_now),
        after=read(answer, "after", _unit_now),
        listeners=read(answer, "listeners", lambda section: socket.parse_listeners(section.text)),
        peers=read(answer, "peer", lambda section: process.numbers_in(section.text)),
        cgroups=read(answer, "cgroups", _cgroups),
        argv=read(answer, "main", lambda section: process.arguments(section.data)),
        mark=None if isinstance(mark, Unknown) else mark.partition("=")[2] or None,
        http_status=status,
        body=body,
        failure=failed,
        detail=detail,
        took_ms=took_ms,
    )


def _unit_now(section: Section) -> UnitNow:
    values = process.values_of(section.text)
    invocation, main_pid, group, state = (values[key] for key in _UNIT_KEYS)
    return UnitNow(invocation, process.whole_number(main_pid), group, state)


def _cgroups(section: Section) -> dict[int, str]:
    files = process.lines_of_files(section.data)
    return {process.pid_of(path): process.cgroup_path(content) for path, content in files.items()}


def _response(answer: Answer) -> tuple[int, bytes, Reason | None, str, int]:
    """HTTP status, body, and why there is none: the server's doing (7, 28, 56), or its asker's (all else)."""
    section = answer.sections.get("response")
    if section is None:
        return 0, b"", Reason.LOOK_INCOMPLETE, "section response is missing", 0
    if section.exit_status != 0:
        reason = _FAILURES.get(section.exit_status, Reason.TOOL_FAILED)
        return 0, b"", reason, ended(section.exit_status, section.text.strip()[:300]), section.ms
    status, newline, body = section.data.partition(b"\n")
    if not newline or not status.isdigit() or len(status) != 3:
        return 0, b"", Reason.UNPARSABLE, "the response has no HTTP status", section.ms
    return int(status), body, None, "", section.ms
