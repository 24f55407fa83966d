"""The commands that only look: get, describe, events, doctor, history."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.connect import API_KINDS, SHORT, HostName, KindName, ObjectName, connect, kind_of
from api.cli.describe import describe_host, describe_spec, event_rows, observed, placements
from api.cli.output import yaml_text
from api.cli.text import age, block, hanging, instant, labels_text, line, safe, table
from api.client import Client

_HOST_HEAD = ("HOST", "MODE", "STATUS", "PLAN", "GPUS", "AGE")
_HOST_MORE = ("ADDRESS", "GENERATION", "LABELS")
_SPEC_HEAD = ("SPEC", "READY", "REASON", "ON", "DRIFT", "AGE")
_SPEC_MORE = ("ENGINE", "MODEL", "PORT", "GENERATION", "LABELS")
_MARKS: dict[bool | None, str] = {True: "ok", False: "no", None: "?"}


class Output(StrEnum):
    """How `get` prints."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Format = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
Selector = Annotated[
    str, typer.Option("--selector", "-l", metavar="KEY=VALUE,…", help="Labels that must hold: rack=r1,tier=gold.")
]
Count = Annotated[int, typer.Option("--number", "-n", metavar="N", min=1, max=1000, help="How many of the last.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (get, describe, events, doctor, history):
        app.command()(command)


def get(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="hosts or specs; both when not given.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One object; all when not given.")] = None,
    output: Format = Output.TABLE,
    selector: Selector = "",
) -> None:
    """Show objects: a line for each, or whole as YAML or JSON."""
    plurals = [kind_of(kind)] if kind else ["hosts", "servingspecs"]
    if name and selector:
        raise typer.BadParameter("a name and --selector exclude each other")
    with connect() as client:
        found = {plural: _items(client, plural, name, selector) for plural in plurals}
        paused = client.paused() if output in (Output.TABLE, Output.WIDE) else {}
    items = [item for group in found.values() for item in group]
    if output is Output.JSON:
        whole = items[0] if name else {"apiVersion": "stoker/v1", "kind": "List", "items": items}
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=True))
    elif output is Output.YAML:
        typer.echo(yaml_text(items), nl=False)
    else:
        _tables(found, paused, selector, wide=output is Output.WIDE)


def describe(kind: KindName, name: ObjectName, number: Count = 10) -> None:
    """One object in full: conditions, drift, the plan, events."""
    plural = kind_of(kind)
    with connect() as client:
        (describe_host if plural == "hosts" else describe_spec)(client, name, number)


def events(
    for_: Annotated[str | None, typer.Option("--for", metavar="OBJECT", help="NAME, host/NAME or spec/NAME.")] = None,
    number: Count = 30,
    evidence: Annotated[bool, typer.Option("--evidence", "-e", help="With what each was concluded from.")] = False,
) -> None:
    """The last events, the newest below."""
    prefix, _, rest = (for_ or "").rpartition("/")
    kind = API_KINDS[kind_of(prefix)] if prefix else None
    with connect() as client:
        found = client.events(kind, rest or None, number)
    if not found:
        line("no events" + (f" for {for_}" if for_ else ""))
    elif not evidence:
        named = kind is None or not rest
        head = ("LAST", "", "OBJECT", "REASON", "MESSAGE") if named else ("LAST", "", "REASON", "MESSAGE")
        table(head, event_rows(reversed(found), named=named))
    else:
        for item in reversed(found):
            who = f"{SHORT.get(item['kind'], item['kind'])}/{item['name']}"
            when = instant(item["lastTimestamp"])
            hanging(f"{when}  {item['severity']}  {who}  {item['reason']}  {item['message']}", indent=0)
            block(item.get("evidence", ""), indent=6)


def doctor(host: HostName) -> None:
    """Each thing a host needs: ok, or what to do. Changes nothing."""
    with connect() as client:
        checks = client.doctor(host)
    unseen = [its for its in checks if its.get("ok") is None and not its.get("remedy")]
    rows = [
        (_MARKS[its.get("ok")], its.get("name"), f"{its.get('found')}{_to_do(its)}")
        for its in checks
        if its not in unseen
    ]
    table(("", "CHECK", "FOUND"), rows)
    for found in dict.fromkeys(str(its.get("found")) for its in unseen):
        names = ", ".join(str(its.get("name")) for its in unseen if str(its.get("found")) == found)
        hanging(f"?   {found}: {names}", indent=0)
    if any(its.get("ok") is False for its in checks):
        raise typer.Exit(1)


def _to_do(check: dict[str, Any]) -> str:
    return f"; to do: {check['remedy']}" if check.get("remedy") else ""


def history(name: ObjectName) -> None:
    """Every generation of a spec, and how earlier ones ended."""
    with connect() as client:
        found = client.history(name)
    rows = [(its["generation"], age(its["timestamp"]), its["actor"], its["uid"]) for its in found["revisions"]]
    table(("GENERATION", "AGE", "BY", "UID"), rows)
    for end in found["deletions"]:
        how = "abandoned" if end["abandoned"] else "deleted"
        line(f"{how} {instant(end['timestamp'])} at generation {end['generation']} (uid {end['uid']})")


def _items(client: Client, plural: str, name: str | None, selector: str) -> list[dict[str, Any]]:
    return [client.get(plural, name)] if name else client.objects(plural, selector)


def _tables(found: dict[str, list[dict[str, Any]]], paused: dict[str, Any], selector: str, *, wide: bool) -> None:
    if paused.get("paused"):
        since = instant(paused.get("since"))
        line(f"PAUSED by {paused.get('by')} since {since}: nothing is changed; stoker resume ends it")
    shown = 0
    for plural, items in found.items():
        if not items:
            continue
        if shown:
            line()
        shown += 1
        if plural == "hosts":
            head = (*_HOST_HEAD, *(_HOST_MORE if wide else ()))
            table(head, [_host_row(item, wide) for item in items], cut=not wide)
        else:
            head = (*_SPEC_HEAD, *(_SPEC_MORE if wide else ()))
            table(head, [_spec_row(item, wide) for item in items], cut=not wide)
    if not shown:
        none = "nothing is declared yet; stoker apply -f FILE declares something"
        line(f"nothing has the labels {safe(selector)}" if selector else none)


def _host_row(item: dict[str, Any], wide: bool) -> tuple[object, ...]:
    spec, status = item["spec"], item["status"]
    gpus = status.get("gpus")
    seen = len(gpus) if isinstance(gpus, list) else "?"
    declared = spec.get("gpus", {}).get("count")
    row = (
        item["metadata"]["name"],
        spec.get("mode"),
        host_status(status),
        len(status["plan"]) if observed(status) else "?",
        seen if declared is None else f"{seen}/{declared}",
        age(item["metadata"].get("creationTimestamp")),
    )
    if not wide:
        return row
    ssh = spec.get("ssh")
    address = "local" if ssh is None else f"{ssh['user']}@{ssh['address']}:{ssh['port']}"
    via = spec.get("via", {}).get("proxmoxContainer")
    return (*row, address + (f" ct {via}" if via else ""), _generation(item), labels_text(item["metadata"]["labels"]))


def host_status(status: dict[str, Any]) -> str:
    """What ails a host first, in one word."""
    said = {its["type"]: its for its in status.get("conditions", [])}
    for type_ in ("Reachable", "Observed", "GPUsReady", "Acting", "Clean"):
        if type_ in said and said[type_]["status"] != "True":
            return str(said[type_]["reason"])
    if said.get("Degraded", {}).get("status") == "True":
        return str(said["Degraded"]["reason"])
    return "OK" if said else "NotObservedYet"


def _spec_row(item: dict[str, Any], wide: bool) -> tuple[object, ...]:
    spec, status, metadata = item["spec"], item["status"], item["metadata"]
    ready: dict[str, Any] = next((its for its in status.get("conditions", []) if its["type"] == "Ready"), {})
    reason = "Terminating" if metadata.get("deletionTimestamp") else ready.get("reason", "NotObservedYet")
    drift = sum(len(its.get("drift", [])) for its in status.get("instances", []))
    placed = placements(spec)
    row = (
        metadata["name"],
        ready.get("status", "Unknown"),
        reason,
        ",".join(dict.fromkeys(host for _, host, _, _ in placed)),
        drift,
        age(metadata.get("creationTimestamp")),
    )
    if not wide:
        return row
    ports = ",".join(str(port) for _, _, _, port in placed)
    model = spec.get("model", {})
    name = model.get("servedName") or model.get("path")
    return (*row, spec["engine"]["name"], name, ports, _generation(item), labels_text(metadata["labels"]))


def _generation(item: dict[str, Any]) -> str:
    """`3` when the daemon has seen it, `2→3` while it has not."""
    generation, seen = item["metadata"]["generation"], item["status"].get("observedGeneration")
    return str(generation) if seen == generation else f"{seen or 0}→{generation}"
