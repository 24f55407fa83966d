"""The main job on real hosts: declared → written → started → generates; crash, edit, reboot, deletion, hold, fences."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from harness import TestHost, bystanders
from harness.engines import generate

from tests.engines.hostile import PRINTABLE_HOSTILE_ARGS
from tests.hosts.edges import actions, looks
from tests.hosts.running import Daemon, manifest, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]
UNIT = "stoker-m.server.service"


def show(host: TestHost, *names: str, unit: str = UNIT) -> dict[str, str]:
    text = host.sh(f"systemctl show {unit} -p {','.join(names)}").stdout
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def argv_of(host: TestHost, pid: str) -> list[str]:
    return host.sh(f"cat /proc/{pid}/cmdline | base64 -w0 | base64 -d | tr '\\0' '\\n'").stdout.split("\n")[:-1]


def invocation(host: TestHost) -> str:
    return show(host, "InvocationID")["InvocationID"]


def test_a_declared_spec_becomes_a_unit_with_exactly_its_arguments_and_generates(
    daemon: Daemon, crowded: TestHost
) -> None:
    daemon.put_host("a", crowded)
    args = {f"x-{i:02}": value for i, value in enumerate(PRINTABLE_HOSTILE_ARGS)}
    assert len(args) >= 20
    assert not all(value.isascii() for value in args.values())
    daemon.put_spec("m", sglang("a", [0, 1], args=args))
    daemon.ready("m")
    state = show(crowded, "MainPID", "ActiveState", "UnitFileState", "InvocationID")
    assert (state["ActiveState"], state["UnitFileState"]) == ("active", "enabled")
    path = "/org/freedesktop/systemd1/unit/" + _escaped(UNIT)
    got = crowded.sh(
        f"busctl --json=short get-property org.freedesktop.systemd1 {path} org.freedesktop.systemd1.Service ExecStart"
    ).stdout
    loaded = json.loads(got)["data"][0][1]
    raw = crowded.sh(f"base64 -w0 /proc/{state['MainPID']}/cmdline").stdout
    running = [part.decode() for part in base64.b64decode(raw).split(b"\0")[:-1]]
    declared = [
        "/opt/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/m", "--served-model-name", "m",
        "--host", "0.0.0.0", "--port", "30001", "--tp-size", "2", "--enable-metrics",
    ]  # fmt: skip
    for name, value in args.items():
        declared += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    assert running == loaded == declared
    assert daemon.instance("m")["invocation"] == state["InvocationID"]
    assert any("generat" in line or "POST /v1/completions" in line for line in crowded.journal(UNIT).splitlines())


def _escaped(unit: str) -> str:
    return "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in unit)


def test_b_a_killed_main_process_is_restarted_by_systemd_and_the_story_is_told(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m")
    ours = daemon.metric("stoker_actions_total", kind="unit-restart", result="ok")
    host.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new invocation", 20, "m")
    after = daemon.ready("m")
    assert after["invocation"] != before["invocation"]
    assert daemon.metric("stoker_actions_total", kind="unit-restart", result="ok") == ours == 0
    assert daemon.metric("stoker_restarts_total", reason="systemd") == 1
    assert actions(daemon) == ["unit-start", "unit-enable", "put-unit"], "no command but those of its declaration"
    told = [e for e in daemon.events("m") if "was restarted, not by Stoker" in e["message"]]
    assert told
    assert told[0]["evidence"]
    assert daemon.metric("stoker_recovery_seconds_count") == 1


def test_d_a_launch_edit_restarts_once_and_is_ready_only_with_the_new_arguments(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    first = daemon.ready("m")
    changed = sglang("a", [0, 1], contextLength=4096)
    daemon.put_spec("m", changed)
    daemon.wait(lambda: daemon.instance("m").get("invocation") != first["invocation"], "restart", 20, "m")
    second = daemon.ready("m")
    assert "4096" in argv_of(host, str(second["main_pid"]))
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 1
    spec = daemon.get_spec("m")
    outside = {"readiness": {"period": "7s", "timeout": "10s"}, "restart": {"delay": "1s", "budget": 9}}
    daemon.put_spec("m", changed | outside, labels={"team": "x"})
    daemon.wait(
        lambda: daemon.get_spec("m")["status"]["observedGeneration"] == spec["metadata"]["generation"] + 1,
        "observedGeneration", 15, "m",
    )  # fmt: skip
    looks(daemon)
    assert invocation(host) == second["invocation"]
    version = daemon.get_spec("m")["metadata"]["resourceVersion"]
    daemon.put_spec("m", changed | outside, labels={"team": "x"})
    looks(daemon)
    assert daemon.get_spec("m")["metadata"]["resourceVersion"] == version
    assert invocation(host) == second["invocation"]


SPECULATIVE = {"algorithm": "EAGLE", "draftModel": "/models/d", "eagleTopk": 1, "numDraftTokens": 4}


def test_d_each_of_tensor_parallelism_and_speculation_that_is_edited_restarts_once(
    daemon: Daemon, host: TestHost
) -> None:
    daemon.put_host("a", host)
    declared = sglang("a", [0, 1], speculative=SPECULATIVE | {"numSteps": 3})
    daemon.put_spec("m", declared)
    before = daemon.ready("m")
    edits: list[tuple[str, str, str, dict[str, Any]]] = [
        ("--speculative-num-steps", "3", "5", {"speculative": SPECULATIVE | {"numSteps": 5}}),
        ("--tp-size", "2", "1", {"parallelism": {"tensor": 1, "data": 2}}),
    ]
    for number, (flag, was, now, edit) in enumerate(edits, 1):
        assert flag_of(host, before, flag) == was
        daemon.put_spec("m", declared := declared | edit)
        daemon.wait(lambda b=before: daemon.instance("m").get("invocation") != b["invocation"], "restart", 20, "m")  # type: ignore[misc]
        before = daemon.ready("m")
        assert flag_of(host, before, flag) == now
        looks(daemon)
        assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == number
        assert actions(daemon).count("unit-restart") == number
        assert invocation(host) == before["invocation"]


def flag_of(host: TestHost, instance: dict[str, Any], flag: str) -> str:
    """Its value in the argv of the process that serves."""
    argv = argv_of(host, str(instance["main_pid"]))
    return argv[argv.index(flag) + 1]


def test_d_an_old_process_that_still_answers_is_never_ready(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], env={"STANDIN_LINGER_S": "15", "STANDIN_LOAD_S": "1"}))
    first = daemon.ready("m")
    daemon.put_spec("m", sglang("a", [0, 1], env={"STANDIN_LOAD_S": "1"}, contextLength=2048))
    old, answers_of_old = bystanders.process(host, first["main_pid"]), 0
    seen_ready_early = False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        answers_of_old += old.alive and generate(host, 30001, model="m").status == 200
        said = daemon.instance("m")
        ready = daemon.condition("spec", "m", "Ready")
        newest = daemon.get_spec("m")["metadata"]["generation"]
        if ready["status"] == "True" and ready.get("observedGeneration") == newest:
            if "2048" in argv_of(host, str(said["main_pid"])):
                break
            seen_ready_early = True
        time.sleep(0.1)
    else:
        pytest.fail("never ready")
    assert not seen_ready_early
    assert answers_of_old >= 10, "the old process answered too seldom to be taken for the new one"
    assert invocation(host) != first["invocation"]


def test_e_after_a_reboot_units_come_back_also_without_the_daemon(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    first = daemon.ready("m")
    boot = host.boot_id()
    host.reboot()
    daemon.wait(lambda: daemon.instance("m").get("invocation") not in ("", first["invocation"]), "back", 40, "m")
    daemon.ready("m")
    assert daemon.get_host("a")["status"]["identity"]["bootId"] == host.boot_id() != boot
    daemon.kill()
    host.reboot()
    host.wait_until(f"systemctl is-active {UNIT}", timeout_s=30)
    host.wait_until("curl -sf http://127.0.0.1:30001/health", timeout_s=30)
    daemon.start()
    daemon.wait(
        lambda: daemon.get_host("a")["status"]["identity"]["bootId"] == host.boot_id(), "the new boot id", 30, "m"
    )
    daemon.ready("m")


def test_f_a_deleted_spec_is_stopped_removed_and_its_history_stays(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    daemon.ok("DELETE", "/api/v1/servingspecs/m")
    daemon.wait(lambda: daemon.call("GET", "/api/v1/servingspecs/m").status_code == 404, "gone", 30)
    assert not host.gpu_holders()
    assert show(host, "LoadState")["LoadState"] == "not-found"
    assert host.sh(f"ls /etc/systemd/system/{UNIT} /var/lib/stoker/units/{UNIT}", check=False).returncode != 0
    history = daemon.ok("GET", "/api/v1/servingspecs/m/history")
    assert history["revisions"][0]["spec"]["port"] == 30001


def test_f_a_deletion_waits_for_an_unreachable_host_or_is_abandoned(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    host.cut_link()
    daemon.ok("DELETE", "/api/v1/servingspecs/m")
    daemon.wait(lambda: daemon.condition("spec", "m", "Ready")["reason"] == "HostUnreachable", "Terminating", 40, "m")
    assert daemon.get_spec("m")["metadata"]["deletionTimestamp"]
    host.restore_link()
    daemon.wait(lambda: daemon.call("GET", "/api/v1/servingspecs/m").status_code == 404, "gone", 60)
    assert not host.gpu_holders()
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    host.cut_link()
    daemon.ok("DELETE", "/api/v1/servingspecs/m")
    left = daemon.ok("DELETE", "/api/v1/servingspecs/m?abandon=true")
    assert UNIT in json.dumps(left)
    assert daemon.call("GET", "/api/v1/servingspecs/m").status_code == 404
    host.restore_link()
    daemon.wait(lambda: UNIT in (daemon.get_host("a").get("status") or {}).get("unclaimed", []), "Unclaimed", 40)
    assert host.gpu_holders()


def test_j_the_fourth_correction_within_the_start_limit_still_serves(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    limit = {"startLimitBurst": 3, "startLimitInterval": "1h", "delay": "1s"}
    for turn in range(5):
        daemon.put_spec("m", sglang("a", [0, 1], contextLength=1000 + turn, restart=limit))
        daemon.wait(
            lambda turn=turn: str(1000 + turn) in argv_of(host, show(host, "MainPID")["MainPID"]), "new argv", 30, "m"
        )
        daemon.ready("m")
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 4


def test_j_a_held_host_is_left_alone_and_says_why(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    host.write("/etc/stoker/hold", b"kernel upgrade, ask Ann\n")
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.wait(lambda: daemon.condition("host", "a", "Acting")["reason"] == "Held", "Held", 20, "m")
    assert "ask Ann" in daemon.condition("host", "a", "Acting")["message"]
    assert host.sh(f"test -e /etc/systemd/system/{UNIT}", check=False).returncode != 0
    daemon.wait(lambda: bool(daemon.get_host("a")["status"]["plan"]), "its plan", 20)
    assert [p["action"] for p in daemon.get_host("a")["status"]["plan"]] == ["put-unit", "unit-enable", "unit-start"]
    host.sh("rm /etc/stoker/hold")
    daemon.ready("m")


def test_k_an_empty_store_stops_nothing_and_takes_units_back_with_their_manifest(
    daemon: Daemon, host: TestHost, tmp_path: Path
) -> None:
    daemon.put_host("a", host)
    spec = sglang("a", [0, 1])
    daemon.put_spec("m", spec)
    before = daemon.ready("m")
    text = host.sh(f"sha256sum /etc/systemd/system/{UNIT}").stdout
    daemon.kill()
    other = Daemon(tmp_path / "other", host.ssh_key)
    other.start()
    try:
        other.put_host("a", host)
        other.wait(lambda: UNIT in (other.get_host("a").get("status") or {}).get("unclaimed", []), "Unclaimed", 20)
        other.put_spec("m", spec)
        after = other.ready("m")
        assert after["invocation"] == before["invocation"] == invocation(host)
        assert other.get_host("a")["status"]["unclaimed"] == []
        assert host.sh(f"sha256sum /etc/systemd/system/{UNIT}").stdout == text
        assert other.condition("host", "a", "Acting")["reason"] == "FencedOff"
        other.ok("POST", "/api/v1/hosts/a/takeover")
        other.wait(lambda: other.condition("host", "a", "Acting")["status"] == "True", "takes over", 20)
        assert invocation(host) == before["invocation"]
    finally:
        other.kill()


def test_k_of_two_daemons_on_copies_of_a_store_one_is_fenced_off_and_stays_so(
    daemon: Daemon, host: TestHost, tmp_path: Path
) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m")
    daemon.kill()
    shutil.copytree(daemon.data, tmp_path / "copy")
    daemon.start()
    copy = Daemon(tmp_path / "copy", host.ssh_key)
    daemon.wait(lambda: daemon.condition("host", "a", "Acting")["status"] == "True", "acts", 20)
    copy.start()
    fence = host.read("/var/lib/stoker/fence")
    try:
        for _ in range(3):
            acting = [_acting(daemon), _acting(copy)]
            end = time.monotonic() + 8
            while time.monotonic() < end:
                acting = [_acting(daemon), _acting(copy)]
                assert acting.count("True") <= 1 or time.monotonic() < end - 4
                time.sleep(0.2)
            assert acting == ["True", "False"], "the one that lost takes nothing over, however often it starts"
            assert copy.condition("host", "a", "Acting")["reason"] == "FencedOff"
            copy.kill()
            copy.start()
        assert host.read("/var/lib/stoker/fence") == fence
        assert invocation(host) == before["invocation"]
    finally:
        copy.kill()


def _acting(daemon: Daemon) -> str:
    return str(daemon.condition("host", "a", "Acting")["status"])


def test_k_pause_stops_every_change_and_resume_goes_on(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.ok("PUT", "/api/v1/pause")
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.wait(lambda: daemon.condition("host", "a", "Acting")["reason"] == "Paused", "Paused", 20)
    assert host.sh(f"test -e /etc/systemd/system/{UNIT}", check=False).returncode != 0
    daemon.ok("DELETE", "/api/v1/pause")
    daemon.ready("m")


def test_a_new_host_is_only_observed_and_shows_its_plan(daemon: Daemon, host: TestHost) -> None:
    spec = {"ssh": {"address": host.address, "user": "root", "hostKey": host.host_key_line}, "period": "2s"}
    daemon.ok("PUT", "/api/v1/hosts/a", manifest("Host", "a", spec))
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.wait(lambda: bool((daemon.get_host("a").get("status") or {}).get("plan")), "a plan", 20)
    assert daemon.condition("host", "a", "Acting")["reason"] == "ObserveOnly"
    assert host.sh(f"test -e /etc/systemd/system/{UNIT}", check=False).returncode != 0
