"""Listening TCP sockets: lines `PORT HEXADDRESS PID,PID…` or `PORT HEXADDRESS -`. Called by `report` and `probe`."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from daemon.domain.observation import Listener
from daemon.probes.process import Malformed, whole_lines, whole_number


@lru_cache(maxsize=256)
def address(hexadecimal: str) -> str:
    """An address as /proc/net/tcp writes it: words of 32 bits, each in the order of a little-endian machine."""
    if len(hexadecimal) not in (8, 32):
        raise Malformed(f"not an address: {hexadecimal[:40]!r}")
    try:
        raw = bytes.fromhex(hexadecimal)
    except ValueError:
        raise Malformed(f"not an address: {hexadecimal[:40]!r}") from None
    ordered = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(ipaddress.ip_address(ordered))


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Every line; an owner that could not be seen leaves `pids` empty. Raises Malformed."""
    listeners = []
    for line in whole_lines(text):
        parts = line.split(" ")
        if len(parts) != 3:
            raise Malformed(f"not a socket: {line[:80]!r}")
        pids = () if parts[2] == "-" else tuple(sorted({whole_number(pid) for pid in parts[2].split(",")}))
        listeners.append(Listener(address(parts[1]), whole_number(parts[0]), pids))
    return tuple(listeners)
