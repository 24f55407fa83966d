"""The practice fleet's manifests, with the doors of the simulated hosts that run now filled in.

Called by the demo. The files are `manifests/demo`, beside the code in a clone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from api.cli.files import Found, read_all
from daemon.domain.errors import StokerError

FOLDER = Path(__file__).parents[2] / "manifests" / "demo"


def folder_of(given: Path | None) -> Path:
    """Where the manifests are. Raises: StokerError when there are none."""
    folder = given or FOLDER
    if not folder.is_dir():
        raise StokerError(f"{folder} is not there: run the demo from a clone (make demo), or name it with --manifests")
    return folder


def write(folder: Path, made: Iterable[tuple[str, str, dict[str, Any]]]) -> Path:
    """The filled-in manifests as one file that can be applied; its path. Blocks."""
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump_all([document for _, _, document in made], sort_keys=False))
    return path


def documents(folder: Path, doors: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, name, document), hosts first. `doors` is the `ssh` of each host that runs.

    Hosts beyond those in the files are copies of them, in order, with what is placed there under names of its own.
    """
    found = read_all([str(folder)])
    hosts = [item for item in found if item.kind == "hosts"]
    if not hosts:
        raise StokerError(f"{folder}: no Host in it")
    specs: list[tuple[str, str, dict[str, Any]]] = []
    for at, (name, door) in enumerate(doors.items()):
        pattern = hosts[at % len(hosts)]
        document = json.loads(json.dumps(pattern.document))
        document["metadata"]["name"] = name
        document["spec"] |= {"ssh": dict(door), "mode": "enforce"}
        yield "hosts", name, document
        suffix = "" if at < len(hosts) else f"-{at + 1}"
        specs += [_moved(item, pattern.name, name, suffix) for item in found if _is_on(item, pattern.name)]
    yield from specs


def _is_on(item: Found, host: str) -> bool:
    return item.kind == "servingspecs" and f'"host": "{host}"' in json.dumps(item.document)


def _moved(item: Found, pattern: str, host: str, suffix: str) -> tuple[str, str, dict[str, Any]]:
    document = json.loads(json.dumps(item.document).replace(f'"host": "{pattern}"', f'"host": "{host}"'))
    document["metadata"]["name"] = item.name + suffix
    return item.kind, item.name + suffix, document
