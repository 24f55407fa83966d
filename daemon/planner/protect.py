"""Which processes are never signalled, whoever owns them: a built-in list, and what a host's `protect` names.

A look cannot tell everything: the helper refuses a kernel's thread, its own ancestors and an sshd once more.
"""

from __future__ import annotations

import posixpath

from daemon.domain.host import Protect
from daemon.domain.observation import Observation, Process, Unknown
from daemon.domain.text import INTERPRETERS
from daemon.planner.titles import commands

PROTECTED_COMMANDS = frozenset(
    [
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps-control",
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nvidia-imex",
        "nv-hostengine",
        "dcgm-exporter",
        "dcgmi",
        "nvidia-smi",
        "Xorg",
        "Xwayland",
        "gnome-shell",
        "kwin_wayland",
        "kwin_x11",
        "weston",
        "sway",
        "sshd",
        "sshd-session",
        "sshd-auth",
        "systemd",
        "systemd-journald",
        "systemd-logind",
        "dbus-daemon",
        "dbus-broker",
        "dbus-broker-launch",
        "containerd",
        "dockerd",
        "stoker",
        "stoker-host",
    ]
)
_COMM = 15  # comm holds no more (case B05)
_KERNEL_NAMES = frozenset(name[:_COMM] for name in PROTECTED_COMMANDS)
_MPS_SERVER = "nvidia-cuda-mps-server"
_KTHREADD = 2


def protected(process: Process, rules: tuple[Protect, ...]) -> bool:
    """Whether it is on the built-in list or one of these rules names it."""
    names = _names(process)
    if process.id.pid <= 1 or names & PROTECTED_COMMANDS or process.comm in _KERNEL_NAMES:
        return True
    return is_kernel_thread(process) or any(_names_it(rule, process, names) for rule in rules)


def _names_it(rule: Protect, process: Process, names: frozenset[str]) -> bool:
    if rule.command is not None:
        name = posixpath.basename(rule.command)
        return name in names or name[:_COMM] == process.comm
    if rule.user is not None:  # whose name could not be looked up may be the one that is meant
        return process.user in (rule.user, "") and not (rule.user == "root" and process.uid != 0)
    if rule.unit is not None:
        return rule.unit in process.cgroup.split("/")
    group = (rule.cgroup or "").rstrip("/")
    return process.cgroup == group or process.cgroup.startswith(group + "/")


def is_kernel_thread(process: Process) -> bool:
    """kthreadd or a child of it, without arguments. Inside a container pid 2 is an ordinary process, with arguments."""
    return not process.argv and _KTHREADD in (process.id.pid, process.ppid)


def is_mps_server(process: Process) -> bool:
    """The server of CUDA MPS: never a stray, and its own small share of a card is in nobody's way (case B15)."""
    name = posixpath.basename(_command(process))
    return name == _MPS_SERVER or (not process.argv and name == _MPS_SERVER[:15])


def mps_runs(look: Observation) -> bool:
    """Whether an MPS server is among the candidates, whether or not the driver names it on a card."""
    here = () if isinstance(look.processes, Unknown) else look.processes
    return any(process.state != "Z" and is_mps_server(process) for process in here)


def _command(process: Process) -> str:
    return process.argv[0].split(" ")[0].removesuffix(":") if process.argv else process.comm


def _names(process: Process) -> frozenset[str]:
    """The command's name, and that of the script or module where an interpreter runs one."""
    names = {posixpath.basename(_command(process)), *(words[0] for words in commands(process.argv))}
    if len(process.argv) > 1 and INTERPRETERS.fullmatch(posixpath.basename(_command(process))):
        names.add(posixpath.basename(process.argv[1]))
    return frozenset(names)
