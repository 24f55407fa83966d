"""The gate before a unit's start, as the real script behaves: it polls, says for whom it waits, and opens by itself."""

from __future__ import annotations

from collections.abc import Callable

from daemon.sim.cards import Card
from daemon.sim.disk import STATE
from daemon.sim.machine import Machine
from daemon.sim.processes import EXITED, SimProcess
from daemon.sim.unit import SimUnit

POLL_S = 1.1
SAY_EVERY = 30
SMALL_MIB = 1024
STEP_MIB = 64
STILL = 15


class Gate:
    """One run of the gate for one start of a unit; `control` is its process, `live` tells whether a unit is up."""

    def __init__(self, machine: Machine, control: SimProcess, unit: SimUnit, live: Callable[[str], bool]) -> None:
        self.machine, self.control, self.unit, self._live = machine, control, unit, live
        self.polls = self.still = self.loose = 0
        self.lowest: int | None = None
        self.where = ""
        self.nap: SimProcess | None = None

    def begin(self, delay_s: float) -> None:
        self.machine.after(delay_s, self._poll)

    def _poll(self) -> None:
        if self.nap is not None:
            self.machine.processes.end(self.nap, EXITED, 0)
        if self.machine.processes.by_pid.get(self.control.pid) is not self.control:
            return
        manifest = self.machine.disk.text(f"{STATE}/units/{self.unit.name}")
        if manifest is None:
            self._open(f"opens: no manifest for {self.unit.name}")
            return
        waits, blind = self._look(manifest)
        if not waits:
            self._open(
                f"opens without knowing the GPUs: {blind}" if blind else "",
                f"opens beside {self.loose} MiB on GPU{self.where}, held by nobody seen: they do not fall any more"
                if self.loose
                else "",
                f"opens after waiting: GPUs and ports of {self.unit.name} are free" if self.polls else "",
            )
            return
        if self.polls % SAY_EVERY == 0:
            self._say(f"{self.unit.name} waits for {waits}")
        self.polls += 1
        self.nap = self.machine.processes.spawn(
            ("sleep", "1"), self.control.cgroup, "instance", "the gate's nap", parent=self.control,
            environ=self.control.environ, exe="/usr/bin/sleep",
        )  # fmt: skip
        self.machine.after(POLL_S, self._poll)

    def _open(self, *texts: str) -> None:
        for text in texts:
            if text:
                self._say(text)
        self.machine.processes.end(self.control, EXITED, 0)

    def _say(self, text: str) -> None:
        self.machine.say(self.unit.name, self.unit.invocation, f"stoker gate: {text}")

    def _look(self, manifest: str) -> tuple[str, str]:
        """(for whom it waits, why it cannot tell about the cards); both empty when all is free."""
        rows = [line.split() for line in manifest.splitlines()]
        cards = [(int(row[1]), row[2]) for row in rows if row[:1] == ["gpu"]]
        ports = [int(row[1]) for row in rows if row[:1] == ["port"]]
        uuids = {uuid for _, uuid in cards}
        if bad := sorted(uuids & self.machine.cards.unusable()):
            return f"GPU {bad[-1]} to be usable again: 'stoker describe host' tells what is wrong", ""
        blind = self._blind() if cards else ""
        waits = "" if blind else self._moved(cards) or self._held(uuids) or self._falls(uuids)
        return waits or self._port(ports), blind

    def _blind(self) -> str:
        cards = self.machine.cards
        if cards.hung and cards.hung_pid is not None:
            return "an nvidia-smi hangs"
        if cards.hung:
            return "nvidia-smi --query-gpu ended with exit status 124"
        if cards.failure is not None and cards.failure[0] not in (0, 14):
            return f"nvidia-smi --query-gpu ended with exit status {cards.failure[0]}"
        return ""

    def _moved(self, cards: list[tuple[int, str]]) -> str:
        shown = {index: card.uuid for index, card in enumerate(self.machine.cards.present)}
        for index, uuid in cards:
            if shown.get(index, uuid) != uuid:
                return f"GPU index {index} shows {shown[index]} instead of {uuid}"
        return ""

    def _held(self, uuids: set[str]) -> str:
        found = []
        wanted = {card.number: card for card in self.machine.cards.present if card.uuid in uuids}
        for process in self.machine.processes:
            for number, mib in process.memory.items():
                if number in wanted and process.devices and not self._small(process, mib):
                    found.append((number, -process.pid, self._says(process, wanted[number], mib)))
        return "; ".join(text for _, _, text in sorted(found))

    def _falls(self, uuids: set[str]) -> str:
        """For memory in use that no process here explains, while it has fallen lately."""
        held = {number for process in self.machine.processes for number in process.memory}
        mine = [card for card in self.machine.cards.present if card.uuid in uuids and card.number not in held]
        loose = [(card.uuid, mib) for card in mine if (mib := self.machine.cards.used_mib(card)) >= SMALL_MIB]
        self.loose, self.where = sum(mib for _, mib in loose), "".join(f" {uuid}" for uuid, _ in loose)
        if not self.loose:
            self.lowest, self.still = None, 0
            return ""
        if self.lowest is None or self.loose <= self.lowest - STEP_MIB:
            self.lowest, self.still = self.loose, 0
        self.still += 1
        text = f"memory to come back: {self.lowest} MiB on GPU{self.where}, held by nobody seen"
        return "" if self.still > STILL else text

    def _says(self, process: SimProcess, card: Card, mib: int) -> str:
        return f"{self._describe(process)}, which holds GPU {card.uuid}, {mib} MiB"

    def _small(self, process: SimProcess, mib: int) -> bool:
        """A little on the card of a live managed unit's process, or of CUDA MPS itself."""
        if mib >= SMALL_MIB:
            return False
        owner = next((part for part in process.cgroup.split("/") if part.endswith(".service")), "")
        managed = f"{STATE}/units/{owner}" in self.machine.disk.files and owner != self.unit.name
        return process.comm == "nvidia-cuda-mps" or (managed and self._live(owner))

    def _port(self, ports: list[int]) -> str:
        for port in ports:
            holder = self.machine.processes.holder_of(port)
            if holder is not None:
                return f"{self._describe(holder)}, which listens on port {port}"
        return ""

    def _describe(self, process: SimProcess) -> str:
        raw = process.cmdline.replace(b"\0", b" ").replace(b"\n", b" ").decode("ascii", "ignore")
        command = "".join(char for char in " ".join(raw.split(" ")) if char.isprintable())
        while "  " in command:
            command = command.replace("  ", " ")
        return f"pid {process.pid} ({command[:120] or 'no command line'}) of user {self.machine.user_of(process.uid)}"
