"""What people do to a unit beside Stoker, and launches that show in no argv, on a real systemd."""

from __future__ import annotations

import pytest
from harness import TestHost

from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]

UNIT = "stoker-m.server.service"
DROPIN = f"/etc/systemd/system/{UNIT}.d/override.conf"


def show(host: TestHost, key: str) -> str:
    return host.sh(f"systemctl show -p {key} --value {UNIT}").stdout.strip()


def puts(daemon: Daemon) -> int:
    return sum(event["count"] for event in daemon.events("m") if event["action"] == "put-unit")


def test_a_persons_dropin_is_shown_and_neither_fought_nor_restarted_away(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host, period="1s")
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    invocation, written = show(host, "InvocationID"), puts(daemon)
    host.sh(f"mkdir -p {DROPIN.rsplit('/', 1)[0]}")
    host.write(DROPIN, b"[Service]\nEnvironment=NCCL_DEBUG=INFO\n")
    host.sh("systemctl daemon-reload")
    daemon.wait(lambda: daemon.condition("spec", "m", "Drifted")["status"] == "True", "the drift", 10, "m")
    looks = daemon.metric("stoker_reconcile_total", result="ok")
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") > looks + 5, "more looks", 30, "m")
    assert show(host, "InvocationID") == invocation
    assert puts(daemon) == written
    assert daemon.condition("spec", "m", "Ready")["status"] == "True"


def test_a_variable_taken_away_restarts_once(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host, period="1s")
    daemon.put_spec("m", sglang("a", [0, 1], env={"STANDIN_NOTE": "1"}))
    first = daemon.ready("m")["invocation"]
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.wait(lambda: show(host, "InvocationID") not in ("", first), "the restart", 20, "m")
    second = show(host, "InvocationID")
    assert daemon.ready("m")["invocation"] == second
    assert "STANDIN_NOTE" not in host.sh(f"cat /proc/{show(host, 'MainPID')}/environ | tr '\\0' '\\n'").stdout
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 1
