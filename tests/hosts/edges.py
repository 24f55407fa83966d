"""What tests of edges ask a daemon and a host."""

from __future__ import annotations

import time
from typing import Any

from harness import TestHost

from daemon.domain.observation import Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.planner.desired import place
from daemon.planner.world import Declared, Desired, Record
from tests.hosts.running import Daemon

UNIT = "stoker-m.server.service"
PATH = f"/etc/systemd/system/{UNIT}"


def show(host: TestHost, name: str) -> str:
    return host.sh(f"systemctl show {UNIT} -p {name} --value").stdout.strip()


def argv_of(host: TestHost, pid: object) -> list[str]:
    return host.sh(f"tr '\\0' '\\n' </proc/{pid}/cmdline", check=False).stdout.splitlines()


def actions(daemon: Daemon, name: str = "m") -> list[str]:
    """Commands that changed a host for that object, newest first."""
    kinds = ("unit-", "put-unit", "remove-unit", "signal-")
    return [e["action"] for e in daemon.events(name) if e["action"].startswith(kinds)]


def looks(daemon: Daemon, count: int = 3) -> None:
    """Waits until so many further reconciles have ended."""
    before = daemon.metric("stoker_reconcile_total", result="ok")
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= before + count, "looks", 20)


def never_ready(daemon: Daemon, seconds: float) -> set[str]:
    """Watches a spec for so long; gives the reasons it showed. Fails when it is Ready at any moment."""
    seen, end = set[str](), time.monotonic() + seconds
    while time.monotonic() < end:
        said = daemon.condition("spec", "m", "Ready")
        assert said["status"] != "True", said
        seen.add(said["reason"])
        time.sleep(0.1)
    return seen


def rendered(daemon: Daemon, host: TestHost, spec: dict[str, Any]) -> Desired:
    """What the daemon writes for that spec, by its own planner."""
    found, view = daemon.get_spec("m"), ServingSpec.model_validate(spec)
    cards = [tuple(line.split(", ")) for line in host.sh("nvidia-smi --query-gpu=index,uuid --format=csv,noheader")
             .stdout.splitlines()]  # fmt: skip
    record = Record(UNIT, PATH, tuple((int(index), uuid) for index, uuid in cards))
    declared = Declared("m", found["metadata"]["uid"], 2, "server", view, view, record)
    placed = place(declared, Unknown(Reason.NOT_OBSERVED_YET), host.read("/var/lib/stoker/fence").split()[0])
    assert isinstance(placed, Desired)
    return placed
