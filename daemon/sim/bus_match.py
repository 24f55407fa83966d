"""D-Bus match rules, as a bus applies them: what AddMatch is given, and whether a signal passes.

Called by `bus`. Pure. The keys are those of the D-Bus Specification 0.43, "Match Rules"; eavesdropping is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_PAIR = re.compile(r"\s*([a-z_]+[0-9]*(?:path|namespace)?)=((?:'[^']*'|\\'|[^,'])*)(?:,|$)")
_KEYS = ("type", "sender", "interface", "member", "path", "path_namespace", "destination")
_ARG = re.compile(r"arg([0-9]|[1-5][0-9]|6[0-3])$")
_NAMES = {"org.freedesktop.systemd1": ":1.0"}


@dataclass(frozen=True, slots=True)
class Match:
    """One rule: every pair must hold."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def parsed(cls, text: str) -> Match:
        """The rule as AddMatch gets it. Raises: ValueError."""
        at, pairs = 0, list[tuple[str, str]]()
        while at < len(text):
            found = _PAIR.match(text, at)
            if found is None:
                raise ValueError(f"cannot read the match rule at {text[at : at + 40]!r}")
            pairs.append((found[1], _unquoted(found[2])))
            at = found.end()
        for key, value in pairs:
            if key not in _KEYS and not _ARG.match(key):
                raise ValueError(f"unknown key {key} in the match rule")
            if key == "type" and value not in ("signal", "method_call", "method_return", "error"):
                raise ValueError(f"unknown message type {value}")
        return cls(tuple(sorted(pairs)))

    def takes(self, sender: str, path: str, interface: str, member: str, body: Sequence[Any]) -> bool:
        """Whether a signal of that sender passes."""
        shown = {"type": "signal", "sender": sender, "path": path, "interface": interface, "member": member}
        return all(_holds(key, value, shown, body) for key, value in self.pairs)


def _unquoted(value: str) -> str:
    return value.replace("\\'", "\0").replace("'", "").replace("\0", "'")


def _holds(key: str, value: str, shown: dict[str, str], body: Sequence[Any]) -> bool:
    match key:
        case "sender":
            return _NAMES.get(value, value) == shown["sender"]
        case "path_namespace":
            return value == "/" or shown["path"] == value or shown["path"].startswith(f"{value}/")
        case "destination":
            return False  # a signal to all has none
        case _ if (arg := _ARG.match(key)) is not None:
            at = int(arg[1])
            return at < len(body) and isinstance(body[at], str) and body[at] == value
        case _:
            return shown[key] == value
