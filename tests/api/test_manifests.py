"""Every manifest that comes with the product is admitted, in the order in which the command line sends them."""

from __future__ import annotations

from pathlib import Path

from api.cli.files import read_all
from tests.api.api_stage import Api

ROOT = Path(__file__).parents[2]


async def test_all_manifests_are_admitted(api: Api) -> None:
    found = read_all([str(ROOT / "manifests")])
    assert {(item.kind, item.name) for item in found} >= {
        ("hosts", "ct129"),
        ("servingspecs", "eagle"),
        ("servingspecs", "chat-pd"),
        ("servingspecs", "k26-ddtree"),
    }
    for item in found:
        answer = await api.put(item.document)
        assert answer.status_code == 201, f"{item.origin}: {answer.text}"


async def test_hosts_of_the_manifests_are_only_observed() -> None:
    found = read_all([str(ROOT / "manifests" / "hosts")])
    assert all(item.document["spec"]["mode"] == "observe" for item in found)


def test_sudoers_names_the_helper_and_nothing_else() -> None:
    text = (ROOT / "manifests/systemd/sudoers.stoker").read_text()
    rules = [line for line in text.splitlines() if "NOPASSWD" in line]
    assert rules == ["stoker ALL=(root) NOPASSWD: /var/lib/stoker/stoker-host"]
