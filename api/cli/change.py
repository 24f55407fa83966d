"""The commands that change something: apply, delete, pause, resume, takeover."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from api.cli.connect import SHORT, HostName, KindName, ObjectName, connect, kind_of
from api.cli.files import Files, Found, read_all
from api.cli.text import error_line, instant, line, problem_lines
from api.client import Client, Refused


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (apply, delete, pause, resume, takeover):
        app.command()(command)


def apply(filename: Files) -> None:
    """Declare what the manifests say. All are read before the first is sent; hosts go before specs."""
    found = read_all(filename)
    if not found:
        error_line("nothing to apply: no document in it")
        raise typer.Exit(1)
    with connect() as client:
        good = [_apply(client, item) for item in found]
    if not all(good):
        raise typer.Exit(1)


def _apply(client: Client, item: Found) -> bool:
    what = f"{SHORT[item.kind]}/{item.name}"
    try:
        done = client.put(item.kind, item.name, item.document)
    except Refused as error:
        if error.status == 401:
            raise
        problem_lines(f"{item.origin}: {what}", error.detail, error.hint, error.problems)
        return False
    line(f"{what} {done.outcome}")
    problem_lines(f"warning: {item.origin}: {what}", "", "", done.warnings)
    return True


def delete(
    kind: KindName,
    name: ObjectName,
    abandon: Annotated[bool, typer.Option("--abandon", help="Drop it now, leave what runs.")] = False,
) -> None:
    """Delete a spec, or forget a host.

    A spec's units are stopped and removed, its history stays. On a host that is forgotten nothing is changed.
    """
    plural = kind_of(kind)
    if abandon and plural == "hosts":
        raise typer.BadParameter("--abandon is for specs; a host is forgotten at once")
    with connect() as client:
        result = client.delete(plural, name, abandon=abandon)
    what = f"{SHORT[plural]}/{name}"
    if plural == "hosts":
        line(f"{what} forgotten; nothing was changed on it")
    elif not abandon:
        line(f"{what} is being deleted: its units are stopped and removed, its history stays")
    else:
        line(f"{what} abandoned")
        for left in result.get("left", []):
            line(f"  left on {left.get('host')}: {left.get('unit')} ({left.get('path') or 'never written'})")


def pause() -> None:
    """Stop every change on every host; looking goes on."""
    with connect() as client:
        state = client.pause()
    line(f"paused by {state.get('by')} since {instant(state.get('since'))}; stoker resume ends it")


def resume() -> None:
    """Let changes be made again."""
    with connect() as client:
        client.resume()
    line("resumed")


def takeover(host: HostName, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Let this daemon act on a host that another one holds.

    Whose fence another daemon or store holds, or that is another machine now.
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Is no other Stoker acting on {host}, and is it the machine you mean?", abort=True)
    with connect() as client:
        result = client.takeover(host)
    before = result.get("before") or {}
    line(f"host/{host} taken over" + (f" from store {before.get('store')}, run {before.get('run')}" if before else ""))
