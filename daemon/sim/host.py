"""One simulated host: the whole machine behind one call, `answer`. It speaks text alone and never waits.

Time is what `now` says; whatever was to happen meanwhile happens when somebody next asks, at its own instant. All that
is random comes from the seed: same seed, same calls at the same times, same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daemon.sim.disk import GATE, HELPER
from daemon.sim.frame import Answer
from daemon.sim.launch import Launcher
from daemon.sim.machine import WALL_AT_BIRTH_S, Machine
from daemon.sim.moves import Moves
from daemon.sim.processes import Reply, Request, SimProcess
from daemon.sim.shell import Deed, Shell
from daemon.sim.unit import SimUnit
from daemon.sim.units import Units

BOOT_S = 20.0
_BASE = (
    ("systemd-journal", "/usr/lib/systemd/systemd-journald", "/system.slice/systemd-journald.service"),
    ("dbus-daemon", "/usr/bin/dbus-daemon", "/system.slice/dbus.service"),
    ("sshd", "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", "/system.slice/ssh.service"),  # stays last
)


class SimHost(Moves):
    """A host with `gpus` cards. What can befall it is in `Moves`.

    `neighbours` are the hosts that a router here reaches, by address. `load_s` is how long an engine loads,
    `wall_s` its wall clock when it is made, in seconds since 1970.
    `cut` and `answer_delay_s` are kept for whoever carries the bytes: nothing in here looks at them.
    """

    def __init__(
        self,
        name: str,
        *,
        gpus: int = 8,
        product: str = "NVIDIA H200",
        seed: int = 0,
        now: Callable[[], float],
        load_s: float = 6.0,
        persistenced: bool = True,
        wall_s: float = WALL_AT_BIRTH_S,
    ) -> None:
        machine = Machine(name, gpus, product, seed, now, wall_s)
        machine.load_s = load_s
        self.name, self.machine, self.persistenced = name, machine, persistenced
        self.neighbours: dict[str, SimHost] = {}
        self.launcher = Launcher(machine, self._call)
        self.units = Units(machine, self.launcher)
        self.shell = Shell(machine, self.units)
        self.on_unit_change = self.units.on_change  # told a unit's name whenever its state changes
        self.disk = machine.disk
        self.cut, self.answer_delay_s = False, 0.0
        self.down_until: float | None = None
        self._people = 0
        self._populate()

    # ---- the world's side ----

    @property
    def history(self) -> list[Deed]:
        """Everything that was asked of it, in order."""
        return self.shell.history

    @property
    def processes(self) -> dict[int, SimProcess]:
        return self.machine.processes.by_pid

    @property
    def up(self) -> bool:
        """False between a reboot and the end of the boot: nothing answers then."""
        return self.down_until is None

    def unit(self, name: str) -> SimUnit:
        return self.units.get(name)

    def answer(self, argv: Sequence[str], stdin: bytes) -> Answer:
        """One command. A host that is down says what ssh would."""
        self.advance()
        if not self.up:
            return Answer(255, b"", b"ssh: connect to host: Connection refused\n")
        return self.shell.answer(argv, stdin)

    def advance(self) -> None:
        """Brings everything up to now."""
        self.machine.advance()

    def due(self) -> float | None:
        """When something next changes by itself."""
        return self.machine.agenda.due()

    def install(self, helper: bytes, gate: bytes) -> None:
        """As an administrator puts both files there."""
        self.machine.disk.write(HELPER, helper)
        self.machine.disk.write(GATE, gate)

    # ---- inside ----

    def _call(self, address: str, port: int, request: Request) -> Reply:
        """A request from here to a port, here or on a neighbour."""
        host = self.neighbours.get(address, self)
        if host is not self:
            host.advance()
        if host.cut or not host.up:
            return Reply(failed=28)
        holder = host.machine.processes.holder_of(port)
        if holder is None:
            return Reply(failed=7)
        return Reply(failed=28) if holder.serves is None else holder.serves.http(request)

    def _populate(self) -> None:
        """What a booted host has anyway."""
        spawn = self.machine.processes.spawn
        init = spawn(("/usr/lib/systemd/systemd",), "/init.scope", "system", "PID 1", pid=1, comm="systemd",
                     exe="/usr/lib/systemd/systemd")  # fmt: skip
        init.ppid = 0
        for comm, path, group in _BASE:
            door = spawn((path,), group, "system", f"the system's {comm}", comm=comm, exe=path.split()[-1])
        door.exe, door.more_ports = "/usr/sbin/sshd", ((22, "0.0.0.0"), (22, "::"))  # noqa: S104
        if self.persistenced:
            path = "/usr/bin/nvidia-persistenced"
            keeper = spawn(
                (path, "--verbose"), "/system.slice/nvidia-persistenced.service", "system", "the driver's", exe=path
            )
            keeper.devices = ["nvidiactl", *(f"nvidia{card.number}" for card in self.machine.cards.present)]
        scope = "/user.slice/user-0.slice/session-1.scope"
        leader = spawn(("sshd: root@notty",), scope, "system", "where commands come through", parent=door, lead=True,
                       comm="sshd", exe="/usr/sbin/sshd")  # fmt: skip
        self.machine.sessions = {"1": leader.pid}

    def _boot(self) -> None:
        self.down_until = None
        self._populate()
        self.units.boot()

    def _go_down(self) -> None:
        """Power is gone: processes, /run and everything that was to happen."""
        self.machine.agenda.clear()
        self.machine.processes.by_pid.clear()
        self.machine.sessions.clear()
        self.machine.ended.clear()
        self.machine.cards.ghosts.clear()
        self.machine.disk.empty_run()
        self.machine.shm.files.clear()
        self.machine.boot_id = self.machine.uuid()
        self.units.known.clear()
        self.units.service.forget_environment()
        self.launcher.engines.clear()
        self.machine.cards.forget()
        for card in self.machine.cards.all:
            card.lingering.clear()
            card.loose_mib = 0
        self.machine.booted = self.machine.clock()
        self.down_until = self.machine.clock() + BOOT_S
        self.machine.agenda.at(self.down_until, self._boot)
