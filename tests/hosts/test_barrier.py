"""The clean barrier on real hosts: memory that comes back slowly, a squatter on a derived port, memory nobody holds.

And a driver's tool that hangs for ever: it costs one look its limit, and no start its gate.
"""

from __future__ import annotations

import time

import pytest
from harness import TestHost, bystanders

from tests.hosts.edges import actions
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
UNIT = "stoker-m.server.service"
LIMIT_S = 5.0  # what a look waits for one tool


def show(host: TestHost, name: str) -> str:
    return host.sh(f"systemctl show {UNIT} -p {name} --value").stdout.strip()


def message(daemon: Daemon) -> str:
    return str(daemon.condition("spec", "m", "Ready")["message"])


def test_a_start_waits_while_memory_falls_and_follows_when_it_is_back(daemon: Daemon, host: TestHost) -> None:
    """B17: it comes back later than the process goes."""
    host.gpu_mode("memory 1 98304")
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    for mib in (98_304, 41_000, 20_000):
        host.gpu_mode(f"memory 1 {mib}")
        daemon.wait(lambda m=mib: f"GPU 1 shows {m} MiB" in message(daemon), f"{mib} MiB told", 20, "m")  # type: ignore[misc]
        assert daemon.condition("spec", "m", "Ready")["reason"] == "WaitingForMemory"
        assert show(host, "ActiveState") == "inactive"
    host.gpu_mode()
    daemon.ready("m")
    assert daemon.condition("spec", "m", "Degraded")["status"] == "False"
    assert [e for e in daemon.events("m") if e["action"] == "unit-start"][-1]["result"] == "ok"


def test_the_gate_alone_waits_while_memory_falls(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m")["invocation"]
    daemon.kill()
    host.gpu_mode("memory 1 60000")
    host.sh(f"systemctl restart --no-block {UNIT}")
    for mib in (60_000, 50_000, 40_000):
        host.gpu_mode(f"memory 1 {mib}")
        host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = start-pre', timeout_s=20)
    host.wait_until(f"journalctl -q -o cat -u {UNIT} | grep -q 'memory to come back'", timeout_s=20)
    assert show(host, "MainPID") == "0"
    host.gpu_mode()
    host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = running', timeout_s=20)
    assert "opens beside" not in host.journal(UNIT)
    daemon.start()
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before, "the new start", 30, "m")
    daemon.ready("m")


def test_the_gate_alone_gives_memory_up_that_stands_still(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    daemon.kill()
    host.gpu_mode("memory 1 5000")
    host.sh(f"systemctl restart --no-block {UNIT}")
    host.wait_until(f"journalctl -q -o cat -u {UNIT} | grep -q 'opens beside'", timeout_s=60)
    host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = running', timeout_s=20)
    daemon.start()
    daemon.ready("m")


def test_a_squatter_on_a_derived_port_is_named_and_left_alone(daemon: Daemon, host: TestHost) -> None:
    """B19: with attention DP SGLang binds port + 233 and the five after it."""
    other = bystanders.unrelated(host, port=30001 + 233 + 3)
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], args={"dp-size": "2", "enable-dp-attention": True}))
    said = daemon.reason("m", "PortInUse")["message"]
    for part in (f"pid {other.pid}", "port 30237", "give the spec another port", "since 20"):
        assert part in said
    assert show(host, "ActiveState") == "inactive"
    assert "port 30237" in host.read(f"/var/lib/stoker/units/{UNIT}")
    assert other.alive
    host.sh(f"kill {other.pid}")
    daemon.ready("m")


# As NCCL does it: mapped, and the file closed again, which Python's own mmap would keep open.
HOLD_FILE = (
    "import ctypes,os,sys,time; c=ctypes.CDLL(None); c.mmap.restype=ctypes.c_void_p; f=os.open(sys.argv[1],0); "
    "c.mmap(None,4096,1,1,f,0); os.close(f); time.sleep(600)"
)


def shm(host: TestHost) -> set[str]:
    return set(host.sh("ls /dev/shm").stdout.split())


def make_shm(host: TestHost, name: str) -> None:
    host.sh(f"head -c 33030528 /dev/zero >/dev/shm/{name}")


def test_what_a_dead_engine_left_in_shared_memory_is_removed_and_a_live_ones_is_kept(
    daemon: Daemon, host: TestHost
) -> None:
    """B10: files of dead owners go before the start; mapped ones, another user's and younger ones stay."""
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    for name in ("nccl-dead", "nccl-live", "nccl-alice", "psm_dead", "other-dead"):
        make_shm(host, name)
    host.sh("chown alice /dev/shm/nccl-alice")
    host.sh(f'systemd-run --quiet --unit=live python3 -c "{HOLD_FILE}" /dev/shm/nccl-live')
    host.wait_until("grep -qs /dev/shm/nccl-live /proc/[0-9]*/maps")
    other = bystanders.unrelated(host, gpu=0)
    host.sh(f"systemctl stop {UNIT}")
    daemon.reason("m", "ForeignHolder")
    make_shm(host, "nccl-young")
    looks = daemon.metric("stoker_reconcile_total", result="ok")
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= looks + 3, "three looks more", 30)
    assert "nccl-dead" in shm(host)
    host.sh(f"kill {other.pid}")
    daemon.wait(lambda: "nccl-dead" not in shm(host), "the dead engine's files are gone", 40, "m")
    daemon.ready("m")
    assert {"nccl-live", "nccl-alice", "nccl-young", "other-dead"} <= shm(host)
    assert "psm_dead" not in shm(host)
    swept = [e for e in daemon.events("m") if e["action"] == "sweep-shm"]
    assert [(e["result"], e["reason"]) for e in swept] == [("ok", "SharedMemoryLeft")]
    assert sorted(swept[0]["evidence"].split("\n")) == ["nccl-dead ok", "psm_dead ok"]


def test_a_full_shared_memory_is_told_and_its_start_follows_when_there_is_room(daemon: Daemon, host: TestHost) -> None:
    host.sh("mount -o remount,size=64M /dev/shm && head -c 70000000 /dev/zero >/dev/shm/theirs; true")
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    said = daemon.reason("m", "SharedMemoryFull")["message"]
    assert "fuser -v /dev/shm" in said
    assert show(host, "ActiveState") == "inactive"
    host.sh("rm /dev/shm/theirs")
    daemon.ready("m")


SMI = "pgrep -f '^[^ ]*python3[^ ]* .*/nvidia-smi |^nvidia-smi '"


def test_a_driver_tool_in_state_d_delays_one_look_and_touches_nothing(daemon: Daemon, host: TestHost) -> None:
    """It survives the KILL of its limit; while it is there no second one is started, and looks take no longer."""
    daemon.put_host("a", host, period="1s")
    daemon.put_spec("m", sglang("a", [0, 1]))
    before, done = daemon.ready("m"), actions(daemon)
    host.gpu_mode("hang deaf")
    host.wait_until(SMI)
    hung = int(host.sh(SMI).stdout.split()[0])
    host.freeze(hung)
    try:
        timed_out = lambda: daemon.condition("host", "a", "GPUsReady")["reason"] == "ToolTimedOut"  # noqa: E731
        daemon.wait(timed_out, "the look that waited for it", 30)
        assert daemon.condition("host", "a", "GPUsReady")["status"] == "Unknown"
        looks, began = daemon.metric("stoker_reconcile_total", result="ok"), time.monotonic()
        daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= looks + 8, "eight looks", 60)
        took_s = time.monotonic() - began
        assert took_s < 8 * LIMIT_S * 3 / 4, f"eight looks in {took_s:.1f} s: each waits for it"
        assert host.sh(SMI).stdout.split() == [str(hung)], "another one was started"
        assert (show(host, "InvocationID"), actions(daemon)) == (before["invocation"], done)
        host.sh(f"kill -KILL {before['main_pid']}")
        host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = running', timeout_s=40)
        daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "the new start", 30, "m")
        daemon.ready("m", 60)
    finally:
        host.thaw()
    host.gpu_mode()
    daemon.wait(lambda: daemon.condition("host", "a", "GPUsReady")["status"] == "True", "cards known again", 30)
    assert actions(daemon) == done
