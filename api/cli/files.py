"""Manifests from files, folders and standard input: read whole before anything is sent."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from api.manifest import MAX_BYTES, read_json, read_yaml, refuse
from daemon.domain.errors import AdmissionError, Problem, StokerError

FILES_OPTION = typer.Option("--filename", "-f", metavar="FILE|DIR|-", help="Manifests; of a folder those in it, too.")
Files = Annotated[list[str], FILES_OPTION]
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
PLURALS = {"Host": "hosts", "ServingSpec": "servingspecs"}


@dataclass(frozen=True, slots=True)
class Found:
    """One document and where it was read. `kind` is the plural in the API's address."""

    origin: str
    kind: str
    name: str
    document: dict[str, Any]


def read_all(sources: list[str]) -> list[Found]:
    """Every document of the sources, hosts first, jump hosts before what they lead to.

    Raises: AdmissionError with the file in each path; StokerError when a file cannot be read or two name one object.
    """
    found = [item for source in sources for origin, data in _texts(source) for item in _documents(origin, data)]
    first: dict[tuple[str, str], str] = {}
    for item in found:
        key = (item.kind, item.name)
        if key in first:
            raise StokerError(f"{item.origin}: {item.kind} {item.name} is already in {first[key]}: keep one of them")
        first[key] = item.origin
    return _ordered(found)


def _texts(source: str) -> list[tuple[str, bytes]]:
    if source == "-":
        return [("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))]
    path = Path(source)
    try:
        files = sorted(its for its in path.rglob("*") if its.suffix in SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise StokerError(f"{source}: no .yaml, .yml or .json file in it")
        return [(str(file), _bounded(file)) for file in files]
    except OSError as error:
        raise StokerError(f"{error.filename or source}: {error.strerror}") from error


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _documents(origin: str, data: bytes) -> list[Found]:
    try:
        documents = [read_json(data)] if origin.endswith(".json") else read_yaml(data)
        return [found_in(origin, document) for document in documents]
    except AdmissionError as error:
        problems = [Problem(f"{origin}: {item.path}".rstrip(": "), item.message, item.hint) for item in error.problems]
        raise AdmissionError(problems) from None


def found_in(origin: str, document: Any) -> Found:
    """A document by the kind and name that it gives. Raises: AdmissionError."""
    if not isinstance(document, dict):
        raise refuse((), "must be one object with apiVersion, kind, metadata and spec")
    kind, metadata = document.get("kind"), document.get("metadata")
    if not isinstance(kind, str) or kind not in PLURALS:
        raise refuse(("kind",), "must be Host or ServingSpec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not 1 <= len(name) <= 40:
        raise refuse(("metadata", "name"), "must be text of at most 40 characters")
    return Found(origin, PLURALS[kind], name, document)


def _ordered(found: list[Found]) -> list[Found]:
    """Hosts before specs; a host after its jump host when that is among them. The daemon refuses cycles."""
    hosts = {item.name: item for item in found if item.kind == "hosts"}
    done: dict[str, Found] = {}

    def take(item: Found, above: tuple[str, ...] = ()) -> None:
        jump = _jump(item.document)
        if jump in hosts and jump not in done and jump not in above and len(above) < 32:
            take(hosts[jump], (*above, item.name))
        done.setdefault(item.name, item)

    for item in hosts.values():
        take(item)
    return [*done.values(), *(item for item in found if item.kind != "hosts")]


def _jump(document: dict[str, Any]) -> str:
    spec = document.get("spec")
    ssh = spec.get("ssh") if isinstance(spec, dict) else None
    jump = ssh.get("jump") if isinstance(ssh, dict) else None
    return jump if isinstance(jump, str) else ""
