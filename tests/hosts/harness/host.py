"""One test host as a test sees it. All it does goes around the daemon under test, through the host's namespaces."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import net, nspawn, rootfs
from harness.nspawn import Container
from harness.slots import Slot, cgroup2

READY_S = 60.0
BUSY = (
    3  # a bound on a wait is what a quiet machine needs, and ends a test that hangs; figures have their own assertions
)
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"}


class HostError(Exception):
    """A command in a test host failed, or the host did not get where it should."""


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A row of GPU memory as it really is, whatever nvidia-smi is made to say. `pid` is the host's own number."""

    gpu: int
    pid: int
    mib: int
    name: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What a host is built with: cards, idle processes, old cgroups, and numbers of containers for `pct` inside."""

    gpus: int = 2
    idle: int = 0
    hybrid: bool = False
    containers: tuple[int, ...] = ()


class TestHost:
    """A booted host. `address` answers SSH on port 22 for root, alice and serve with `ssh_key`."""

    __test__ = False

    def __init__(self, name: str, shape: Shape, slot: Slot, container: Container, host_key_line: str) -> None:
        self.name, self.shape = name, shape
        self.host_key_line = host_key_line
        self.address = slot.address
        self.ssh_key = rootfs.ssh_key()
        self.known_hosts = slot.folder / "known_hosts"
        self.slot = slot
        self.container = container
        self._undo: list[Callable[[], object]] = []

    def sh(
        self, cmd: str, *, stdin: bytes = b"", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command as root inside, in the root cgroup, as `pct exec` does.

        Raises HostError when it fails (with `check`) or the host is off, TimeoutExpired when it lasts.
        """
        done = subprocess.run(
            self._inside(["/bin/sh", "-c", cmd]), input=stdin, env=ENV, check=False, capture_output=True,
            timeout=timeout_s,
        )  # fmt: skip
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode != 0:
            raise HostError(f"{self.name}: `{cmd}` exited {done.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(cmd, done.returncode, out, err)

    def pct(self, number: int, cmd: str, *, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a shell command in one of its containers, by `pct exec`."""
        return self.sh(f"pct exec {number} -- /bin/sh -c {shlex.quote(cmd)}", stdin=stdin, check=check)

    def ssh_argv(self, cmd: str = "", *, user: str = "root", pty: bool = False) -> list[str]:
        """The argv of a real ssh client here that runs `cmd` there (none: a login shell)."""
        argv = [
            "ssh", "-F", "none", "-i", str(self.ssh_key), "-o", f"UserKnownHostsFile={self.known_hosts}",
            "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
            "-o", "LogLevel=ERROR", "-tt" if pty else "-T", f"{user}@{self.address}",
        ]  # fmt: skip
        return [*argv, cmd] if cmd else argv

    def ssh(
        self, cmd: str, *, user: str = "root", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a real ssh session. Raises HostError when it fails (with `check`)."""
        done = subprocess.run(
            self.ssh_argv(cmd, user=user), check=False, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=timeout_s,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise HostError(f"{self.name}: ssh `{cmd}` exited {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def outside(self, cmd: str) -> None:
        """Runs a shell command of this machine in the host's pid namespace, with mounts that end with it.

        Raises CalledProcessError.
        """
        argv = ["nsenter", "-t", str(self._init()), "-p", "--", "unshare", "-m", "/bin/sh", "-ec", cmd]
        subprocess.run(argv, check=True, capture_output=True, text=True)

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Puts a file there at once and whole, with its folders."""
        folder = path.rpartition("/")[0] or "/"
        self.sh(f"mkdir -p '{folder}' && cat > '{path}.new' && chmod {mode:o} '{path}.new' && mv '{path}.new' '{path}'",
                stdin=content)  # fmt: skip

    def read(self, path: str) -> str:
        return self.sh(f"cat '{path}'").stdout

    def journal(self, unit: str, *, lines: int = 1000) -> str:
        """The unit's messages since the host was last clean."""
        return self.sh(f"journalctl -q --no-pager -o cat -n {lines} -u '{unit}'").stdout

    def gpu_holders(self) -> list[GpuHolder]:
        """Who really holds GPU memory, by index and pid. Faults of nvidia-smi do not touch this."""
        fields = "gpu_uuid,pid,used_gpu_memory,process_name"
        text = self.sh(f"nvidia-smi --truth --query-compute-apps={fields} --format=csv,noheader,nounits").stdout
        rows = [line.split(", ", 3) for line in text.splitlines()]
        return sorted(
            (GpuHolder(int(uuid[-12:]), int(pid), int(mib), name) for uuid, pid, mib, name in rows),
            key=lambda row: (row.gpu, row.pid),
        )

    def gpu_mode(self, *faults: str) -> None:
        """Sets the faults of nvidia-smi (its own text lists them); none: it works."""
        self.write("/etc/fake-gpu/mode", "".join(f"{fault}\n" for fault in faults).encode())

    def on_clean(self, undo: Callable[[], object]) -> None:
        """Has something outside the host done when the host is next cleaned or taken down."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Does what `on_clean` was told. For the pool."""
        while self._undo:
            self._undo.pop()()

    def host_pid(self, pid_inside: int) -> int:
        """This machine's number of a process inside. Raises ProcessLookupError."""
        return nspawn.host_pid(self._init(), pid_inside)

    def boot_id(self) -> str:
        return self.sh("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def start(self) -> None:
        """Boots it when it is off; returns when it is up."""
        self.container.start()
        self.wait_ready()

    def reboot(self) -> None:
        """An orderly reboot from inside; returns when it is up again."""
        boots = self.container.boots
        self.sh("systemctl reboot --no-block", check=False)
        self._until(lambda: self.container.boots > boots and self.container.running, "come back")
        self.wait_ready()

    def power_off(self, *, hard: bool = False) -> None:
        """An orderly shutdown, or (hard) as when the power is cut. The disk stays."""
        self.container.power_off(hard=hard)

    def cut_link(self) -> None:
        """Packets vanish silently in both directions; `sh` still works."""
        net.cut(self.slot)

    def restore_link(self) -> None:
        net.restore(self.slot)

    def freeze(self, pid_inside: int) -> None:
        """Puts a process into state D that survives SIGKILL until `thaw`. Its memory and ports stay taken."""
        group = Path(f"/sys/fs/cgroup/freezer/stoker-tests-{self.slot.number}") / str(pid_inside)
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").write_text(str(self.host_pid(pid_inside)))
        (group / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        """Ends every `freeze`."""
        top = Path(f"/sys/fs/cgroup/freezer/stoker-tests-{self.slot.number}")
        for state in top.glob("*/freezer.state"):
            state.write_text("THAWED")

    def wait_ready(self) -> None:
        """Waits until the boot has ended and sshd answers. Raises HostError with the console's end."""
        self._until(self._is_up, "come up")

    def wait_until(self, cmd: str, *, timeout_s: float = 20) -> None:
        """Repeats a command inside until it exits 0. Raises HostError with its last words."""
        last: list[str] = []

        def met() -> bool:
            done = self.sh(cmd, check=False)
            last[:] = [done.stdout + done.stderr]
            return done.returncode == 0

        self._until(met, f"reach `{cmd}`", timeout_s=timeout_s, last=last)

    def _is_up(self) -> bool:
        if not self.container.running:
            return False
        state = self.sh("systemctl is-system-running; ss -Hltn sport = 22; ls /run/nologin 2>&1", check=False).stdout
        return state.startswith(("running", "degraded")) and ":22" in state and "cannot access" in state

    def _until(
        self, met: Callable[[], bool], what: str, *, timeout_s: float = READY_S, last: list[str] | None = None
    ) -> None:
        deadline = time.monotonic() + BUSY * timeout_s
        while True:
            try:
                if met():
                    return
            except HostError:
                pass
            if time.monotonic() > deadline:
                console = (self.slot.folder / "console.log").read_bytes()[-1500:].decode(errors="replace")
                said = "".join(last or [console])
                raise HostError(f"{self.name} did not {what} within {BUSY * timeout_s:.0f} s\n{said}")
            time.sleep(0.03)

    def _init(self) -> int:
        pid = self.container.init_pid
        if not pid:
            raise HostError(f"{self.name} is off")
        return pid

    def _inside(self, argv: list[str]) -> list[str]:
        init = self._init()
        try:
            groups = " ".join(_root_groups(init))
        except OSError as error:
            raise HostError(f"{self.name} is going down: {error}") from error
        script = f'for g in {groups}; do echo $$ > "$g"; done; exec "$@"'
        return ["/bin/sh", "-ec", script, "sh", "nsenter", "-t", str(init), "-a", "-r", "-w", "--", *argv]


def _root_groups(init: int) -> list[str]:
    found = []
    for line in Path(f"/proc/{init}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        top = path.removesuffix("/init.scope")
        if number == "0":
            found.append(f"{cgroup2()}{top}/cgroup.procs")
        elif controllers == "name=systemd":
            found.append(f"/sys/fs/cgroup/systemd{top}/cgroup.procs")
    return found
