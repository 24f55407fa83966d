"""`stoker describe`: one host or spec in full. Reads what the daemon said; concludes nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from api.cli.connect import SHORT
from api.cli.holders import gpu_table, not_known, stray_table
from api.cli.text import age, block, fields, hanging, heading, instant, labels_text, line, table
from api.client import Client, Refused

_WHY_CHARS = 300


def describe_host(client: Client, name: str, number: int) -> None:
    """A host: road, conditions, GPUs and who holds them, the plan, strays, what is placed on it, drift, events."""
    item, live = client.get("hosts", name), client.strays(name, managed=True)
    spec, status = item["spec"], item["status"]
    specs = client.objects("servingspecs")
    _head(item, _road(spec), ("Mode", spec.get("mode")), ("Machine", status.get("identity", {}).get("machineId")))
    said = _conditions(status)
    _gpus(status.get("gpus"), status.get("unread", {}), live)
    _plan(status, None, said=said)
    _strays(live, status.get("strays"))
    instances = [
        (its["metadata"]["name"], inst) for its in specs for inst in _instances(its) if inst.get("host") == name
    ]
    if instances:
        heading("Instances")
        without = _INSTANCE.index("HOST")
        rows = [(owner, *_instance(its)) for owner, its in instances]
        table(
            ("SPEC", *_INSTANCE[:without], *_INSTANCE[without + 1 :]),
            [(*row[: without + 1], *row[without + 2 :]) for row in rows],
        )
    _drift([{"unit": name, "drift": status.get("drift", [])}, *(its for _, its in instances)])
    if status.get("unclaimed"):
        heading("Unclaimed units (left alone; apply their manifest to take them back)")
        for unit in status["unclaimed"]:
            line(f"  {unit}")
    _events(client, "Host", name, number)


def describe_spec(client: Client, name: str, number: int) -> None:
    """A spec: what it runs where, conditions, instances, drift, the plan of its units, events."""
    item = client.get("servingspecs", name)
    spec, status = item["spec"], item["status"]
    model = spec.get("model", {})
    states = (
        ("Run", "no: stopped" if not spec.get("run", True) else None),
        ("Suspended", "yes" if spec.get("suspend") else None),
    )
    _head(
        item,
        ("Engine", spec["engine"]["name"]),
        ("Model", model.get("path")),
        ("Served as", model.get("servedName")),
        *states,
    )
    heading("Placement")
    rows = [(role, host, gpus, port) for role, host, gpus, port in placements(spec)]
    table(("ROLE", "HOST", "GPUS", "PORT"), rows)
    said = _conditions(status)
    instances = list(_instances(item))
    if instances:
        heading("Instances")
        table(_INSTANCE, [_instance(its) for its in instances])
        for its in instances:
            if its.get("message") not in said:
                hanging(f"{its.get('unit')}: {its['message']}", indent=2)
    _drift(instances)
    units = {str(its.get("unit")) for its in instances} | set(_units(name, spec))
    for host in dict.fromkeys(host for _, host, _, _ in placements(spec)):
        try:
            _plan(client.get("hosts", host)["status"], units, host, said=said)
        except Refused as error:
            line(f"{host}: {error}")
    _events(client, "ServingSpec", name, number)


def placements(spec: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    """(role, host, GPUs, port) of each role as declared."""
    found = []
    for role, over in (spec.get("roles") or {"server": {}}).items():
        placement = over.get("placement") or spec.get("placement") or {}
        gpus = ",".join(map(str, placement.get("gpus", [])))
        found.append((role, placement.get("host", "?"), gpus or "none", over.get("port") or spec.get("port")))
    return found


def observed(status: dict[str, Any]) -> bool:
    """Whether the last look at a host came back: else an empty plan means nothing."""
    return any(its["type"] == "Observed" and its["status"] == "True" for its in status.get("conditions", []))


def event_rows(items: Iterable[dict[str, Any]], *, named: bool) -> Iterator[tuple[object, ...]]:
    """Rows of an event table: age, severity, perhaps the object, reason, message."""
    for item in items:
        count = item.get("count", 1)
        message = item["message"] + (f" (x{count})" if count > 1 else "")
        who = (f"{SHORT.get(item['kind'], item['kind'])}/{item['name']}",) if named else ()
        yield (age(item["lastTimestamp"]), item["severity"], *who, item["reason"], message)


def _head(item: dict[str, Any], *more: tuple[str, object]) -> None:
    metadata, status = item["metadata"], item["status"]
    seen = status.get("observedGeneration", 0)
    fields(
        [
            ("Name", metadata["name"]),
            ("Kind", item["kind"]),
            ("Labels", labels_text(metadata["labels"])),
            *more,
            ("Generation", f"{metadata['generation']} (observed {seen})"),
            ("Created", instant(metadata.get("creationTimestamp"))),
            ("Deleting", instant(metadata.get("deletionTimestamp"))),
            ("UID", metadata.get("uid")),
        ]
    )


def _road(spec: dict[str, Any]) -> tuple[str, str]:
    ssh = spec.get("ssh")
    if ssh is None:
        return ("Road", "local")
    road = f"{ssh['user']}@{ssh['address']} port {ssh['port']}"
    if ssh.get("jump"):
        road += f", through {ssh['jump']}"
    if container := spec.get("via", {}).get("proxmoxContainer"):
        road += f", into container {container}"
    return ("Road", road)


_FIRST = ("Reachable", "Observed", "Ready", "Acting", "GPUsReady", "Degraded", "Stalled", "Progressing")


def _conditions(status: dict[str, Any]) -> set[Any]:
    """What decides comes first; a message that was already said is not said again. The messages said."""
    heading("Conditions")
    said: dict[str, str] = {}
    rows = []
    order = {type_: at for at, type_ in enumerate(_FIRST)}
    for its in sorted(status.get("conditions", []), key=lambda its: (order.get(its["type"], 99), its["type"])):
        message = its.get("message")
        first = said.setdefault(message, its["type"]) if message else ""
        shown = message if first in ("", its["type"]) else f"as {first}"
        rows.append((its["type"], its["status"], its["reason"], age(its.get("lastTransitionTime")), shown))
    if rows:
        table(("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)
    else:
        line("  none yet: not observed")
    return {None, "", *said}


def _gpus(gpus: Any, unread: dict[str, str], live: dict[str, Any]) -> None:
    if isinstance(gpus, dict):
        heading("GPUs")
        line(f"  unknown: {gpus.get('unknown')} {gpus.get('detail', '')}")
    elif gpus:
        heading("GPUs")
        gpu_table(gpus, live)
        for its in gpus:
            for ailment in its.get("ailments", []):
                hanging(f"GPU {its.get('index')}: {ailment}", indent=2)
    for part, why in unread.items():
        hanging(f"nothing is known of {_PARTS.get(part, part)}: {why}", indent=2)


_PARTS = {"health": "the driver's counters", "kernelLog": "the kernel log", "space": "free space"}


def _plan(status: dict[str, Any], units: set[str] | None, host: str = "", *, said: set[Any]) -> None:
    """The plan: of a host, or only what concerns some units of it. What was `said` already is not said again."""
    if "plan" not in status:
        return
    plan = [its for its in status["plan"] if units is None or units & set(str(its.get("target")).split(", "))]
    blocked = {unit: its for unit, its in status.get("blocked", {}).items() if units is None or unit in units}
    heading(f"Plan on {host}" if host else "Plan")
    if status.get("withheld"):
        line(f"  not carried out: {status['withheld']}")
    if not plan and not blocked:
        line("  nothing to do" if observed(status) else "  unknown: the host was not observed")
    if plan:
        rows = [
            (at + 1, its.get("action"), its.get("target"), its.get("reason"), _cut(its.get("why")))
            for at, its in enumerate(plan)
        ]
        table(("#", "ACTION", "ON", "REASON", "WHY"), rows)
    for unit, its in blocked.items():
        detail = "as said above" if its.get("detail") in said else its.get("detail")
        said.add(its.get("detail"))
        hanging(f"{unit} waits: {its.get('reason')}: {detail}", indent=2)


def _cut(why: Any) -> str:
    """The beginning of what may name every process of a host: they are listed below."""
    text = str(why or "")
    return text if len(text) <= _WHY_CHARS else text[:_WHY_CHARS] + " …"


def _strays(live: dict[str, Any], stored: list[dict[str, Any]] | None) -> None:
    """As last seen; what was last written of them while nothing is known."""
    strays = [its for its in live["items"] or () if its["owner"] != "managed"]
    unclear = list(not_known(live)) if live["gpus"] is not None else []
    if strays or unclear:
        heading("Strays")
    elif live["items"] is None and stored:
        heading("Strays (as last written)")
        rows = [(its.get("pid"), its.get("owner"), its.get("verdict"), its.get("what")) for its in stored]
        table(("PID", "OWNER", "VERDICT", "WHAT"), rows)
    for text in unclear:
        hanging(text, indent=2)
    stray_table([{**live, "items": strays}], named=False)


_INSTANCE = ("UNIT", "HOST", "READY", "REASON", "STATE", "PID")


def _instances(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from item["status"].get("instances", [])


def _instance(its: dict[str, Any]) -> tuple[object, ...]:
    return (
        its.get("unit"),
        its.get("host"),
        its.get("ready"),
        its.get("reason"),
        its.get("active"),
        its.get("main_pid") or None,
    )


def _drift(instances: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            its.get("unit"),
            d.get("layer"),
            d.get("field"),
            "yes" if d.get("launch") else "-",
            f"declared {d.get('declared')}, observed {d.get('observed')}",
        )
        for its in instances
        for d in its.get("drift", [])
    ]
    if rows:
        heading("Drift")
        table(("UNIT", "LAYER", "FIELD", "LAUNCH", "DIFFERENCE"), rows)
    for its in instances:
        if its.get("contested"):
            hanging(f"{its.get('unit')} is left alone: {its['contested']}", indent=2)
        if its.get("effective"):
            hanging(f"{its.get('unit')} does not tell what is in effect: {its['effective']}", indent=2)


def _units(name: str, spec: dict[str, Any]) -> Iterator[str]:
    for role, over in (spec.get("roles") or {"server": {}}).items():
        yield over.get("unit") or spec.get("unit") or f"stoker-{name}.{role}.service"


def _events(client: Client, kind: str, name: str, number: int) -> None:
    heading("Events")
    found = client.events(kind, name, number)
    if not found:
        line("  none")
    for item in reversed(found):
        count = f" (x{item['count']})" if item.get("count", 1) > 1 else ""
        ago = f"{age(item['lastTimestamp'])} ago"
        hanging(f"{ago:<10}  {item['severity']:<7}  {item['reason']}  {item['message']}{count}", indent=2)
        block(item.get("evidence", ""), indent=8)
