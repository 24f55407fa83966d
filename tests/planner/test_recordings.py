"""Every recording in tests/golden/recordings against what is expected of it: whose, why, and what would be done.

Each file is what `stoker replay FILE --looks 2` takes. Beside it `expected/NAME.json` tells of a process its class, a
part of its proof, the verdict and the signals; the plan; why the unit waits; and the host's condition Clean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.recording_files import declared_in, read_recording
from daemon.replay import replay
from daemon.replay_json import as_json

pytestmark = pytest.mark.strays
FOLDER = Path(__file__).parents[1] / "golden" / "recordings"
CASES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def replayed(name: str, looks: int = 2) -> dict[str, Any]:
    form, found = read_recording(str(FOLDER / f"{name}.yaml"), [])
    hosts, specs = declared_in(found)
    return as_json(replay(form, hosts, specs, looks=looks))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "expected" / f"{name}.json").read_text())
    return found


def planned(said: dict[str, Any]) -> list[str]:
    return [
        " ".join([one["action"], *([one["unit"]] if one["unit"] else map(str, one["pids"]))]) for one in said["plan"]
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_recording_is_understood_as_expected(name: str) -> None:
    said, wanted = replayed(name), expected(name)
    assert said["notes"] in ([], ["section meta is not recorded: taken as a machine with systemd 252, no container"])
    owners = {str(one["pid"]): one for one in said["ownership"]}
    for pid, own in wanted["ownership"].items():
        found = owners[pid]
        assert (found["class"], found["reason"], found["does"]) == (own["class"], own["reason"], own["does"]), found
        assert own["proof"] in found["proof"]
    assert planned(said) == wanted["plan"]
    assert {one["unit"]: one["reason"] for one in said["blocked"]} == wanted["blocked"]
    assert [one["pid"] for one in said["questions"]] == wanted.get("questions", [])
    clean = next(one for one in said["conditions"] if one["type"] == "Clean")
    assert [clean["status"], clean["reason"]] == wanted["clean"], clean


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_signalled_at_first_sight(name: str) -> None:
    said = replayed(name, looks=1)
    before = {one["pid"] for one in _knows(name).get("signalled", [])}
    assert {pid for one in said["plan"] for pid in one["pids"]} <= before


def _knows(name: str) -> dict[str, Any]:
    form, _ = read_recording(str(FOLDER / f"{name}.yaml"), [])
    return form.knows.model_dump()


def test_every_expectation_has_its_recording() -> None:
    assert sorted(path.stem for path in (FOLDER / "expected").glob("*.json")) == CASES
    assert {name[:3] for name in CASES} >= {f"b{n:02d}" for n in (1, 3, 4, 5, 7, 9, 10, 12, 14, 15, 16, 17, 19, 20)}
