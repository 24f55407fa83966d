"""`stoker strays` on a real host: an orphan that policy leaves alone is listed and ended by hand, nothing else is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
from harness import TestHost, bystanders
from harness.bystanders import Bystander, process

from tests.hosts.running import ROOT, Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
STRAY = {"STANDIN_STRAY": "1", "STANDIN_STRAY_PORT": "1", "STANDIN_IGNORE_TERM": "1"}
UNIT = "stoker-m.server.service"
REPORT = {"strays": {"limit": "report"}}


def stoker(daemon: Daemon, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**daemon.env(), "STOKER_URL": f"http://127.0.0.1:{daemon.port}"}
    argv = [sys.executable, "-c", "from api.cli import main; main()", *args]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def listed(daemon: Daemon, owner: str) -> list[dict[str, Any]]:
    found = daemon.ok("GET", "/api/v1/hosts/a/strays?all=true")
    return [its for its in found["items"] or () if its["owner"] == owner]


def clear(daemon: Daemon, boot_id: str, item: dict[str, Any]) -> Any:
    body = {"bootId": boot_id, "processes": [{"pid": item["pid"], "startTicks": item["startTicks"]}]}
    return daemon.call("POST", "/api/v1/hosts/a/strays/clear", body)


def signals(daemon: Daemon) -> list[str]:
    return [its["message"] for its in daemon.events() if its["action"].startswith("signal-")]


def looks(daemon: Daemon, number: int) -> None:
    before = daemon.metric("stoker_reconcile_total", result="ok")
    daemon.wait(lambda: daemon.metric("stoker_reconcile_total", result="ok") >= before + number, "more looks", 40)


def orphaned(daemon: Daemon, host: TestHost, **spec: Any) -> list[dict[str, Any]]:
    """Spec m serves under `report`; its launcher is killed; its worker is listed as what it is."""
    daemon.put_host("a", host, **REPORT)
    daemon.put_spec("m", sglang("a", [0], env=STRAY, **spec))
    main = daemon.ready("m")["main_pid"]
    host.sh(f"kill -KILL {main}")
    daemon.wait(lambda: bool(listed(daemon, "orphan-proven")), "an orphan in the list", 40, "m")
    return listed(daemon, "orphan-proven")


def again_with_pid(host: TestHost, pid: int, store: str, spec: str) -> Bystander:
    """A process of the same pid and marks as one that is gone: only its start tells them apart."""
    marks = f"STOKER_STORE={store} STOKER_SPEC={spec}"
    hold = f"/usr/bin/python3 {bystanders.PROGRAM} --gpu 0:9000"
    script = f"""
        mount -o remount,bind,rw /proc/sys || exit 1
        tries=0
        while [ $tries -lt 300 ]; do
            echo {pid - 1} >/proc/sys/kernel/ns_last_pid || exit 2
            env {marks} {hold} >/dev/null 2>&1 </dev/null &
            [ $! != {pid} ] || exit 0
            kill -KILL $!
            tries=$((tries + 1))
        done
        exit 3
    """
    host.sh(f"unshare -m /bin/sh -c {shlex.quote(script)}")
    return process(host, pid)


def test_an_orphan_under_report_is_listed_with_its_proof_and_ended_by_hand(daemon: Daemon, host: TestHost) -> None:
    other = bystanders.unrelated(host, gpu=1)
    orphans = orphaned(daemon, host)
    looks(daemon, 4)
    assert signals(daemon) == []
    shown = stoker(daemon, "strays", "a")
    assert shown.returncode == 0, shown.stderr
    for orphan in orphans:
        assert orphan["verdict"] == "ReportOnly"
        assert f"{orphan['pid']}  orphan-proven  ReportOnly" in shown.stdout
        assert orphan["proof"] in shown.stdout
    assert f"{other.pid} " in shown.stdout
    held = [its for its in orphans if its["gpus"]]
    assert held
    assert held[0]["gpus"][0]["memoryMib"] > 1000
    assert f"pid {held[0]['pid']} (orphan-proven of {UNIT})" in stoker(daemon, "describe", "host", "a").stdout

    pids = ",".join(str(its["pid"]) for its in orphans)
    done = stoker(daemon, "strays", "clear", "a", "--yes", "--pid", pids)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"pid {its['pid']}: gone" in done.stdout.splitlines() for its in orphans)
    assert not {its["pid"] for its in orphans} & {holder.pid for holder in host.gpu_holders()}
    daemon.ready("m", 60)
    assert other.alive
    said = signals(daemon)
    assert said
    assert all("asked by " in text for text in said)
    assert not [text for text in said if f"pid {other.pid} " in text]
    acts = {its["action"] for its in daemon.events("a")}
    assert {"ask-clear", "signal-term", "signal-kill", "clear"} <= acts


def test_foreign_and_managed_processes_are_refused_by_hand_too(daemon: Daemon, host: TestHost) -> None:
    other = bystanders.unrelated(host, gpu=1)
    daemon.put_host("a", host, **REPORT)
    daemon.put_spec("m", sglang("a", [0]))
    main = daemon.ready("m")
    daemon.wait(lambda: bool(listed(daemon, "foreign")) and bool(listed(daemon, "managed")), "both listed", 20)
    done = stoker(daemon, "strays", "clear", "a", "-y", "--pid", f"{other.pid},{main['main_pid']}")
    assert done.returncode == 1
    assert f"not cleared: pid {other.pid}: ForeignHolder: foreign, in the cgroup of live unit bystander-" in done.stderr
    assert f"not cleared: pid {main['main_pid']}: Managed: in the cgroup of {UNIT}, started with it" in done.stderr
    looks(daemon, 3)
    assert signals(daemon) == []
    assert other.alive
    assert daemon.instance("m")["invocation"] == main["invocation"]


def test_a_pid_used_anew_since_the_list_is_refused(daemon: Daemon, host: TestHost) -> None:
    orphan = next(its for its in orphaned(daemon, host) if its["gpus"])
    boot_id = host.boot_id()
    daemon.put_spec("m", sglang("a", [0], env=STRAY, run=False))  # so that no start of its own comes in between
    host.wait_until(f"systemctl show {UNIT} -p ActiveState --value | grep -Eqx 'inactive|failed'", timeout_s=60)
    store, uid = host.read("/var/lib/stoker/fence").split()[0], daemon.get_spec("m")["metadata"]["uid"]
    host.sh(f"kill -KILL {orphan['pid']}")
    host.wait_until(f"test ! -e /proc/{orphan['pid']}")
    new = again_with_pid(host, orphan["pid"], store, uid)
    assert new.start_ticks != orphan["startTicks"]
    assert clear(daemon, boot_id, orphan).status_code in (202, 409)  # by a look of before, or of after

    def found() -> list[str]:
        every = daemon.ok("GET", "/api/v1/hosts/a/strays?all=true")["items"] or ()
        return [its["owner"] for its in every if its["startTicks"] == new.start_ticks]

    # Whose it is may be unknown while the one that started it is still on its way out.
    daemon.wait(lambda: found() not in ([], ["unknown"]), "the new process in the list", 30)
    assert found() == ["orphan-proven"], daemon.ok("GET", "/api/v1/hosts/a/strays?all=true")
    refused = clear(daemon, boot_id, orphan)
    assert refused.status_code == 409
    assert "that pid is another process by now" in refused.json()["detail"]
    looks(daemon, 4)
    assert new.alive
    assert not [text for text in signals(daemon) if f"pid {new.pid} " in text]
    done = stoker(daemon, "strays", "clear", "a", "-y", "--pid", str(new.pid))  # by its own identity it is cleared
    assert done.returncode == 0, done.stdout + done.stderr
    assert not new.alive


def test_nothing_is_ended_by_hand_on_a_host_that_is_only_observed(daemon: Daemon, host: TestHost) -> None:
    orphan = orphaned(daemon, host)[0]
    daemon.put_host("a", host, **REPORT, mode="observe")
    daemon.wait(lambda: daemon.condition("host", "a", "Acting")["reason"] == "ObserveOnly", "observe", 20)
    done = stoker(daemon, "strays", "clear", "a", "--yes", "--pid", str(orphan["pid"]))
    assert done.returncode == 1
    assert "nothing may be changed on a now: ObserveOnly: mode is observe" in done.stderr
    looks(daemon, 4)
    assert signals(daemon) == []
    host.sh(f"test -e /proc/{orphan['pid']}")
    told = [its for its in daemon.events("a") if its["action"] == "ask-clear"]
    assert [its["result"] for its in told] == ["refused"], json.dumps(told)
