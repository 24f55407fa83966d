"""One host's network: a namespace and a veth pair, outer end here, inner end `eth0` there. Made for a slot."""

from __future__ import annotations

import subprocess

from harness.slots import Slot


def connect(slot: Slot) -> None:
    """Makes the namespace and the pair. Raises CalledProcessError."""
    name, inner = slot.link, f"{slot.link}i"
    _ip("netns", "add", name)
    _ip("link", "add", name, "type", "veth", "peer", "name", inner)
    _ip("link", "set", inner, "netns", name)
    _ip("-n", name, "link", "set", inner, "name", "eth0")
    _ip("-n", name, "addr", "add", f"{slot.address}/30", "dev", "eth0")
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("addr", "add", f"{slot.outer_address}/30", "dev", name)
    _ip("link", "set", name, "up")
    mac = _ip("-n", name, "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0]
    _ip("neigh", "replace", slot.address, "lladdr", mac, "dev", name, "nud", "permanent")


def cut(slot: Slot) -> None:
    """From now on packets vanish silently in both directions: no reset, no unreachable."""
    _ip("-n", slot.link, "link", "set", "eth0", "down")


def restore(slot: Slot) -> None:
    _ip("-n", slot.link, "link", "set", "eth0", "up")


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
