"""OpenSSH's own server on loopback, in mount and process namespaces of its own: its users, their shells and what these
say at login are the test's. Needs root, and the packages openssh-server, tcsh, fish and busybox."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from daemon import host
from daemon.domain.host import HostSpec
from daemon.ssh import SshSettings

SHELLS = ("dash", "bash", "tcsh", "fish", "ash")  # the last is busybox's
USERS = (*SHELLS, "nologin")
GREETING = "welcome to gpu-07! 0, GPU-1, 4 MiB"

_CONFIG = """
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
# Namespaces keep this machine's /etc/passwd and /var/lib as they are, and end every session with the server.
_START = """
mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd &&
mount -t tmpfs none /var/lib && mkdir /var/lib/stoker && cp {folder}/helper /var/lib/stoker/stoker-host &&
chmod 755 /var/lib/stoker/stoker-host && exec /usr/sbin/sshd -D -e -p {port} -f {folder}/config
"""


class RealSshd:
    """The server, what it wrote, and the keys that belong to it."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.port = unused.getsockname()[1]
        self.new_key("client_key")
        self.new_key("host_key")
        lines = ["sshd:x:100:65534::/run/sshd:/usr/sbin/nologin", *map(self._user, USERS)]
        (folder / "passwd").write_text("".join(f"{line}\n" for line in lines))
        (folder / "helper").write_bytes(host.helper_text())
        (folder / "config").write_text(_CONFIG.format(folder=folder) + config)

    def new_key(self, name: str) -> None:
        for file in (self.folder / name, self.folder / f"{name}.pub"):
            file.unlink(missing_ok=True)
        command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def _user(self, name: str) -> str:
        """The line of a root by that name, whose shell it is, and whose shell talks when it starts."""
        home = self.folder / f"home.{name}"
        (home / ".config/fish").mkdir(parents=True)
        for file in (".bashrc", ".cshrc", ".config/fish/config.fish"):
            (home / file).write_text(f"echo '{GREETING}'\n")
        shell = Path("/usr/sbin/nologin") if name == "nologin" else Path("/bin") / name
        if name == "ash":
            shell = self.folder / "ash"
            shell.symlink_to("/bin/busybox")
        return f"{name}:x:0:0::{home}:{shell}"

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def logins(self) -> int:
        return self.said.count("Accepted publickey")

    @property
    def settings(self) -> SshSettings:
        return SshSettings(
            identity=self.folder / "client_key", connect_timeout_s=20, login_timeout_s=20, handshake_jitter_s=0.01
        )

    def spec(self, user: str = "bash", **changes: object) -> HostSpec:
        ssh = {"address": "127.0.0.1", "port": self.port, "user": user, "host_key": self.host_key, **changes}
        return HostSpec.model_validate({"ssh": ssh, "sudo": False})

    def start(self) -> None:
        text = _START.format(folder=self.folder, port=self.port)
        command = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", text)
        with (self.folder / "log").open("wb") as log:
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while "Server listening" not in self.said:
            assert self._server.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def freeze(self) -> None:
        """Stops the listening process alone: the kernel still takes connections for it."""
        assert self._server is not None
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGSTOP)

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


@contextlib.contextmanager
def real_sshd(folder: Path, config: str = "") -> Iterator[RealSshd]:
    server = RealSshd(folder, config)
    server.start()
    try:
        yield server
    finally:
        server.stop()
