"""Edges of the main job on real hosts: cut changes, changed ground, one machine twice, sudo, persons, text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from harness import TestHost, bystanders

from daemon.domain.actions import PutUnit, Signal, UnitGround, UnitVerb
from daemon.domain.errors import VerbRefused
from daemon.domain.host import HostSpec, Ssh
from daemon.domain.observation import Fence, ProcessId
from daemon.domain.status import Reason
from daemon.execute import Done, execute
from daemon.ssh import Roads, SshSettings
from daemon.verbs import ask, fence_text
from tests.hosts.conftest import MakeHost
from tests.hosts.edges import PATH, UNIT, actions, argv_of, looks, never_ready, rendered, show
from tests.hosts.running import ROOT, Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]
HELPER = "/var/lib/stoker/stoker-host"

# ---- a put-unit cut between its file and the reload ----


def test_d_an_engine_killed_between_file_and_reload_is_never_ready_with_old_arguments(
    daemon: Daemon, host: TestHost
) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    first = daemon.ready("m")
    host.write("/etc/stoker/hold", b"a change is being cut\n")
    changed = sglang("a", [0, 1], contextLength=4096)
    daemon.put_spec("m", changed)
    text = rendered(daemon, host, changed).text
    assert "4096" in text
    host.write(PATH, text.encode())
    host.sh(f"kill -KILL {first['main_pid']}")
    host.wait_until(
        f'i=$(systemctl show {UNIT} -p InvocationID --value); [ -n "$i" ] && [ "$i" != {first["invocation"]} ]'
    )
    host.wait_until("curl -sf http://127.0.0.1:30001/health")
    assert "4096" not in argv_of(host, show(host, "MainPID"))
    assert show(host, "NeedDaemonReload") == "yes"
    assert Reason.ARGV_MISMATCH in never_ready(daemon, 5)
    host.sh("rm /etc/stoker/hold")

    def converged() -> bool:
        said = daemon.get_spec("m")["status"]
        ready = next(c for c in said["conditions"] if c["type"] == "Ready")
        if ready["status"] != "True":
            return False
        assert "4096" in argv_of(host, said["instances"][0]["main_pid"])
        return True

    daemon.wait(converged, "Ready with the new arguments", 25, "m")
    assert host.read(PATH) == text
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 1


# ---- verbs on the host itself: ground, fence, hold ----


class Verbs:
    """The daemon's own verbs on a host, over its own SSH road, with the fence that stands there."""

    def __init__(self, host: TestHost) -> None:
        self.host = host
        self.fence = self._fence(*host.read("/var/lib/stoker/fence").split())
        self.boot = host.boot_id()

    @staticmethod
    def _fence(store: str, epoch: str, run: str) -> Fence:
        return Fence(store, int(epoch), run)

    def do(self, action: PutUnit | Signal | UnitVerb, fence: Fence | None = None) -> Done:
        return asyncio.run(self._do(action, fence or self.fence))

    async def _do(self, action: PutUnit | Signal | UnitVerb, fence: Fence) -> Done:
        roads = self._roads()
        try:
            return await execute(roads.road("a", self._spec()), action, fence, self.boot, 15)
        finally:
            await roads.close()

    def refused(self, verb: str, lines: list[tuple[str, str]]) -> VerbRefused:
        with pytest.raises(VerbRefused) as caught:
            asyncio.run(self._ask(verb, [("fence", fence_text(self.fence)), ("boot", self.boot), *lines]))
        return caught.value

    async def _ask(self, verb: str, lines: list[tuple[str, str]]) -> None:
        roads = self._roads()
        try:
            await ask(roads.road("a", self._spec()), verb, lines, timeout_s=15)
        finally:
            await roads.close()

    def _roads(self) -> Roads:
        return Roads(SshSettings(identity=self.host.ssh_key), lambda _: None)

    def _spec(self) -> HostSpec:
        return HostSpec(ssh=Ssh(address=self.host.address, host_key=self.host.host_key_line), mode="enforce")


def restart(ground: UnitGround) -> UnitVerb:
    return UnitVerb(UNIT, "restart", ground, "a test", Reason.LAUNCH_CHANGED)


def test_j_a_verb_whose_ground_changed_is_refused_and_nothing_is_restarted(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    old = str(daemon.ready("m")["invocation"])
    verbs = Verbs(host)
    host.sh(f"systemctl restart {UNIT}")
    now, pid = show(host, "InvocationID"), show(host, "MainPID")
    assert now != old
    lines = [("unit", UNIT), ("ground-invocation", old), ("ground-state", "active")]
    for verb in ("unit-restart", "unit-stop", "unit-disable"):
        refused = verbs.refused(verb, lines)
        assert (refused.reason, now in refused.message) == (Reason.GROUND_CHANGED, True)
    done = verbs.do(restart(UnitGround(now, "failed")))
    assert (done.result, done.reason) == ("refused", Reason.GROUND_CHANGED)
    done = verbs.do(PutUnit(UNIT, PATH, "[Service]\n", "", "0" * 64, "a test", Reason.UNIT_DRIFT))
    assert (done.result, done.reason) == ("refused", Reason.GROUND_CHANGED)
    assert (show(host, "InvocationID"), show(host, "MainPID"), show(host, "ActiveState")) == (now, pid, "active")
    assert show(host, "UnitFileState") == "enabled"
    assert "sglang.launch_server" in host.read(PATH)


def test_j_a_signal_to_another_start_a_foreign_fence_and_a_held_host_do_nothing(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    verbs, other = Verbs(host), bystanders.unrelated(host)
    now, pid = show(host, "InvocationID"), show(host, "MainPID")
    wrong = ProcessId(other.pid, other.start_ticks - 1)
    done = verbs.do(Signal("KILL", (wrong, ProcessId(3_999_999, 1)), "a test", Reason.ORPHAN_WORKERS))
    assert (done.result, done.evidence.split("\n")) == ("ok", [f"{other.pid} changed", "3999999 gone"])
    assert other.alive
    ground = UnitGround(now, "active")
    foreign = verbs.do(restart(ground), Fence("11111111-1111-4111-8111-111111111111", 1, "r"))
    assert (foreign.result, foreign.reason) == ("refused", Reason.FENCED_OFF)
    assert verbs.fence.store in foreign.evidence
    host.write("/etc/stoker/hold", b"ask Ann\n")
    right = Signal("KILL", (ProcessId(other.pid, other.start_ticks),), "a test", Reason.ORPHAN_WORKERS)
    for action in (restart(ground), right):
        held = verbs.do(action)
        assert (held.result, held.reason, held.evidence) == ("refused", Reason.HELD, "ask Ann")
    assert other.alive
    assert (show(host, "InvocationID"), show(host, "MainPID")) == (now, pid)
    host.sh("rm /etc/stoker/hold")
    assert verbs.do(restart(ground)).result == "ok"
    host.wait_until(f'[ "$(systemctl show {UNIT} -p InvocationID --value)" != {now} ]')


# ---- one machine under two names ----


def test_g_two_host_objects_that_are_one_machine_the_second_does_nothing(daemon: Daemon, host: TestHost) -> None:
    host.sh("systemd-run --quiet --unit=engine-sshd /usr/sbin/sshd -D -p 2222")
    host.wait_until("ss -Hltn sport = 2222 | grep -q .")
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0]))
    before = daemon.ready("m")
    road = {"address": host.address, "port": 2222, "user": "root", "hostKey": host.host_key_line}
    daemon.put_host("b", host, ssh=road)
    daemon.put_spec("n", sglang("b", [1], port=30002))
    daemon.wait(lambda: daemon.condition("host", "b", "Acting")["reason"] == "HostIdentityTaken", "taken", 20)
    fence = host.read("/var/lib/stoker/fence")
    looks(daemon, 4)
    assert host.sh("ls /etc/systemd/system/stoker-n.server.service", check=False).returncode != 0
    assert host.read("/var/lib/stoker/fence") == fence
    assert actions(daemon, "n") == actions(daemon, "b") == []
    assert daemon.condition("spec", "n", "Ready")["status"] != "True"
    assert daemon.condition("host", "a", "Acting")["status"] == "True"
    assert show(host, "InvocationID") == before["invocation"]


# ---- users with sudo ----


def as_user(host: TestHost, user: str) -> dict[str, Any]:
    return {"ssh": {"address": host.address, "user": user, "hostKey": host.host_key_line}}


def sudoers(host: TestHost, line: str) -> None:
    host.write("/etc/sudoers.d/stoker", f"{line}\n".encode(), mode=0o440)


def printed(script: str) -> bytes:
    argv = [sys.executable, "-c", "from api.cli import main; main()", "helper", "print", script]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout


def test_a_user_with_general_passwordless_sudo_is_enough(daemon: Daemon, host: TestHost) -> None:
    sudoers(host, "alice ALL=(root) NOPASSWD: ALL")
    daemon.put_host("a", host, **as_user(host, "alice"))
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m", 20)
    assert host.sh(f"stat -c '%a %U' {HELPER}").stdout == "755 root\n"


def test_a_user_who_may_run_only_the_helper_is_enough_once_it_is_installed(daemon: Daemon, host: TestHost) -> None:
    sudoers(host, f"serve ALL=(root) NOPASSWD: {HELPER} *")
    daemon.put_host("a", host, **as_user(host, "serve"))
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.wait(lambda: daemon.condition("host", "a", "Reachable")["reason"] == "HelperMissing", "HelperMissing", 20)
    assert "stoker helper print" in daemon.condition("host", "a", "Reachable")["message"]
    assert host.sh("ls /var/lib/stoker", check=False).returncode != 0
    host.write("/var/lib/stoker/gate", printed("gate"), mode=0o755)
    host.write(HELPER, printed("stoker-host"), mode=0o755)
    daemon.ready("m", 25)
    assert daemon.condition("host", "a", "Acting")["status"] == "True"


# ---- old cgroups ----


def test_on_a_host_with_hybrid_cgroups_a_crash_heals(daemon: Daemon, make_host: MakeHost) -> None:
    host = make_host("hybrid", hybrid=True)
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m", 20)
    host.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new invocation", 20, "m")
    daemon.ready("m", 20)
    assert "unit-restart" not in actions(daemon)


# ---- what a person does and declares ----


def test_run_false_stops_disables_and_frees_and_run_true_starts_again(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    daemon.put_spec("m", sglang("a", [0, 1], run=False))
    daemon.reason("m", "Stopped")
    assert (show(host, "ActiveState"), show(host, "UnitFileState")) == ("inactive", "disabled")
    assert not host.gpu_holders()
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")
    assert show(host, "UnitFileState") == "enabled"
    told = {(e["action"], e["reason"]) for e in daemon.events("m") if e["action"] in ("unit-start", "unit-stop")}
    assert told == {("unit-start", "UnitInactive"), ("unit-stop", "Stopped")}


def test_suspend_leaves_everything_alone(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m")
    daemon.put_spec("m", sglang("a", [0, 1], suspend=True, contextLength=4096))
    daemon.reason("m", "Suspended")
    done = actions(daemon)
    host.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") not in ("", before["invocation"]), "again", 20, "m")
    host.wait_until("curl -sf http://127.0.0.1:30001/health")
    host.sh(f"systemctl stop {UNIT}; systemctl disable {UNIT}")
    looks(daemon)
    assert (show(host, "ActiveState"), show(host, "UnitFileState")) == ("inactive", "disabled")
    assert "4096" not in host.read(PATH)
    assert actions(daemon) == done
    daemon.put_spec("m", sglang("a", [0, 1], contextLength=4096))
    daemon.ready("m")


def test_a_unit_stopped_by_hand_is_started_again_and_the_event_says_so(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    before = daemon.ready("m")
    host.sh(f"systemctl stop {UNIT}")
    daemon.wait(lambda: show(host, "InvocationID") not in ("", before["invocation"]), "a new start", 20, "m")
    daemon.ready("m")
    told = [e for e in daemon.events("m") if e["action"] == "unit-start"]
    assert [e["reason"] for e in told] == ["StoppedByHand", "UnitInactive"]


def test_a_masked_unit_is_not_forced(daemon: Daemon, host: TestHost) -> None:
    host.sh(f"systemctl mask {UNIT}")
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.reason("m", "UnitMasked", 20)
    looks(daemon)
    assert daemon.condition("spec", "m", "Stalled")["reason"] == "UnitMasked"
    assert host.sh(f"readlink {PATH}").stdout == "/dev/null\n"
    assert actions(daemon) == []
    host.sh(f"systemctl unmask {UNIT}")
    daemon.ready("m")


def test_refused_arguments_stall_the_spec_until_it_changes(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], args={"bad-flag": True}))
    daemon.reason("m", "InvalidLaunchArgs", 20)
    assert daemon.condition("spec", "m", "Stalled")["status"] == "True"
    told = [e for e in daemon.events("m") if "exit status 2" in e["message"] and "failed:" in e["message"]]
    assert [e["reason"] for e in told] == ["InvalidLaunchArgs"], told
    assert "unrecognized arguments: --bad-flag" in told[0]["evidence"]
    invocation, done = show(host, "InvocationID"), actions(daemon)
    looks(daemon, 4)
    assert (show(host, "InvocationID"), show(host, "NRestarts"), actions(daemon)) == (invocation, "0", done)
    daemon.put_spec("m", sglang("a", [0, 1]))
    daemon.ready("m")


def test_mended_arguments_are_started_also_by_a_daemon_that_did_not_write_them(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], args={"bad-flag": True}))
    daemon.reason("m", "InvalidLaunchArgs", 20)
    host.write("/etc/stoker/hold", b"the daemon dies between put-unit and unit-start\n")
    mended = sglang("a", [0, 1])
    daemon.put_spec("m", mended)
    host.write(PATH, rendered(daemon, host, mended).text.encode())
    host.sh("systemctl daemon-reload && rm /etc/stoker/hold")
    daemon.ready("m", 15)


# ---- hostile text is data ----

EVIL = "$(touch /tmp/pwned) `touch /tmp/pwned`; touch /tmp/pwned & | ' \" \\ ${HOME} %n 'x' && touch /tmp/pwned #"
EVIL_VENV = "/srv/$(touch pwned) `touch pwned`;touch pwned& %n"
EVIL_FOLDER = f"{EVIL_VENV} ' \" \\ x"


def hostile(gpu: int, port: int, **more: Any) -> dict[str, Any]:
    """A declaration with shell in every text field that takes it."""
    spec = {
        "engine": {"name": "sglang", "python": f"{EVIL_VENV}/bin/python"},
        "model": {"path": EVIL, "servedName": f"m {EVIL}"},
        "speculative": {"algorithm": "EAGLE", "draftModel": EVIL, "numSteps": 3, "eagleTopk": 1, "numDraftTokens": 4},
        "args": {"chat-template": EVIL, "x-list": [EVIL, "x"]},
        "env": {"EVIL": EVIL},
        "workingDirectory": EVIL_FOLDER,
    }
    return sglang("a", [gpu], port=port, **(spec | more))


def pwned(host: TestHost) -> str:
    """Files that only a shell which ran our text could have made, wherever it stood."""
    return host.sh("find / -path /proc -prune -o -path /sys -prune -o -name 'pwned*' -print").stdout


def test_g_shell_in_every_text_field_is_data_and_never_runs(daemon: Daemon, host: TestHost) -> None:
    link = "".join(f"os.symlink('/opt/venv/{one}', {EVIL_VENV!r} + '/{one}')\n" for one in ("bin", "lib", "pyvenv.cfg"))
    host.sh("python3", stdin=f"import os\nos.mkdir({EVIL_VENV!r})\nos.mkdir({EVIL_FOLDER!r})\n{link}".encode())
    daemon.put_host("a", host, protect=[{"command": EVIL}], gpus={"count": 2, "product": EVIL})
    daemon.put_spec("m", hostile(0, 30001))
    daemon.put_spec("n", hostile(1, 30002, listen=EVIL))
    program = ["/usr/bin/python3", "-c", "import time; time.sleep(1000)", EVIL]
    custom = {"engine": {"name": "custom", "command": program}, "readiness": {"kind": "http", "path": "/x"}}
    daemon.put_spec("c", sglang("a", [], port=30003, model=None, parallelism={}, env={"EVIL": EVIL}) | custom)
    instance = daemon.ready("m", 25)
    assert argv_of(host, instance["main_pid"])[0] == f"{EVIL_VENV}/bin/python"
    assert argv_of(host, instance["main_pid"]).count(EVIL) == 4
    for name in ("n", "c"):
        daemon.wait(lambda name=name: "unit-start" in actions(daemon, name), "its start", 20, name)  # type: ignore[misc]
    looks(daemon)
    daemon.ok("POST", "/api/v1/hosts/a/doctor")
    assert argv_of(host, daemon.instance("c")["main_pid"]) == program
    daemon.ok("DELETE", "/api/v1/servingspecs/n")
    daemon.wait(lambda: daemon.call("GET", "/api/v1/servingspecs/n").status_code == 404, "gone", 20)
    assert pwned(host) == ""
    host.sh("touch /tmp/pwned")
    assert pwned(host) == "/tmp/pwned\n"
