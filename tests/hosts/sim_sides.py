"""The same steps on a real test host and on a simulated one: both take the helper's verbs and a person's moves."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from harness import TestHost

from daemon import host as files
from daemon.sim.engine import Switches
from daemon.sim.host import SimHost
from daemon.sim.processes import Request, SimProcess
from daemon.verbs import request

NONCE = "0123456789abcdef" * 2
FENCE = "store-1 1 run-1"
OLD_UNIT = "sglang-old.service"
NO_EXECUTABLE = "/opt/none/bin/python"
SGLANG_UNIT = "stoker-m.server.service"
VLLM_UNIT = "stoker-v.server.service"


@dataclass(frozen=True, slots=True)
class Shot:
    """One answer: what ssh and the helper's frame said."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class Side(ABC):
    """One machine with the helper installed. `shots` are its answers by the step's name."""

    def __init__(self) -> None:
        self.shots: dict[str, Shot] = {}

    def ask(
        self, step: str, verb: str, *lines: tuple[str, str], body: bytes = b"", gate: bytes = b"", fence: str = FENCE
    ) -> Shot:
        """A verb with its fence and boot id where it changes something."""
        quiet = ("observe", "probe", "journal", "version", "take-fence")
        own = [] if verb in quiet else [("fence", fence), ("boot", self.boot_id())]
        return self.raw(step, verb, request(NONCE, [*own, *lines], body, gate))

    def on_unit(
        self, step: str, verb: str, unit: str = SGLANG_UNIT, *, ground: str | None = None, state: str = ""
    ) -> Shot:
        """A unit verb on the ground of this moment, or another."""
        active, _, invocation, _ = self.state(unit)
        lines = (("unit", unit), ("ground-invocation", ground or invocation or "-"), ("ground-state", state or active))
        return self.ask(step, f"unit-{verb}", *lines)

    def look(self, step: str, *units: str, ports: tuple[int, ...] = (30001,), dropins: tuple[str, ...] = ()) -> Shot:
        named = [("unit", unit) for unit in (units or (SGLANG_UNIT,))] + [("dropin", unit) for unit in dropins]
        asked = [("port", str(port)) for port in ports]
        env = [("env", "CUDA_VISIBLE_DEVICES"), ("env", "SPT_NOENV"), ("env-prefix", "MIN")]
        return self.ask(step, "observe", *named, *asked, *env, ("whole-table", "0"), ("limit-ms", "9000"))

    def glance(self) -> None:
        """A look that is not kept: a stand-in card's memory lingers from the first look that sees its holder dead."""
        self._send("observe", request(NONCE, [("limit-ms", "9000")]))
        self.wait(0.5)

    def raw(self, step: str, verb: str, stdin: bytes) -> Shot:
        assert step not in self.shots, step
        self.shots[step] = self._send(verb, stdin)
        return self.shots[step]

    def until(self, unit: str, *states: tuple[str, str]) -> None:
        """Waits for one of (ActiveState, SubState)."""
        for _ in range(900):
            if self.state(unit)[:2] in states:
                return
            self.wait(0.1)
        raise AssertionError(f"{unit} is {self.state(unit)}, not {states}")

    def until_up(self, port: int = 30001) -> None:
        """Waits until the server's health is good."""
        for _ in range(900):
            if self.health(port) == 200:
                return
            self.wait(0.1)
        raise AssertionError(f"port {port} did not come up")

    @abstractmethod
    def _send(self, verb: str, stdin: bytes) -> Shot: ...
    @abstractmethod
    def wait(self, seconds: float) -> None: ...
    @abstractmethod
    def boot_id(self) -> str: ...
    @abstractmethod
    def state(self, unit: str) -> tuple[str, str, str, int]:
        """ActiveState, SubState, InvocationID and MainPID."""

    @abstractmethod
    def health(self, port: int) -> int: ...
    @abstractmethod
    def faults(self, **switches: Any) -> None:
        """The engine's faults from now on, in the stand-ins' words."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None: ...
    @abstractmethod
    def remove(self, path: str) -> None: ...
    @abstractmethod
    def reload(self) -> None: ...
    @abstractmethod
    def kill(self, pid: int) -> None: ...
    @abstractmethod
    def hold_card(self, gpu: int, mib: int) -> None:
        """A foreign service takes memory on a card."""

    @abstractmethod
    def session(self, gpu: int, mib: int, port: int) -> None:
        """A person's process in a session that stays open takes memory on a card and a port, which it never serves."""

    @abstractmethod
    def leave(self, name: str, user: str, *, held: bool = False) -> None:
        """A file of 4096 bytes in /dev/shm, which a process has open or nobody."""

    @abstractmethod
    def let_go(self) -> None: ...
    @abstractmethod
    def mask(self, unit: str) -> None: ...
    @abstractmethod
    def unmask(self, unit: str) -> None: ...


class Real(Side):
    """A test host."""

    def __init__(self, host: TestHost) -> None:
        super().__init__()
        self.host = host
        host.write(files.HELPER_PATH, files.helper_text(), mode=0o755)
        host.write(files.GATE_PATH, files.gate_text(), mode=0o755)
        self._boot_id = host.boot_id()

    def _send(self, verb: str, stdin: bytes) -> Shot:
        argv = self.host.ssh_argv(f"{files.HELPER_PATH} {verb}".strip())
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=60, check=False)
        return Shot(done.returncode, done.stdout, done.stderr)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def boot_id(self) -> str:
        return self._boot_id

    def state(self, unit: str) -> tuple[str, str, str, int]:
        text = self.host.sh(f"systemctl show {unit} -p ActiveState,SubState,InvocationID,MainPID").stdout
        found = dict(line.split("=", 1) for line in text.splitlines())
        return found["ActiveState"], found["SubState"], found["InvocationID"], int(found["MainPID"])

    def health(self, port: int) -> int:
        said = self.host.sh(f"curl -s -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{port}/health", check=False)
        return int(said.stdout or 0)

    def faults(self, **switches: Any) -> None:
        self.host.write("/etc/standin/faults.json", json.dumps(switches).encode())

    def write(self, path: str, content: bytes) -> None:
        self.host.write(path, content)

    def remove(self, path: str) -> None:
        self.host.sh(f"rm -f '{path}'")

    def reload(self) -> None:
        self.host.sh("systemctl daemon-reload")

    def kill(self, pid: int) -> None:
        self.host.sh(f"kill -KILL {pid}")

    def hold_card(self, gpu: int, mib: int) -> None:
        hold = f"/usr/local/lib/standin/hold --gpu {gpu}:{mib} --pid-file /tmp/held"
        self.host.sh(f"systemd-run -q --unit=engine-x.service --no-block {hold}")
        self.host.wait_until("test -s /tmp/held")

    def leave(self, name: str, user: str, *, held: bool = False) -> None:
        path = f"/dev/shm/{name}"
        self.host.sh(f"head -c 4096 /dev/zero >{path} && chown {user} {path}")
        if held:
            self.host.sh(f"setsid sleep 600 <{path} >/dev/null 2>&1 &")
            self.host.wait_until(f"find /proc/[0-9]*/fd -lname {path} 2>/dev/null | grep -q .")

    def session(self, gpu: int, mib: int, port: int) -> None:
        hold = f"exec /usr/local/lib/standin/hold --gpu {gpu}:{mib} --port {port} --pid-file /tmp/theirs"
        client = subprocess.Popen(self.host.ssh_argv(hold, user="alice"), stdin=subprocess.DEVNULL)
        self.host.on_clean(client.kill)
        self.host.wait_until("test -s /tmp/theirs")

    def let_go(self) -> None:
        self.host.sh("systemctl stop engine-x.service; rm -f /tmp/held")

    def mask(self, unit: str) -> None:
        path = f"/etc/systemd/system/{unit}"
        self.host.sh(f"mv {path} /root/{unit}; systemctl mask {unit}")

    def unmask(self, unit: str) -> None:
        path = f"/etc/systemd/system/{unit}"
        self.host.sh(f"systemctl unmask {unit}; mv /root/{unit} {path}; systemctl daemon-reload")


class Simulated(Side):
    """A simulated host; its time goes on when the steps wait."""

    def __init__(self, gpus: int = 2) -> None:
        super().__init__()
        self.now = 0.0
        self.host = SimHost("alpha", gpus=gpus, now=lambda: self.now, persistenced=False, load_s=0.15)
        self.host.install(files.helper_text(), files.gate_text())
        self.host.units.service.absent.add(NO_EXECUTABLE)
        self._holder: SimProcess | None = None
        self.faults()

    def _send(self, verb: str, stdin: bytes) -> Shot:
        done = self.host.answer((files.HELPER_PATH, *shlex.split(verb)), stdin)
        self.now += 0.3
        return Shot(done.exit_status, done.stdout, done.stderr)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.host.advance()

    def boot_id(self) -> str:
        return self.host.machine.boot_id

    def state(self, unit: str) -> tuple[str, str, str, int]:
        self.host.advance()
        found = self.host.unit(unit)
        return found.active, found.sub, found.invocation, found.main.pid if found.main is not None else 0

    def health(self, port: int) -> int:
        self.host.advance()
        holder = self.host.machine.processes.holder_of(port)
        if holder is None or holder.serves is None:
            return 0
        return holder.serves.http(Request("GET", "/health", {}, b"")).status

    def faults(self, **switches: Any) -> None:
        for unit in (SGLANG_UNIT, VLLM_UNIT, OLD_UNIT):
            found = self.host.switches(unit)
            for name in found.__slots__:
                setattr(found, name, switches.get(name, getattr(Switches(), name)))
            found.memory_mib = found.memory_mib or 20480

    def write(self, path: str, content: bytes) -> None:
        self.host.disk.write(path, content)

    def remove(self, path: str) -> None:
        self.host.disk.remove(path)

    def reload(self) -> None:
        self.host.reload()

    def kill(self, pid: int) -> None:
        self.host.machine.processes.signal(self.host.processes[pid], "KILL")

    def leave(self, name: str, user: str, *, held: bool = False) -> None:
        self.host.shm_file(name, size=4096, user=user, holder=self.host.processes[1] if held else None)

    def hold_card(self, gpu: int, mib: int) -> None:
        hold = ("/usr/bin/python3", "/usr/local/lib/standin/hold", "--gpu", f"{gpu}:{mib}", "--pid-file", "/tmp/held")
        group = "/system.slice/engine-x.service"
        self._holder = self.host.machine.processes.spawn(hold, group, "foreign", "holds a card", comm="hold")
        self.host.machine.cards.take(self._holder, gpu, mib)

    def session(self, gpu: int, mib: int, port: int) -> None:
        hold = ("/usr/bin/python3", "/usr/local/lib/standin/hold", "--gpu", f"{gpu}:{mib}", "--port", str(port),
                "--pid-file", "/tmp/theirs")  # fmt: skip
        theirs = self.host.someone(hold, "somebody's", comm="hold")
        self.host.machine.cards.take(theirs, gpu, mib)
        theirs.ports[port] = "0.0.0.0"

    def let_go(self) -> None:
        assert self._holder is not None
        self.host.leave(self._holder)

    def mask(self, unit: str) -> None:
        self.host.mask(unit)

    def unmask(self, unit: str) -> None:
        self.host.unmask(unit)
