"""The GPUs of a simulated host and its nvidia-smi: rows in the tool's own spelling, and the ways in which it fails.

Texts are those of nvidia-smi 580.159.04 as recorded on two H200s. Memory of a process that died is free 0.27 s later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.sim.processes import Processes, SimProcess

LINGER_S = 0.27
DRIVER = "580.159.04"
CONTEXT_MIB = 6  # what the driver adds for each process on a card
HEALTH_S = 30.0
HEEDED_S = 600.0
PLACES = ("/", "/dev/shm", "/run", "/tmp", "/var/lib/stoker", "/var/log/journal")  # noqa: S108
BASE_MIB = 3  # and once a card


@dataclass(slots=True)
class Card:
    """One GPU. `idle_mib` is used with nobody on it; `loose_mib` is held by nobody that can be seen."""

    number: int
    uuid: str
    bus: str
    idle_mib: int
    temperature: int
    loose_mib: int = 0
    ecc: int = 0  # uncorrectable errors
    remap: str = "No"  # pending
    advice: str = "None"  # the driver's
    lingering: list[tuple[float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Said:
    """What one query printed, with its exit status and the time it took."""

    exit_status: int
    text: str
    ms: int


class Cards:
    """All GPUs. `missing` cards fell off the bus: later ones move up. `failure` replaces every answer.

    `ghosts` are (card, pid, name, MiB) that the driver names by a pid of another namespace.
    """

    def __init__(
        self, count: int, product: str, total_mib: int, processes: Processes, clock: Callable[[], float]
    ) -> None:
        self.product, self.total_mib = product, total_mib
        self.all = [
            Card(
                n, f"GPU-00000000-aaaa-4000-8000-{n:012d}", f"00000000:{n // 26:02X}:{n % 26 + 6:02X}.0", 0, 35 - n % 2
            )
            for n in range(count)
        ]
        self.missing: set[int] = set()
        self.ghosts: list[tuple[int, int, str, int]] = []
        self.failure: tuple[int, str] | None = None
        self.hung = False
        self.hung_pid: int | None = None
        self.log: list[str] | None = None  # the kernel's, None while it may not be read
        self.room = dict.fromkeys(PLACES, "66053021 50859000 15194021 4096 16777216 16200934")
        self.told: tuple[frozenset[str], float] = (frozenset(), 0.0)  # unusable cards, and when that was told
        self._kept: Said | None = None
        self._kept_s = 0.0
        self._processes, self._clock = processes, clock
        processes.ended.append(self._let_linger)

    @property
    def present(self) -> list[Card]:
        """By index, as the tool counts them."""
        return [card for card in self.all if card.number not in self.missing]

    def index_of(self, number: int) -> int | None:
        return next((i for i, card in enumerate(self.present) if card.number == number), None)

    def used_mib(self, card: Card) -> int:
        mine = [mib for process in self._processes for number, mib in process.memory.items() if number == card.number]
        card.lingering = [(until, mib) for until, mib in card.lingering if until > self._clock()]
        mine += [mib for _, mib in card.lingering]
        mine += [mib for number, _, _, mib in self.ghosts if number == card.number]
        context = BASE_MIB + CONTEXT_MIB * len(mine) if mine else card.idle_mib
        return sum(mine) + context + card.loose_mib

    def take(self, process: SimProcess, number: int, mib: int) -> None:
        """Memory on a card, with the device files that go with it. Also makes a holder's share larger."""
        for name in ("nvidiactl", f"nvidia{number}"):
            if name not in process.devices:
                process.devices.append(name)
        process.memory[number] = mib

    def _let_linger(self, process: SimProcess, _code: int, _status: int) -> None:
        for number, mib in process.memory.items():
            self.all[number].lingering.append((self._clock() + LINGER_S, mib))

    def hang(self, on: bool, processes: Processes) -> None:
        """nvidia-smi hangs from now on, or works again."""
        self.hung = on
        if not on and self.hung_pid is not None:
            stuck = processes.by_pid.get(self.hung_pid)
            self.hung_pid = None
            if stuck is not None:
                stuck.state = "S"
                processes.end(stuck, 2, 9)

    def note_hung(self, processes: Processes) -> None:
        """A look was there: the nvidia-smi that it left behind is known to the next."""
        if self.hung and self.hung_pid is None:
            stuck = processes.spawn(("/usr/bin/nvidia-smi",), "/system.slice/ssh.service", "system", "a hung tool")
            stuck.state, self.hung_pid = "D", stuck.pid

    def query_gpus(self, limit_ms: int) -> Said:
        return self._say(limit_ms, self._gpu_rows)

    def query_apps(self, limit_ms: int) -> Said:
        return self._say(limit_ms, self._app_rows)

    def query_health(self, limit_ms: int, ticks: int) -> Said:
        """As it is kept: with when it was asked by the boot clock, 30 s apart at least."""
        if self._kept is None or self._clock() - self._kept_s >= HEALTH_S:
            said = self._say(limit_ms, self._health_rows)
            if self.hung and self.hung_pid is not None:
                return Said(1, "", 0) if self._kept is None else self._kept
            answer = Said(said.exit_status, f"asked {ticks}\n{said.text}", 0)
            if said.exit_status == 124:
                return answer
            self._kept, self._kept_s = answer, self._clock()
        return self._kept

    def forget(self) -> None:
        """A reboot: /run is emptied."""
        self._kept = None
        self.told = (frozenset(), 0.0)

    def tell(self, unusable: list[str]) -> None:
        """What the daemon found, for the gates; nothing said leaves what they know."""
        if unusable:
            self.told = (frozenset(unusable) - {"-"}, self._clock())

    def unusable(self) -> frozenset[str]:
        """What a gate heeds of it now."""
        return self.told[0] if self._clock() - self.told[1] < HEEDED_S else frozenset()

    def _health_rows(self) -> str:
        return "".join(f"{card.uuid}, {card.ecc}, [N/A], {card.remap}, No, {card.advice}\n" for card in self.present)

    def _say(self, limit_ms: int, rows: Callable[[], str]) -> Said:
        if self.hung and self.hung_pid is not None:
            return Said(124, f"nvidia-smi (pid {self.hung_pid}) hangs since an earlier look\n", 0)
        if self.hung:
            return Said(124, "", limit_ms)
        if self.failure is not None:
            return Said(self.failure[0], self.failure[1] + "\n", 30)
        return Said(0, rows(), 40) if self.present else Said(6, "No devices were found\n", 30)

    def _gpu_rows(self) -> str:
        return "".join(
            f"{index}, {card.uuid}, {card.bus}, {self.product}, {DRIVER}, {self.total_mib}, {self.used_mib(card)}, "
            f"{self._busy_pct(card)}, {card.temperature + self._busy_pct(card) // 3}, Disabled\n"
            for index, card in enumerate(self.present)
        )

    def _busy_pct(self, card: Card) -> int:
        return max((p.busy_pct for p in self._processes if card.number in p.memory), default=0)

    def _app_rows(self) -> str:
        """By card, the youngest pid first, as the tool was recorded."""
        shown = {card.number: card.uuid for card in self.present}
        rows = [(n, -p.pid, mib, p.name) for p in self._processes for n, mib in p.memory.items() if n in shown]
        rows += [(n, -pid, mib, name) for n, pid, name, mib in self.ghosts if n in shown]
        return "".join(f"{shown[number]}, {-pid}, {name}, {mib}\n" for number, pid, mib, name in sorted(rows))
