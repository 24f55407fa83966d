"""The reference host: 8 cards, 18 processes on them, 3 units of ours, 1,800 processes; two small hosts beside it."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

from harness import Pool, TestHost
from harness.build import ssh_key
from harness.bystanders import PROGRAM

from daemon.ssh.argv import HELPER_PATH
from tests.hosts.running import Daemon, sglang

PLACES = {"m": [0, 1, 2, 3], "n": [4, 5], "o": [6]}
UNITS = tuple(f"stoker-{name}.server.service" for name in PLACES)
GPU_PROCESSES, PROCESSES = 18, 1800
OTHERS = GPU_PROCESSES - sum(map(len, PLACES.values()))

QUIET = 0.25  # cores that others may use while a look counts as undisturbed

TIMES = """
import json, resource, subprocess, sys, time
request, looks, until = open("/tmp/request", "rb").read(), [], time.monotonic() + float(sys.argv[2])
def busy():
    used = list(map(int, open("/proc/stat").readline().split()[1:9]))
    return (sum(used) - used[3] - used[4]) / 100
def ours():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
while len(looks) < int(sys.argv[1]) or (
    sum(others < float(sys.argv[4]) for _, others in looks) < int(sys.argv[1]) and time.monotonic() < until
):
    began, before = time.monotonic(), busy() - ours()
    done = subprocess.run([sys.argv[3], "observe"], input=request, capture_output=True, check=True)
    took = time.monotonic() - began
    looks.append((took * 1000, (busy() - ours() - before) / took))
open("/var/tmp/answer", "wb").write(done.stdout)
print(json.dumps(looks))
"""
PRINTER = """#!/bin/sh
case $1 in
--query-gpu=uuid,*) exec cat /tmp/health ;;
--query-gpu=*) exec cat /tmp/gpus ;;
*) exec cat /tmp/apps ;;
esac
"""


class Stage:
    """Hosts and a daemon that serves on them; the daemon is ended before the hosts are looked at by hand."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self.host = pool.make_host("reference", gpus=8, idle=1780)
        self.small = [pool.make_host("small-1"), pool.make_host("small-2")]
        _others(self.host)
        self.daemon = Daemon(folder / "data", ssh_key())
        self.daemon.start()
        for name, host in zip("abc", [self.host, *self.small], strict=True):
            self.daemon.put_host(name, host, period="500ms")
        for at, (name, gpus) in enumerate(PLACES.items()):
            self.daemon.put_spec(name, sglang("a", gpus, port=30001 + at))
        for name in PLACES:
            self.daemon.ready(name)

    def looks(self) -> float:
        """Passes over any host that ended well."""
        return self.daemon.metric("stoker_reconcile_total", result="ok")

    def look(self, request: bytes, times: int, patience_s: float = 0) -> tuple[list[tuple[float, float]], bytes]:
        """Looks, each as its ms on the host and the cores that others used meanwhile; and the last one's answer.

        With patience, as many more until `times` of them were undisturbed.
        """
        self.host.write("/tmp/request", request)
        argv = shlex.join(["python3", "-S", "-c", TIMES, str(times), str(patience_s), HELPER_PATH, str(QUIET)])
        looks: list[tuple[float, float]] = json.loads(self.host.sh(argv).stdout)
        return looks, (self.host.slot.root / "var/tmp/answer").read_bytes()

    def wait_running(self) -> None:
        """Waits until our units run and all GPU processes hold their memory again; asks seldom, since asking costs."""
        deadline = time.monotonic() + 20
        while True:
            states = self.host.sh(f"systemctl is-active {' '.join(UNITS)}", check=False).stdout.split()
            if states == ["active"] * len(UNITS) and self._holders() == GPU_PROCESSES:
                return
            assert time.monotonic() < deadline, (states, self.host.gpu_holders())
            time.sleep(0.3)

    def _holders(self) -> int:
        return len({holder.pid for holder in self.host.gpu_holders()})

    def started_at(self, unit: str) -> float:
        """When systemd last began to start the unit, in seconds of the kernel's monotonic clock."""
        return int(self.host.sh(f"systemctl show {unit} -p InactiveExitTimestampMonotonic --value").stdout) / 1e6

    def instant_smi(self, **texts: bytes) -> None:
        """From now on nvidia-smi prints these texts, of `gpus`, `apps` and `health`, and does nothing else."""
        for name, text in texts.items():
            self.host.write(f"/tmp/{name}", text)
        self.host.write("/usr/bin/nvidia-smi", PRINTER.encode(), mode=0o755)

    def end(self) -> None:
        self.daemon.kill()


def _others(host: TestHost) -> None:
    """Somebody's job on the card that is not ours."""
    last = host.shape.gpus - 1
    program = f"/usr/bin/python3 -S {PROGRAM} --gpu {last}:4096"
    script = f"for i in $(seq {OTHERS}); do {program} --pid-file /tmp/other-$i & done; wait"
    host.sh(f"systemd-run --quiet --unit=their-job /bin/sh -c {shlex.quote(script)}")
    host.wait_until(f"test $(ls /tmp/other-* | grep -vc new) = {OTHERS}")
