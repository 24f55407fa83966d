"""The demo's picture fits the window it is drawn in, and loses what matters least."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console
from rich.live import Live

from api.cli.demo_fleet import Fleet, holder
from api.cli.demo_manifests import FOLDER, documents
from api.cli.demo_screen import Scene
from api.cli.demo_story import Chapter
from api.cli.demo_view import Screen
from api.schemas import parse_manifest
from daemon.domain.status import Reason
from daemon.planner.ownership import Owner
from daemon.sim.faults import KINDS
from tests.cli.demo_stage import BEGAN, at, event, fault, fleet, host, said, spec

LONG = "signal-term 614, 615, 616 on gpu-1: pid 614 of serve holds GPU 0: orphan-proven, carries our mark \x1b[31m" * 3


def _scene() -> Scene:
    stray = {"owner": "foreign", "what": "pid 9 (train GPU 1: x) of ann holds GPU 6, GPU 7: foreign, in session 3"}
    orphan = {"owner": "orphan-proven", "what": "pid 8 (sglang) of serve holds GPU 5: orphan-proven, ours"}
    down = said("Ready", "False", 1, "ForeignHolder")
    hosts = {f"gpu-{n}": host(f"gpu-{n}", said("Clean", "True")) for n in range(1, 5)}
    hosts["gpu-4"] = host("gpu-4", said("Clean", "False", 1, "ForeignHolder"), [stray, orphan])
    good = said("Ready", "True", reason="Generated")
    specs = {
        "deepseek": spec("deepseek", "gpu-1", list(range(8)), good),
        "chat": spec("chat", "gpu-2", list(range(8)), good),
        "coder": spec("coder", "gpu-3", [0, 1, 2, 3], down),
        "kimi": spec("kimi", "gpu-3", [4, 5, 6, 7], good),
        "glm": spec("glm", "gpu-4", [4, 5, 6, 7], down, active="inactive/dead"),
        "llama": spec("llama", "gpu-4", [0, 1, 2], good),
    }
    chapters = []
    for number in range(1, 6):
        one = Chapter(number, fault(), BEGAN, {})
        one.note(BEGAN, one.fault.begin())
        told = [event(n, n, "OrphanWorkers", LONG, action="signal-term" if n == 2 else "") for n in range(1, 30)]
        one.take(Fleet(hosts, specs, tuple(reversed(told))), at(40))
        chapters.append(one)
    ask = (
        "export STOKER_URL=http://127.0.0.1:33045",
        "export STOKER_TOKEN_FILE=/tmp/stoker-demo-pefp0f0c/data/token",
        ".venv/bin/stoker get   (describe host gpu-1, events -e)   Ctrl-C here ends it",
    )
    return Scene(
        "4 simulated hosts, 32 cards  http://127.0.0.1:33045", 75.0, Fleet(hosts, specs, ()), chapters, "Now.", ask
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (140, 40), (110, 34)])
def test_the_picture_fits_the_window(width: int, height: int) -> None:
    console = Console(width=width, height=height, record=True, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(_scene())
    lines = console.export_text().rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    text = "\n".join(lines)
    for word in ("gpu-1", "gpu-4", "5 crash", "1.00 s", "not yet", "pid 7 is killed", "> ", "Now.", "75.0 s"):
        assert word in text, f"{word} in\n{text}"
    for word in (*(line for line in _scene().ask), "O leftover", "F foreign work", "? not known"):
        assert any(word in line for line in lines), f"{word} in\n{text}"
    assert "\x1b" not in text


def test_every_owner_that_the_daemon_tells_has_its_letter() -> None:
    letters = {owner: holder(owner) for owner in get_args(Owner)}
    assert letters == {"unknown": "?", "managed": "?", "orphan-proven": "O", "orphan-likely": "O", "foreign": "F"}


def test_a_suspended_spec_that_has_generated_is_drawn_as_serving() -> None:
    for available, letter in (("True", "S"), ("Unknown", "L"), ("False", "L")):
        one = spec("deepseek", "gpu-1", [0], said("Ready", "Unknown", reason="Suspended"))
        one["spec"]["suspend"] = True
        one["status"]["conditions"].append(said("Available", available, reason="Suspended"))
        assert (
            Fleet({"gpu-1": host("gpu-1", said("Clean", "True"), cards=1)}, {"deepseek": one}, ()).cards("gpu-1")
            == letter
        )


def test_one_field_differs_and_two_differ() -> None:
    for count, words in ((1, ", 1 field differs"), (2, ", 2 fields differ")):
        one = fleet(drift=[{"field": "argv"}] * count)
        assert words in _drawn(replace(_scene(), fleet=one, chapters=()))


def test_a_star_is_explained_where_one_stands() -> None:
    assert "after its end" not in _drawn(_scene())
    lasting = Chapter(1, fault(end=lambda: "it ends", hold_s=5), BEGAN, {})
    assert "* after its end" in _drawn(replace(_scene(), chapters=[lasting]))


def test_the_screen_keeps_the_last_fleet_while_the_demo_ends() -> None:
    console = Console(width=110, height=34, file=io.StringIO(), force_terminal=True)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        shown = Screen(live)
        shown.show(_scene(), ())
        shown.say("ending")
        console.file = kept = io.StringIO()
        live.refresh()
    for word in ("gpu-4", "75.0 s", "ending", "export STOKER_URL"):
        assert word in kept.getvalue()


def _drawn(scene: Scene) -> str:
    console = Console(width=110, height=34, record=True, file=io.StringIO(), force_terminal=True)
    console.print(scene)
    return console.export_text()


def test_each_card_is_told_by_who_holds_it() -> None:
    fleet = _scene().fleet
    assert fleet is not None
    assert [fleet.cards(name) for name in fleet.hosts] == ["SSSSSSSS", "SSSSSSSS", "LLLLSSSS", "SSS.-OFF"]


@pytest.mark.parametrize("count", [1, 4, 6])
def test_every_manifest_of_the_fleet_is_good_and_more_hosts_get_copies_of_their_own(count: int) -> None:
    doors = {f"gpu-{n}": {"address": "127.0.0.1", "port": 4000 + n, "user": "root"} for n in range(1, count + 1)}
    made = list(documents(FOLDER, doors))
    names = [(kind, name) for kind, name, _ in made]
    assert len(set(names)) == len(names)
    assert [name for kind, name in names if kind == "hosts"] == list(doors)
    for _, name, document in made:
        parse_manifest(document)
        assert document["metadata"]["name"] == name
    for kind, name, document in made:
        if kind == "hosts":
            assert document["spec"]["mode"] == "enforce"
            assert document["spec"]["ssh"]["port"] == doors[name]["port"]
        else:
            assert json.dumps(document).count('"host": "gpu-') >= 1
    placed = {host for _, _, d in made for host in doors if f'"host": "{host}"' in json.dumps(d)}
    assert placed == set(doors)


def test_hosts_of_the_files_alone_are_only_observed_and_lead_nowhere() -> None:
    text = (FOLDER / "hosts.yaml").read_text()
    assert "mode:" not in text.replace("`mode: enforce`", "")
    assert text.count("address: 127.0.0.1") == text.count("kind: Host")


def test_every_fault_happens_to_something_that_is_declared() -> None:
    made = {
        name: json.dumps(document) for kind, name, document in documents(FOLDER, {f"gpu-{n}": {} for n in range(1, 5)})
    }
    for kind in KINDS.values():
        assert f'"host": "{kind.host}"' in made[kind.spec]


def test_every_fault_is_told_by_reasons_that_the_daemon_has() -> None:
    assert all(kind.tells and set(kind.tells) <= set(Reason) for kind in KINDS.values())


def test_the_manifests_are_where_the_code_expects_them() -> None:
    assert Path("manifests/demo") == FOLDER.relative_to(Path(__file__).parents[2])
