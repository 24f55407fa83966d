"""A lane: one test host, one store and the daemon on it, used for one point after the other.

It declares, waits, and asks host, store and recorder for what is true. `play` plays a point on it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from harness import TestHost

from tests.hosts.crash_points.recorder import Points
from tests.hosts.running import ROOT, Daemon, manifest, sglang

UNIT = "stoker-m.server.service"
FIRST, EDITED = 1024, 2048  # contextLength, before and after the edit of scenario d
LEFTOVERS = (
    "find /etc/systemd/system /var/lib/stoker -name '*stoker-new*' -o -name '.new.*'; "
    "find /run/stoker /tmp -maxdepth 1 -name 'call.*' -o -maxdepth 1 -name 'stoker.*'"
)


Starts = frozenset[tuple[str, str]]  # invocation and pid


class WatchedDaemon(Daemon):
    """The daemon of `launcher`, with its recorder's folder beside its data."""

    def __init__(self, data: Path, ssh_key: Path) -> None:
        super().__init__(data, ssh_key)
        folder = data.with_name(f"{data.name}-points")
        folder.mkdir(parents=True)
        self.points = Points(folder)

    def argv(self) -> list[str]:
        return [sys.executable, "-P", "-m", "tests.hosts.crash_points.launcher"]

    def env(self) -> dict[str, str]:
        return super().env() | {
            "CRASH_POINTS_FOLDER": str(self.points.folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/hosts")]),
        }

    def died(self) -> bool:
        """Whether it ended; then it was by its own SIGKILL."""
        if self.process is None or self.process.poll() is None:
            return False
        assert self.process.returncode == -9, f"the daemon exited {self.process.returncode}\n{self.log_tail()}"
        self.process = None
        return True


class Lane:
    """Not for several threads. `fresh` gives the clean state that every point begins with."""

    def __init__(self, host: TestHost, data: Path) -> None:
        self.host = host
        self.daemon = WatchedDaemon(data, host.ssh_key)
        self.acknowledged: list[tuple[int, int]] = []  # generation and contextLength of each PUT that was answered
        self.deleted = 0
        self._temporary = self._found()  # of helpers that ended with the host's last cleaning

    def begin(self) -> None:
        """Starts its daemon and declares its host."""
        self.daemon.points.arm()
        self.daemon.start()
        self.daemon.put_host("a", self.host, period="1s")

    def fresh(self, env: dict[str, str], *, declare: bool = True) -> None:
        """No spec, or a spec that was just declared and is Ready; whatever was declared before is deleted and gone."""
        self.daemon.points.arm()
        if self.daemon.call("GET", "/api/v1/servingspecs/m").status_code == 200:
            self.daemon.ok("DELETE", "/api/v1/servingspecs/m")
            self.daemon.wait(self._gone, "the deleted spec is gone", 60)
            self.deleted += 1
        for pid in {holder.pid for holder in self.host.gpu_holders()}:  # ranks that left the unit outlive it
            self.host.sh(f"kill -KILL {pid}", check=False)
        self.acknowledged = []
        if declare:
            self.put(FIRST, env)
            self.daemon.wait(lambda: self.converged(FIRST, frozenset(), 1), "declared and Ready", 60, "m")

    def _gone(self) -> bool:
        return self.daemon.call("GET", "/api/v1/servingspecs/m").status_code == 404

    def put(self, context: int, env: dict[str, str]) -> bool:
        """Declares the spec; whether that was acknowledged."""
        spec = sglang("a", [0, 1], env=env, contextLength=context, strays={"grace": "500ms"})
        try:
            answer = self.daemon.call("PUT", "/api/v1/servingspecs/m", manifest("ServingSpec", "m", spec))
        except httpx.HTTPError:
            return False
        assert answer.status_code < 300, answer.text
        self.acknowledged.append((answer.json()["metadata"]["generation"], context))
        return True

    def show(self, *names: str) -> dict[str, str]:
        text = self.host.sh(f"systemctl show {UNIT} -p {','.join(names)}").stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def restarts(self) -> int:
        """How many restarts the store's ledger counts."""
        [(count,)] = self.stored("SELECT count(*) FROM corrections WHERE kind = 'unit-restart'")
        return int(count)

    def starts(self) -> Starts:
        """Every time that the engine was executed for the unit, by what it said first."""
        self.host.sh("journalctl --sync")
        fields = "MESSAGE,_PID,_SYSTEMD_INVOCATION_ID"
        text = self.host.sh(f"journalctl -q -u {UNIT} -o json --output-fields={fields}").stdout
        lines = [json.loads(line) for line in text.splitlines()]
        said = [line for line in lines if "server_args=ServerArgs(" in str(line.get("MESSAGE"))]
        return frozenset((line["_SYSTEMD_INVOCATION_ID"], line["_PID"]) for line in said)

    def converged(self, context: int, before: Starts, starts: int) -> bool:
        """Whether what is declared generates, the plan is empty, and host and status name the same invocation.

        False while the daemon does not answer.
        """
        try:
            invocation = self._ready_invocation()
            if not invocation or self.daemon.metric("stoker_reconcile_total", result="ok") < 2:
                return False
        except httpx.HTTPError:
            return False
        unit = self.show("InvocationID", "ActiveState", "MainPID")
        if (unit["InvocationID"], unit["ActiveState"]) != (invocation, "active"):
            return False
        argv = self.host.sh(f"tr '\\0' '\\n' </proc/{unit['MainPID']}/cmdline", check=False).stdout.splitlines()
        return str(context) in argv and len(self.starts() - before) >= starts

    def _ready_invocation(self) -> str:
        """The invocation of which the status says that it is Ready at the newest generation; "" when it does not."""
        answer = self.daemon.call("GET", "/api/v1/servingspecs/m")
        spec = answer.json() if answer.status_code == 200 else {}
        status = spec.get("status") or {}
        said = {c["type"]: c for c in status.get("conditions", ())}
        ready, newest = said.get("Ready", {}), spec.get("metadata", {}).get("generation")
        if (ready.get("status"), ready.get("observedGeneration")) != ("True", newest):
            return ""
        host = self.daemon.get_host("a").get("status") or {}
        acting = next((c["status"] for c in host.get("conditions", ()) if c["type"] == "Acting"), "")
        if acting != "True" or host.get("plan") != []:
            return ""
        found = status.get("instances") or [{}]
        return str(found[0].get("invocation", ""))

    def wait_dead(self, settled: Callable[[], bool], limit_s: float) -> bool:
        """Waits until the daemon killed itself; False when all was `settled` without that."""
        deadline = time.monotonic() + limit_s
        while not self.daemon.died():
            if settled():
                return self.daemon.died()
            assert time.monotonic() < deadline, f"neither dead nor settled\n{self.daemon.log_tail()}"
            time.sleep(0.1)
        return True

    def story(self) -> str:
        """What a person would want to see of a point that went wrong."""
        passed = [f"{line['id']} {line['point']} {line.get('said', '')}" for line in self.daemon.points.lines()]
        journal = self.host.sh(f"journalctl -q --no-pager -o short-precise -n 60 -u {UNIT}", check=False).stdout
        return "\n".join([*passed[-60:], journal[-6000:], self.daemon.log_tail()[-3000:]])

    def leftovers(self) -> set[str]:
        """Temporary files of this lane's daemons; those of a look that is being taken are among them."""
        return self._found() - self._temporary

    def _found(self) -> set[str]:
        return set(self.host.sh(LEFTOVERS, check=False).stdout.splitlines())

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the store's file, read beside the daemon."""
        with sqlite3.connect(f"file:{self.daemon.data / 'stoker.db'}?mode=ro", uri=True) as connection:
            return connection.execute(query).fetchall()
