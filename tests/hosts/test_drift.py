"""Every drift on a real systemd: shown with layer and field within one resync and corrected, no restart for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import TestHost, bystanders

from tests.hosts.edges import PATH, UNIT, actions, argv_of, looks, show
from tests.hosts.running import Daemon, sglang

pytestmark = [pytest.mark.hosts, pytest.mark.fleet]

DROPIN = f"/etc/systemd/system/{UNIT}.d/override.conf"
ASIDE = f"/var/lib/stoker/set-aside/{UNIT}"
PERIOD_S = 2  # of `put_host`; jitter and a busy machine come on top


def serving(daemon: Daemon, host: TestHost, **more: Any) -> str:
    """A spec that generates, looked at once more since; gives the invocation that serves."""
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0, 1], **more))
    found = str(daemon.ready("m")["invocation"])
    settled(daemon)
    return found


def settled(daemon: Daemon) -> None:
    def same() -> bool:
        return daemon.condition("spec", "m", "Drifted")["status"] == "False" and daemon.instance("m")["drift"] == []

    daemon.wait(same, "no drift", 30, "m")


def set_aside(daemon: Daemon) -> int:
    """How often a drop-in of m was set aside, as the events say."""
    return sum(e["count"] for e in daemon.events("m") if e["action"] == "set-aside")


def told(daemon: Daemon, layer: str, field: str) -> int:
    """How often an event named that layer and field as differing."""
    row = re.compile(rf"(?:: |; ){re.escape(f'{layer} {field}')}: ")
    found = [
        e for e in daemon.events("m") if e["reason"] == "UnitDrift" and not e["action"] and row.search(e["message"])
    ]
    return sum(e["count"] for e in found)


def shown(daemon: Daemon, *fields: str) -> None:
    """Waits until each `layer field` was told, within one resync."""
    for one in fields:
        layer, _, name = one.partition(" ")
        daemon.wait(lambda layer=layer, name=name: told(daemon, layer, name) > 0, f"{one} told", 3 * PERIOD_S + 4, "m")  # type: ignore[misc]


def environment(host: TestHost) -> list[str]:
    """Of the main process; empty between two."""
    return host.sh(f"tr '\\0' '\\n' </proc/{show(host, 'MainPID')}/environ", check=False).stdout.splitlines()


@contextmanager
def held(host: TestHost) -> Iterator[None]:
    """Stoker tells what it sees and changes nothing: else it may be quicker than the next thing that a person does."""
    host.sh("mkdir -p /etc/stoker && echo a person is at it >/etc/stoker/hold")
    yield
    host.sh("rm /etc/stoker/hold")


def edit(host: TestHost, old: str, new: str) -> str:
    """Edits the unit's file as `vi` would; gives what it was."""
    text = host.read(PATH)
    assert old in text
    host.write(PATH, text.replace(old, new).encode())
    return text


def test_a_file_edited_without_a_reload_is_put_back_and_nothing_restarts(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    text = edit(host, "--host 0.0.0.0", "--host 127.0.0.1")
    shown(daemon, "file argv", "loaded reload")
    settled(daemon)
    assert host.read(PATH) == text
    assert show(host, "NeedDaemonReload") == "no"
    assert show(host, "InvocationID") == before
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 0


def test_a_file_edited_and_reloaded_is_put_back_and_nothing_restarts(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    text = edit(host, "Restart=always", "Restart=no")
    host.sh("systemctl daemon-reload")
    shown(daemon, "file text")
    settled(daemon)
    with held(host):
        host.write(PATH, text.replace("PCI_BUS_ID", "FASTEST_FIRST").encode())
        host.sh("systemctl daemon-reload")
        shown(daemon, "file env.CUDA_DEVICE_ORDER", "loaded env.CUDA_DEVICE_ORDER")
    settled(daemon)
    assert host.read(PATH) == text
    assert (show(host, "Restart"), show(host, "InvocationID")) == ("always", before)


def test_a_unit_stopped_by_hand_is_drift_and_started_again(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    host.sh(f"systemctl stop {UNIT}")
    shown(daemon, "running active")
    daemon.wait(lambda: show(host, "InvocationID") not in ("", before), "a new start", 20, "m")
    daemon.ready("m")
    settled(daemon)
    reasons = [e["reason"] for e in daemon.events("m") if e["action"] == "unit-start"]
    assert reasons == ["StoppedByHand", "UnitInactive"]


def test_a_disabled_unit_is_enabled_without_a_restart(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    host.sh(f"systemctl disable {UNIT}")
    shown(daemon, "loaded enabled")
    settled(daemon)
    assert (show(host, "UnitFileState"), show(host, "InvocationID")) == ("enabled", before)


def test_a_masked_unit_is_told_and_neither_forced_nor_restarted(daemon: Daemon, host: TestHost) -> None:
    before, done = serving(daemon, host), actions(daemon)
    with held(host):  # between the two steps there is no file, which Stoker would write again
        host.sh(f"mv {PATH} /root/kept && systemctl mask {UNIT}")
        shown(daemon, "loaded masked")
    host.sh("systemctl daemon-reload")
    looks(daemon)
    assert daemon.condition("spec", "m", "Drifted")["status"] == "True"
    assert daemon.get_host("a")["status"]["blocked"][UNIT]["reason"] == "UnitMasked"
    assert host.sh(f"readlink {PATH}").stdout == "/dev/null\n"
    assert (show(host, "InvocationID"), actions(daemon)) == (before, done)
    host.sh(f"systemctl unmask {UNIT}")
    daemon.wait(lambda: host.sh(f"test -s {PATH}", check=False).returncode == 0, "its file again", 20, "m")
    settled(daemon)
    assert show(host, "InvocationID") == before


@pytest.mark.parametrize("reload", [True, False])
def test_a_dropin_is_set_aside_and_nothing_restarts(daemon: Daemon, host: TestHost, reload: bool) -> None:
    before = serving(daemon, host)
    text = "[Service]\nEnvironment=NCCL_DEBUG=INFO HF_TOKEN=hf_abcdefgh12345678\n"
    with held(host):
        host.write(DROPIN, text.encode(), mode=0o600)
        if reload:
            host.sh("systemctl daemon-reload")
        shown(daemon, "file dropin.override.conf", *(["loaded env.NCCL_DEBUG"] if reload else []))
    settled(daemon)
    assert host.sh(f"ls {DROPIN}", check=False).returncode != 0
    kept = host.sh(f"ls {ASIDE}").stdout.split()
    assert len(kept) == 1
    assert re.fullmatch(r"override\.conf\.\d{8}T\d{6}Z", kept[0])
    assert host.read(f"{ASIDE}/{kept[0]}") == text
    assert host.sh(f"stat -c %a {ASIDE} {ASIDE}/{kept[0]}").stdout.split() == ["700", "600"]
    assert (show(host, "NeedDaemonReload"), show(host, "InvocationID")) == ("no", before)
    said = next(e for e in daemon.events("m") if e["action"] == "set-aside")
    assert f"moved {DROPIN} to {ASIDE}/{kept[0]}" in said["evidence"]
    assert "NCCL_DEBUG=INFO" in said["evidence"]
    assert "hf_abcdefgh12345678" not in str(daemon.events("m"))


def test_what_set_property_leaves_is_set_aside(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    host.sh(f"systemctl set-property {UNIT} MemoryMax=3G")
    host.sh(f"systemctl set-property --runtime {UNIT} CPUWeight=50")
    shown(daemon, "file dropin.50-MemoryMax.conf")
    settled(daemon)
    assert host.sh(f"ls {ASIDE} | sed 's/conf.*/conf/'").stdout.split() == ["50-CPUWeight.conf", "50-MemoryMax.conf"]
    assert (show(host, "MemoryMax"), show(host, "InvocationID")) == ("infinity", before)


def test_a_dropin_in_effect_is_set_aside_and_the_unit_restarted_once(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    with held(host):
        host.write(DROPIN, b"[Service]\nEnvironment=NCCL_DEBUG=INFO\n")
        host.sh(f"systemctl daemon-reload && systemctl restart {UNIT}")
        shown(daemon, "file dropin.override.conf", "loaded env.NCCL_DEBUG", "running env.NCCL_DEBUG")
    daemon.wait(lambda: "NCCL_DEBUG=INFO" not in environment(host), "an environment as declared", 20, "m")
    daemon.ready("m")
    settled(daemon)
    assert "CUDA_VISIBLE_DEVICES=0,1" in environment(host)
    assert "NCCL_DEBUG=INFO" not in environment(host)
    assert show(host, "InvocationID") not in ("", before)
    assert actions(daemon).count("unit-restart") == 1


def test_a_variable_of_set_environment_is_refused_and_the_unit_restarted_once(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    with held(host):
        host.sh(f"systemctl set-environment NCCL_ALGO=Ring LANG=C.UTF-8 && systemctl restart {UNIT}")
        shown(daemon, "loaded env.NCCL_ALGO", "running env.NCCL_ALGO")
    daemon.wait(lambda: "NCCL_ALGO=Ring" not in environment(host), "an environment as declared", 20, "m")
    daemon.ready("m")
    settled(daemon)
    assert "NCCL_ALGO=Ring" not in environment(host)
    assert "LANG=C.UTF-8" in environment(host)
    assert "NCCL_ALGO=Ring" in host.sh("systemctl show-environment").stdout.splitlines()
    ours = show(host, "InvocationID")
    assert ours != before
    host.sh(f"systemctl restart {UNIT}")
    daemon.ready("m")
    looks(daemon)
    settled(daemon)
    assert "NCCL_ALGO=Ring" not in environment(host)
    assert actions(daemon).count("unit-restart") == 1


def test_a_variable_of_set_environment_that_no_process_has_yet_restarts_nothing(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    host.sh("systemctl set-environment CUDA_LAUNCH_BLOCKING=1")
    shown(daemon, "loaded env.CUDA_LAUNCH_BLOCKING")
    settled(daemon)
    assert "UnsetEnvironment=CUDA_LAUNCH_BLOCKING\n" in host.read(PATH)
    assert (show(host, "InvocationID"), "unit-restart" in actions(daemon)) == (before, False)


def test_a_unit_restarted_with_other_flags_under_its_own_file_is_restarted_once(daemon: Daemon, host: TestHost) -> None:
    before = serving(daemon, host)
    with held(host):
        text = edit(host, "--host 0.0.0.0", "--host 127.0.0.1")
        host.sh(f"systemctl daemon-reload && systemctl restart {UNIT}")
        host.write(PATH, text.encode())
        host.sh("systemctl daemon-reload")
        assert show(host, "InvocationID") not in ("", before)
    assert "127.0.0.1" in argv_of(host, show(host, "MainPID"))
    shown(daemon, "running argv")
    daemon.wait(lambda: "0.0.0.0" in argv_of(host, show(host, "MainPID")), "its own flags", 20, "m")
    daemon.ready("m")
    settled(daemon)
    looks(daemon)
    assert actions(daemon).count("unit-restart") == 1
    assert daemon.metric("stoker_restarts_total", reason="LaunchChanged") == 1


def test_a_dropin_put_back_again_and_again_is_contested_and_left_alone_also_by_the_next_daemon(
    daemon: Daemon, host: TestHost
) -> None:
    before = serving(daemon, host)
    text = b"[Service]\nEnvironment=NCCL_DEBUG=INFO\n"
    for turn in range(3):
        host.write(DROPIN, text)
        host.sh("systemctl daemon-reload")
        host.wait_until(f"[ ! -e {DROPIN} ] && [ $(ls {ASIDE} | wc -l) = {turn + 1} ]")
        # What a daemon did not live to count is no turn; it tells of it once it has counted it.
        daemon.wait(lambda done=turn + 1: set_aside(daemon) == done, "told as done", 20, "m")
        settled(daemon)
        if turn == 1:
            daemon.kill()
            daemon.start()
    host.write(DROPIN, text)
    host.sh("systemctl daemon-reload")
    contested = lambda: daemon.condition("spec", "m", "Drifted")["reason"] == "DriftContested"  # noqa: E731
    daemon.wait(contested, "DriftContested", 20, "m")
    assert [e["reason"] for e in daemon.events("m") if e["reason"] == "DriftContested"] == ["DriftContested"]
    done = actions(daemon)
    looks(daemon, 4)
    host.write(DROPIN, text + b"# once more\n")
    host.sh("systemctl daemon-reload")
    daemon.kill()
    daemon.start()
    looks(daemon, 4)
    assert contested()
    assert host.sh(f"ls {ASIDE} | wc -l").stdout.strip() == "3"
    assert host.read(DROPIN) == text.decode() + "# once more\n"
    assert (actions(daemon), show(host, "InvocationID")) == (done, before)
    assert daemon.condition("spec", "m", "Ready")["status"] == "True"
    daemon.put_spec("m", sglang("a", [0, 1], readiness={"period": "6s", "timeout": "10s"}))
    host.wait_until(f"[ ! -e {DROPIN} ]")
    settled(daemon)
    assert show(host, "InvocationID") == before


def test_a_process_that_a_person_started_in_a_shell_is_not_touched(daemon: Daemon, host: TestHost) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0]))
    daemon.ready("m")
    settled(daemon)
    server = bystanders.by_hand(host, port=30077, gpus=(1,), stay=True)
    job = bystanders.unrelated(host)
    edit(host, "--host 0.0.0.0", "--host 127.0.0.1")
    host.write(DROPIN, b"[Service]\nEnvironment=NCCL_DEBUG=INFO\n")
    host.sh(f"systemctl daemon-reload && systemctl restart {UNIT}")
    # Seen while the unit waits in its gate, both are put right without a restart.
    daemon.wait(lambda: actions(daemon).count("put-unit") == 2, "the file put right", 20, "m")
    daemon.wait(lambda: any(e["action"] == "set-aside" for e in daemon.events("m")), "the drop-in set aside", 20, "m")
    daemon.ready("m")
    settled(daemon)
    assert "127.0.0.1" not in host.sh(f"tr '\\0' ' ' </proc/{show(host, 'MainPID')}/cmdline").stdout
    assert server.alive
    assert job.alive
    assert not [e for e in daemon.events() if e["action"].startswith("signal-")]
    assert host.sh("curl -sf http://127.0.0.1:30077/health", check=False).returncode == 0


def test_what_the_engine_says_otherwise_is_told_and_restarts_nothing(daemon: Daemon, host: TestHost) -> None:
    host.write("/etc/standin/faults.json", b'{"told_context": 2048}')
    daemon.put_host("a", host, gpus={"count": 3, "product": "NVIDIA H100"})
    daemon.put_spec("m", sglang("a", [0, 1], contextLength=4096))
    before = daemon.ready("m")["invocation"]
    shown(daemon, "effective contextLength")
    row = next(d for d in daemon.instance("m")["drift"] if d["layer"] == "effective")
    assert (row["declared"], row["observed"], row["launch"]) == ("4096", "2048", False)
    looks(daemon)
    assert (show(host, "InvocationID"), "unit-restart" in actions(daemon)) == (before, False)
    fields = [f"{d['layer']} {d['field']}" for d in daemon.get_host("a")["status"]["drift"]]
    assert fields == ["inventory gpus", "inventory gpu.0.product", "inventory gpu.1.product"]
    for layer, field in (("effective", "contextLength"), ("inventory", "gpus")):
        assert daemon.metric("stoker_drift", host="a", layer=layer, field=field) == 1


def test_a_card_that_its_processes_hold_beyond_their_own_is_told_and_nothing_is_done(
    daemon: Daemon, host: TestHost
) -> None:
    daemon.put_host("a", host)
    daemon.put_spec("m", sglang("a", [0]))
    before = daemon.ready("m")["invocation"]
    settled(daemon)
    done, worker = actions(daemon), bystanders.unrelated(host, gpu=1)
    host.sh(f"echo {worker.pid} >/sys/fs/cgroup{show(host, 'ControlGroup')}/cgroup.procs")
    shown(daemon, "placement gpu.1")
    looks(daemon)
    assert [(d["field"], d["observed"]) for d in daemon.instance("m")["drift"]] == [("gpu.1", "held")]
    assert worker.alive
    assert (show(host, "InvocationID"), actions(daemon)) == (before, done)
