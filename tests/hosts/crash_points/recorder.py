"""Points of a daemon's life: noted in a log as they are passed, and at the one that is armed the process kills itself.

Used inside the daemon process by `watched`. The test outside arms a point by writing `arm.json`, and reads `log.jsonl`;
`Points` is its side. Points are counted by name from the moment a new arming is seen, so that the same name and number
mean the same place in every run of one scenario.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

# sent: the request is on its way, the answer is not awaited; answered: it arrived and nobody has read it;
# committed: the write is durable and nobody was told.
Stage = Literal["sent", "answered", "committed"]


class Point(NamedTuple):
    """One place to die: the `number`th time that `name` comes to this stage."""

    name: str
    number: int
    stage: Stage

    def __str__(self) -> str:
        return f"{self.name} #{self.number}, {self.stage}"


class Recorder:
    """The side of the daemon process. Threads of the store and the loop call it."""

    def __init__(self, folder: Path) -> None:
        self._arm = folder / "arm.json"
        self._log = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._id, self._point, self._since = "", None, ""
        self._counts: Counter[tuple[str, Stage]] = Counter()

    def note(self, name: str, stage: Stage, facts: dict[str, Any]) -> bool:
        """Writes it down; whether this is the armed point."""
        with self._lock:
            self._read_arm()
            if self._since and name == self._since:
                self._since = ""
            if self._since:
                return False
            self._counts[name, stage] += 1
            point = Point(name, self._counts[name, stage], stage)
            line = {"id": self._id, "point": point, "daemon": os.getpid(), **facts}
            os.write(self._log, json.dumps(line).encode() + b"\n")
            return point == self._point

    def passed(self, name: str, stage: Stage, facts: dict[str, Any]) -> None:
        """Notes the point, and does not come back from the armed one."""
        if self.note(name, stage, facts):
            die()

    def _read_arm(self) -> None:
        told = json.loads(self._arm.read_text()) if self._arm.exists() else {"id": ""}
        if told["id"] != self._id:
            self._id, self._since = told["id"], told.get("since", "")
            self._point = Point(*told["point"]) if told.get("point") else None
            self._counts.clear()


def die() -> None:
    """SIGKILL to this very process: no handler, no flush, no farewell."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Points:
    """The side of the test: what is armed, and what was passed since."""

    folder: Path
    id: str = ""
    _armed: int = field(default=0)

    def arm(self, point: Point | None = None, *, since: str = "") -> None:
        """From now on points are counted anew, beginning with the one called `since` ("": with the next)."""
        self._armed += 1
        self.id = f"{self._armed}"
        new = self.folder / "arm.new"
        new.write_text(json.dumps({"id": self.id, "point": point, "since": since}))
        new.replace(self.folder / "arm.json")

    def lines(self, *ids: str) -> list[dict[str, Any]]:
        """What was noted under these armings, oldest first; of the present one without any."""
        log = self.folder / "log.jsonl"
        wanted = ids or (self.id,)
        text = log.read_text() if log.exists() else ""
        found = [json.loads(line) for line in text.splitlines()]
        return [line | {"point": Point(*line["point"])} for line in found if line["id"] in wanted]
