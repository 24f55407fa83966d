"""The helper's request read, and its answer framed, to the byte as `stoker-host` does. Used by every verb."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

VERSION = 3
MAX_SECTION = 4194304
USAGE, GROUND, FENCED, HELD, IMPOSSIBLE = 64, 75, 76, 77, 78
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]*\.service")
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_NONCE = re.compile(r"[0-9a-f]{32}")
Sections = dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command wrote and how it ended. `took_s` is how long the host would have needed for it."""

    exit_status: int
    stdout: bytes
    stderr: bytes
    took_s: float = 0.0


class Refused(Exception):
    """The verb ends here, with this exit status, this text and these sections beside it."""

    def __init__(self, exit_status: int, text: str, sections: Sections | None = None) -> None:
        super().__init__(text)
        self.exit_status, self.text, self.sections = exit_status, text, sections or {}


@dataclass(slots=True)
class Asked:
    """A request's lines, as the helper keeps them, and the bytes that followed."""

    verb: str
    nonce: str
    rest: bytes = b""
    units: list[str] = field(default_factory=list)
    dropins: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        return self.units[-1] if self.units else ""

    def value(self, key: str, default: str = "") -> str:
        return self.values.get(key, default)

    def number(self, key: str, default: int = 0) -> int:
        return int(self.values.get(key, str(default)))


_NUMBERS = {
    "port": 5,
    "lines": 5,
    "timeout-s": 4,
    "whole-table": 9,
    "leftovers": 9,
    "limit-ms": 9,
    "body": 9,
    "gate": 9,
}
_PLAIN = (
    "fence",
    "expected",
    "boot",
    "path",
    "ground",
    "ground-invocation",
    "ground-state",
    "signal",
    "url-path",
    "python",
)
_LISTS = {"unit": "units", "dropin": "dropins", "port": "ports", "env": "names", "env-prefix": "prefixes",
          "target": "targets", "header": "headers", "key-header": "headers", "unusable": "unusable"}  # fmt: skip
_SAME = {"ground-invocation": "ground", "ground-state": "state"}
_WORDS = {
    "env": (r"[A-Za-z0-9_]{1,128}", "not a name"),
    "env-prefix": (r"[A-Za-z0-9_]{1,128}", "not a name"),
    "unusable": (r"[A-Za-z0-9-]{1,64}", "not a card"),
    "invocation": (r"[0-9a-f]{1,32}", "not an invocation"),
    "method": (r"[A-Z]{1,16}", "not a method"),
    "address": (r"[A-Za-z0-9.:-]{1,253}", "not an address"),
}


def nonce_of(stdin: bytes) -> str:
    """The nonce of a request. Raises ValueError with what the helper says on standard error."""
    line, newline, _ = stdin.partition(b"\n")
    if not newline:
        raise ValueError("no request")
    word, space, nonce = line.decode("utf-8", "replace").partition(" ")
    if word != "nonce" or not space or not _NONCE.fullmatch(nonce):
        raise ValueError("no nonce")
    return nonce


def read(verb: str, stdin: bytes) -> Asked:
    """The whole request. Raises ValueError as `nonce_of`, Refused on the first line that is wrong."""
    asked = Asked(verb, nonce_of(stdin))
    rest = stdin.partition(b"\n")[2]
    while True:
        raw, newline, rest = rest.partition(b"\n")
        if not newline:
            raise Refused(USAGE, "the request was cut")
        line = raw.decode("utf-8", "surrogateescape")
        if line == ".":
            asked.rest = rest
            return asked
        key, _, value = line.partition(" ")
        _take(asked, key, value)


def _take(asked: Asked, key: str, value: str) -> None:
    if key in ("unit", "dropin"):
        _check(len(value) <= 200 and _UNIT.fullmatch(value), "not a unit name")
    elif key in _NUMBERS:
        _check(len(value) <= _NUMBERS[key] and _NUMBER.fullmatch(value), f"{key}: not a number")
    elif key in _WORDS:
        _check(re.fullmatch(_WORDS[key][0], value), _WORDS[key][1])
    elif key not in _PLAIN and key not in _LISTS:
        raise Refused(USAGE, "unknown key")
    if key in _LISTS:
        getattr(asked, _LISTS[key]).append(value)
    asked.values[_SAME.get(key, key)] = value


def _check(right: object, wrong: str) -> None:
    if not right:
        raise Refused(USAGE, wrong)


def one_line(text: str) -> bytes:
    """An error as the helper prints it: breaks become spaces, the last one included."""
    return (text + "\n").translate(str.maketrans("\n\r\0", "   ")).encode("utf-8", "surrogateescape")


def framed(
    nonce: str,
    verb: str,
    exit_status: int,
    sections: Sections,
    took_ms: dict[str, int] | None = None,
    version: int = VERSION,
) -> bytes:
    """The answer. A section that is too long loses its data and says 27. Older helpers told no sum."""
    mark = f"@{nonce} ".encode()
    parts = [mark + f"begin {verb} {version}\n".encode()]
    for name, (code, data) in sections.items():
        status, body = (27, b"") if len(data) > MAX_SECTION else (code, data)
        ms = (took_ms or {}).get(name, 0)
        parts.append(mark + f"section {name} exit={status} ms={ms} bytes={len(body)}\n".encode() + body + b"\n")
    said = b"".join(parts) + mark + f"end exit={exit_status}\n".encode()
    if version < VERSION:
        return said
    return said + mark + f"sum {hashlib.sha256(said).hexdigest()}\n".encode()
