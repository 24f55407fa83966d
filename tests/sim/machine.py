"""A machine of few words for tests of the server: it notes what came, and answers from a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemon.sim.bus_units import UnitFacts


@dataclass
class Answer:
    exit_status: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    took_s: float = 0.0


@dataclass
class Machine:
    """`units` are what its systemd knows; `due_at` is when it wants to be advanced next."""

    name: str = "m"
    on_unit_change: list[Callable[[str], None]] = field(default_factory=list)
    asked: list[tuple[tuple[str, ...], bytes]] = field(default_factory=list)
    units: dict[str, UnitFacts] = field(default_factory=dict)
    due_at: float | None = None
    advanced: list[float] = field(default_factory=list)

    def answer(self, argv: Sequence[str], stdin: bytes) -> Answer:
        self.asked.append((tuple(argv), stdin))
        if argv[0] == "fail":
            return Answer(7, b"", b"no\xff\n")
        if argv[0] == "slow":
            return Answer(0, b"done", b"", took_s=0.4)
        return Answer(0, b"\x00" + b"|".join(word.encode() for word in argv) + b"\xff", b"")

    def advance(self) -> None:
        if self.due_at is not None and time.monotonic() >= self.due_at:
            self.advanced.append(time.monotonic())
            self.due_at = None
            self.change("a.service")

    def due(self) -> float | None:
        return self.due_at

    def facts(self, name: str) -> UnitFacts:
        return self.units.get(name, UnitFacts(name))

    def change(self, name: str, **to: object) -> None:
        """Another state of a unit, told to whoever listens."""
        old = self.facts(name)
        self.units[name] = UnitFacts(**{**{k: getattr(old, k) for k in UnitFacts.__slots__}, **to})
        for told in self.on_unit_change:
            told(name)
