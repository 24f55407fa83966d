"""The verb `probe` of a simulated host: one request to a port, and whose process answered it."""

from __future__ import annotations

import re

from daemon.sim import show
from daemon.sim.frame import USAGE, Asked, Refused, Sections
from daemon.sim.look import hexadecimal
from daemon.sim.machine import Machine
from daemon.sim.processes import Reply, Request, SimProcess
from daemon.sim.units import Units

FACTS = ("InvocationID", "MainPID", "ControlGroup", "ActiveState")
MAX_BODY = 65536
_PATH = re.compile(r"/[!-~]*")


class Probe:
    """One probe. `took_s` is what the host needed: the whole time limit when nobody answers."""

    def __init__(self, machine: Machine, units: Units, asked: Asked) -> None:
        self.machine, self.units, self.asked = machine, units, asked
        self.took_s = 0.06

    def sections(self) -> Sections:
        port, body = self._checked()
        before = self._facts()
        main = self._main()
        listeners = [p for p in self.machine.processes if port in p.ports and p.alive]
        listed = "".join(f"{port} {hexadecimal(p.ports[port])} {p.pid}\n" for p in listeners)
        groups = {p.pid: p.cgroup for p in ([main] if main is not None else []) + listeners}
        cmdline, mark = (main.cmdline, main.environment("STOKER_LAUNCH")) if main is not None else (b"", None)
        reached = self._reached(port, listeners)
        reply = self._ask(reached, body)
        code, data, peer = self._response(reply, reached)
        shown = _groups([*([main.pid] if main is not None else []), *(p.pid for p in listeners), *peer], groups)
        return {
            "before": before,
            "listeners": (0, listed.encode()),
            "response": (code, data),
            "peer": (0, "".join(f"{pid}\n" for pid in peer).encode()),
            "cgroups": (0, shown),
            "main": (0, cmdline) if main is not None else (1, b"cat: /proc/0/cmdline: No such file or directory\n"),
            "mark": (2, b"") if main is None else (1, b"") if mark is None else (0, f"STOKER_LAUNCH={mark}\0".encode()),
            "after": self._facts(),
        }

    def _checked(self) -> tuple[int, bytes]:
        if len(self.asked.units) > 1:
            raise Refused(USAGE, "takes one unit")
        if len(self.asked.ports) != 1:
            raise Refused(USAGE, "needs one port")
        if not _PATH.fullmatch(self.asked.value("url-path", "/")):
            raise Refused(USAGE, "not a path")
        size = self.asked.number("body")
        if size > 1048576:
            raise Refused(USAGE, "the body is too long")
        if len(self.asked.rest) < size:
            raise Refused(USAGE, "the request was cut")
        return int(self.asked.ports[0]), self.asked.rest[:size]

    def _facts(self) -> tuple[int, bytes]:
        if not self.asked.units:
            return 1, b""
        return 0, show.block(show.properties(self.units, self.units.get(self.asked.unit)), FACTS).encode()

    def _main(self) -> SimProcess | None:
        return self.units.get(self.asked.unit).main if self.asked.units else None

    def _reached(self, port: int, listeners: list[SimProcess]) -> SimProcess | None:
        """Who gets the connection: the most exact address wins; among equals (SO_REUSEPORT) the kernel throws dice."""
        asked = self.asked.value("address", "127.0.0.1")
        for address in dict.fromkeys((asked, *(() if ":" in asked else ("0.0.0.0",)), "::")):  # noqa: S104
            found = [process for process in listeners if process.ports[port] == address]
            if found:
                return found[0] if len(found) == 1 else self.machine.rng.choice(found)
        return None

    def _ask(self, reached: SimProcess | None, body: bytes) -> Reply:
        if reached is None:
            return Reply(failed=7)
        if reached.serves is None:
            return Reply(failed=28)
        pairs = (header.partition(":") for header in self.asked.headers)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        request = Request(self.asked.value("method", "POST"), self.asked.value("url-path", "/"), headers, body)
        return reached.serves.http(request)

    def _response(self, reply: Reply, reached: SimProcess | None) -> tuple[int, bytes, list[int]]:
        """Exit status, data, and the far end's pids: nobody holds a connection that only the kernel took."""
        if reply.failed == 28:
            self.took_s = float(self.asked.number("timeout-s", 30))
        if reached is None or reply.failed == 7:
            return 7, b"", []
        took = reached.serves is not None and reached.state not in ("T", "D")
        peer = [reached.pid] if took else []
        if reply.failed:
            return reply.failed, b"", peer
        return 0, f"{reply.status}\n".encode() + reply.body[:MAX_BODY], peer


def _groups(pids: list[int], groups: dict[int, str]) -> bytes:
    return "".join(f"/proc/{pid}/cgroup\x000::{groups[pid]}\n" for pid in pids).encode()
