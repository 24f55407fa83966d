"""Commands of a simulated host that are not the helper: what installs it, and what `stoker doctor` asks.

They are known by their form (the script's name, what it prints), never run: there is no shell here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from daemon.sim.disk import HOLD
from daemon.sim.frame import Answer
from daemon.sim.machine import Machine

DAMAGED = 65


def answer(machine: Machine, argv: Sequence[str], stdin: bytes) -> Answer:
    """A command that was sent as `/bin/sh -c SCRIPT NAME ARGS…`, or another that this host does not have."""
    if tuple(argv[:2]) == ("/bin/sh", "-c") and len(argv) > 2:
        name, rest = (argv[3], argv[4:]) if len(argv) > 3 else ("", ())
        if name == "look":
            return _look(machine, rest)
        if name == "put" and len(rest) == 2:
            return _put(machine, rest[0], rest[1], stdin)
        if "stoker.%s=%s" in argv[2]:
            return _examine(machine)
        return Answer(0, b"", b"")
    return Answer(127, b"", f"sh: 1: exec: {argv[0] if argv else ''}: not found\n".encode())


def _look(machine: Machine, paths: Sequence[str]) -> Answer:
    """A line per path: hash, mode and owner, or a dash."""
    lines = []
    for path in paths:
        digest = machine.disk.digest(path)
        lines.append("-" if digest == "-" else f"{digest} 755 0")
    return Answer(0, "".join(f"{line}\n" for line in lines).encode(), b"")


def _put(machine: Machine, path: str, digest: str, content: bytes) -> Answer:
    if hashlib.sha256(content).hexdigest() != digest:
        return Answer(DAMAGED, b"", f"{path} arrived damaged\n".encode())
    machine.disk.write(path, content)
    return Answer(0, b"", b"")


def _examine(machine: Machine) -> Answer:
    failed = machine.cards.failure
    says = failed[1] if failed else "".join(
        f"GPU {i}: {machine.cards.product} (UUID: {card.uuid})" for i, card in enumerate(machine.cards.present)
    )  # fmt: skip
    hold = machine.disk.files.get(HOLD)
    facts = {
        "uid": "0",
        "pid1": "systemd",
        "systemd": str(machine.systemd),
        "proc": "yes",
        "missing": "",
        "grepz": "1",
        "smi": "/usr/bin/nvidia-smi",
        "smi_exit": "124" if machine.cards.hung else str(failed[0]) if failed else "0",
        "smi_says": "" if machine.cards.hung else says[:300],
        "options": "rw,relatime",
        "journal": "0",
        "client": "/usr/bin/python3",
        **({} if hold is None else {"hold": f"held: {hold[:200].decode('utf-8', 'replace').strip()}"}),
        "now": f"{machine.wall().timestamp():.0f}",
        "synced": "yes",
        "end": "yes",
    }
    return Answer(0, "".join(f"stoker.{key}={value}\n" for key, value in facts.items()).encode(), b"")
