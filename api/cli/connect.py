"""Which daemon a command talks to, with what token, and how kinds are spelled.

STOKER_URL, else the address in this machine's settings; STOKER_TOKEN, else the file STOKER_TOKEN_FILE, else the token
in the local data folder.
"""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from api.client import Client
from api.token import TOKEN_FILE, read_token
from daemon.domain.errors import StokerError
from daemon.settings import Settings, load_settings

# How arguments are named in help and usage, as the README names them.
HostName = Annotated[str, typer.Argument(metavar="HOST")]
KindName = Annotated[str, typer.Argument(metavar="KIND", help="host or spec.")]
ObjectName = Annotated[str, typer.Argument(metavar="NAME")]

KINDS = {
    "host": "hosts",
    "hosts": "hosts",
    "spec": "servingspecs",
    "specs": "servingspecs",
    "ss": "servingspecs",
    "servingspec": "servingspecs",
    "servingspecs": "servingspecs",
}
API_KINDS = {"hosts": "Host", "servingspecs": "ServingSpec"}
SHORT = {"Host": "host", "ServingSpec": "servingspec", "hosts": "host", "servingspecs": "servingspec"}


def kind_of(text: str) -> str:
    """The plural for any spelling of a kind. Raises: typer.BadParameter."""
    found = KINDS.get(text.lower())
    if found is None:
        raise typer.BadParameter(f"{text[:40]!r} is no kind; use host or spec")
    return found


def connect() -> Client:
    """A client for the daemon of the environment. Raises: StokerError when there is no token."""
    settings = load_settings(os.environ)
    url = os.environ.get("STOKER_URL") or _local_url(settings)
    return Client(url, _token(settings), actor=actor())


def _token(settings: Settings) -> str:
    if token := os.environ.get("STOKER_TOKEN", "").strip():
        if not (token.isascii() and token.isprintable()):
            raise StokerError("STOKER_TOKEN is no token: it holds characters that no token has")
        return token
    if file := os.environ.get("STOKER_TOKEN_FILE"):
        return read_token(Path(file).expanduser())
    path = settings.data / TOKEN_FILE
    if not path.exists():
        raise StokerError(f"no token: set STOKER_TOKEN or STOKER_TOKEN_FILE (looked for {path}; stoker serve makes it)")
    return read_token(path)


def _local_url(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.listen_host, settings.listen_host)  # noqa: S104
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def actor() -> str:
    """Who asks, for the daemon's events."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):
        who = str(os.getuid())
    said = f"{who}@{socket.gethostname()}"
    return said if said.isascii() and said.isprintable() else "cli"
