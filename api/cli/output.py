"""One document on standard output, as JSON or YAML. Called by the commands that answer with a whole document."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.text import safe
from api.manifest import write_yaml


class Output(StrEnum):
    """How a document is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


Format = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]


def show(document: dict[str, Any], output: Output, text: Callable[[dict[str, Any]], None]) -> None:
    """Nothing in it moves a terminal: JSON is ASCII, YAML escaped where that matters."""
    if output is Output.TEXT:
        text(document)
        return
    if output is Output.JSON:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=True))
        return
    typer.echo(yaml_text([document]), nl=False)


def yaml_text(items: list[dict[str, Any]]) -> str:
    """YAML that can be applied again; nothing in it moves a terminal."""
    text = write_yaml(items)
    return text if all(safe(part) == part for part in text.splitlines()) else write_yaml(items, ascii_only=True)
