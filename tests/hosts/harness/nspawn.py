"""Keeps one host's container running: starts systemd-nspawn, finds its pid 1, starts it again after a reboot inside."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from harness.slots import Slot, cgroups, identity

REBOOT_STATUS = 133
SETTLE_S = 60.0


class Container:
    """A booting, running or powered-off container over the slot's root. Methods wait; all may be called again."""

    def __init__(self, slot: Slot, name: str, machine_id: str, *, hybrid: bool, nesting: bool) -> None:
        self._slot, self._name, self._machine_id, self._hybrid = slot, name, machine_id, hybrid
        self._more = ["--capability=all"] if nesting else []
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: threading.Thread | None = None
        self._stopping = False
        self.init_pid = 0
        self.boots = 0

    def start(self) -> None:
        """Boots it; returns when its pid 1 exists, long before it is up."""
        if self._watch is not None and self._watch.is_alive():
            return
        self._stopping = False
        self._boot()
        self._watch = threading.Thread(target=self._keep, name=f"watch {self._name}", daemon=True)
        self._watch.start()

    def power_off(self, *, hard: bool) -> None:
        """Ends it: an orderly shutdown, or as a cut of the power."""
        self._stopping = True
        process, init = self._process, self.init_pid
        if process is None:
            return
        if hard and init:
            with suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        elif process.poll() is None:
            process.terminate()
        try:
            process.wait(SETTLE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(SETTLE_S)
        if self._watch is not None:
            self._watch.join(SETTLE_S)
        self.init_pid = 0

    @property
    def running(self) -> bool:
        return self.init_pid > 0

    def _keep(self) -> None:
        while True:
            process = self._process
            if process is None:
                return
            status = process.wait()
            self.init_pid = 0
            if status != REBOOT_STATUS or self._stopping:
                return
            self._boot()

    def _boot(self) -> None:
        argv = [
            "systemd-nspawn", "--quiet", f"--directory={self._slot.root}", "--boot", "--keep-unit", "--register=no",
            # Two runs side by side have hosts of one name, but nspawn keeps folders of this machine by machine name.
            f"--machine={self._slot.link}", f"--hostname={self._name}",
            f"--uuid={self._machine_id}", "--link-journal=no", "--console=pipe",
            f"--network-namespace-path=/run/netns/{self._slot.link}", *self._more,
        ]  # fmt: skip
        script = f"for g in {shlex.join(self._groups())}; do echo $$ > $g; done; exec {shlex.join(argv)}"
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        if not self._hybrid:
            env["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "1"
        with (self._slot.folder / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-ec", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._slot.record(nspawn=identity(self._process.pid))
        init = self._find_init(self._process)
        self._slot.record(init=identity(init))
        self.boots += 1
        self.init_pid = init

    def _groups(self) -> list[str]:
        made = [group for group in cgroups(self._slot.number) if group.parent.name != "freezer"]
        for group in made:
            group.mkdir(exist_ok=True)
        return [str(group / "cgroup.procs") for group in made]

    def _find_init(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            for pid in _children(process.pid):
                if _pid_inside(pid) == 1:
                    return pid
            time.sleep(0.01)
        tail = (self._slot.folder / "console.log").read_bytes()[-2000:].decode(errors="replace")
        raise RuntimeError(f"test host {self._name} did not boot:\n{tail}")


def host_pid(init_pid: int, pid_inside: int) -> int:
    """This machine's number of a process inside. Raises ProcessLookupError."""
    space = os.readlink(f"/proc/{init_pid}/ns/pid")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        if _pid_inside(pid) == pid_inside:
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == space:
                    return pid
    raise ProcessLookupError(f"no process {pid_inside} in the container of {init_pid}")


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _pid_inside(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                spaces = line.split()[1:]
                return int(spaces[-1]) if len(spaces) > 1 else 0
    except OSError:
        pass
    return 0
