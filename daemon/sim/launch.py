"""What an executed command becomes: an engine, a router, a plain server, or a process that just lives."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlsplit

from daemon.sim.engine import Engine, Flags, Switches
from daemon.sim.machine import Machine
from daemon.sim.processes import EXITED, Reply, Request, SimProcess
from daemon.sim.serving import Api, reply
from daemon.sim.sglang import Sglang
from daemon.sim.unit import SimUnit
from daemon.sim.vllm import Vllm

Ask = Callable[[str, int, Request], Reply]  # address, port
_NO_WORKERS = {"error": {"code": "no_available_workers", "message": "No available workers"}}


class Router(Engine):
    """sglang-router 0.3.2: health without any worker; a generation goes to a prefill and a decode server, or to one."""

    kind = "router"
    ask: Ask

    def begin(self) -> None:
        self.port = self.flags.number("port", default=30000)
        self.api.host = self.flags.text("host", default="0.0.0.0")  # noqa: S104
        argv, self.prefill, self.decode, self.workers = self.main.argv, [], [], []  # type: ignore[var-annotated]
        lists = {"--prefill": self.prefill, "--decode": self.decode, "--worker-urls": self.workers}
        taking: list[str] | None = None
        for word in argv:
            if word.startswith("--"):
                taking = lists.get(word)
            elif taking is not None and "://" in word:
                taking.append(word)
        self.later(0.3, self._listen)

    def _listen(self) -> None:
        self.main.title, self.main.comm = "sglang::router", "sglang::router"
        if not self.bind():
            self.say("RuntimeError: Address already in use (os error 98)")
            self.leave(1)
            return
        self.api.status = "up"
        self.say(f"[{self.machine.wall():%Y-%m-%d %H:%M:%S}] Router ready | workers: "
                 f"{self.prefill + self.decode + self.workers}")  # fmt: skip
        self.main.on_term = lambda: self.leave(0)

    def http(self, request: Request) -> Reply:
        path = request.path.split("?")[0]
        if self.switches.hang or self.main.state in ("T", "D"):
            return Reply(failed=28)
        if path in ("/health", "/liveness"):
            return Reply(200, b"OK")
        if self.switches.refuse and request.method == "POST":
            return reply(400, {"error": {"message": self.switches.refuse}})
        if request.method != "POST":
            return self._get(path, request)
        return self._post(request)

    def _get(self, path: str, request: Request) -> Reply:
        healthy = [url for url in (*self.decode, *self.workers) if self._healthy(url)]
        ready = bool(healthy) and (not self.prefill or any(map(self._healthy, self.prefill)))
        if path in ("/readiness", "/health_generate"):
            return Reply(200 if ready else 503)
        return self._call(healthy[0], request) if healthy else reply(503, _NO_WORKERS)

    def _post(self, request: Request) -> Reply:
        try:
            body = json.loads(request.body or b"{}")
        except ValueError:
            return reply(400, {"error": {"message": "Invalid JSON"}})
        chain = [self.prefill[0], self.decode[0]] if self.prefill and self.decode else self.workers[:1]
        if len(chain) == 2:
            body["bootstrap_room"] = self.machine.rng.getrandbits(62)
        said = reply(503, _NO_WORKERS)
        for url in chain:
            said = self._call(url, Request("POST", request.path, request.headers, json.dumps(body).encode()))
            if said.failed:
                return said if said.failed == 28 else reply(503, _NO_WORKERS)
        return said

    def _healthy(self, url: str) -> bool:
        return self._call(url, Request("GET", "/health", {}, b"")).status == 200

    def _call(self, url: str, request: Request) -> Reply:
        place = urlsplit(url)
        return self.ask(place.hostname or "", place.port or 80, request)

    def crash(self, text: str) -> None:
        self.say(text)
        self.leave(1)

    def lose_rank(self, process: SimProcess) -> None:
        return


class PlainServer:
    """Somebody's server on a port: generates, or answers nothing but its health."""

    def __init__(self, generates: bool, name: str = "theirs") -> None:
        self.generates = generates
        self.api = Api("vllm", Flags(()), Switches())
        self.api.model, self.api.status = name, "up"

    def http(self, request: Request) -> Reply:
        if not self.generates and request.path.split("?")[0] != "/health":
            return reply(404, {"detail": "Not Found"})
        return self.api.answer(request, lambda tokens: tokens)


class Launcher:
    """Knows the switches of each unit and the running engines."""

    def __init__(self, machine: Machine, ask: Ask) -> None:
        self.machine, self._ask = machine, ask
        self.switches: dict[str, Switches] = {}
        self.engines: dict[str, Engine] = {}

    def __call__(self, unit: SimUnit, process: SimProcess) -> None:
        argv, switches = process.argv, self.switches.setdefault(unit.name, Switches())
        kind, rest = _kind(argv)
        if kind is not None:
            engine = kind(self.machine, process, Flags(rest), unit.name, switches)
            if isinstance(engine, Router):
                engine.ask = self._ask
            self.engines[unit.name] = engine
            engine.begin()
            return
        self.engines.pop(unit.name, None)
        self._plain(process)

    def _plain(self, process: SimProcess) -> None:
        """Another command: some end at once, one with a port serves on it, the rest live until they are ended."""
        end = {"true": 0, "false": 1}.get(process.argv[0].rpartition("/")[2])
        if end is not None:
            self.machine.after(0.01, lambda: self.machine.processes.end(process, EXITED, end))
        port = Flags(process.argv[1:]).number("port", default=0)
        if port and self.machine.processes.holder_of(port) is None:
            process.ports[port] = "0.0.0.0"  # noqa: S104
            process.serves = PlainServer(generates=True)


def _kind(argv: tuple[str, ...]) -> tuple[type[Engine] | None, tuple[str, ...]]:
    """Which engine a command line starts, and the arguments that are the engine's own."""
    for at, word in enumerate(argv[:4]):
        name, following = word.rpartition("/")[2], argv[at + 1 : at + 2]
        if word == "sglang.launch_server":
            return Sglang, argv[at + 1 :]
        if word == "sglang_router.launch_router":
            return Router, argv[at + 1 :]
        if name == "sglang" and following == ("serve",):
            return Sglang, argv[at + 2 :]
        if name == "vllm" and following == ("serve",):
            return Vllm, argv[at + 1 :]
    return None, ()
