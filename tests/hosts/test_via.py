"""A host reached `via` a container: everything happens inside of it, and nothing outside answers for it."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from harness import TestHost, bystanders
from harness.nested import Nested

from daemon import host as scripts
from tests.hosts.edges import PATH, UNIT, actions, looks, never_ready, show
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
PORT = 30001
VIA = {"via": {"proxmoxContainer": 129}}
STRAY = {"STANDIN_STRAY": "1", "STANDIN_IGNORE_TERM": "1"}
FAULTS = "/etc/standin/faults.json"


def digest(host: TestHost, path: str) -> str:
    return host.sh(f"sha256sum {path}").stdout.split()[0]


def spec(**more: Any) -> dict[str, Any]:
    return sglang("ct", [0, 1], **more)


# ---- everything inside ----


def test_helper_gate_unit_and_engine_are_inside_and_it_is_ready_by_a_generation_there(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    daemon.put_host("ct", pve, **VIA)
    daemon.put_spec("m", spec())
    instance = daemon.ready("m")
    assert instance["invocation"] == show(inside, "InvocationID")
    assert str(instance["main_pid"]) == show(inside, "MainPID")
    assert "POST /v1/completions" in inside.journal(UNIT)
    for path, text in ((scripts.HELPER_PATH, scripts.helper_text()), (scripts.GATE_PATH, scripts.gate_text())):
        assert digest(inside, path) == hashlib.sha256(text).hexdigest()
        assert inside.sh(f"stat -c '%a %U' {path}").stdout == "755 root\n"
    assert "sglang.launch_server" in inside.read(PATH)
    assert show(inside, "UnitFileState") == "enabled"
    assert daemon.get_host("ct")["status"]["identity"]["bootId"] == inside.boot_id() != pve.boot_id()
    checks = daemon.ok("POST", "/api/v1/hosts/ct/doctor")["checks"]
    assert len(checks) > 5
    assert not [check for check in checks if check["ok"] is False]
    for path in (PATH, "/var/lib/stoker", "/run/stoker"):
        assert pve.sh(f"test -e {path}", check=False).returncode == 1, path


def test_a_crash_inside_heals_and_a_reboot_of_the_container_too(daemon: Daemon, pve: TestHost, inside: Nested) -> None:
    daemon.put_host("ct", pve, **VIA)
    daemon.put_spec("m", spec())
    before = daemon.ready("m")
    inside.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new invocation", 20, "m")
    second = daemon.ready("m")
    told = [e for e in daemon.events("m") if "was restarted, not by Stoker" in e["message"]]
    assert told[0]["evidence"]
    boot = inside.boot_id()
    inside.reboot()
    daemon.wait(lambda: daemon.instance("m").get("invocation") not in ("", second["invocation"]), "back", 60, "m")
    daemon.ready("m")
    assert daemon.get_host("ct")["status"]["identity"]["bootId"] == inside.boot_id() != boot
    assert daemon.metric("stoker_actions_total", kind="unit-restart", result="ok") == 0


# ---- the way in is cut ----


def signalled(daemon: Daemon) -> list[str]:
    return [e["message"] for e in daemon.events() if e["action"].startswith("signal-")]


def cut(daemon: Daemon, name: str = "ct") -> str:
    """Waits until the host and its spec are unknown; the reason and its text."""
    daemon.wait(
        lambda: daemon.condition("spec", "m", "Ready")["status"] == "Unknown", "Ready Unknown", 30, "m"
    )  # fmt: skip
    daemon.wait(lambda: daemon.condition("host", name, "Observed")["status"] == "False", "not observed", 30)
    for type_ in ("GPUsReady", "Clean"):
        assert daemon.condition("host", name, type_)["status"] == "Unknown"
    said = daemon.condition("host", name, "Reachable")
    return f"{said['reason']}: {said['message']}"


def test_a_container_that_cannot_be_entered_is_unknown_and_says_why(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    daemon.put_host("ct", pve, period="1s", **VIA)
    daemon.put_spec("m", spec())
    first = daemon.ready("m")
    done = actions(daemon)

    pve.sh("mv /usr/sbin/pct /usr/sbin/pct.away")
    assert cut(daemon).startswith("ToolMissing: no pct on the machine")
    pve.sh("mv /usr/sbin/pct.away /usr/sbin/pct")
    daemon.wait(lambda: daemon.condition("host", "ct", "Observed")["status"] == "True", "seen again", 30)
    assert daemon.ready("m")["invocation"] == first["invocation"]

    inside.power_off()
    told = cut(daemon)
    assert told.startswith("ContainerUnreachable: container 129 cannot be entered: container '129' not running!"), told
    assert never_ready(daemon, 5) <= {"ContainerUnreachable"}
    pve.sh("mv /var/lib/lxc/129 /var/lib/lxc/129.away")
    daemon.wait(lambda: "does not exist" in daemon.condition("host", "ct", "Reachable")["message"], "no such CT", 30)
    assert cut(daemon).startswith("ContainerUnreachable: container 129 cannot be entered: Configuration file")
    pve.sh("mv /var/lib/lxc/129.away /var/lib/lxc/129")
    assert actions(daemon) == done
    assert signalled(daemon) == []
    inside.start()
    daemon.wait(lambda: daemon.instance("m").get("invocation") not in ("", first["invocation"]), "back", 60, "m")
    daemon.ready("m")
    assert actions(daemon) == done, "its unit is enabled and came back by itself"


# ---- the machine and its container as two hosts ----


def test_the_outer_machine_and_its_container_are_managed_side_by_side(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    daemon.put_host("ct", pve, **VIA)
    daemon.put_spec("m", sglang("ct", [0]))
    ours = daemon.ready("m")
    rank = bystanders.process(inside, inside.gpu_holders()[0].pid)
    seen_outside = inside.outer_pid(rank.pid)
    pve.gpu_mode(f"row 0 {seen_outside} 20480")
    daemon.put_host("pve", pve, exclusive=True)
    daemon.put_spec("o", sglang("pve", [0]))
    daemon.wait(lambda: daemon.condition("spec", "o", "Ready")["reason"] == "ForeignHolder", "ForeignHolder", 30, "o")
    said = daemon.condition("spec", "o", "Ready")["message"]
    assert f"pid {seen_outside} " in said
    assert "pct@129.service" in said
    looks(daemon, 6)
    assert signalled(daemon) == []
    assert rank.alive
    assert daemon.instance("m")["invocation"] == show(inside, "InvocationID") == ours["invocation"]
    identities = {name: daemon.get_host(name)["status"]["identity"]["machineId"] for name in ("ct", "pve")}
    assert len(set(identities.values())) == 2

    pve.gpu_mode()
    outer = daemon.ready("o", 60)
    assert pve.sh("test -e /etc/systemd/system/stoker-m.server.service", check=False).returncode == 1
    assert inside.sh("test -e /etc/systemd/system/stoker-o.server.service", check=False).returncode == 1
    pve.sh(f"kill -KILL {outer['main_pid']}")
    inside.sh(f"kill -KILL {ours['main_pid']}")
    for name, before in (("o", outer), ("m", ours)):
        daemon.wait(
            lambda name=name, before=before: daemon.instance(name).get("invocation") != before["invocation"],  # type: ignore[misc]
            "a new invocation", 30, name,
        )  # fmt: skip
        daemon.ready(name)
    assert signalled(daemon) == []


# ---- sudo and a jump host on the way ----


def allow(pve: TestHost, line: str) -> None:
    pve.write("/etc/sudoers.d/stoker", f"{line}\n".encode(), mode=0o440)


def road(pve: TestHost, **more: Any) -> dict[str, Any]:
    return {"ssh": {"address": pve.address, "user": "root", "hostKey": pve.host_key_line, **more}, **VIA}


def test_a_user_with_sudo_on_the_outer_machine_enters_the_container(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    allow(pve, "serve ALL=(root) NOPASSWD: ALL")
    daemon.put_host("ct", pve, **road(pve, user="serve"))
    daemon.put_spec("m", spec())
    assert daemon.ready("m")["invocation"] == show(inside, "InvocationID")


def test_a_user_who_may_run_only_the_helper_in_that_container_is_enough_once_it_is_there(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    daemon.put_host("ct", pve, **road(pve, user="serve"))
    daemon.put_spec("m", spec())
    daemon.wait(lambda: daemon.condition("host", "ct", "Reachable")["reason"] == "SudoDenied", "SudoDenied", 20)
    told = daemon.condition("host", "ct", "Reachable")["message"]
    line = told.split("allow `")[1].split("`")[0]
    allow(pve, line)
    daemon.wait(lambda: daemon.condition("host", "ct", "Reachable")["reason"] == "HelperMissing", "HelperMissing", 30)
    assert "in container 129" in daemon.condition("host", "ct", "Reachable")["message"]
    inside.write(scripts.GATE_PATH, scripts.gate_text(), mode=0o755)
    inside.write(scripts.HELPER_PATH, scripts.helper_text(), mode=0o755)
    assert daemon.ready("m", 60)["invocation"] == show(inside, "InvocationID")


def test_a_container_behind_a_jump_host(daemon: Daemon, pve: TestHost, inside: Nested) -> None:
    daemon.put_host("bastion", pve, mode="observe")
    daemon.put_host("ct", pve, **road(pve, address="127.0.0.1", jump="bastion"))
    daemon.put_spec("m", spec())
    assert daemon.ready("m")["invocation"] == show(inside, "InvocationID")
    assert pve.sh("ss -Hnt state established 'sport = :22' src 127.0.0.1").stdout.strip()


# ---- no watch ----


def test_a_container_is_not_watched_and_so_looked_at_more_often(daemon: Daemon, pve: TestHost, inside: Nested) -> None:
    daemon.put_host("ct", pve, period="30s", **VIA)
    daemon.put_host("pve", pve, period="30s")
    daemon.put_spec("m", spec())
    before = daemon.ready("m")
    daemon.wait(lambda: bool(unwatched(daemon)), "it says that it is not watched", 20)
    assert unwatched(daemon) == [
        "not watched, so looked at every 5 s or sooner: sockets inside a container are not reached by pct exec"
    ]
    daemon.wait(lambda: daemon.metric("stoker_watch_up", host="pve") == 1, "the outer machine is watched", 20)
    assert daemon.metric("stoker_watch_up", host="ct") == 0
    inside.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new invocation", 15, "m")
    daemon.ready("m")
    ages, end = list[float](), time.monotonic() + 20
    while time.monotonic() < end:
        ages.append(daemon.metric("stoker_observation_age_seconds", host="ct"))
        time.sleep(0.2)
    assert max(ages) < 10, ages


def unwatched(daemon: Daemon) -> list[str]:
    return [e["message"] for e in daemon.events("ct") if e["reason"] == "WatchUnavailable"]
