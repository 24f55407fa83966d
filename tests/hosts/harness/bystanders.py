"""Processes on a test host that belong to somebody else, each started as in life. Tests check that they live on.

None of them is the daemon's business: those with GPU memory or an engine's title only look as if.
"""

from __future__ import annotations

import itertools
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from harness.host import HostError, TestHost

PROGRAM = "/usr/local/lib/standin/hold"
PYTHON = "/opt/venv/bin/python"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Bystander:
    """One process by the host's pid and start ticks; `session` is the ssh client that keeps its session open."""

    host: TestHost
    pid: int
    start_ticks: int
    session: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether that very process lives (a zombie does not)."""
        done = self.host.sh(f"cat /proc/{self.pid}/stat", check=False).stdout.rpartition(")")[2].split()
        return bool(done) and int(done[19]) == self.start_ticks and done[0] not in "ZX"

    def type(self, text: str) -> None:
        """Types into the session's terminal."""
        if self.session is None or self.session.stdin is None:
            raise HostError(f"process {self.pid} has no session of ours")
        self.session.stdin.write(text.encode())
        self.session.stdin.flush()

    def hang_up(self) -> None:
        """Ends the ssh client, as when a laptop closes; what the session started may live on."""
        if self.session is not None:
            self.session.kill()
            self.session.wait(10)


def process(host: TestHost, pid: int, session: subprocess.Popen[bytes] | None = None) -> Bystander:
    """Any living process of the host, to be watched. Raises HostError when there is none."""
    stat = host.sh(f"cat /proc/{pid}/stat").stdout.rpartition(")")[2].split()
    return Bystander(host, pid, int(stat[19]), session)


def unrelated(host: TestHost, *, gpu: int | None = None, mib: int = 4096, port: int | None = None) -> Bystander:
    """Somebody's python3 in a service of its own, with or without GPU memory."""
    path = pid_file()
    unit = f"bystander-{next(_numbers)}"
    host.sh(f"systemd-run --quiet --unit={unit} {program(path, gpu, mib, port=port)}")
    return started(host, path)


def other_user(host: TestHost, *, gpu: int, mib: int = 20480, title: str = "sglang::scheduler_TP0") -> Bystander:
    """A process of alice that looks like an engine's, started by hand in a session that has ended."""
    path = pid_file()
    host.ssh(detached(program(path, gpu, mib, title=title)), user="alice")
    return started(host, path)


def in_docker(host: TestHost, *, gpu: int, mib: int = 20480, title: str = "VLLM::EngineCore") -> Bystander:
    """An engine-titled process in a container's scope, as docker with systemd's cgroups makes them."""
    path = pid_file()
    scope = f"docker-{next(_numbers):064x}.scope"
    run = f"systemd-run --quiet --scope --unit={scope} {program(path, gpu, mib, title=title)}"
    host.sh(f"setsid {run} >/dev/null 2>&1 </dev/null &")
    return started(host, path)


def by_hand(
    host: TestHost, *, port: int, gpus: tuple[int, ...] = (0,), user: str = "root",
    env: Mapping[str, str] | None = None, stay: bool = False, model: str = "/models/theirs",
) -> Bystander:  # fmt: skip
    """A SGLang that somebody started over ssh with nohup and setsid, and that generates.

    Its session has ended, or (stay) is still open.
    """
    words = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), **(env or {})}
    argv = [
        "env", *(f"{name}={value}" for name, value in words.items()), PYTHON, "-m", "sglang.launch_server",
        "--model-path", model, "--host", "0.0.0.0", "--port", str(port), "--tp-size", str(len(gpus)),
    ]  # fmt: skip
    command = f"setsid nohup {shlex.join(argv)} >/dev/null 2>&1 </dev/null &"
    session = None
    if stay:
        shell = login_shell(host, user=user)
        shell.type(command + "\n")
        session = shell.session
    else:
        host.ssh(command, user=user)
    host.wait_until(f"curl -sf http://127.0.0.1:{port}/health")
    return process(host, listener(host, port), session)


def login_shell(host: TestHost, *, user: str = "root", env: Mapping[str, str] | None = None) -> Bystander:
    """A person's shell: a real ssh session with a terminal, with these variables in its environment."""
    path = pid_file()
    words = [f"{name}={value}" for name, value in (env or {}).items()]
    command = f"echo $$ >{path}; exec env {shlex.join(words)} bash --login -i"
    session = subprocess.Popen(
        host.ssh_argv(command, user=user, pty=True),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    host.on_clean(session.kill)
    return started(host, path, session)


def listener(host: TestHost, port: int) -> int:
    """The pid that listens on a TCP port there. Raises HostError when none does."""
    text = host.sh(f"ss -Hltnp 'sport = :{port}'").stdout
    if "pid=" not in text:
        raise HostError(f"{host.name}: nobody listens on {port}")
    return int(text.split("pid=")[1].split(",")[0])


def detached(command: str) -> str:
    """That command as people leave it behind when they log out."""
    return f"setsid nohup {command} >/dev/null 2>&1 </dev/null &"


def program(
    path: str, gpu: int | None, mib: int = 20480, *, title: str | None = None, port: int | None = None,
    address: str | None = None, more: tuple[str, ...] = (),
) -> str:  # fmt: skip
    """The command line of the program that holds what it is told to; writes its pid to `path` once it does."""
    argv = ["/usr/bin/python3", PROGRAM, "--pid-file", path, *more]
    argv += ["--gpu", f"{gpu}:{mib}"] if gpu is not None else []
    argv += ["--port", str(port)] if port is not None else []
    argv += ["--address", address] if address is not None else []
    argv += ["--title", title] if title is not None else []
    return shlex.join(argv)


def pid_file() -> str:
    """A name that no other process of this run has."""
    return f"/tmp/bystander-{next(_numbers)}.pid"


def started(host: TestHost, path: str, session: subprocess.Popen[bytes] | None = None) -> Bystander:
    """The process whose pid comes to stand first in that file."""
    host.wait_until(f"test -s {path}")
    return process(host, int(host.read(path).split()[0]), session)
