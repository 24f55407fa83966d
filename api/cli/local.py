"""The commands that are about this machine: serve, helper print, version."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.connect import connect
from api.cli.text import line
from api.client import Refused, Unreachable
from daemon import __version__
from daemon.domain.errors import StokerError


class Script(StrEnum):
    """What is kept on a host."""

    HELPER = "stoker-host"
    GATE = "gate"


helper = typer.Typer(help="The scripts that are kept on hosts.", no_args_is_help=True, rich_markup_mode=None)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(serve)
    app.command()(version)
    helper.command("print")(print_script)
    app.add_typer(helper, name="helper")


@helper.callback()
def _helper() -> None:
    """The scripts that are kept on hosts."""


def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file of settings.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the store and the token.")] = None,
    listen_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on; loopback when not given.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Port to listen on.")] = None,
) -> None:
    """Run the daemon in the foreground until SIGTERM or SIGINT."""
    given = {"CONFIG": config, "DATA": data, "LISTEN_HOST": listen_host, "PORT": port}
    environ = os.environ | {f"STOKER_{name}": str(value) for name, value in given.items() if value is not None}
    # The daemon becomes this very process, so that signals and systemd find it, without the libraries of the command
    # line in its memory. -P: a folder named `daemon` or `api` where it was started is not imported.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "api.serve"], environ)  # noqa: S606 - no shell is wanted


def print_script(script: Annotated[Script, typer.Argument(help="Which one.")] = Script.HELPER) -> None:
    """Print a script, to be installed by hand (see the README)."""
    from daemon.host import gate_text, helper_text  # noqa: PLC0415 - only this command reads them

    sys.stdout.buffer.write(helper_text() if script is Script.HELPER else gate_text())
    sys.stdout.buffer.flush()


def version() -> None:
    """Print this version, and the daemon's when one answers."""
    line(f"stoker {__version__}")
    try:
        with connect() as client:
            found = client.version()
    except (Unreachable, Refused, StokerError):
        line("daemon: none answered")
        return
    line(f"daemon {found.get('version')}, store {found.get('store')}")
