"""What `systemctl show` and `busctl` print of a unit, property by property in systemd 252's order."""

from __future__ import annotations

import json

from daemon.sim.unit import SimUnit
from daemon.sim.units import Units
from daemon.sim.words import span


def properties(units: Units, unit: SimUnit) -> dict[str, str]:
    """Every property that the helper ever asks for."""
    definition = unit.definition
    return {
        "TimeoutStopUSec": span(definition.stop_timeout_s),
        "MainPID": str(unit.main.pid if unit.main is not None else 0),
        "ControlPID": str(unit.control.pid if unit.control is not None else 0),
        "Result": unit.result,
        "NRestarts": str(unit.restarts),
        "ExecMainStartTimestampMonotonic": str(unit.exec_start_us),
        "ExecMainCode": str(unit.exec_code),
        "ExecMainStatus": str(unit.exec_status),
        "ControlGroup": control_group(units, unit),
        "Id": unit.name,
        "Names": unit.name,
        "LoadState": unit.load_state,
        "ActiveState": unit.active,
        "SubState": unit.sub,
        "FragmentPath": definition.fragment,
        "DropInPaths": " ".join(definition.dropins),
        "UnitFileState": units.file_state(unit),
        "StateChangeTimestampMonotonic": str(unit.state_change_us),
        "InactiveExitTimestampMonotonic": str(unit.inactive_exit_us),
        "ActiveEnterTimestampMonotonic": str(unit.active_enter_us),
        "InactiveEnterTimestampMonotonic": str(unit.inactive_enter_us),
        "Job": str(unit.job[1]) if unit.job is not None else "",
        "NeedDaemonReload": "yes" if units.needs_reload(unit) else "no",
        "InvocationID": unit.invocation,
    }


def control_group(units: Units, unit: SimUnit) -> str:
    """The cgroup, while there is one: it goes with its last process."""
    lives = unit.main is not None or unit.control is not None
    return unit.group if lives or units.machine.processes.in_group(unit.group) else ""


def block(found: dict[str, str], names: tuple[str, ...]) -> str:
    """Those properties, a line each, in systemd's own order whatever was asked first."""
    return "".join(f"{name}={value}\n" for name, value in found.items() if name in names)


def loaded(unit: SimUnit) -> str:
    """ExecStart, Environment, User and WorkingDirectory as `busctl --json=short get-property` prints them."""
    commands = []
    for command in unit.definition.commands:
        ran = [unit.exec_start_wall_us, unit.exec_start_us, unit.exec_exit_wall_us, unit.exec_exit_us, unit.exec_pid,
               unit.exec_code, unit.exec_status]  # fmt: skip
        told = ran if unit.exec_told else [0] * len(ran)
        commands.append([command.path, list(command.argv), command.forgiving, *told])
    definition = unit.definition
    folder = definition.working_directory
    values = (("a(sasbttttuii)", commands), ("as", list(definition.environment)), ("s", definition.user), ("s", folder))
    return "".join(
        json.dumps({"type": kind, "data": value}, separators=(",", ":"), ensure_ascii=False) + "\n"
        for kind, value in values
    )
