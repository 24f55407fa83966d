"""`stoker demo`: the command and what may be asked of it; all else is imported only when it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

Faults = Annotated[
    str, typer.Option(metavar="NAMES", help="all, none, or some: crash,zombie,edit,first-request,trainer.")
]
Hosts = Annotated[int, typer.Option(metavar="N", min=1, max=16, help="How many hosts of eight cards.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the API; 0 is any free one.")]
For = Annotated[
    float | None, typer.Option("--for", metavar="SECONDS", min=1, help="Seconds after which it ends by itself.")
]
Manifests = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the fleet's manifests, when not run from a clone.")
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(demo)


def demo(
    faults: Faults = "all", hosts: Hosts = 4, port: Port = 0, for_: For = None, manifests: Manifests = None
) -> None:
    """Watch Stoker heal a simulated fleet on this machine. Ctrl-C ends it and leaves nothing.

    The fleet's manifests, its doors filled in, are fleet.yaml in the folder of the token file that it names; apply that
    one, changed, not manifests/demo, which are templates.

    Exit status 0 however it was ended; 1 when a fault was not healed in its time, or the daemon failed.
    """
    from api.cli.demo_manifests import folder_of  # noqa: PLC0415 - an SSH server is needed by this command only
    from api.cli.demo_run import Options, run  # noqa: PLC0415

    options = Options(chosen(faults), hosts, port, for_, folder_of(manifests))
    try:
        raise typer.Exit(asyncio.run(run(options)))
    except ExceptionGroup as group:
        raise _first(group) from group


def _first(error: Exception) -> Exception:
    """What ended the demo, out of the groups of tasks that its simulated hosts are."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def chosen(text: str) -> tuple[str, ...]:
    """The names in `--faults`, in the order in which they are to happen. Raises: typer.BadParameter."""
    from daemon.sim.faults import KINDS  # noqa: PLC0415

    if text in ("all", "none"):
        return tuple(KINDS) if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in KINDS:
            raise typer.BadParameter(f"{name[:40]!r} is no fault; use all, none, or some of {', '.join(KINDS)}")
    return names
