"""A replay for a person: whose each process is and what would be done, what the daemon says, and its plan.

Called by `stoker replay -o text` with what is otherwise printed as JSON. Of the observation it tells what is unknown.
"""

from __future__ import annotations

from typing import Any

from api.cli.text import hanging, heading, line, span, table


def print_text(said: dict[str, Any]) -> None:
    """All sections, those without a line left out."""
    looks = "seen once" if said["looks"] == 1 else "seen twice, 1 s apart"
    line(f"host {said['host']}, {looks}" + (f", store {said['store']}" if said["store"] else ""), style="bold")
    for note in said["notes"]:
        hanging(f"note: {note}", indent=0)
    _unknown(said["observation"])
    _processes(said["ownership"])
    for one in said["unseen"]:
        hanging(f"the driver names pid {one['pid']} on {one['uuid']}, which is nobody here", indent=2)
    heading("conditions")
    rows = [(one["of"], one["type"], one["status"], one["reason"], one["message"]) for one in said["conditions"]]
    table(("OF", "CONDITION", "", "REASON", "MESSAGE"), rows)
    if said["drift"]:
        heading("drift")
        drift = [
            (one["unit"] or "-", one["layer"], one["field"], one["declared"], one["observed"]) for one in said["drift"]
        ]
        table(("UNIT", "LAYER", "FIELD", "DECLARED", "OBSERVED"), drift)
    heading("plan" + (f", not carried out: {said['withheld']}" if said["withheld"] else ""))
    for one in said["plan"]:
        what = f"{one['unit']} ({one['reason']}): {one['why']}" if one["unit"] else " ".join(map(str, one["pids"]))
        hanging(f"{one['action']} {what}", indent=2)
    for one in said["blocked"]:
        hanging(f"{one['unit']} waits ({one['reason']}): {one['detail']}", indent=2)
    for one in said["questions"]:
        hanging(f"asks whether pid {one['pid']} serves on port {', '.join(map(str, one['ports']))}", indent=2)
    if not (said["plan"] or said["blocked"] or said["questions"]):
        line("  nothing to do")


def _unknown(observation: dict[str, Any]) -> None:
    """What could not be read, or was not recorded."""
    if "unknown" in observation:
        hanging(f"not known: {observation['unknown']}: {observation['detail']}", indent=0)
        return
    parts = {name: its for name, its in observation.items() if isinstance(its, dict) and "unknown" in its}
    absent = [name for name, its in parts.items() if its["unknown"] == "NotRecorded"]
    if absent:
        hanging(f"not recorded: {', '.join(absent)}", indent=0)
    for name, its in parts.items():
        if name not in absent:
            hanging(f"not known: {name}: {its['unknown']}: {its['detail']}", indent=0)


def _processes(owners: Any) -> None:
    if not isinstance(owners, list):
        return
    heading("processes")
    rows = [
        (
            one["pid"],
            one["class"],
            " ".join(its.removeprefix("signal-").upper() for its in one["does"]) or one["reason"],
            one["user"],
            span(one["ageS"]),
            one["state"],
            "".join(f"{its}; " for its in _held(one)) + f"{one['command'][:200]}: {one['proof']}",
        )
        for one in owners
    ]
    table(("PID", "CLASS", "DONE", "USER", "AGE", "", "WHAT IT HOLDS, COMMAND, PROOF"), rows)


def _held(one: dict[str, Any]) -> list[str]:
    cards = [
        f"GPU {its['uuid'] if its['index'] < 0 else its['index']}"
        + (f" {its['memoryMib']} MiB" if its["memoryMib"] else "")
        for its in one["gpus"]
    ]
    return cards + [f"port {port}" for port in one["ports"]]
