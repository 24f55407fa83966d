"""Whatever stands in a file: a refusal with a path, or an answer; never a traceback, and nothing destructive by luck.

Recordings written by hand are changed at random: values of other types, keys gone or moved, hostile text. What is still
a recording is replayed whole.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.cli.recording_files import declared_in, documents_of, read_recording
from daemon.domain.errors import AdmissionError
from daemon.domain.host import HostSpec
from daemon.recording.form import RecordingForm
from daemon.replay import SpecOf, replay
from daemon.replay_json import as_json

pytestmark = pytest.mark.strays
FOLDER = Path(__file__).parents[1] / "golden" / "recordings"
DOCUMENTS = [documents_of(str(path))[1] for path in sorted(FOLDER.glob("*.yaml"))]
VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**31 - 1, 2**63, 1.5, "", " ", "\n", "\0", "x", "1", "/", "/../..", "é\u202e", "a=b",
    "[N/A]", "0, GPU-1", "= x\n{", "-", [], {}, [None], {"output": "x"}, {"base64": "AA=="}, ["x", 1], {"pid": 1},
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def changed(document: Any, dice: random.Random) -> Any:
    document = copy.deepcopy(document)
    path = dice.choice(places(document))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    match dice.randrange(4):
        case 0:
            del parent[path[-1]]
        case 1 if isinstance(parent, list):
            parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
        case 2 if isinstance(parent[path[-1]], str) and parent[path[-1]]:
            text = parent[path[-1]]
            at = dice.randrange(len(text))
            parent[path[-1]] = text[:at] + dice.choice(["", "\n", "\0", ",", "é", "9" * 30]) + text[at + 1 :]
        case _:
            parent[path[-1]] = dice.choice(VALUES)
    return document


class Replayable(NamedTuple):
    form: RecordingForm
    hosts: dict[str, HostSpec]
    specs: list[SpecOf]


def read_all(file: Path) -> Replayable | list[str]:
    """What replay takes, or what is wrong with the file."""
    try:
        form, found = read_recording(str(file), [])
        return Replayable(form, *declared_in(found))
    except AdmissionError as refused:
        return [str(problem) for problem in refused.problems]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_changed_recording_is_refused_with_its_place_or_replayed(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    recording, *manifests = dice.choice(DOCUMENTS)
    for _ in range(dice.randrange(1, 4)):
        recording = changed(recording, dice)
    recording.setdefault("knows", {})
    if isinstance(recording["knows"], dict):
        recording["knows"]["manifests"] = manifests
    file = tmp_path / "x.json"
    file.write_text(json.dumps(recording))
    read = read_all(file)
    if not isinstance(read, Replayable):
        assert read
        assert all(problem.startswith(str(file)) for problem in read)
        return
    said = as_json(replay(*read, looks=1 + seed % 2))
    json.dumps(said)
    told = {one["pid"] for one in recording["knows"].get("signalled", [])} if seed % 2 == 0 else None
    signalled = {pid for one in said["plan"] for pid in one["pids"]}
    assert told is None or signalled <= told
    owners = {one["pid"]: one["class"] for one in said["ownership"]} if signalled else {}
    assert all(owners[pid].startswith("orphan") for pid in signalled)
