"""What the demo's daemon says, read over its REST API, and how one card of the practice fleet is told from it.

Called by the demo's story and screens. It concludes nothing that the daemon did not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.cli.describe import placements
from api.client import Client

EVENTS_READ = 200
SERVING, LOADING, DOWN, ORPHAN, FOREIGN, FREE, UNSEEN = "S", "L", "-", "O", "F", ".", "?"
_HELD = re.compile(r" holds ([^:]*):")
_GPU = re.compile(r"GPU (\d+)")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything at one instant. `events` are the last ones, newest first."""

    hosts: dict[str, dict[str, Any]]
    specs: dict[str, dict[str, Any]]
    events: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, client: Client) -> Fleet:
        """Ask the daemon. Blocks. Raises: Unreachable, Refused."""
        hosts = {item["metadata"]["name"]: item for item in client.objects("hosts")}
        specs = {item["metadata"]["name"]: item for item in client.objects("servingspecs")}
        return cls(hosts, specs, tuple(client.events(limit=EVENTS_READ)))

    def instances(self, spec: str) -> list[dict[str, Any]]:
        """The spec's instances as last seen; none before the first look."""
        found: list[dict[str, Any]] = self.specs[spec]["status"].get("instances", []) if spec in self.specs else []
        return found

    def quiet(self) -> bool:
        """Whether every spec generates, nothing differs and no host has a complaint."""
        return bool(self.specs) and all(map(self.serves, self.specs)) and all(map(self.clean, self.hosts))

    def serves(self, spec: str) -> bool:
        """Whether the spec is Ready, and its instances are as declared."""
        drift = [field for instance in self.instances(spec) for field in instance.get("drift", [])]
        return str(condition(self.specs.get(spec), "Ready")["status"]) == "True" and not drift

    def serves_suspended(self, spec: str) -> bool:
        """Whether the spec is suspended, which leaves its Ready open, and what runs of it has generated."""
        one = self.specs.get(spec)
        suspended = one is not None and bool(one["spec"].get("suspend"))
        return suspended and str(condition(one, "Available")["status"]) == "True"

    def clean(self, host: str) -> bool:
        """Whether nobody holds what a spec needs there."""
        return str(condition(self.hosts.get(host), "Clean")["status"]) == "True"

    def cards(self, host: str) -> str:
        """One letter for each card."""
        gpus = self.hosts[host]["status"].get("gpus")
        if not isinstance(gpus, list):
            return UNSEEN * int(self.hosts[host]["spec"].get("gpus", {}).get("count", 0))
        letters = {int(gpu["index"]): FREE for gpu in gpus}
        for index, letter in (*self._placed(host), *self._strays(host)):
            if index in letters:
                letters[index] = letter
        return "".join(letters[index] for index in sorted(letters))

    def _placed(self, host: str) -> Iterator[tuple[int, str]]:
        for name, spec in self.specs.items():
            said = {instance["role"]: instance for instance in self.instances(name)}
            for role, where, gpus, _ in placements(spec["spec"]):
                if where == host and gpus != "none":
                    letter = _letter(said.get(role, {}), self.serves(name) or self.serves_suspended(name))
                    yield from ((int(index), letter) for index in gpus.split(","))

    def _strays(self, host: str) -> Iterator[tuple[int, str]]:
        for stray in self.hosts[host]["status"].get("strays", []):
            held = _HELD.search(stray.get("what", ""))
            letter = holder(str(stray.get("owner")))
            yield from ((int(index), letter) for index in _GPU.findall(held[1] if held else ""))


def holder(owner: str) -> str:
    """The letter of a card that a stray of this owner holds; who is not known yet is not called foreign."""
    if owner.startswith("orphan"):
        return ORPHAN
    return FOREIGN if owner == "foreign" else UNSEEN


def _letter(instance: dict[str, Any], serves: bool) -> str:
    """A role that cannot generate alone serves when its whole spec does."""
    active = str(instance.get("active", "")).startswith("active/")
    if instance.get("ready") == "True" or (serves and active):
        return SERVING
    return LOADING if active else DOWN


def condition(item: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """One condition of an object; Unknown before its first look."""
    found = item["status"].get("conditions", []) if item is not None else []
    unknown = {"type": kind, "status": "Unknown", "reason": "NotObservedYet", "message": ""}
    return next((said for said in found if said["type"] == kind), unknown)


def instant(stamp: str) -> datetime:
    """A time as the API writes it."""
    return datetime.fromisoformat(stamp)
