"""What the ends of engines leave on a test host, each made as in life. Tests check who touches it, and who does not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from harness.bystanders import Bystander, detached, listener, pid_file, process, program, started
from harness.engines import vllm_argv, wait_healthy
from harness.host import HostError, TestHost

LAUNCHER = "/opt/venv/bin/python -m sglang.launch_server --model-path /models/theirs"
# A shell that takes over the children of what dies below it, as a container's first process or a terminal's may.
ADOPTING_SHELL = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
os.execv("/bin/bash", ["bash", "-c", sys.argv[1]])
"""


def over_ssh(
    host: TestHost, *, gpu: int | None = None, port: int | None = None, title: str | None = LAUNCHER,
    user: str = "root", address: str | None = None, env: Mapping[str, str] | None = None, more: tuple[str, ...] = (),
) -> Bystander:  # fmt: skip
    """A process that somebody started over ssh; the session is closed. Its port takes connections and never answers.

    With a title its environment is wiped, unless `env` has SPT_NOENV.
    """
    path = pid_file()
    words = [f"{name}={value}" for name, value in (env or {}).items()]
    command = program(path, gpu, title=title, port=port, address=address, more=more)
    host.ssh(detached(f"env {shlex.join(words)} {command}" if words else command), user=user)
    return started(host, path)


def in_no_unit(host: TestHost, *, title: str) -> Bystander:
    """A process with that title that holds nothing, a child of process 1, in no unit and no session."""
    path = pid_file()
    host.sh(detached(program(path, None, title=title)))
    return started(host, path)


def core_of_a_killed_server(host: TestHost, *, gpu: int, port: int) -> Bystander:
    """The engine core of a vLLM started over ssh whose API server got SIGKILL: it keeps its memory, not the port."""
    host.ssh(detached(_vllm(gpu, port)))
    return _kill_launcher(host, gpu, port)


def core_under_a_shell(host: TestHost, *, gpu: int, port: int) -> tuple[Bystander, Bystander]:
    """The same under a shell that lives on in no session: (core, shell)."""
    path = pid_file()
    script = f"echo $$ >{path}; {_vllm(gpu, port)} & while :; do wait; sleep 1; done"
    host.sh(detached(f"python3 -c {shlex.quote(ADOPTING_SHELL)} {shlex.quote(script)}"))
    return _kill_launcher(host, gpu, port), started(host, path)


def in_a_pid_namespace(host: TestHost, *, gpu: int, env: Mapping[str, str]) -> Bystander:
    """A process that is number 1 in a pid namespace of its own, in no container's cgroup."""
    path = pid_file()
    words = shlex.join([f"{name}={value}" for name, value in env.items()])
    host.sh(detached(f"env {words} unshare --pid --fork {program(path, gpu, title='VLLM::EngineCore')}"))
    found = started(host, path)
    if len(host.sh(f"grep ^NSpid: /proc/{found.pid}/status").stdout.split()) != 3:
        raise HostError(f"process {found.pid} is in no pid namespace of its own")
    return found


def engine_in_docker(host: TestHost, *, gpu: int) -> Bystander:
    """An engine in a container's scope and in a pid namespace of its own, which it shares with nobody outside."""
    path = pid_file()
    run = f"systemd-run --quiet --scope --unit=docker-{gpu:064x}.scope unshare --pid --fork"
    host.sh(detached(f"{run} {program(path, gpu, title='VLLM::EngineCore')}"))
    return started(host, path)


def _vllm(gpu: int, port: int) -> str:
    return shlex.join(["env", f"CUDA_VISIBLE_DEVICES={gpu}", *vllm_argv(port, model="/models/theirs")])


def _kill_launcher(host: TestHost, gpu: int, port: int) -> Bystander:
    wait_healthy(host, port)
    launcher = process(host, listener(host, port))
    core = process(host, next(holder.pid for holder in host.gpu_holders() if holder.gpu == gpu))
    host.sh(f"kill -KILL {launcher.pid}")
    host.wait_until(f"! test -e /proc/{launcher.pid}")
    return core
