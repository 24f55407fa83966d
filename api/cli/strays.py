"""`stoker strays`: who holds what on the hosts, by what proof; and to have orphans cleared by a person's word."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from api.cli.connect import HostName, connect
from api.cli.holders import not_known, stray_table
from api.cli.output import yaml_text
from api.cli.show import Format, Output
from api.cli.text import error_line, hanging, line
from api.client import Client, Refused
from daemon.settings import monotonic

POLL_S = 0.5
_MOST_NAMED = 16
_LIFTED = ("ReportOnly", "KillBudgetExhausted")
Identity = tuple[int, int]


class _ListIsMeant(TyperGroup):
    """`strays`, `strays HOST` and `strays -o json` are all `strays list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


strays = typer.Typer(cls=_ListIsMeant, rich_markup_mode=None)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    strays.command("list")(list_)
    strays.command("clear")(clear)
    app.add_typer(strays, name="strays")


@strays.callback()
def _strays() -> None:
    """Who holds GPUs, needed ports and managed cgroups.

    `strays [HOST]` is `strays list [HOST]`.
    """


def list_(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="One host; all when not given.")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="With what belongs to a managed unit.")] = False,
    output: Format = Output.TABLE,
) -> None:
    """Each process, its proof, what it holds, what is done; as last seen."""
    with connect() as client:
        names = [host] if host else [its["metadata"]["name"] for its in client.objects("hosts")]
        found = [client.strays(name, managed=all_) for name in names]
    if output is Output.JSON:
        whole = found[0] if host else {"apiVersion": "stoker/v1", "kind": "List", "items": found}
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=True))
    elif output is Output.YAML:
        typer.echo(yaml_text(found), nl=False)
    else:
        _print(found, named=host is None, everything=all_, wide=output is Output.WIDE)


def _print(found: list[dict[str, Any]], *, named: bool, everything: bool, wide: bool) -> None:
    if not found:
        line("no host is declared")
        return
    for its in found:
        if its["withheld"] and its["items"]:
            line(f"{its['host']}: nothing is changed: {its['withheld']}")
        for text in not_known(its):
            hanging(f"{its['host']}: {text}", indent=0)
    any_ = stray_table(found, named=named, wide=wide)
    for its in found:
        _say_reported(its)
    clean = [str(its["host"]) for its in found if its["items"] == [] and not its["unknown"]]
    if not any_ and clean:
        what = "nothing holds a GPU, a needed port or a managed cgroup" if everything else "no strays"
        line(f"{', '.join(clean)}: {what}")


def _say_reported(found: dict[str, Any]) -> None:
    """What a person can do about orphans that policy or budget leaves alone."""
    pids = [str(its["pid"]) for its in found["items"] or () if its["verdict"] in _LIFTED]
    if pids and not found["withheld"]:
        named = ",".join(pids[:_MOST_NAMED]) + (",…" if len(pids) > _MOST_NAMED else "")
        line("Orphans that are left to a person; what ends them:")
        line(f"  stoker strays clear {found['host']} --pid {named}")


def clear(
    host: HostName,
    pid: Annotated[list[str], typer.Option("--pid", metavar="PID[,PID…]", help="As `stoker strays HOST` lists them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, max=3600, help="How long to wait for their end.")
    ] = 120,
) -> None:
    """End orphans by your word.

    It stands in for policy and budget, never for the proof. Each is named to the daemon with its start, so that a
    pid used anew is never meant. TERM, the grace, then KILL.
    """
    pids = _pids(pid)
    with connect() as client:
        found = client.strays(host, managed=True)
        chosen = _chosen(host, found, pids)
        stray_table([{**found, "items": chosen}], named=False)
        _confirm(host, len(chosen), yes)
        accepted = _ask(client, host, str(found["bootId"]), chosen)
        done = _wait(client, host, str(found["bootId"]), accepted, timeout)
    if not done or len(accepted) < len(chosen):
        raise typer.Exit(1)


def _pids(given: list[str]) -> list[int]:
    words = [word.strip() for text in given for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        raise typer.BadParameter("give pids: --pid 41233,41234")
    return list(dict.fromkeys(map(int, words)))


def _chosen(host: str, found: dict[str, Any], pids: list[int]) -> list[dict[str, Any]]:
    if found["items"] is None:
        for text in not_known(found):
            error_line(f"{host}: {text}")
        raise typer.Exit(1)
    listed = {its["pid"]: its for its in found["items"]}
    missing = [pid for pid in pids if pid not in listed]
    for pid in missing:
        error_line(f"pid {pid} holds no GPU, needed port or managed cgroup on {host}; see stoker strays {host} --all")
    if missing:
        raise typer.Exit(1)
    return [listed[pid] for pid in pids]


def _confirm(host: str, number: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is nobody to ask: give --yes")
    what = "this process" if number == 1 else f"these {number} processes"
    typer.confirm(f"End {what} on {host}?", abort=True)


def _ask(client: Client, host: str, boot_id: str, chosen: list[dict[str, Any]]) -> list[Identity]:
    """Those that the daemon took on; what it refused is said."""
    processes = [{"pid": its["pid"], "startTicks": its["startTicks"]} for its in chosen]
    try:
        answer = client.clear(host, boot_id, processes)
    except Refused as error:
        if not error.problems:
            raise
        for problem in error.problems:
            error_line(f"not cleared: {problem.message}")
        raise typer.Exit(1) from error
    for its in answer["refused"]:
        error_line(f"not cleared: pid {its['pid']}: {its['reason']}: {its['detail']}")
    return [(its["pid"], its["startTicks"]) for its in answer["accepted"]]


def _wait(client: Client, host: str, boot_id: str, accepted: list[Identity], timeout_s: int) -> bool:
    """Says each step of each until all are gone; whether they are."""
    phases, deadline_s, good = dict.fromkeys(accepted, ""), monotonic() + timeout_s, True
    while phases:
        found = client.strays(host, managed=True)
        for identity, before in tuple(phases.items()):
            phase, ended = _phase(found, boot_id, identity)
            if phase != before:
                (line if ended in (None, True) else error_line)(f"pid {identity[0]}: {phase}")
            phases[identity] = phase
            if ended is not None:
                del phases[identity]
                good = good and ended
        if phases and monotonic() > deadline_s:
            for pid, _ in phases:
                error_line(f"pid {pid} is still there after {timeout_s} s; the daemon goes on: stoker strays {host}")
            return False
        if phases:
            time.sleep(POLL_S)
    return good


def _phase(found: dict[str, Any], boot_id: str, identity: Identity) -> tuple[str, bool | None]:
    """Where one stands, and whether that is its good or bad end (None: neither yet)."""
    if found["items"] is None:
        return "what becomes of it is not known now", None
    if found["bootId"] != boot_id:
        return "gone: the host was booted", True
    item = next((its for its in found["items"] if (its["pid"], its["startTicks"]) == identity), None)
    if item is None:
        return ("what becomes of it is not known now", None) if found["unknown"] else ("gone", True)
    if item["state"] == "Z":
        return f"ended; its parent, pid {item['parent']['pid']}, must reap it", True
    if not item["askedBy"]:
        if found["withheld"]:
            return f"not cleared: {found['withheld']}: nothing may be changed now", False
        return f"not cleared: {item['verdict']}: {item['detail']}", False
    return ("KILL sent" if item["killAt"] else "TERM sent" if item["termAt"] else "being looked at again"), None
