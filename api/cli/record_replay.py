"""Recordings on the command line: `record` keeps one look at a host, `replay` says what the daemon makes of one.

Only `record` needs anything but files: a daemon, or with `-f` the way to the host itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from typing import Annotated, Any

import typer

from api.cli.connect import connect
from api.cli.files import FILES_OPTION, read_all
from api.cli.output import Format, Output, show
from api.cli.text import line
from daemon.domain.errors import StokerError

_STATUS = "Exit status: 0 done, 1 refused or failed, 2 wrong usage"
Files = Annotated[list[str] | None, FILES_OPTION]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog=f"{_STATUS}, 3 no daemon answered.")(record)
    app.command(epilog=f"{_STATUS}.")(replay)


def record(
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="The host's name; with -f not needed for the only one.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write, or - for output.")
    ] = "-",
    filename: Files = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the format as JSON Schema.")] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print one written by hand, with what may be left out.")
    ] = False,
) -> None:
    """Keep one look at a host whole, as a file.

    Each tool's output, exit status and time, secrets taken out. Asks the daemon; with -f the host itself, by its
    manifest and this machine's SSH settings (the helper must be on the host already). Nothing is changed there.
    What `stoker replay` reads: send it with a bug report.
    """
    if schema:
        from daemon.recording.form import RecordingForm  # noqa: PLC0415 - most commands do without

        typer.echo(json.dumps(RecordingForm.model_json_schema(by_alias=True), indent=2))
    elif example:
        from api.cli.recording_example import EXAMPLE  # noqa: PLC0415

        typer.echo(EXAMPLE, nl=False)
    else:
        _write(_recorded(host, filename or []), output)


def _recorded(host: str | None, sources: list[str]) -> dict[str, Any]:
    if sources:
        from api.cli.record_by_ssh import look  # noqa: PLC0415 - SSH is needed by this command only

        return asyncio.run(look(host, read_all(sources)))
    if host is None:
        raise typer.BadParameter("name the host, or give its manifest with -f")
    with connect() as client:
        return client.record(host)


def _write(recording: dict[str, Any], output: str) -> None:
    # What a host's processes are called moves no terminal: there it is ASCII.
    text = json.dumps(recording, indent=1, ensure_ascii=output == "-") + "\n"
    if output == "-":
        sys.stdout.write(text)
        return
    try:
        # Redacted or not, it tells much of a host: for its owner alone.
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            if stat.S_ISREG(os.fstat(file).st_mode):
                os.fchmod(file, 0o600)  # one that was there before may be open to others
            out.write(text)
    except OSError as error:
        raise StokerError(f"{output}: {error.strerror}") from error
    hidden = f", {recording['redacted']} secrets taken out" if recording.get("redacted") else ""
    line(f"{output}: {len(recording['sections'])} sections of {recording['host']}{hidden}; stoker replay reads it")


def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The recording, JSON or YAML; - for input.")],
    filename: Files = None,
    looks: Annotated[
        int,
        typer.Option(metavar="1|2", min=1, max=2, help="1: seen once. 2: seen twice, 1 s apart: what is signalled."),
    ] = 1,
    store: Annotated[
        str, typer.Option(metavar="UID", help="The store's uid in the marks; else the recording or the fence says.")
    ] = "",
    output: Format = Output.JSON,
) -> None:
    """Say what the daemon makes of a recording.

    What is known, whose each process is and why, conditions, drift and the plan. Needs no host, no daemon and no
    token. Manifests are taken from -f, from further documents in the file, and from what the daemon knew when it
    recorded. What is not in the recording is not known (NotRecorded). A process is signalled only when two looks
    saw it: --looks 2 takes the recording as seen twice.
    """
    from api.cli.recording_files import declared_in, read_recording  # noqa: PLC0415 - most commands do without
    from api.cli.replay_text import print_text  # noqa: PLC0415
    from daemon.replay import replay as run  # noqa: PLC0415
    from daemon.replay_json import as_json  # noqa: PLC0415

    form, found = read_recording(file, read_all(filename) if filename else [])
    hosts, specs = declared_in(found)
    show(as_json(run(form, hosts, specs, looks=looks, store=store)), output, print_text)
