"""A simulated unit as systemd shows it on the bus: its object path, and the properties a watcher reads.

Called by `bus`. Pure. Types and names are those of systemd 252, org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dbus_fast import Variant

UNITS_PATH = "/org/freedesktop/systemd1/unit/"
UNIT, SERVICE = "org.freedesktop.systemd1.Unit", "org.freedesktop.systemd1.Service"
INTERFACES = (UNIT, SERVICE)


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What systemd would know of one unit; `load_state` is not-found where there is none of that name."""

    name: str
    load_state: str = "not-found"
    active_state: str = "inactive"
    sub_state: str = "dead"
    file_state: str = ""
    path: str = ""
    invocation_id: str = ""
    inactive_exit_us: int = 0
    result: str = "success"
    main_pid: int = 0
    restarts: int = 0
    exit_status: int = 0
    needs_reload: bool = False


def unit_path(unit: str) -> str:
    """The object path: letters and digits stay, but a digit at the front does not; all else is `_` and two hex digits.

    As sd_bus_path_encode(3).
    """
    plain = re.compile(rb"[A-Za-z0-9]")
    kept = [
        chr(byte) if plain.match(bytes((byte,))) and not (at == 0 and chr(byte).isdigit()) else f"_{byte:02x}"
        for at, byte in enumerate(unit.encode())
    ]
    return UNITS_PATH + ("".join(kept) or "_")


def unit_of_path(path: str) -> str | None:
    """The unit's name, None for a path that is none of a unit."""
    if not path.startswith(UNITS_PATH) or not re.fullmatch(r"(?:[A-Za-z0-9]|_[0-9a-f]{2})+", path[len(UNITS_PATH) :]):
        return None
    raw = re.sub(r"_([0-9a-f]{2})", lambda hit: chr(int(hit[1], 16)), path[len(UNITS_PATH) :])
    return raw.encode("latin-1").decode("utf-8", "replace")


def properties(unit: UnitFacts, interface: str) -> dict[str, Variant]:
    """The properties of one of its two interfaces."""
    if interface == SERVICE:
        return {
            "MainPID": Variant("u", unit.main_pid),
            "NRestarts": Variant("u", unit.restarts),
            "Result": Variant("s", unit.result),
            "ExecMainStatus": Variant("i", unit.exit_status),
        }
    return {
        "Id": Variant("s", unit.name),
        "LoadState": Variant("s", unit.load_state),
        "ActiveState": Variant("s", unit.active_state),
        "SubState": Variant("s", unit.sub_state),
        "UnitFileState": Variant("s", unit.file_state),
        "FragmentPath": Variant("s", unit.path),
        "InvocationID": Variant("ay", bytes.fromhex(unit.invocation_id)),
        "InactiveExitTimestampMonotonic": Variant("t", unit.inactive_exit_us),
        "NeedDaemonReload": Variant("b", unit.needs_reload),
    }
