"""The test hosts themselves: they boot, look like the recorded machines, come clean and leave nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TestHost, bystanders
from harness.engines import generate, sglang_argv
from harness.slots import STATE, cgroups, is_alive, reap

pytestmark = pytest.mark.hosts
RECORDED = Path(__file__).parent / "recorded"
DATE = re.compile(r"^\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}", re.MULTILINE)


def recorded(name: str) -> dict[str, tuple[str, int]]:
    """Output and exit status of each recorded command."""
    rows = json.loads((RECORDED / f"{name}.json").read_text())
    return {row["command"]: (row["output"], row["exit_status"]) for row in rows}


def steady(text: str) -> str:
    """Without what changes from call to call: the date, hundredths of a watt."""
    return DATE.sub("DATE", text).replace("79.89", "79.90")


def test_two_hosts_boot_beside_each_other_and_answer_ssh(make_host: Callable[..., TestHost]) -> None:
    a, b = make_host("alpha"), make_host("beta")
    for host in (a, b):
        assert host.ssh("hostname").stdout.strip() == host.name
        assert host.ssh("cat /proc/1/comm").stdout.strip() == "systemd"
        assert host.ssh("id -un", user="alice").stdout.strip() == "alice"
        assert "session-" in host.ssh("cat /proc/self/cgroup").stdout
        assert host.host_key_line.startswith("ssh-ed25519 AAAA")
        assert host.sh("findmnt -no OPTIONS /run").stdout.count("noexec") == 1
        assert host.sh("systemctl is-system-running").stdout.strip() == "running"
    assert a.address != b.address
    assert a.boot_id() != b.boot_id()
    assert a.sh("cat /etc/machine-id").stdout != b.sh("cat /etc/machine-id").stdout


@pytest.mark.parametrize("command", [c for c in recorded("smi-idle") if c.startswith("nvidia-smi")])
def test_an_idle_host_prints_what_was_recorded(host: TestHost, command: str) -> None:
    done = host.sh(command, check=False)
    output, status = recorded("smi-idle")[command]
    assert (steady(done.stdout), done.returncode) == (steady(output), status)


def test_a_busy_host_prints_what_was_recorded(host: TestHost) -> None:
    hold = "systemd-run --quiet --unit={} python3 /usr/local/lib/standin/hold --pid-file /tmp/{} {}"
    host.sh(hold.format("bystander-r0", "r0", "--gpu 0:21090"))
    host.wait_until("test -s /tmp/r0")
    host.sh(hold.format("bystander-r1", "r1", "--gpu 1:22114 --gpu 0:518"))
    host.wait_until("test -s /tmp/r1")
    pids = {host.read("/tmp/r0"): "628", host.read("/tmp/r1"): "629"}
    for command, (output, status) in recorded("busy").items():
        if "--query" not in command:
            continue
        done = host.sh(command, check=False)
        text = done.stdout.replace("/usr/bin/python3", "/opt/venv/bin/python3")
        for pid, shown in pids.items():
            text = re.sub(rf"\b{pid}\b", shown, text)
        assert (text, done.returncode) == (output, status), command


def test_memory_goes_with_its_process_and_with_its_device_file(host: TestHost) -> None:
    holder = bystanders.unrelated(host, gpu=1, mib=1000)
    assert [(row.gpu, row.pid, row.mib) for row in host.gpu_holders()] == [(1, holder.pid, 1000)]
    host.sh(f"kill -KILL {holder.pid}")
    host.wait_until(f"! test -e /proc/{holder.pid}")
    assert host.gpu_holders() == []
    host.wait_until(
        "nvidia-smi --query-gpu=memory.used --format=csv,noheader | tail -1 | grep -qx '0 MiB'", timeout_s=2
    )
    host.sh("echo '0 5000' > /run/fake-gpu/1-$(awk '{print $22}' /proc/1/stat)")
    assert host.gpu_holders() == []


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("exit 9 NVIDIA-SMI has failed", 9, "NVIDIA-SMI has failed\n"),
        ("lost 1", 15, "GPU is lost"),
        ("warn 14 WARNING: infoROM is corrupted", 14, "0, GPU-00000000-aaaa-4000-8000-000000000000\n"),
        ("missing 0", 0, "0, GPU-00000000-aaaa-4000-8000-000000000001\n"),
        ("cut 7", 0, "0, GPU-"),
        ("slow 0.2", 0, "1, GPU-00000000-aaaa-4000-8000-000000000001\n"),
        ("hang deaf", 137, ""),
    ],
)
def test_faults_of_nvidia_smi(host: TestHost, fault: str, status: int, said: str) -> None:
    host.gpu_mode(fault)
    done = host.sh("timeout -k 0.2 0.5 nvidia-smi --query-gpu=index,uuid --format=csv,noheader", check=False)
    assert done.returncode == status
    assert said in done.stdout


def test_a_reboot_gives_a_new_boot_id_and_keeps_the_disk(host: TestHost) -> None:
    host.write("/etc/kept", b"yes")
    holder = bystanders.unrelated(host, gpu=0)
    before = host.boot_id()
    host.reboot()
    assert host.boot_id() != before
    assert host.read("/etc/kept") == "yes"
    assert not holder.alive
    assert host.gpu_holders() == []
    assert host.ssh("true").returncode == 0


def test_power_can_be_cut_and_comes_back(host: TestHost) -> None:
    host.power_off(hard=True)
    assert host.ssh("true", check=False).returncode == 255
    host.start()
    host.power_off()
    host.start()
    assert host.ssh("true").returncode == 0


def test_a_cut_link_is_silent_and_heals(host: TestHost) -> None:
    host.cut_link()
    probe = "import socket; s = socket.socket(); s.settimeout(1); s.connect(('%s', 22))"
    done = subprocess.run([sys.executable, "-c", probe % host.address], check=False, capture_output=True, text=True)
    assert "TimeoutError" in done.stderr
    host.restore_link()
    assert host.ssh("true").returncode == 0


def test_a_frozen_process_survives_kill_until_thawed(host: TestHost) -> None:
    holder = bystanders.unrelated(host, gpu=0)
    host.freeze(holder.pid)
    host.sh(f"kill -KILL {holder.pid}")
    time.sleep(0.3)
    assert holder.alive
    assert host.sh(f"awk '{{print $3}}' /proc/{holder.pid}/stat").stdout.strip() == "D"
    host.thaw()
    host.wait_until(f"! test -e /proc/{holder.pid}")


def test_a_host_of_old_cgroups_with_eight_cards_and_many_processes(make_host: Callable[..., TestHost]) -> None:
    host = make_host("old", gpus=8, idle=1500, hybrid=True)
    assert len(host.sh("nvidia-smi -L").stdout.splitlines()) == 8
    assert int(host.sh("ls /proc | grep -c '^[0-9]'").stdout) > 1500
    assert "name=systemd:/system.slice" in host.sh("cat /proc/$(pgrep -o sshd)/cgroup").stdout


def test_a_host_has_containers_that_pct_enters(make_host: Callable[..., TestHost]) -> None:
    host = make_host("pve", containers=(129,))
    assert host.pct(129, "hostname; cat").stdout == "ct129\n"
    assert host.pct(129, "cat", stdin=b"typed").stdout == "typed"
    assert host.pct(129, "exit 7", check=False).returncode == 7
    assert "0::/.." in host.pct(129, "cat /proc/self/cgroup").stdout
    assert host.pct(129, "systemctl is-system-running; cat /proc/1/comm").stdout == "running\nsystemd\n"
    assert host.pct(129, "cat /proc/sys/kernel/random/boot_id").stdout.strip() != host.boot_id()
    assert host.pct(129, "findmnt -no OPTIONS /run").stdout.count("noexec") == 1
    run_unit = f"systemd-run --quiet --unit=engine-1 {' '.join(sglang_argv(30001, ranks=2))}"
    host.pct(129, f"{run_unit}; while ! curl -sf 127.0.0.1:30001/health; do sleep 0.05; done")
    assert len(host.pct(129, "nvidia-smi --query-compute-apps=pid --format=csv,noheader").stdout.split()) == 3
    assert generate(host, 30001).status == 0
    host.sh("pct stop 129")
    assert host.sh("pct exec 129 -- true", check=False).returncode == 255
    assert host.sh("pct exec 130 -- true", check=False).returncode == 2


def test_a_released_host_comes_back_pristine(host: TestHost, host_pool: object) -> None:
    from harness import Pool

    assert isinstance(host_pool, Pool)
    host.write("/etc/systemd/system/stoker-x.server.service", b"[Service]\nExecStart=/bin/sleep 1000\n")
    host.write("/etc/stoker/hold", b"no")
    host.write("/var/lib/stoker/units/x", b"")
    host.sh("systemctl daemon-reload; systemctl enable --now stoker-x.server.service")
    holders = [bystanders.by_hand(host, port=30001), bystanders.in_docker(host, gpu=1), bystanders.login_shell(host)]
    host.cut_link()
    boots = host.container.boots
    assert host_pool.release(host) == []
    again = host_pool.make_host("alpha")
    assert again is host
    assert again.container.boots == boots
    assert not [holder for holder in holders if holder.alive]
    assert again.gpu_holders() == []
    assert (
        "stoker" not in again.sh("systemctl list-units --all; ls /etc /var/lib /etc/systemd/system; journalctl").stdout
    )
    assert again.sh("systemctl is-system-running").stdout.strip() == "running"


def test_a_changed_system_file_costs_the_host(host: TestHost, host_pool: object) -> None:
    from harness import Pool

    assert isinstance(host_pool, Pool)
    host.sh("echo changed >> /etc/hosts; rm /etc/debian_version")
    assert {"etc/hosts was changed", "etc/debian_version is left"} <= set(host_pool.release(host))
    new = host_pool.make_host("alpha")
    assert new is not host
    assert host_pool.release(new) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(number: signal.Signals) -> None:
    run, slot, init = _run_with_a_host("pass")
    run.send_signal(number)
    run.wait(30)
    deadline = time.monotonic() + 10
    while (STATE / "slots" / str(slot)).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    _assert_gone(slot, init)


def test_what_a_killed_run_left_is_taken_down_by_the_next_one() -> None:
    run, slot, init = _run_with_a_host(
        "from harness import bystanders; import os\n"
        "    host.freeze(bystanders.unrelated(host, gpu=0).pid); pool._guard.kill(); os.kill(os.getpid(), 9)"
    )
    assert run.wait(30) == -signal.SIGKILL
    reap()
    _assert_gone(slot, init)


def _run_with_a_host(then: str) -> tuple[subprocess.Popen[str], int, list[int]]:
    """Another run with one host: the run, the host's slot, and its pid 1."""
    script = (
        "import signal, time\nfrom harness import Pool\nfrom harness.slots import identity\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what a shell starts with `&` ignores it
        "with Pool() as pool:\n"
        "    host = pool.make_host('gone')\n"
        "    print(host.slot.number, *identity(host.container.init_pid), flush=True)\n"
        f"    {then}\n    time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parent, text=True)
    assert run.stdout is not None
    slot, *init = map(int, run.stdout.readline().split())
    return run, slot, init


def _assert_gone(slot: int, init: list[int]) -> None:
    assert not (STATE / "slots" / str(slot)).exists()
    assert not is_alive(init)
    assert not [group for group in cgroups(slot) if group.exists()]
    assert f"/slots/{slot}/" not in Path("/proc/self/mounts").read_text()
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    assert f"stk-{slot}@" not in links
    assert not Path(f"/run/netns/stk-{slot}").exists()
