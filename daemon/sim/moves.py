"""What can befall a simulated host: faults, and what people do by hand. Whoever plays the world calls these.

Each brings the host up to now first. None of them is a command of Stoker's, and none shows in the history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from daemon.sim.disk import FENCE, HOLD, NOWHERE, UNITS
from daemon.sim.engine import Engine, Switches
from daemon.sim.launch import PlainServer
from daemon.sim.processes import SimProcess, Whose
from daemon.sim.shm import ShmFile

if TYPE_CHECKING:
    from daemon.sim.launch import Launcher
    from daemon.sim.machine import Machine
    from daemon.sim.units import Units


class Moves(ABC):
    """A part of `SimHost`."""

    machine: Machine
    units: Units
    launcher: Launcher
    _people: int

    @abstractmethod
    def advance(self) -> None:
        """Bring the state up to now."""

    @abstractmethod
    def _go_down(self) -> None:
        """Everything ends, as at a reboot."""

    # ---- shared memory ----

    def shm_file(
        self, name: str, *, size: int = 33_030_528, user: str = "root", holder: SimProcess | None = None
    ) -> ShmFile:
        """A file in /dev/shm of that user, held by a process as long as it lives, or by nobody."""
        self.advance()
        uid = self.machine.uid_of(user)
        return self.machine.shm.make(name, size, 0 if uid is None else uid, user, self.machine.wall_us(), holder)

    # ---- engines ----

    def switches(self, unit: str) -> Switches:
        """The faults of one unit's engine, to be set; they outlive its restarts."""
        return self.launcher.switches.setdefault(unit, Switches())

    def engine(self, unit: str) -> Engine | None:
        """The running engine of a unit."""
        self.advance()
        found = self.launcher.engines.get(unit)
        return None if found is None or found.over or self.units.get(unit).main is not found.main else found

    def crash(self, unit: str) -> bool:
        """The engine dies of an exception; a unit without one gets SIGKILL. False when nothing runs."""
        engine, main = self.engine(unit), self.units.get(unit).main
        if engine is not None:
            engine.crash("RuntimeError: CUDA error: an illegal memory access was encountered")
        elif main is not None:
            self.machine.processes.signal(main, "KILL")
        return main is not None

    def kill_launcher(self, unit: str, *, deaf: bool = False, stuck: bool = False, port: bool = False) -> list[int]:
        """The launcher is killed; its ranks, in a cgroup outside every unit, live on with their memory.

        `deaf` ones ignore TERM, `stuck` ones are in state D until `thaw`, `port`: the first takes the unit's port.
        """
        engine = self.engine(unit)
        if engine is None or not engine.ranks:
            return []
        left = [rank for rank in engine.ranks if rank.pid in self.machine.processes.by_pid]
        number = engine.port
        for rank in left:
            rank.cgroup, rank.tethered, rank.on_end = f"/stray-{engine.main.pid}", False, None
            rank.whose, rank.why = "leftover", f"a rank of {unit} whose launcher was killed"
            rank.deaf = rank.deaf or deaf
            rank.state = "D" if stuck else rank.state
        engine.over = True
        self.machine.processes.signal(engine.main, "KILL")
        if port and left:
            left[0].ports[number] = "0.0.0.0"  # noqa: S104
        return [rank.pid for rank in left]

    def thaw(self) -> None:
        """Ends every state D and T."""
        self.advance()
        for process in self.machine.processes:
            self.machine.processes.wake(process)

    def first_request_crash(self, unit: str, on: bool = True) -> None:
        """A build that dies on its first request is put in place, or taken away: for what starts from now on."""
        self.advance()
        self.switches(unit).crash_first = on

    def wedge(self, unit: str, on: bool = True) -> None:
        """Health and models answer, generations never end."""
        self.advance()
        self.switches(unit).hang = on

    # ---- people ----

    def edit_file(self, unit: str, text: str, *, reload: bool = False) -> None:
        self.advance()
        self.machine.disk.write(f"{UNITS}/{unit}", text.encode())
        if reload:
            self.units.reload()

    def file_text(self, unit: str) -> str | None:
        return self.machine.disk.text(f"{UNITS}/{unit}")

    def add_dropin(self, unit: str, name: str, text: str, *, reload: bool = True) -> None:
        self.advance()
        self.machine.disk.write(f"{UNITS}/{unit}.d/{name}", text.encode())
        if reload:
            self.units.reload()

    def reload(self) -> None:
        self.advance()
        self.units.reload()

    def set_environment(self, name: str, value: str) -> None:
        """`systemctl set-environment`: what starts from now on has it."""
        self.advance()
        self.units.service.environment[name] = value

    def hand_stop(self, unit: str) -> None:
        self.advance()
        self.units.job("stop", unit)

    def hand_start(self, unit: str) -> None:
        self.advance()
        self.units.job("start", unit)

    def hand_restart(self, unit: str) -> None:
        self.advance()
        self.units.job("restart", unit)

    def disable(self, unit: str) -> None:
        self.advance()
        self.units.disable(unit)

    def mask(self, unit: str) -> None:
        """A link to /dev/null in the place of its file, and a reload; the text is kept for `unmask`."""
        self.advance()
        path = f"{UNITS}/{unit}"
        kept = self.machine.disk.files.get(path)
        if kept is not None:
            self.machine.disk.write(f"/root/{unit}", kept)
        self.machine.disk.link(path, NOWHERE)
        self.units.reload()

    def unmask(self, unit: str) -> None:
        self.advance()
        self.machine.disk.remove(f"{UNITS}/{unit}")
        kept = self.machine.disk.files.get(f"/root/{unit}")
        if kept is not None:
            self.machine.disk.write(f"{UNITS}/{unit}", kept)
        self.units.reload()

    def hold(self, text: str | None) -> None:
        """The hold file with this text; None takes it away."""
        self.advance()
        if text is None:
            self.machine.disk.remove(HOLD)
        else:
            self.machine.disk.write(HOLD, text.encode())

    def write_fence(self, fence: str) -> None:
        """Another store's fence appears."""
        self.advance()
        self.machine.disk.write(FENCE, f"{fence}\n".encode())

    # ---- other people's work ----

    def someone(
        self, argv: tuple[str, ...], why: str, *, uid: int = 1000, whose: Whose = "foreign", comm: str | None = None
    ) -> SimProcess:
        """A process of a login session whose leader lives: sshd as root, sshd as the person, then the process."""
        self.advance()
        self._people += 1
        number, name = str(100 + self._people), self.machine.user_of(uid)
        spawn, scope = self.machine.processes.spawn, f"/user.slice/user-{uid}.slice/session-{number}.scope"
        door = next((p for p in self.machine.processes if p.comm == "sshd" and p.ppid == 1), None)
        leader = spawn(("sshd: " + name + " [priv]",), scope, "foreign", "a person's session", parent=door, lead=True,
                       exe="/usr/sbin/sshd", comm="sshd")  # fmt: skip
        own = spawn(("sshd: " + name + "@notty",), scope, "foreign", "a person's session", parent=leader, uid=uid,
                    exe="/usr/sbin/sshd", comm="sshd")  # fmt: skip
        self.machine.sessions[number] = leader.pid
        return spawn(argv, scope, whose, why, parent=own, uid=uid, lead=True, comm=comm)

    def foreign_trainer(self, gpu: int, mib: int) -> SimProcess:
        """Somebody trains on a card."""
        process = self.someone(("/usr/bin/python3", "train.py", "--epochs", "90"), "somebody's training")
        self.machine.cards.take(process, self.machine.cards.present[gpu].number, mib)
        process.busy_pct = 97
        return process

    def end_trainers(self) -> list[int]:
        """Every training run ends; gives their pids."""
        self.advance()
        found = [process for process in self.machine.processes if "train.py" in process.argv]
        for process in found:
            self.leave(process)
        return [process.pid for process in found]

    def hand_server(self, port: int, gpus: tuple[int, ...], generates: bool = True, *, uid: int = 1000) -> SimProcess:
        """A server that a person started in a shell."""
        argv = (
            "/opt/venv/bin/python",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/models/theirs",
            "--port",
            str(port),
        )
        process = self.someone(argv, "a server that a person started", uid=uid)
        for gpu in gpus:
            self.machine.cards.take(process, self.machine.cards.present[gpu].number, 40_000)
        process.ports[port] = "0.0.0.0"  # noqa: S104
        process.serves = PlainServer(generates)
        return process

    def leave(self, process: SimProcess) -> None:
        """It ends, with everything below it."""
        self.advance()
        for one in reversed(self.machine.processes.tree(process)):
            self.machine.processes.end(one, 1, 0)

    def freeze(self, pid: int) -> None:
        """State D, which survives SIGKILL, until `thaw`."""
        self.advance()
        self.machine.processes.by_pid[pid].state = "D"

    def reuse_pid(self, pid: int) -> SimProcess:
        """The process of that number ends and somebody else's gets its number."""
        self.advance()
        gone = self.machine.processes.by_pid.get(pid)
        if gone is not None:
            self.machine.processes.end(gone, 2, 9)
        spawn = self.machine.processes.spawn
        return spawn(("/usr/bin/backup",), "/system.slice/backup.service", "foreign", "has a reused pid", pid=pid)

    # ---- the machine ----

    def hung_smi(self, on: bool) -> None:
        """nvidia-smi hangs; from the second look on the helper knows that it does."""
        self.advance()
        self.machine.cards.hang(on, self.machine.processes)

    def driver_says(self, exit_status: int, text: str | None) -> None:
        """Every nvidia-smi ends so; None: it works again."""
        self.advance()
        self.machine.cards.failure = None if text is None else (exit_status, text)

    def lose_card(self, gpu: int, lost: bool = True) -> None:
        """A card falls off the bus: later ones move up. `gpu` is its number at birth."""
        self.advance()
        (self.machine.cards.missing.add if lost else self.machine.cards.missing.discard)(gpu)

    def step_wall_clock(self, seconds: float) -> None:
        self.advance()
        self.machine.wall_offset_s += seconds

    def reboot(self) -> None:
        """Down at once, up again after `BOOT_S`; enabled units start by themselves."""
        self.advance()
        self._go_down()
