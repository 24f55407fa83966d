"""The process table of a simulated host: births, signals, deaths, and who inherits the orphans.

The truth about a process (`whose`, `why`) is born with it. Nothing that a host prints may show it: it is for checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

Whose = Literal["instance", "leftover", "foreign", "system"]
EXITED, KILLED = 1, 2  # CLD_EXITED and CLD_KILLED, as systemd shows them
SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15, "CONT": 18, "STOP": 19}


@dataclass(slots=True, eq=False)
class SimProcess:
    """One process. `title` overwrites its command line; `memory` is MiB by card; `ports` is the address by port.

    `more_ports` are further listeners, where one port has two addresses.

    `unreaped`: its parent does not wait for it, so that it becomes a zombie. `deaf` ignores TERM.
    `stuck` is in state D: no signal ends it. `tethered` dies with its parent (SGLang's ranks do).
    `veiled`: its environment cannot be read.
    """

    pid: int
    start: int
    ppid: int
    pgrp: int
    session: int
    uid: int
    cgroup: str
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    exe: str
    cwd: str
    comm: str
    whose: Whose
    why: str
    state: str = "S"
    title: str | None = None
    devices: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    busy_pct: int = 0
    ports: dict[int, str] = field(default_factory=dict)
    more_ports: tuple[tuple[int, str], ...] = ()
    tethered: bool = False
    deaf: bool = False
    unreaped: bool = False
    veiled: bool = False
    on_term: Callable[[], None] | None = None
    on_end: Callable[[int, int], None] | None = None
    serves: Serves | None = None
    pending: list[str] = field(default_factory=list)

    @property
    def stuck(self) -> bool:
        return self.state == "D"

    @property
    def listens(self) -> list[tuple[int, str]]:
        return [*self.ports.items(), *self.more_ports]

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X")

    @property
    def cmdline(self) -> bytes:
        """As /proc shows it: a title stands in the room of the arguments, and NULs fill the rest."""
        raw = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in self.argv)
        if not self.alive or self.title is None:
            return raw if self.alive else b""
        return self.title.encode()[: max(len(raw) - 1, 0)].ljust(len(raw), b"\0")

    @property
    def name(self) -> str:
        """The first word of the command line, which the driver shows."""
        return self.cmdline.split(b"\0")[0].decode("utf-8", "replace").replace(",", "?") or "[Not Found]"

    def environment(self, name: str) -> str | None:
        return next((value for key, value in self.environ if key == name), None)


class Serves(Protocol):
    """Whoever answers HTTP on a process's ports."""

    def http(self, request: Request) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer (`failed` 0), or curl's exit status of a request that got none."""

    status: int = 0
    body: bytes = b""
    failed: int = 0


class Processes:
    """All processes of one host. `ended` is called with each that died, after its children were seen to."""

    def __init__(self, ticks: Callable[[], int], step: Callable[[], int]) -> None:
        self.by_pid: dict[int, SimProcess] = {}
        self.pid_max = 4194304
        self.ended: list[Callable[[SimProcess, int, int], None]] = []
        self._ticks, self._step, self._last = ticks, step, 600

    def __iter__(self) -> Iterator[SimProcess]:
        return iter(list(self.by_pid.values()))

    def spawn(
        self,
        argv: tuple[str, ...],
        cgroup: str,
        whose: Whose,
        why: str,
        *,
        parent: SimProcess | None = None,
        uid: int = 0,
        environ: tuple[tuple[str, str], ...] = (),
        exe: str = "/usr/bin/python3.11",
        cwd: str = "/",
        comm: str | None = None,
        pid: int | None = None,
        lead: bool = False,
    ) -> SimProcess:
        """A new process; a child has its parent's group and session unless it leads its own."""
        pid = self._next() if pid is None else pid
        own = parent is None or lead
        made = SimProcess(
            pid=pid,
            start=self._ticks(),
            ppid=1 if parent is None else parent.pid,
            pgrp=pid if own or parent is None else parent.pgrp,
            session=pid if own or parent is None else parent.session,
            uid=uid,
            cgroup=cgroup,
            argv=argv,
            environ=environ,
            exe=exe,
            cwd=cwd,
            comm=(argv[0].rpartition("/")[2] if comm is None else comm)[:15],
            whose=whose,
            why=why,
        )
        self.by_pid[pid] = made
        return made

    def _next(self) -> int:
        while True:
            self._last += self._step()
            if self._last >= self.pid_max:
                self._last = 300
            if self._last not in self.by_pid:
                return self._last

    def children(self, process: SimProcess) -> list[SimProcess]:
        return [found for found in self if found.ppid == process.pid]

    def tree(self, process: SimProcess) -> list[SimProcess]:
        """The process and everything below it, parents first."""
        found = [process]
        for one in found:
            found += self.children(one)
        return found

    def in_group(self, cgroup: str) -> list[SimProcess]:
        """The living processes of a cgroup and those below it: a zombie populates none."""
        return [p for p in self if p.alive and (p.cgroup == cgroup or p.cgroup.startswith(cgroup + "/"))]

    def signal(self, process: SimProcess, name: str) -> None:
        """What kill(2) does to a process that is there; what cannot end now stays pending."""
        if not process.alive:
            return
        if process.stuck or (process.state == "T" and name not in ("KILL", "CONT")):
            process.pending.append(name)
        elif name == "KILL":
            self.end(process, KILLED, 9)
        elif name == "STOP":
            process.state = "T"
        elif name == "CONT":
            self.wake(process)
        elif name == "TERM" and process.deaf:
            return
        elif name == "TERM" and process.on_term is not None:
            process.on_term()
        else:
            self.end(process, KILLED, SIGNALS[name])

    def wake(self, process: SimProcess) -> None:
        """Out of state T or D, to what came meanwhile."""
        if process.state in ("T", "D"):
            process.state = "S"
        waiting, process.pending = process.pending, []
        for name in waiting:
            if process.pid in self.by_pid:
                self.signal(process, name)

    def end(self, process: SimProcess, code: int, status: int) -> None:
        """Its death: memory, ports and files are gone; tethered children die with it, the others go to PID 1."""
        if self.by_pid.get(process.pid) is not process or not process.alive:
            return
        process.state = "Z" if process.unreaped and process.ppid in self.by_pid and process.ppid > 1 else "X"
        if process.state == "X":
            del self.by_pid[process.pid]
        for child in self.children(process):
            if child.state == "Z":
                del self.by_pid[child.pid]
            elif child.tethered and not child.stuck:
                self.end(child, KILLED, 9)
            else:
                child.ppid = 1
        for tell in self.ended:
            tell(process, code, status)
        process.memory, process.ports, process.more_ports, process.devices = {}, {}, (), []
        if process.on_end is not None:
            process.on_end(code, status)

    def holder_of(self, port: int) -> SimProcess | None:
        """Who listens on a port."""
        return next((p for p in self if port in p.ports and p.alive), None)
