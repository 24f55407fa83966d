"""A host reached `via` a container, and what lies about it: a server on the outer port, pids of the outer machine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from harness import TestHost, bystanders
from harness.bystanders import Bystander
from harness.engines import generate, run_unit, sglang_argv, wait_healthy
from harness.nested import Nested

from daemon.domain.host import HostSpec
from daemon.planner.world import Desired
from daemon.ready import Prober, Verdict
from daemon.ssh import Roads, SshSettings
from tests.hosts.edges import UNIT, looks, rendered, show
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]
PORT = 30001
VIA = {"via": {"proxmoxContainer": 129}}
STRAY = {"STANDIN_STRAY": "1", "STANDIN_IGNORE_TERM": "1"}
FAULTS = "/etc/standin/faults.json"


def impostor(pve: TestHost) -> None:
    """A server of the same model on the same port of the outer machine, and it generates."""
    run_unit(pve, "theirs", sglang_argv(PORT, more=("--served-model-name", "m")))
    wait_healthy(pve, PORT)
    assert generate(pve, PORT, model="m").tokens > 0


def spec(**more: Any) -> dict[str, Any]:
    return sglang("ct", [0, 1], **more)


# ---- a server on the same port of the outer machine answers nothing ----

FAULTY: dict[str, dict[str, Any]] = {
    "still loading": {"load_hang": 1},
    "dies while loading": {"load_fail": "no memory"},
    "refuses": {"refuse": "not today"},
    "hangs": {"hang": 1},
    "answers as another": {"served_name": "other"},
}


def probe(pve: TestHost, desired: Desired, invocation: str) -> Verdict:
    """One readiness probe of the daemon's own, on the road that the Host names."""
    ssh = {"address": pve.address, "hostKey": pve.host_key_line}
    where = HostSpec.model_validate({"ssh": ssh, **VIA})

    async def ask() -> Verdict:
        roads = Roads(SshSettings(identity=pve.ssh_key), lambda _: None)
        try:
            return await Prober(roads.road("ct", where)).generate(desired, invocation)
        finally:
            await roads.close()

    return asyncio.run(ask())


def break_inside(inside: Nested, faults: dict[str, Any]) -> None:
    """The engine inside is from now on as broken as that, in its present start or its next one."""
    inside.write(FAULTS, json.dumps(faults).encode())
    inside.sh(f"systemctl reset-failed {UNIT}; systemctl restart --no-block {UNIT}")
    state = "activating" if "load_fail" in faults else "active"
    inside.wait_until(f'test "$(systemctl show {UNIT} -p ActiveState --value)" = {state}')
    if not any(key.startswith("load") for key in faults):
        inside.wait_until(f"curl -sf http://127.0.0.1:{PORT}/health", timeout_s=30)


def hold_down(inside: Nested) -> None:
    inside.write("/etc/stoker/hold", b"down for a test\n")
    inside.sh(f"systemctl stop {UNIT}")


def test_a_server_on_the_same_port_outside_makes_nothing_ready(
    daemon: Daemon, pve: TestHost, inside: Nested, tell: Callable[..., None]
) -> None:
    impostor(pve)
    declared = spec(readiness={"period": "1s", "timeout": "1s"}, stop={"timeout": "3s"})  # what hangs holds a stop up
    inside.write(FAULTS, json.dumps(FAULTY["still loading"]).encode())
    daemon.put_host("ct", pve, period="1s", **VIA)
    daemon.put_spec("m", declared)
    daemon.wait(lambda: show(inside, "MainPID") not in ("", "0"), "its first start", 30, "m")
    desired, said, seen = rendered(daemon, inside, declared), Counter[str](), Counter[str]()
    looked = daemon.metric("stoker_reconcile_total", result="ok")
    states: dict[str, Callable[[], None]] = {
        name: partial(break_inside, inside, faults) for name, faults in FAULTY.items()
    }
    states["is down"] = partial(hold_down, inside)
    attempts = false_ready = 0
    for name, bring_about in states.items():
        bring_about()
        for _ in range(10):
            assert generate(pve, PORT, model="m").tokens > 0, "the server outside must generate all the time"
            ok, reason, _ = probe(pve, desired, show(inside, "InvocationID"))
            attempts += 1
            ready = daemon.condition("spec", "m", "Ready")
            false_ready += ok or ready["status"] == "True"
            said[f"{name}: {reason}"] += 1
            seen[ready["reason"]] += 1
    looked = daemon.metric("stoker_reconcile_total", result="ok") - looked
    tell(
        f"false ready {false_ready} of {attempts} probes, with {looked:.0f} looks of the daemon beside them",
        f"probes said {dict(said)}; the daemon said {dict(seen)}",
    )
    assert (attempts, false_ready) == (60, 0)
    assert looked >= 10
    assert not [e for e in daemon.events("m") if e["reason"] == "Generated"]
    inside.sh(f"rm /etc/stoker/hold {FAULTS}")
    instance = daemon.ready("m", 60)
    assert probe(pve, desired, instance["invocation"])[0], "a probe that can succeed"
    assert instance["invocation"] == show(inside, "InvocationID")
    assert bystanders.listener(pve, PORT)


# ---- pids of another namespace ----


def signalled(daemon: Daemon) -> list[str]:
    return [e["message"] for e in daemon.events() if e["action"].startswith("signal-")]


def shift_to(inside: Nested, target: Bystander, gpu: int) -> None:
    """nvidia-smi inside shows the number of `target` where it should show that of the card's greatest holder."""
    holder = max((h for h in inside.gpu_holders() if h.gpu == gpu), key=lambda h: h.mib)
    inside.gpu_mode(f"offset {target.pid - holder.pid}")
    query = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
    assert str(target.pid) in inside.sh(query).stdout.split()


def driver_shows(inside: Nested, pids: str) -> None:
    """Whose numbers nvidia-smi inside shows: `of the host` nobody inside has, and `of nobody` there are no rows."""
    if pids != "of the container":
        inside.gpu_mode("offset 3000000" if pids == "of the host" else "hide")


def engine_like(inside: Nested, gpu: int | None = None) -> Bystander:
    """What looks most like a leftover of an engine: its title, root's, child of PID 1, in no unit and no session."""
    path = f"/tmp/like-{gpu}"
    card = "" if gpu is None else f"--gpu {gpu}:20480"
    argv = f"/usr/bin/python3 {bystanders.PROGRAM} --pid-file {path} {card} --title sglang::scheduler_TP0"
    inside.sh(f"rm -f {path}; setsid nohup {argv} >/dev/null 2>&1 </dev/null &")
    inside.wait_until(f"test -s {path}")
    return bystanders.process(inside, int(inside.read(path)))


def test_a_pid_from_outside_is_never_the_process_inside_with_the_same_number(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    daemon.put_host("ct", pve, exclusive=True, **VIA)
    daemon.put_spec("m", sglang("ct", [0]))
    before = daemon.ready("m")
    elsewhere, nowhere = engine_like(inside, gpu=1), engine_like(inside)
    for target in (nowhere, elsewhere):
        shift_to(inside, target, gpu=0)
        looks(daemon, 4)
        strays = daemon.get_host("ct")["status"]["strays"]
        assert not [s for s in strays if "GPU 0" in s["what"]], strays
        assert daemon.condition("spec", "m", "Ready")["status"] == "True"
    inside.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m")["invocation"] != before["invocation"], "a new invocation", 20, "m")
    daemon.ready("m")
    assert signalled(daemon) == []
    assert elsewhere.alive
    assert nowhere.alive
    inside.gpu_mode()
    like = engine_like(inside, gpu=0)
    daemon.wait(lambda: not like.alive, "what really holds the card is cleared", 20)
    assert [str(like.pid) in text for text in signalled(daemon)][-1]
    assert elsewhere.alive


@pytest.mark.parametrize("pids", ["of the container", "of the host", "of nobody"])
def test_orphans_inside_are_found_and_cleared_whatever_pids_the_driver_shows(
    daemon: Daemon, pve: TestHost, inside: Nested, pids: str
) -> None:
    driver_shows(inside, pids)
    daemon.put_host("ct", pve, **VIA)
    daemon.put_spec("m", spec(env=STRAY))
    before = daemon.ready("m")
    other = engine_like(inside)
    left = sorted({h.pid for h in inside.gpu_holders()})
    inside.sh(f"kill -KILL {before['main_pid']}")
    daemon.wait(lambda: daemon.instance("m").get("invocation") != before["invocation"], "a new start", 30, "m")
    daemon.ready("m", 60)
    assert not {h.pid for h in inside.gpu_holders()} & set(left)
    assert {f"{pid} ok" for pid in left} <= {line for e in daemon.events() for line in e["evidence"].split("\n")}
    assert "waits for pid" in inside.journal(UNIT)
    assert other.alive


@pytest.mark.parametrize("pids", ["of the container", "of the host", "of nobody"])
def test_the_gate_inside_waits_for_a_dirty_card(daemon: Daemon, pve: TestHost, inside: Nested, pids: str) -> None:
    daemon.put_host("ct", pve, **VIA)
    daemon.put_spec("m", spec(env={"STANDIN_LOAD_S": "1"}))
    daemon.ready("m")
    daemon.kill()
    driver_shows(inside, pids)
    other = bystanders.unrelated(inside, gpu=1)
    inside.sh(f"kill -KILL {show(inside, 'MainPID')}")
    inside.wait_until(f'test "$(systemctl show {UNIT} -p SubState --value)" = start-pre', timeout_s=20)
    inside.wait_until(f"journalctl -q -o cat -u {UNIT} | grep -q 'waits for pid {other.pid} '", timeout_s=20)
    assert {h.pid for h in inside.gpu_holders()} == {other.pid}
    inside.sh(f"kill -KILL {other.pid}")
    inside.wait_until(f"curl -sf http://127.0.0.1:{PORT}/health", timeout_s=30)
