"""What answers on a simulated host: the helper's verbs, dispatched and framed. Called by `host`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.sim import frame, plain
from daemon.sim.change import Changes
from daemon.sim.disk import HELPER
from daemon.sim.frame import Answer, Asked, Refused, Sections
from daemon.sim.look import Look
from daemon.sim.machine import Machine
from daemon.sim.probe import Probe
from daemon.sim.units import Units

_VERSION = re.compile(rb"^VERSION=(\d+)$", re.MULTILINE)
JOURNAL_BYTES = 262144


@dataclass(frozen=True, slots=True)
class Deed:
    """One command that came, or one target of a signal. `whose` and `why` are the truth about that target."""

    at: float
    verb: str
    target: str
    exit_status: int
    fence: str = ""
    came: str = ""
    whose: str = ""
    why: str = ""


class Shell:
    """One machine's helper. `history` has every command in order; looks and probes too."""

    def __init__(self, machine: Machine, units: Units) -> None:
        self.machine, self.units = machine, units
        self.history: list[Deed] = []

    def answer(self, argv: Sequence[str], stdin: bytes) -> Answer:
        if not argv or argv[0] != HELPER:
            return plain.answer(self.machine, argv, stdin)
        installed = self.machine.disk.files.get(HELPER)
        if installed is None:
            return Answer(127, b"", f"sh: 1: exec: {HELPER}: not found\n".encode())
        if len(argv) != 2:
            return Answer(64, b"", b"stoker-host: usage: stoker-host VERB <REQUEST\n")
        found = _VERSION.search(installed)
        return self._verb(argv[1], stdin, frame.VERSION if found is None else int(found[1]))

    def _verb(self, verb: str, stdin: bytes, version: int) -> Answer:
        try:
            nonce = frame.nonce_of(stdin)
        except ValueError as wrong:
            return Answer(64, b"", f"stoker-host: {wrong}\n".encode())
        took: dict[str, int] = {}
        took_s, asked = [0.03], None
        try:
            asked = frame.read(verb, stdin)
            verb = verb if verb in _VERBS else "unknown"
            sections, status = _VERBS.get(verb, _unknown)(self, asked, took, took_s), 0
        except Refused as no:
            sections, status = {"error": (0, frame.one_line(no.text)), **no.sections}, no.exit_status
        self._note(verb, asked, status)
        return Answer(status, frame.framed(nonce, verb, status, sections, took, version), b"", took_s[0])

    def _note(self, verb: str, asked: Asked | None, status: int) -> None:
        fence, target = (asked.value("fence"), asked.unit) if asked is not None else ("", "")
        self.history.append(Deed(self.machine.clock(), verb, target, status, fence))

    # ---- the verbs ----

    def observe(self, asked: Asked, took: dict[str, int], took_s: list[float]) -> Sections:
        look = Look(self.machine, self.units, asked)
        sections = look.sections()
        took.update(look.took_ms)
        took_s[0] = 0.1 + max(look.took_ms.values()) / 1000
        self.machine.cards.note_hung(self.machine.processes)
        return sections

    def probe(self, asked: Asked, took: dict[str, int], took_s: list[float]) -> Sections:
        probe = Probe(self.machine, self.units, asked)
        sections = probe.sections()
        took["response"], took_s[0] = round(probe.took_s * 1000), probe.took_s + 0.05
        return sections

    def journal(self, asked: Asked, _took: dict[str, int], _took_s: list[float]) -> Sections:
        if not asked.unit:
            raise Refused(frame.USAGE, "journal needs unit")
        invocation = asked.value("invocation")
        lines = [
            line.text for line in self.machine.journal
            if (line.invocation == invocation if invocation else line.unit == asked.unit)
        ]  # fmt: skip
        count = asked.number("lines", 200)
        text = "".join(f"{line}\n" for line in lines[len(lines) - count if count < len(lines) else 0 :])
        return {"journal": (0, text.encode("utf-8", "surrogateescape")[-JOURNAL_BYTES:])}

    def version(self, _asked: Asked, _took: dict[str, int], _took_s: list[float]) -> Sections:
        return {"version": (0, f"{frame.VERSION}\n".encode())}

    def change(self, asked: Asked, _took: dict[str, int], _took_s: list[float]) -> Sections:
        changes = Changes(self.machine, self.units, asked)
        match asked.verb:
            case "take-fence":
                return changes.take_fence()
            case "put-unit":
                return changes.put_unit()
            case "set-aside":
                return changes.set_aside()
            case "remove-unit":
                return changes.remove_unit()
            case "sweep-shm":
                return changes.sweep_shm()
            case "signal":
                return changes.signal(lambda pid, came: self._note_target(asked, pid, came))
            case _:
                return changes.unit_verb(asked.verb.removeprefix("unit-"))

    def _note_target(self, asked: Asked, pid: int, came: str) -> None:
        process = self.machine.processes.by_pid.get(pid)
        whose, why = (process.whose, process.why) if process is not None else ("", "")
        verb = f"signal-{asked.value('signal').lower()}"
        self.history.append(Deed(self.machine.clock(), verb, str(pid), 0, asked.value("fence"), came, whose, why))


Verb = Callable[[Shell, Asked, dict[str, int], list[float]], Sections]
_CHANGES = ("take-fence", "put-unit", "set-aside", "remove-unit", "signal", "sweep-shm", "unit-start", "unit-stop",
            "unit-restart", "unit-enable", "unit-disable")  # fmt: skip
_VERBS: dict[str, Verb] = {
    "observe": Shell.observe,
    "probe": Shell.probe,
    "journal": Shell.journal,
    "version": Shell.version,
    **dict.fromkeys(_CHANGES, Shell.change),
}


def _unknown(_shell: Shell, _asked: Asked, _took: dict[str, int], _took_s: list[float]) -> Sections:
    raise Refused(frame.USAGE, "unknown verb")
