"""Launches that show in no argv, on a real systemd. What people do to a unit beside Stoker is in `test_drift`."""

from __future__ import annotations

import pytest
from harness import TestHost

from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]

UNIT = "stoker-m.server.service"


def show(host: TestHost, key: str) -> str:
    return host.sh(f"systemctl show -p {key} --value {UNIT}").stdout.strip()


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
