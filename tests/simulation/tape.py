"""The trace of a run: every command with its instant, its request and its answer, as one running hash, and figures.

Two runs of one seed must have one trace. Nonces are left out, and sums over them: they are random on purpose.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TextIO

from tests.simulation.road import Call
from tests.simulation.watch import CHANGES

_NONCE = re.compile(rb"[0-9a-f]{32} (?:(?=begin |section |end )|sum [0-9a-f]{64}\n)")


class Tape:
    """A witness. `changes` counts what was carried out by verb; `last_change_s` is when the last one was sent."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._hash = hashlib.sha256()
        self._out = out
        self.calls = 0
        self.changes: Counter[str] = Counter()
        self.signals: Counter[str] = Counter()
        self.last_change_s = 0.0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, line: str) -> None:
        """Something that happened beside the road."""
        self._hash.update(line.encode())
        if self._out is not None:
            print(line, file=self._out)

    def sent(self, call: Call) -> None:
        self.calls += 1
        if call.verb in CHANGES:
            self.last_change_s = call.sent_s
        words = " ".join(f"{key}={value}" for key, value in call.lines)
        self.note(f"{call.sent_s:.6f} > {call.number} {call.host} {call.verb} [{words}]")

    def before(self, call: Call) -> None:
        """Told by what comes after."""

    def after(self, call: Call) -> None:
        if call.exit_status == 0 and call.verb in CHANGES:
            self.changes[call.verb] += 1
            if call.verb == "signal":
                self.signals[call.value("signal")] += 1
        asked = b"" if call.verb == "probe" else call.body  # a prompt holds a nonce
        seen = hashlib.sha256(asked + b"\n" + _NONCE.sub(b"", call.answer)).hexdigest()[:12]
        self.note(f"{call.arrived_s:.6f} ! {call.number} exit={call.exit_status} {seen}")

    def returned(self, call: Call) -> None:
        self.note(f"{call.returned_s:.6f} < {call.number} {call.outcome}")
