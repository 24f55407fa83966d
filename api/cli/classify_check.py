"""What is tried on text alone: `classify` reads a log excerpt, `check` a spec. No host, no daemon, no token."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.files import Files, read_all
from api.cli.output import Format, Output, show
from api.cli.text import block, hanging, heading, line
from daemon.domain.errors import StokerError

MAX_LOG_BYTES = 16 * 1024 * 1024


class Engine(StrEnum):
    """Whose log it is."""

    SGLANG = "sglang"
    VLLM = "vllm"
    CUSTOM = "custom"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Exit status: 0 done, whatever was found; 1 no such file, 2 wrong usage.")(classify)
    app.command(epilog="Exit status: 0 all would be stored, 1 something is wrong with one, 2 wrong usage.")(check)


def classify(
    engine: Annotated[Engine, typer.Option("--engine", "-e", help="Whose log it is.")],
    file: Annotated[
        str, typer.Argument(metavar="LOG", help="The log of one start, oldest line first; - for input.")
    ] = "-",
    output: Format = Output.JSON,
) -> None:
    """Say why an engine failed, from its log or journal.

    Its class, whether to try again, a hint, and the telling lines. `progress` is null: how far a load has come is
    not read from logs in this version.
    """
    from daemon.engines.failures import classify as run  # noqa: PLC0415 - most commands do without

    found = run(_log(file).decode("utf-8", "replace").split("\n"), engine.value)
    document = {
        "engine": engine.value,
        "class": str(found.reason),
        "kind": found.kind,
        "retryable": found.retryable,
        "hint": found.hint,
        "evidence": list(found.evidence),
        "progress": None,
    }
    show(document, output, _print_class)


def _print_class(said: dict[str, Any]) -> None:
    again = "may work when tried again" if said["retryable"] else "the same launch will fail again"
    line(f"{said['class']} ({said['kind']}): {again}", style="bold")
    if said["hint"]:
        hanging(f"hint: {said['hint']}", indent=2)
    for row in said["evidence"]:
        block(row, indent=4)


def _log(source: str) -> bytes:
    """The end of the log, where it is very long."""
    if source == "-":
        return sys.stdin.buffer.read()[-MAX_LOG_BYTES:]
    try:
        with Path(source).open("rb") as file:
            return file.read()[-MAX_LOG_BYTES:]
    except OSError as error:
        raise StokerError(f"{source}: {error.strerror}") from error


def check(
    filename: Files,
    output: Format = Output.TEXT,
) -> None:
    """Try specs without a daemon.

    What would be refused and why, the command line and the unit file of each role. Cards' UUIDs and the store's own
    marks are known only on a host: in unit files they stand in capitals.
    """
    from api.cli.checking import checked  # noqa: PLC0415 - most commands do without

    documents = checked(read_all(filename))
    if not documents:
        raise StokerError("nothing to check: no document in it")
    show({"check": "stoker/v1", "objects": documents}, output, _print_all)
    if any(document["problems"] for document in documents):
        raise typer.Exit(1)


def _print_all(said: dict[str, Any]) -> None:
    for at, document in enumerate(said["objects"]):
        if at:
            line()
        _print(document)


def _print(document: dict[str, Any]) -> None:
    count = len(document["problems"])
    verdict = "ok" if not count else f"{count} problem{'s' if count > 1 else ''}"
    line(f"{document['kind']} {document['name']} ({document['origin']}): {verdict}", style="bold")
    for kind in ("problems", "warnings", "notes"):
        for one in document[kind]:
            line(f"  {kind[:-1]}: {one if isinstance(one, str) else _place(one)}")
    for instance in document["instances"]:
        heading(f"  {instance['unit']} on {instance['host']}, role {instance['role']}")
        line("  command line:")
        for row in _command_line(instance["argv"]):
            line(f"    {row}")
        line(f"  {instance['path']}:")
        for row in instance["unitText"].splitlines():
            line(f"    {row}")


def _place(one: dict[str, str]) -> str:
    return f"{one['path']}: {one['message']}" + (f" ({one['hint']})" if one.get("hint") else "")


def _command_line(argv: list[str]) -> list[str]:
    """A flag and its values a line, as a person reads them and a shell takes them."""
    import shlex  # noqa: PLC0415

    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("-") and len(word) > 2 and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [
        ("  " if at else "") + " ".join(words) + (" \\" if words is not lines[-1] else "")
        for at, words in enumerate(lines)
    ]
