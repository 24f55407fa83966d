"""A container of a test host as a test sees it, in the manner of a host: all it does goes in by `pct exec`."""

from __future__ import annotations

import shlex
import subprocess

from harness.host import HostError, TestHost


class Nested(TestHost):
    """Container `number` of `outer`. What needs an address, a link or a cgroup of its own is asked of `outer`."""

    __test__ = False

    def __init__(self, outer: TestHost, number: int) -> None:
        super().__init__(f"ct{number}", outer.shape, outer.slot, outer.container, outer.host_key_line)
        self.outer, self.number = outer, number

    def sh(
        self, cmd: str, *, stdin: bytes = b"", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """As a host's, inside. Raises HostError also when the container is not entered."""
        line = f"pct exec {self.number} -- /bin/sh -c {shlex.quote(cmd)}"
        return self.outer.sh(line, stdin=stdin, check=check, timeout_s=timeout_s)

    def start(self) -> None:
        """Boots it when it is off; returns when it is up."""
        self.outer.sh(f"pct start {self.number}")
        self.wait_ready()

    def reboot(self) -> None:
        """An orderly reboot from inside; returns when it is up again."""
        before = self.boot_id()
        self.sh("systemctl reboot --no-block", check=False)
        self._until(lambda: self.boot_id() != before, "come back")
        self.wait_ready()

    def power_off(self, *, hard: bool = False) -> None:
        """An orderly `pct stop`; the disk stays."""
        del hard
        self.outer.sh(f"pct stop {self.number}")

    def _is_up(self) -> bool:
        state = self.sh("systemctl is-system-running; ls /run/nologin 2>&1", check=False).stdout
        return state.startswith(("running", "degraded")) and "cannot access" in state

    def outer_pid(self, pid_inside: int) -> int:
        """The outer host's number of a process inside. Raises HostError."""
        found = self.outer.sh("grep -H ^NSpid: /proc/[0-9]*/status", check=False).stdout
        for line in found.splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == str(pid_inside) and self._is_here(int(words[1])):
                return int(words[1])
        raise HostError(f"{self.name}: no process {pid_inside}")

    def _is_here(self, pid_outside: int) -> bool:
        leader = self.outer.sh(f"readlink /proc/{pid_outside}/ns/pid").stdout.strip()
        return leader == self.sh("readlink /proc/1/ns/pid").stdout.strip()
