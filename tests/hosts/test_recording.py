"""`stoker record` of a real host, through its daemon and without one; replayed on a machine that knows neither."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import TestHost

from tests.hosts.running import ROOT, Daemon, manifest, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
UNIT = "stoker-m.server.service"
SECRETS = {"HF_TOKEN": "hf_AbCdEfGhIjKlMn", "HTTPS_PROXY": "http://me:pr0xy-pass@proxy:3128"}
KEY = "k3y-of-the-engine"
PLANTED = ("hf_AbCdEfGhIjKlMn", "pr0xy-pass", KEY)


def stoker(*args: str, env: dict[str, str] | None = None) -> str:
    """As a person runs it; without `env` there is no daemon, token or key."""
    command = [sys.executable, "-P", "-c", "from api.cli import main; main()", *args]
    known = {"PATH": "/nonexistent", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=known | (env or {}), capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def replayed(file: Path, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stoker("replay", str(file), *more))
    return found


def holding(daemon: Daemon, host: TestHost) -> list[int]:
    """A server that was given secrets runs; the pids that hold its cards."""
    env = {"STANDIN_STRAY": "1", "STANDIN_IGNORE_TERM": "1", **SECRETS}
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], env=env))
    daemon.wait(lambda: daemon.instance("m").get("main_pid", 0) > 0, "the server runs", 40, "m")
    daemon.wait(lambda: len({h.pid for h in host.gpu_holders()}) >= 2, "its workers hold the cards", 40, "m")
    pids = sorted({h.pid for h in host.gpu_holders()})
    hand = f"exec 3</dev/nvidia1; exec python3 -c 'import time; time.sleep(600)' --api-key {KEY}"
    host.sh(f"setsid -f sh -c {shlex.quote(hand)} </dev/null >/dev/null 2>&1")
    return pids


def test_a_recorded_host_shows_what_the_daemon_saw_and_no_secret(
    daemon: Daemon, host: TestHost, tmp_path: Path
) -> None:
    pids = holding(daemon, host)
    serving, orphaned, direct = tmp_path / "serving.json", tmp_path / "orphaned.json", tmp_path / "direct.json"
    said = stoker("record", "a", "-o", str(serving), env=daemon.env())
    assert "secrets taken out" in said
    look = replayed(serving)
    told = {one["pid"]: (one["class"], one["proof"]) for one in look["ownership"]}
    live = "carries our mark, but stoker-m.server.service is live"  # they have left its cgroup, and it serves with them
    assert {told[pid] for pid in pids} == {("foreign", live)}
    assert told[daemon.instance("m")["main_pid"]][0] == "managed"
    daemon.ok("PUT", "/api/v1/pause")
    host.sh(f"kill -KILL {host.sh(f'systemctl show {UNIT} -p MainPID --value').stdout.strip()}")
    host.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = start-pre', timeout_s=20)
    stoker("record", "a", "-o", str(orphaned), env=daemon.env())
    left = {h.pid for h in host.gpu_holders()}
    once, twice = replayed(orphaned), replayed(orphaned, "--looks", "2")
    assert {one["class"] for one in twice["ownership"] if one["pid"] in left} == {"orphan-proven"}
    assert once["plan"] == []
    assert {pid for one in twice["plan"] for pid in one["pids"]} <= left
    assert [one["action"] for one in twice["plan"]] == ["signal-term"]
    spec = {"ssh": {"address": host.address, "user": "root", "hostKey": host.host_key_line}}
    (tmp_path / "host.json").write_text(json.dumps(manifest("Host", "a", spec)))
    key = {"STOKER_SSH_IDENTITY": str(daemon.ssh_key)}
    stoker("record", "-f", str(tmp_path / "host.json"), "-o", str(direct), env=key)
    alone = json.loads(direct.read_text())
    assert list(alone["sections"]) == list(json.loads(orphaned.read_text())["sections"])
    assert replayed(direct)["observation"]["processes"]
    for file in (serving, orphaned, direct):
        text = file.read_text()
        assert "--api-key" in text
        assert not [secret for secret in PLANTED if secret in text], file.name
