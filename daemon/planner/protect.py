"""Which processes are never signalled, whoever owns them: a built-in list, and what a host's `protect` names."""

from __future__ import annotations

import posixpath

from daemon.domain.host import Protect
from daemon.domain.observation import Observation, Process, Unknown

PROTECTED_COMMANDS = frozenset(
    [
        "nvidia-cuda-mps-server",
        "nvidia-cuda-mps-control",
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nv-hostengine",
        "dcgm-exporter",
        "dcgmi",
        "nvidia-smi",
        "Xorg",
        "Xwayland",
        "gnome-shell",
        "kwin_wayland",
        "sshd",
        "systemd",
        "systemd-journald",
        "dbus-daemon",
        "stoker-host",
    ]
)
_KERNEL_NAMES = frozenset(name[:15] for name in PROTECTED_COMMANDS)  # comm holds no more (case B05)
_MPS_SERVER = "nvidia-cuda-mps-server"


def protected(process: Process, rules: tuple[Protect, ...]) -> bool:
    """Whether it is on the built-in list or one of these rules names it."""
    command = posixpath.basename(_command(process))
    if command in PROTECTED_COMMANDS or process.comm in _KERNEL_NAMES:
        return True
    for rule in rules:
        if rule.command is not None and rule.command == command:
            return True
        if rule.user is not None and rule.user == process.user:
            return True
        if rule.unit is not None and rule.unit in process.cgroup.split("/"):
            return True
    return False


def is_mps_server(process: Process) -> bool:
    """The server of CUDA MPS: never a stray, and its own small share of a card is in nobody's way (case B15)."""
    name = posixpath.basename(_command(process))
    return name == _MPS_SERVER or (not process.argv and name == _MPS_SERVER[:15])


def mps_runs(look: Observation) -> bool:
    """Whether an MPS server is among the candidates, whether or not the driver names it on a card."""
    here = () if isinstance(look.processes, Unknown) else look.processes
    return any(process.state != "Z" and is_mps_server(process) for process in here)


def _command(process: Process) -> str:
    return process.argv[0].split(" ")[0] if process.argv else process.comm
