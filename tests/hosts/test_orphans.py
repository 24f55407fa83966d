"""Orphans cleared and nobody else touched, on real hosts: the gate waits, the daemon clears, bystanders live on."""

from __future__ import annotations

import base64
import re
import threading
import time

import pytest
from harness import TestHost, bystanders
from harness.bystanders import Bystander
from harness.engines import generate

from daemon.domain.observation import Observation, Unknown
from daemon.probes.report import Answer, parse_answer, parse_observation
from daemon.verbs import request
from tests.hosts.conftest import MakeHost
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]
UNIT = "stoker-m.server.service"
NONCE = "0123456789abcdef" * 2
STRAY = {"STANDIN_STRAY": "1", "STANDIN_STRAY_PORT": "1", "STANDIN_IGNORE_TERM": "1"}


def show(host: TestHost, name: str) -> str:
    return host.sh(f"systemctl show {UNIT} -p {name} --value").stdout.strip()


def uptime_us(host: TestHost) -> int:
    return int(float(host.sh("cat /proc/uptime").stdout.split()[0]) * 1_000_000)


def kill_launcher(host: TestHost, *, stop_one: bool = True) -> list[int]:
    """SIGKILL of the launcher after its workers left; gives the pids that hold GPUs 0 and 1 from then on."""
    held = sorted({h.pid for h in host.gpu_holders() if h.gpu in (0, 1)})
    if stop_one:
        host.sh(f"kill -STOP {held[-1]}")
    host.sh(f"kill -KILL {show(host, 'MainPID')}")
    return held


def last_seen(host: TestHost, pids: list[int], stop: threading.Event, found: list[int]) -> None:
    while not stop.is_set():
        now = uptime_us(host)
        if {h.pid for h in host.gpu_holders()} & set(pids):
            found.append(now)
        time.sleep(0.1)


def test_c_orphans_are_cleared_by_identity_and_the_engine_starts_only_on_free_cards(
    daemon: Daemon, crowded: TestHost
) -> None:
    daemon.put_host("a", crowded)
    daemon.put_spec("m", sglang("a", [0, 1], env=STRAY))
    before = daemon.ready("m")
    pids = kill_launcher(crowded)
    stop, held = threading.Event(), list[int]()
    watch = threading.Thread(target=last_seen, args=(crowded, pids, stop, held))
    watch.start()
    try:
        daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new start", 20, "m")
        daemon.ready("m", 60)
    finally:
        stop.set()
        watch.join()
    assert held, "the orphans were never seen holding memory"
    assert int(show(crowded, "ExecMainStartTimestampMonotonic")) > max(held)
    assert not set(pids) & {h.pid for h in crowded.gpu_holders()}
    said = crowded.journal(UNIT)
    assert any(f"{pid}" in said for pid in pids)
    actions = {e["action"] for e in daemon.events() if e["result"] == "ok"}
    assert {"signal-term", "signal-kill"} <= actions
    assert daemon.metric("stoker_actions_total", kind="unit-restart", result="ok") == 0


@pytest.mark.parametrize("hybrid", [False, True], ids=["unified", "hybrid"])
def test_c_a_look_sees_who_is_in_a_unit_whatever_hierarchies_are_mounted(
    daemon: Daemon, make_host: MakeHost, hybrid: bool
) -> None:
    """Among 1,800 processes; one of the unit's own is in a group of the old freezer, frozen."""
    host = make_host("full-hybrid" if hybrid else "full", idle=1800, hybrid=hybrid)
    assert int(host.sh("ls /proc | grep -c '^[0-9]'").stdout) >= 1800
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    daemon.kill()
    frozen = max(holder.pid for holder in host.gpu_holders())
    host.freeze(frozen)
    host.on_clean(host.thaw)
    groups = host.sh(f"cat /proc/{frozen}/cgroup").stdout
    assert re.search(f"^[0-9]+:freezer:/.*{frozen}$", groups, re.MULTILINE), groups
    assert hybrid == bool(re.search(f"^[0-9]+:name=systemd:.*{UNIT}$", groups, re.MULTILINE)), groups
    in_unit = host.sh(f"grep -sl {UNIT} /proc/[0-9]*/cgroup", check=False).stdout.split()
    asked = request(NONCE, [("unit", UNIT), ("port", "30001"), ("limit-ms", "9000")])
    said = base64.b64decode(host.sh("/var/lib/stoker/stoker-host observe | base64", stdin=asked).stdout)
    answer = parse_answer(said, NONCE)
    assert isinstance(answer, Answer)
    seen = parse_observation(answer, "a", 0.0)
    assert isinstance(seen, Observation)
    assert not isinstance(seen.processes, Unknown)
    own = {process.id.pid: process.state for process in seen.processes if process.cgroup == f"/system.slice/{UNIT}"}
    assert {f"/proc/{pid}/cgroup" for pid in own} == set(in_unit)
    assert own[frozen] == "D"
    assert len(seen.processes) < 60
    assert not [process for process in seen.processes if "idle" in " ".join(process.argv)]


def test_c_without_the_daemon_the_unit_waits_and_names_the_holders(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], env=STRAY))
    daemon.ready("m")
    daemon.kill()
    pids = kill_launcher(host)
    host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = start-pre', timeout_s=20)
    host.wait_until(f"journalctl -q -o cat -u {UNIT} | grep -q 'pid {pids[0]}'", timeout_s=20)
    said = host.journal(UNIT)
    assert all(str(pid) in said for pid in pids)
    assert show(host, "SubState") == "start-pre"
    assert show(host, "MainPID") == "0"
    daemon.start()
    daemon.ready("m", 60)


def start_bystanders(host: TestHost) -> list[Bystander]:
    daemon_marks = {"STOKER_STORE": "11111111-1111-4111-8111-111111111111", "STOKER_SPEC": "m"}
    return [
        bystanders.unrelated(host),
        bystanders.unrelated(host, gpu=2),
        bystanders.other_user(host, gpu=3),
        bystanders.in_docker(host, gpu=4),
        bystanders.by_hand(host, port=30099, gpus=(5,)),
        bystanders.login_shell(host, env=daemon_marks),
    ]


def test_c_bystanders_live_through_twenty_rounds_of_clearing(daemon: Daemon, make_host: MakeHost) -> None:
    host = make_host("eight", gpus=8)
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], env=STRAY, strays={"grace": "500ms"}))
    daemon.ready("m")
    store = host.read("/var/lib/stoker/fence").split()[0]
    spec = daemon.get_spec("m")["metadata"]["uid"]
    others = start_bystanders(host)
    others.append(bystanders.login_shell(host, env={"STOKER_STORE": store, "STOKER_SPEC": spec}))
    for turn in range(20):
        before = daemon.ready("m")["invocation"]
        kill_launcher(host)
        daemon.wait(lambda b=before: daemon.instance("m").get("invocation") != b, f"start {turn}", 30, "m")  # type: ignore[misc]
        daemon.ready("m", 60)
        assert all(b.alive for b in others), f"a bystander died in round {turn}"
        assert generate(host, 30099, model="/models/theirs").status == 200
    events = daemon.events("a")
    assert len(events) < 500, "what came first is not among them"
    signalled = [e["message"] for e in events if e["action"].startswith("signal-")]
    assert len([m for m in signalled if m.startswith("signal-term ")]) >= 20
    for other in others:
        assert not [m for m in signalled if f" {other.pid} " in m or f" {other.pid}," in m]


def test_c_foreign_work_on_a_needed_card_blocks_the_start_and_is_named(daemon: Daemon, host: TestHost) -> None:
    other = bystanders.unrelated(host, gpu=0)
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    said = daemon.reason("m", "ForeignHolder")
    for part in (f"pid {other.pid}", "python3", "root", "GPU 0"):
        assert part in said["message"], said
    assert show(host, "ActiveState") == "inactive"
    assert other.alive
    assert daemon.condition("host", "a", "Clean")["reason"] == "ForeignHolder"
    host.sh(f"kill {other.pid}")
    daemon.ready("m")


def test_c_a_server_started_by_hand_on_needed_cards_is_reported_and_left_alone(daemon: Daemon, host: TestHost) -> None:
    other = bystanders.by_hand(host, port=30077, gpus=(0,))
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    said = daemon.reason("m", "ForeignHolder")
    assert "a port of its tree serves" in said["message"]
    looks = daemon.metric("stoker_reconcile_total", result="ok")
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= looks + 4, "four looks more", 30)
    assert other.alive
    assert generate(host, 30077, model="/models/theirs").status == 200
    assert show(host, "ActiveState") == "inactive"
    assert daemon.condition("spec", "m", "Ready")["status"] == "False"
