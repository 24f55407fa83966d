"""The parts of one simulated host that all others share: clocks, dice, files, processes, cards and the journal."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from daemon.sim.agenda import Agenda, Timer
from daemon.sim.cards import Cards
from daemon.sim.disk import Disk
from daemon.sim.processes import Processes
from daemon.sim.shm import Shm

MEMORY_MIB = {"NVIDIA H200": 143771, "NVIDIA H100 80GB HBM3": 81559, "NVIDIA A100-SXM4-80GB": 81920}
JOURNAL_LINES = 4000
WALL_AT_BIRTH_S = 1_767_268_800.0  # 2026-01-01 12:00 UTC
USERS = {0: "root:x:0:0:root:/root:/bin/bash", 1000: "alice:x:1000:1000::/home/alice:/bin/bash",
         1001: "serve:x:1001:1001::/srv:/usr/sbin/nologin"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One message of the journal."""

    unit: str
    invocation: str
    text: str


class Machine:
    """Time inside is the instant of what happens: while `advance` catches up, that of each event.

    The uptime at birth comes from the dice, the wall clock at birth is `wall_s`. The boot clock never steps; the wall
    clock may.
    """

    def __init__(self, name: str, gpus: int, product: str, seed: int, now: Callable[[], float], wall_s: float) -> None:
        self.name, self.now = name, now
        self.rng = random.Random(f"{name}/{seed}")  # noqa: S311 - a seeded fault is no secret
        self.agenda = Agenda()
        self.at: float | None = None
        self.born = now()
        self.booted = self.born - self.rng.uniform(4_000, 400_000)
        self.wall_offset_s = wall_s - self.born
        self.boot_id = self.uuid()
        self.machine_id = self.hexadecimal()
        self.disk = Disk()
        self.shm = Shm()
        self.processes = Processes(self.ticks, lambda: self.rng.randint(1, 3))
        self.cards = Cards(gpus, product, MEMORY_MIB.get(product, 80_000), self.processes, self.clock)
        self.journal: deque[Line] = deque(maxlen=JOURNAL_LINES)
        self.users = dict(USERS)
        self.load_s = 6.0
        self.systemd = 252
        self.sessions: dict[str, int] = {}
        self.ended: set[str] = set()  # units that systemd has forgotten though processes are still in their cgroup

    def clock(self) -> float:
        return self.now() if self.at is None else self.at

    def mono_us(self) -> int:
        """The boot clock, as systemd's Monotonic stamps have it."""
        return round((self.clock() - self.booted) * 1_000_000)

    def ticks(self) -> int:
        """The boot clock in 1/100 s, as a process's start has it."""
        return self.mono_us() // 10_000

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.clock() + self.wall_offset_s, UTC)

    def wall_us(self) -> int:
        return round((self.clock() + self.wall_offset_s) * 1_000_000)

    def after(self, delay_s: float, do: Callable[[], None]) -> Timer:
        return self.agenda.at(self.clock() + delay_s, do)

    def advance(self) -> None:
        """Everything that was to happen until now happens, each thing at its own instant."""
        until = self.now()
        while (timer := self.agenda.take(until)) is not None:
            self.at = timer.at
            timer.do()
        self.at = None

    def hexadecimal(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def uuid(self) -> str:
        raw = self.hexadecimal()
        return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-8{raw[17:20]}-{raw[20:]}"

    def say(self, unit: str, invocation: str, text: str) -> None:
        self.journal.append(Line(unit, invocation, text))

    def uid_of(self, user: str) -> int | None:
        """The uid of a name or number; None when there is no such user."""
        if not user:
            return 0
        if user.isdigit():
            return int(user)
        return next((uid for uid, line in self.users.items() if line.split(":")[0] == user), None)

    def user_of(self, uid: int) -> str:
        return self.users[uid].split(":")[0] if uid in self.users else "UNKNOWN"
